// The tools that are called, made with npm's @modelcontextprotocol/server 2.x.

import { McpServer } from '@modelcontextprotocol/server';
import * as z from 'zod';

const shape = {
    inputSchema: z.object({ a: z.int(), b: z.int() }),
    outputSchema: z.object({ result: z.int() }),
};

async function add({ a, b }) {
    const output = { result: a + b };
    return { content: [{ type: 'text', text: JSON.stringify(output) }], structuredContent: output };
}

async function one(given, { mcpReq }) {
    const { progressToken } = mcpReq._meta ?? {};
    await mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress: 1, total: 2 } });
    return add(given);
}

export function furnish(tools) {
    const server = new McpServer({ name: 'bench', version: '1' });
    server.registerTool('add', { description: 'Add two numbers.', ...shape }, add);
    server.registerTool('one', { description: 'Add two numbers, and report progress once before.', ...shape }, one);
    for (let n = 2; n < tools; n += 1) {
        server.registerTool(`tool_${n}`, { description: 'Add two numbers.', ...shape }, add);
    }
    return server;
}
