// npm's @modelcontextprotocol/server 2.x over HTTP: `server_http.mjs PORT json|sse [TOOLS]`.
// Its handler for 2026-07-28, and sessions for older clients, as its documentation has them.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler } from '@modelcontextprotocol/server';

import { furnish } from './server_tools.mjs';

const [, , port, mode, tools = 0] = process.argv;
const sessions = new Map();
const modern = toNodeHandler(createMcpHandler(() => furnish(Number(tools)), { legacy: 'reject' }));

async function legacy(request, response) {
    let transport = sessions.get(request.headers['mcp-session-id']);
    if (!transport) {
        transport = new NodeStreamableHTTPServerTransport({
            sessionIdGenerator: randomUUID,
            enableJsonResponse: mode === 'json',
            onsessioninitialized: id => void sessions.set(id, transport),
        });
        await furnish(Number(tools)).connect(transport);
    }
    await transport.handleRequest(request, response);
}

createServer((request, response) => {
    const revision = request.headers['mcp-protocol-version'] ?? '';
    (revision >= '2026' ? modern : legacy)(request, response);
}).listen(Number(port), '127.0.0.1');
