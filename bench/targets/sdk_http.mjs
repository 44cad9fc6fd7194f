// npm's @modelcontextprotocol/sdk 1.x over HTTP, as its examples do it: `sdk_http.mjs PORT json|sse [TOOLS]`.

import { randomUUID } from 'node:crypto';

import { createMcpExpressApp } from '@modelcontextprotocol/sdk/server/express.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';

import { furnish } from './sdk_tools.mjs';

const [, , port, mode, tools = 0] = process.argv;
const sessions = new Map();
const app = createMcpExpressApp();

app.post('/mcp', async (request, response) => {
    let transport = sessions.get(request.headers['mcp-session-id']);
    if (!transport) {
        transport = new StreamableHTTPServerTransport({
            sessionIdGenerator: randomUUID,
            enableJsonResponse: mode === 'json',
            onsessioninitialized: id => void sessions.set(id, transport),
        });
        await furnish(Number(tools)).connect(transport);
    }
    await transport.handleRequest(request, response, request.body);
});

app.listen(Number(port), '127.0.0.1');
