// The kitchen for servers of both npm generations: the same names as in `kitchen.py`. What differs between
// the generations comes in as `house`: classes, how a call sees its client, and who is told of changes.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

import * as z from 'zod';

const PIXEL = Buffer.from('89504e470d0a1a0a0000000d49484452', 'hex').toString('base64');
const NAMES = ['ann', 'anton', 'bob'];

export const INFO = { name: 'kitchen', version: '1.0' };
export const OPTIONS = {
    instructions: 'Order something.',
    capabilities: { logging: {}, tools: { listChanged: true }, resources: { subscribe: true } },
};

// What all servers of this process share: in the stateless era there is one for each request.
const dropped = [];
const runs = {};
let extras = 0;
let spoiled = false;

const sleep = (ms, signal) =>
    new Promise((done, fail) => {
        const timer = setTimeout(done, ms);
        signal?.addEventListener('abort', () => {
            clearTimeout(timer);
            fail(new Error('cancelled'));
        });
    });
const text = said => ({ content: [{ type: 'text', text: said }] });
const ran = key => {
    runs[key] = (runs[key] ?? 0) + 1;
    return () => text(`run ${runs[key]}`);
};
const starting = value => NAMES.filter(name => name.startsWith(value));

// name → description, parameters, output, what it does with its arguments and its call
const tools = house => ({
    add: ['Add two numbers.', { a: z.number().int(), b: z.number().int() }, { result: z.number() }, ({ a, b }) => ({
        ...text(String(a + b)),
        structuredContent: { result: a + b },
    })],
    order: [
        'Order a dish.',
        { dish: z.string(), portions: z.number().int().default(1) },
        { dish: z.string(), portions: z.number().int() },
        order => ({ ...text(JSON.stringify(order)), structuredContent: order }),
    ],
    echo: ['Say the same.', { text: z.string() }, undefined, args => text(args.text)],
    media: ['A picture.', {}, undefined, () => ({
        content: [{ type: 'image', data: PIXEL, mimeType: 'image/png' }],
    })],
    fail: ['Fail.', {}, undefined, () => {
        throw new Error('the oven is off');
    }],
    count: ['Count, with progress and a log.', { to: z.number().int() }, undefined, async ({ to }, call) => {
        for (let n = 1; n <= to; n += 1) await call.progress(n, to, `at ${n}`);
        await call.log('info', 'counted');
        await call.log('warning', { counted: to });
        return text('done');
    }],
    slow: ['Wait until somebody cancels.', {}, undefined, async (_, call) => {
        await sleep(3_600_000, call.signal).catch(() => dropped.push('slow'));
        return text('never');
    }],
    cancelled: ['How many calls were cancelled.', {}, undefined, () => text(String(dropped.length))],
    pause: ['Let the client come back for the answer.', { key: z.string() }, undefined, async ({ key }, call) => {
        const answer = ran(key);
        call.closeStream();
        return answer();
    }],
    hold: ['Give somebody time to cut the connection.', { key: z.string() }, undefined, async ({ key }, call) => {
        const answer = ran(key);
        await call.progress(1, 2);
        await sleep(500);
        await call.progress(2, 2);
        return answer();
    }],
    ask_user: ['Ask the user what they want.', {}, undefined, (_, call) =>
        call.ask(
            'elicitation/create',
            {
                message: 'What shall it be?',
                requestedSchema: {
                    type: 'object',
                    properties: { dish: { type: 'string' }, portions: { type: 'integer' } },
                    required: ['dish', 'portions'],
                },
            },
            ({ content }) => text(`${content.portions} x ${content.dish}`),
        )],
    ask_model: ["Ask the client's model.", {}, undefined, (_, call) =>
        call.ask(
            'sampling/createMessage',
            {
                messages: [{ role: 'user', content: { type: 'text', text: 'What is good today?' } }],
                maxTokens: 100,
                systemPrompt: 'Be brief.',
            },
            ({ content }) => text(content.text),
        )],
    ask_roots: ["Ask for the client's roots.", {}, undefined, (_, call) =>
        call.ask('roots/list', undefined, ({ roots }) => text(roots.map(root => root.uri).join(' ')))],
    grow: ['Offer one tool more.', {}, undefined, (_, call) => {
        extras += 1;
        house.extra(call.server);
        house.toolsChanged(call.server);
        return text('grown');
    }],
    touch: ['Say that the configuration has changed.', {}, undefined, async (_, call) => {
        await house.resourceUpdated(call.server, 'config://app');
        return text('touched');
    }],
    touch_tools: ['Say that the list of tools has changed.', {}, undefined, (_, call) => {
        house.toolsChanged(call.server);
        return text('touched');
    }],
    deliver: [
        'Deliver something; where to is in headers too.',
        {
            place: z.string().meta({ 'x-mcp-header': 'Place' }),
            floor: z.number().int().meta({ 'x-mcp-header': 'Floor' }),
            fragile: z.boolean().meta({ 'x-mcp-header': 'Fragile' }),
        },
        undefined,
        ({ place, floor, fragile }) => text(fragile ? `${place} ${floor}` : 'thrown'),
    ],
    spoil: ['Offer a tool that nobody can call over HTTP.', {}, undefined, () => {
        spoiled = true;
        return text('spoiled');
    }],
    ...(spoiled && {
        misdeliver: [
            'Deliver it wrongly.',
            { place: z.string().meta({ 'x-mcp-header': 'no header' }) },
            undefined,
            () => text('thrown'),
        ],
    }),
});

