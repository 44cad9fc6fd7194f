// The kitchen as a server of npm's @modelcontextprotocol/server 2.x. Its argument is stdio, http or alone: what
// their handler does when nobody adds sessions for older clients.

import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import {
    McpServer,
    ResourceTemplate,
    completable,
    createMcpHandler,
    inputRequired,
} from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import * as z from 'zod';

import { INFO, OPTIONS, furnish, listen, sessions } from './kitchen.mjs';

// Changes reach those who listen over HTTP in the stateless era through the handler, all others through their
// server.
let published;

const house = () => ({
    ResourceTemplate,
    completable,
    shape: shape => z.object(shape),
    toolsChanged: server => {
        published?.toolsChanged();
        server.sendToolListChanged();
    },
    resourceUpdated: async (server, uri) => {
        published?.resourceUpdated(uri);
        await server.server.sendResourceUpdated({ uri });
    },
    call: (server, { mcpReq, http }) => ({
        server,
        signal: mcpReq.signal,
        progress: async (progress, total, message) => {
            const { progressToken } = mcpReq._meta ?? {};
            if (progressToken === undefined) return;
            const params = { progressToken, progress, total, message };
            await mcpReq.notify({ method: 'notifications/progress', params });
        },
        log: (level, data) => mcpReq.log(level, data),
        closeStream: () => http?.closeSSE?.(),
        ask: (method, params, then) => {
            const answer = mcpReq.inputResponses?.answer;
            return answer ? then(answer) : inputRequired({ inputRequests: { answer: { method, params } } });
        },
    }),
});

function build() {
    const server = furnish(new McpServer(INFO, OPTIONS), house());
    server.server.setRequestHandler('resources/subscribe', () => ({}));
    server.server.setRequestHandler('resources/unsubscribe', () => ({}));
    return server;
}

const [, , over] = process.argv;
if (over === 'stdio') serveStdio(build);
else if (over === 'alone') listen(toNodeHandler(createMcpHandler(build)));
else {
    const handler = createMcpHandler(build, { legacy: 'reject' });
    published = handler.notify;
    const modern = toNodeHandler(handler);
    const legacy = sessions(NodeStreamableHTTPServerTransport, transport => build().connect(transport));
    listen(async (request, response) => {
        const revision = request.headers['mcp-protocol-version'] ?? '';
        await (revision >= '2026' ? modern : legacy)(request, response);
    });
}
