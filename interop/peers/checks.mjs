// What the Node clients of others try on our kitchen; `contract.py` is the same for Python.
// Both generations of the client have the same methods; what differs is in the adapter: how handlers are set
// and how lists are watched. Prints a plan, then one JSON object per case.

import assert from 'node:assert/strict';

const ODD = 'grüße, 世界 🍲 \u2028 \\ " \t\r\n\x7f';
const LOG_LEVEL = 'io.modelcontextprotocol/logLevel';
const sleep = ms => new Promise(done => setTimeout(done, ms));
const say = told => process.stdout.write(JSON.stringify(told) + '\n');
const text = result => result.content.filter(block => block.type === 'text').map(block => block.text).join('\n');

export const CAPABILITIES = { sampling: {}, elicitation: {}, roots: { listChanged: true } };
export const SAMPLED = { role: 'assistant', content: { type: 'text', text: 'the soup' }, model: 'cook-1' };
export const ELICITED = { action: 'accept', content: { dish: 'soup', portions: 2 } };

// What the user puts into a form.
function elicited({ requestedSchema }) {
    const { value } = requestedSchema.properties;
    return value ? { action: 'accept', content: { value: value.type === 'integer' ? 3 : 'art' } } : ELICITED;
}
export const ROOTS = { roots: [{ uri: 'file:///kitchen' }] };

export async function eventually(there, what) {
    for (let n = 0; n < 500; n += 1) {
        if (there()) return;
        await sleep(10);
    }
    throw new Error(`there was no ${what}`);
}

async function refusal(request) {
    let result;
    try {
        result = await request;
    } catch (error) {
        return error.code;
    }
    throw new Error(`it was not refused: ${JSON.stringify(result)}`);
}

// Page by page, by cursor: the newer client turns all pages itself when it is given none.
async function all(list, member) {
    const found = [];
    let cursor;
    do {
        const page = await list(cursor === undefined ? undefined : { cursor });
        found.push(...page[member]);
        cursor = page.nextCursor;
    } while (cursor !== undefined);
    return found;
}

const byName = (items, key = 'name') => Object.fromEntries(items.map(item => [item[key], item]));

// Has all connections cut when the first progress comes.
function cutting() {
    const seen = [];
    const onprogress = ({ progress }) => {
        seen.push(progress);
        if (seen.length === 1) say({ cut: true });
    };
    return { seen, onprogress };
}

// There is no way for an answer, and results could not ask for input yet.
async function refusedAsks(peer) {
    for (const name of ['ask_model', 'ask_user', 'ask_roots']) {
        assert.equal((await peer.call(name)).isError, true);
    }
}

const WAYS = ['stdio', 'http', 'sse'];
// The last is HTTP with neither sessions nor event streams for older clients.
const EVERYWHERE = [...WAYS, 'alone'];

