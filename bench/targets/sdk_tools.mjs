// The tools that are called, made with npm's @modelcontextprotocol/sdk 1.x.

import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import * as z from 'zod/v4';

const shape = { inputSchema: { a: z.int(), b: z.int() }, outputSchema: { result: z.int() } };

async function add({ a, b }) {
    const output = { result: a + b };
    return { content: [{ type: 'text', text: JSON.stringify(output) }], structuredContent: output };
}

async function one(given, extra) {
    const { progressToken } = extra._meta ?? {};
    const params = { progressToken, progress: 1, total: 2 };
    await extra.sendNotification({ method: 'notifications/progress', params });
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