export function furnish(server, house) {
    for (const [name, [description, input, output, run]] of Object.entries(tools(house))) {
        const outputSchema = output && z.object(output);
        server.registerTool(
            name,
            { description, inputSchema: z.object(input), ...(outputSchema && { outputSchema }) },
            async (args, context) => run(args, house.call(server, context)),
        );
    }
    const more = { description: 'One more.', inputSchema: z.object({}) };
    const extra = () => server.registerTool('extra', more, async () => text('extra'));
    if (extras) extra();
    house.extra = once(extra, extras > 0);

    server.registerResource('config', 'config://app', { mimeType: 'application/json' }, async uri => ({
        contents: [{ uri: uri.href, mimeType: 'application/json', text: '{"heat": 3}' }],
    }));
    server.registerResource('logo', 'logo://png', { mimeType: 'image/png' }, async uri => ({
        contents: [{ uri: 'logo://png', mimeType: 'image/png', blob: PIXEL }],
    }));
    const profile = new house.ResourceTemplate('users://{name}/profile', {
        list: undefined,
        complete: { name: starting },
    });
    server.registerResource('profile', profile, { mimeType: 'text/plain' }, async (uri, { name }) => ({
        contents: [{ uri: uri.href, mimeType: 'text/plain', text: `profile of ${name}` }],
    }));
    const argsSchema = {
        name: house.completable(z.string(), starting),
        mood: z.string().optional(),
    };
    server.registerPrompt(
        'greet',
        { description: 'Greet somebody.', argsSchema: house.shape(argsSchema) },
        async ({ name, mood = 'good' }) => ({
            messages: [{ role: 'user', content: { type: 'text', text: `Hello ${name}, in a ${mood} mood` } }],
        }),
    );
    return server;
}

function once(act, done) {
    return () => {
        if (!done) act();
        done = true;
    };
}

// Events of streams, for clients that come back to one.
export class Events {
    events = [];

    async storeEvent(stream, message) {
        this.events.push({ stream, message });
        return String(this.events.length);
    }

    async replayEventsAfter(last, { send }) {
        const { stream } = this.events[last - 1];
        for (let n = Number(last); n < this.events.length; n += 1) {
            const event = this.events[n];
            // What primes a stream is kept by the SDK as a message that says nothing.
            if (event.stream === stream && event.message.jsonrpc) await send(String(n + 1), event.message);
        }
        return stream;
    }
}

// Sessions of Streamable HTTP: each has a transport and a server of its own.
export function sessions(Transport, connect) {
    const open = new Map();
    return async (request, response) => {
        const id = request.headers['mcp-session-id'];
        let transport = open.get(id);
        if (id && !transport) {
            response.writeHead(404, { 'content-type': 'application/json' });
            response.end('{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}');
            return;
        }
        if (!transport) {
            transport = new Transport({
                sessionIdGenerator: randomUUID,
                eventStore: new Events(),
                retryInterval: 100,
                onsessioninitialized: opened => void open.set(opened, transport),
                onsessionclosed: closed => void open.delete(closed),
            });
            await connect(transport);
        }
        await transport.handleRequest(request, response);
    };
}

export function listen(handle) {
    const server = createServer((request, response) => {
        handle(request, response).catch(error => {
            console.error(error);
            response.destroy();
        });
    });
    server.listen(0, '127.0.0.1', () => console.log(`kitchen serves at http://127.0.0.1:${server.address().port}`));
}