// what, since, era, check, over
const CASES = [
    ['introduction', '', '', async peer => {
        assert.equal(peer.client.getServerVersion().name, 'kitchen');
        assert.equal(peer.client.getServerVersion().version, '1.0');
        assert.equal(peer.client.getInstructions(), 'Order something.');
    }, EVERYWHERE],
    ['tools: list, all pages', '', '', async peer => {
        const tools = byName(await all(page => peer.client.listTools(page), 'tools'));
        assert.ok(Object.keys(tools).length >= 13, Object.keys(tools).join());
        assert.deepEqual(tools.add.inputSchema.required, ['a', 'b']);
        assert.equal(tools.order.inputSchema.properties.dish.description, 'what to eat');
        assert.equal('outputSchema' in tools.order, peer.revision >= '2025-06-18');
    }, EVERYWHERE],
    ['tools: call, text', '', '', async peer => {
        assert.equal(text(await peer.call('add', { a: 1, b: 2 })), '3');
        assert.equal(text(await peer.call('echo', { text: ODD })), ODD);
        const large = 'x'.repeat(1_000_000);
        assert.equal(text(await peer.call('echo', { text: large })), large);
    }, EVERYWHERE],
    ['tools: structured output', '2025-06-18', '', async peer => {
        const result = await peer.call('order', { dish: 'soup', portions: 2 });
        assert.deepEqual(result.structuredContent, { dish: 'soup', portions: 2 });
        assert.deepEqual(JSON.parse(text(result)), { dish: 'soup', portions: 2 });
        const number = (await peer.call('add', { a: 1, b: 2 })).structuredContent;
        assert.deepEqual(number, { result: 3 });
    }, EVERYWHERE],
    ['tools: structured output, nested', '2025-06-18', '', async peer => {
        const [soup, tea] = [{ dish: 'soup', portions: 2 }, { dish: 'tea', portions: 1 }];
        const result = await peer.call('menu', { guests: [soup, tea] });
        assert.deepEqual(result.structuredContent, { best: soup, others: [tea] });
    }, EVERYWHERE],
    ['tools: one block of each kind', '', '', async peer => {
        const kinds = (await peer.call('media')).content.map(block => block.type);
        const audio = peer.revision >= '2025-03-26' ? 'audio' : 'text';
        const link = peer.revision >= '2025-06-18' ? 'resource_link' : 'text';
        assert.deepEqual(kinds, ['image', audio, 'resource', link]);
    }, EVERYWHERE],
    ['tools: many at once', '', '', async peer => {
        const numbers = [...Array(50).keys()];
        const sums = await Promise.all(numbers.map(n => peer.call('add', { a: n, b: 1 })));
        assert.deepEqual(sums.map(text), numbers.map(n => String(n + 1)));
    }, EVERYWHERE],
    ['errors: tool fails, arguments misfit', '', '', async peer => {
        const failed = await peer.call('fail');
        assert.equal(failed.isError, true);
        assert.equal(text(failed), 'the oven is off');
        const misfit = await peer.call('order', { dish: 'soup', portions: 'many' });
        assert.equal(misfit.isError, true);
        assert.match(text(misfit), /portions/);
    }, EVERYWHERE],
    ['errors: unknown tool, resource, prompt', '', '', async peer => {
        const { client } = peer;
        assert.equal(await refusal(peer.call('nope')), -32602);
        assert.equal(await refusal(client.readResource({ uri: 'config://nope' })), peer.notFound);
        assert.equal(await refusal(client.getPrompt({ name: 'nope' })), -32602);
        assert.equal(await refusal(client.getPrompt({ name: 'greet' })), -32602);
    }, EVERYWHERE],
    ['resources: list and read', '', '', async peer => {
        const listed = byName(await all(page => peer.client.listResources(page), 'resources'), 'uri');
        assert.deepEqual(Object.keys(listed).sort(), ['config://app', 'logo://png']);
        const [config] = (await peer.client.readResource({ uri: 'config://app' })).contents;
        assert.equal(config.text, '{"heat": 3}');
        assert.equal(config.mimeType, 'application/json');
        const [logo] = (await peer.client.readResource({ uri: 'logo://png' })).contents;
        assert.ok(logo.blob.startsWith('iVBOR'));
    }, EVERYWHERE],
    ['resources: templates', '', '', async peer => {
        const [template] = await all(page => peer.client.listResourceTemplates(page), 'resourceTemplates');
        assert.equal(template.uriTemplate, 'users://{name}/profile');
        const [profile] = (await peer.client.readResource({ uri: 'users://ann/profile' })).contents;
        assert.equal(profile.text, 'profile of ann');
    }, EVERYWHERE],
    ['prompts: list and get', '', '', async peer => {
        const listed = byName(await all(page => peer.client.listPrompts(page), 'prompts'));
        assert.deepEqual(listed.greet.arguments.map(argument => argument.name), ['name', 'mood']);
        const greet = await peer.client.getPrompt({ name: 'greet', arguments: { name: 'Ann' } });
        assert.equal(greet.messages[0].content.text, 'Hello Ann, in a good mood');
        const talk = await peer.client.getPrompt({ name: 'talk', arguments: { topic: 'soup' } });
        assert.deepEqual(talk.messages.map(message => message.role), ['user', 'assistant']);
    }, EVERYWHERE],
    ['completion: prompt and template', '', '', async peer => {
        for (const ref of [
            { type: 'ref/prompt', name: 'greet' },
            { type: 'ref/resource', uri: 'users://{name}/profile' },
        ]) {
            const { completion } = await peer.client.complete({ ref, argument: { name: 'name', value: 'an' } });
            assert.deepEqual(completion.values, ['ann', 'anton']);
        }
    }, EVERYWHERE],
    ['progress', '', '', async peer => {
        const seen = [];
        const onprogress = ({ progress, total, message }) => seen.push([progress, total, message]);
        assert.equal(text(await peer.call('count', { to: 5 }, { onprogress })), 'done');
        await eventually(() => seen.length === 5, 'progress');
        // The message came with 2025-03-26; before that it is one more member, which no schema forbids.
        assert.deepEqual(seen, [1, 2, 3, 4, 5].map(n => [n, 5, `at ${n}`]));
    }],
    ['log', '', '', async peer => {
        if (!peer.stateless) await peer.client.setLoggingLevel('warning');
        peer.level = 'warning';
        peer.logs.length = 0;
        await peer.call('count', { to: 1 });
        await eventually(() => peer.logs.length > 0, 'log');
        assert.deepEqual(peer.logs.map(({ level, data }) => [level, data]), [['warning', { counted: 1 }]]);
    }],
    ['sampling', '', '', async peer => {
        peer.asked.length = 0;
        assert.equal(text(await peer.call('ask_model')), 'the soup');
        assert.equal(peer.asked[0].systemPrompt, 'Be brief.');
    }],
    ['elicitation', '2025-06-18', '', async peer => {
        peer.asked.length = 0;
        assert.equal(text(await peer.call('ask_user')), '2 x soup');
        assert.deepEqual(Object.keys(peer.asked[0].requestedSchema.properties), ['dish', 'portions']);
    }],
    ['roots', '', 'session', async peer => {
        assert.equal(text(await peer.call('ask_roots')), 'file:///kitchen');
        await peer.client.sendRootsListChanged();
    }],
    ['roots', '', 'stateless', async peer => {
        assert.equal(text(await peer.call('ask_roots')), 'file:///kitchen');
    }],
    ['an example that asks twice, books between, and asks the model', '2025-06-18', '', async peer => {
        const city = crypto.randomUUID();
        assert.match(text(await peer.call('plan_trip', { city })), /, 3 days of art: the soup$/);
        assert.equal(text(await peer.call('bookings', { city })), '1');
    }],
    ['asks without a session: a clean refusal', '', 'session', refusedAsks, ['alone']],
    ['list changed, subscription', '', '', async peer => {
        await peer.watched('config://app', async () => {
            await peer.call('touch');
            await peer.call('grow');
            await eventually(() => peer.notices.has('notifications/resources/updated'), 'update');
            await eventually(() => peer.notices.has('notifications/tools/list_changed'), 'change');
        });
    }],
    ['cancellation', '', '', async peer => {
        const before = Number(text(await peer.call('cancelled')));
        const giveUp = new AbortController();
        const call = peer.call('slow', {}, { signal: giveUp.signal }).then(() => 'answered', () => 'dropped');
        await sleep(300);
        giveUp.abort('enough');
        assert.equal(await call, 'dropped');
        for (let n = 0; n < 100; n += 1) {
            if (Number(text(await peer.call('cancelled'))) > before) return;
            await sleep(20);
        }
        throw new Error('the server did not drop the call');
    }],
    ['ping', '', 'session', async peer => {
        await peer.client.ping();
    }, EVERYWHERE],
    ['two clients at once, one hears what the other does', '', '', async peer => {
        const other = await peer.another();
        try {
            const numbers = [...Array(20).keys()];
            const add = client => numbers.map(n => client.call('add', { a: n, b: 0 }));
            const sums = await Promise.all([...add(peer), ...add(other)]);
            assert.deepEqual(sums.map(text), [...numbers, ...numbers].map(String));
            peer.notices.clear();
            await peer.watched('config://app', async () => {
                await other.call('touch');
                await other.call('grow');
                await eventually(() => peer.notices.has('notifications/resources/updated'), 'update');
                await eventually(() => peer.notices.has('notifications/tools/list_changed'), 'change');
            });
        } finally {
            await other.leave();
        }
    }, ['http', 'sse']],
    ['clients of both eras and of HTTP+SSE at once', '', 'stateless', async peer => {
        const older = await peer.another({ mode: 'legacy', over: 'http' });
        const oldest = await peer.another({ mode: 'legacy', over: 'sse' });
        try {
            assert.ok(!older.stateless && !oldest.stateless);
            const everybody = [peer, older, oldest];
            const watched = async ([first, ...others]) => {
                if (first) return first.watched('config://app', () => watched(others));
                await peer.call('touch');
                await peer.call('grow');
                for (const { notices } of everybody) {
                    await eventually(() => notices.has('notifications/resources/updated'), 'update');
                    await eventually(() => notices.has('notifications/tools/list_changed'), 'change');
                }
            };
            for (const { notices } of everybody) notices.clear();
            await watched(everybody);
        } finally {
            await older.leave();
            await oldest.leave();
        }
    }, ['http']],
    ['a stream that the server interrupts is resumed', '2025-11-25', 'session', async peer => {
        assert.equal(text(await peer.call('pause', { key: 'pause' })), 'run 1');
    }, ['http']],
    ['a stream that is cut is resumed', '2025-03-26', 'session', async peer => {
        const { seen, onprogress } = cutting();
        assert.equal(text(await peer.call('hold', { key: 'hold' }, { onprogress })), 'run 1');
        assert.deepEqual(seen, [1, 2]);
    }, ['http']],
    ['a stream that is cut fails one call alone', '', 'stateless', async peer => {
        const { onprogress } = cutting();
        const end = peer.call('hold', { key: 'hold' }, { onprogress, timeout: 10_000 });
        const how = await end.then(result => `answered: ${text(result)}`, () => 'failed');
        assert.equal(how, 'failed');
        assert.equal(text(await peer.call('add', { a: 1, b: 2 })), '3');
    }, ['http']],
    ['tools: mirrored parameters', '', 'stateless', async peer => {
        await all(page => peer.client.listTools(page), 'tools');
        for (const place of ['Bern', 'Zürich 世界', ' spaces ', '']) {
            assert.equal(text(await peer.call('deliver', { place, floor: 3, fragile: true })), `${place} 3`);
        }
    }, ['http']],
];

