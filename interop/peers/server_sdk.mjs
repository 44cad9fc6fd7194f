// The kitchen as a server of npm's @modelcontextprotocol/sdk 1.x. Its argument is stdio, http or sse.

import { completable } from '@modelcontextprotocol/sdk/server/completable.js';
import { McpServer, ResourceTemplate } from '@modelcontextprotocol/sdk/server/mcp.js';
import { SSEServerTransport } from '@modelcontextprotocol/sdk/server/sse.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
    CreateMessageResultSchema,
    ElicitResultSchema,
    ListRootsResultSchema,
    SubscribeRequestSchema,
    UnsubscribeRequestSchema,
} from '@modelcontextprotocol/sdk/types.js';

import { INFO, OPTIONS, furnish, listen, sessions } from './kitchen.mjs';

const RESULTS = {
    'elicitation/create': ElicitResultSchema,
    'sampling/createMessage': CreateMessageResultSchema,
    'roots/list': ListRootsResultSchema,
};

const house = () => ({
    ResourceTemplate,
    completable,
    shape: shape => shape,
    toolsChanged: server => server.sendToolListChanged(),
    resourceUpdated: (server, uri) => server.server.sendResourceUpdated({ uri }),
    call: (server, extra) => ({
        server,
        signal: extra.signal,
        progress: async (progress, total, message) => {
            const { progressToken } = extra._meta ?? {};
            if (progressToken === undefined) return;
            const params = { progressToken, progress, total, message };
            await extra.sendNotification({ method: 'notifications/progress', params });
        },
        log: (level, data) => server.sendLoggingMessage({ level, data }, extra.sessionId),
        closeStream: () => extra.closeSSEStream?.(),
        ask: async (method, params, then) => then(await extra.sendRequest({ method, params }, RESULTS[method])),
    }),
});

async function connect(transport) {
    const server = furnish(new McpServer(INFO, OPTIONS), house());
    server.server.setRequestHandler(SubscribeRequestSchema, () => ({}));
    server.server.setRequestHandler(UnsubscribeRequestSchema, () => ({}));
    await server.connect(transport);
}

const streams = new Map();

async function events(request, response) {
    const url = new URL(request.url, 'http://localhost');
    if (request.method === 'GET' && url.pathname === '/sse') {
        const transport = new SSEServerTransport('/messages', response);
        streams.set(transport.sessionId, transport);
        response.on('close', () => streams.delete(transport.sessionId));
        await connect(transport);
        return;
    }
    const transport = url.pathname === '/messages' && streams.get(url.searchParams.get('sessionId'));
    if (transport) await transport.handlePostMessage(request, response);
    else response.writeHead(404).end('there is nothing here');
}

const [, , over] = process.argv;
if (over === 'stdio') await connect(new StdioServerTransport());
else listen(over === 'http' ? sessions(StreamableHTTPServerTransport, connect) : events);