export class Peer {
    constructor(client) {
        this.client = client;
        this.logs = [];
        this.notices = new Set();
        this.asked = [];
        this.level = undefined;
        this.unable = []; // cases that the client cannot pass with any server
    }

    get stateless() {
        return this.revision >= '2026';
    }

    // The code for a resource that does not exist.
    get notFound() {
        return this.stateless ? -32602 : -32002;
    }

    // What asks and tells a client, by method.
    get handlers() {
        const asked = result => request => {
            this.asked.push(request.params);
            return typeof result === 'function' ? result(request.params) : result;
        };
        return {
            'sampling/createMessage': asked(SAMPLED),
            'elicitation/create': asked(elicited),
            'roots/list': asked(ROOTS),
        };
    }

    call(name, args = {}, options = undefined) {
        const meta = this.stateless && this.level ? { _meta: { [LOG_LEVEL]: this.level } } : {};
        return this.tool({ name, arguments: args, ...meta }, { timeout: 20_000, ...options });
    }

    tool(params, options) {
        return this.client.callTool(params, options);
    }

    // A client that goes ends its session, if it has one: their `close` leaves it to the server to forget it.
    async leave() {
        await this.transport.terminateSession?.();
        await this.client.close();
    }

    async watched(uri, during) {
        await this.client.subscribeResource({ uri });
        await during();
        await this.client.unsubscribeResource({ uri });
    }
}

export async function run(peer) {
    const era = peer.stateless ? 'stateless' : 'session';
    const fitting = CASES.filter(
        ([what, since, only, , ways]) =>
            !peer.unable.includes(what) && peer.revision >= since && ['', era].includes(only) && (ways ?? WAYS).includes(over),
    );
    say({ plan: fitting.map(([what]) => what) });
    const agreed = peer.revision === expected;
    say({ what: `connect → ${expected}`, why: agreed ? '' : `agreed on ${peer.revision}, not on ${expected}` });
    for (const [what, , , check] of fitting) {
        let timer;
        const late = new Promise((_, reject) => {
            timer = setTimeout(() => reject(new Error('nothing came of it in 20 s')), 20_000);
        });
        try {
            await Promise.race([check(peer), late]);
            say({ what, why: '' });
        } catch (error) {
            say({ what, why: String(error.stack ?? error).replaceAll('\n', ' ').slice(0, 500) });
        }
        clearTimeout(timer);
    }
}

// Arguments: mode, revision, stdio, http, sse or alone, and then the command of the server or its URL.
const [, , mode, expected, over, ...target] = process.argv;

// How the arguments ask to connect.
export const WAY = { mode, over };

// The transport of the three for a way to connect.
export function opened({ over }, { Stdio, Http, Sse }) {
    if (over === 'stdio') return new Stdio({ command: target[0], args: target.slice(1) });
    return over === 'sse' ? new Sse(new URL('/sse', target[0])) : new Http(new URL('/mcp', target[0]));
}
