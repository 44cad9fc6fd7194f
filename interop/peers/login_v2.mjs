// The client of npm's @modelcontextprotocol/client 2.x logs in with its own OAuth. Arguments: mode, URL of the server.

import { Client, StreamableHTTPClientTransport, UnauthorizedError } from '@modelcontextprotocol/client';

const [mode, url] = process.argv.slice(2);
const BACK = 'http://127.0.0.1:3999/callback';

// Somebody who allows everything: answers pages, and says where they were sent at last.
async function visited(start) {
    let [place, options, cookie] = [String(start), {}, ''];
    while (!place.startsWith(BACK)) {
        const answer = await fetch(place, { redirect: 'manual', ...options, headers: { ...options.headers, cookie } });
        cookie = answer.headers.get('set-cookie')?.split(';')[0] ?? cookie;
        const sealed = answer.status === 200 && /name="request" value="([^"]+)"/.exec(await answer.text())?.[1];
        options = sealed ? { method: 'POST', body: new URLSearchParams({ request: sealed, answer: 'allow' }) } : {};
        place = sealed ? place.split('?')[0] : answer.headers.get('location');
    }
    return new URL(place).searchParams;
}

const provider = {
    pages: 0,
    redirectUrl: BACK,
    clientMetadata: { client_name: 'peer', redirect_uris: [BACK] },
    clientInformation: () => provider.client,
    saveClientInformation: client => void (provider.client = client),
    tokens: () => provider.kept,
    saveTokens: tokens => void (provider.kept = tokens),
    saveCodeVerifier: verifier => void (provider.verifier = verifier),
    codeVerifier: () => provider.verifier,
    state: () => 'a state',
    async redirectToAuthorization(page) {
        provider.pages += 1;
        provider.back = await visited(page);
    },
};

async function connected() {
    const client = new Client(
        { name: 'login', version: '2' },
        { versionNegotiation: { mode: ['legacy', 'auto'].includes(mode) ? mode : { pin: mode } } },
    );
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });
    return { client, transport, open: () => client.connect(transport) };
}

// Does something; after a page was shown, connects again and does it once more.
async function authorized(act) {
    const session = await connected();
    try {
        await session.open();
        return await act(session.client);
    } catch (error) {
        if (!(error instanceof UnauthorizedError)) throw error;
        await session.transport.finishAuth(provider.back);
    } finally {
        await session.client.close();
    }
    const again = await connected();
    await again.open();
    const result = await act(again.client);
    await again.client.close();
    return result;
}

const text = async (client, name, args = {}) => (await client.callTool({ name, arguments: args })).content[0].text;
const told = {};
told.revision = await authorized(async client => client.getNegotiatedProtocolVersion());
told.first = await authorized(client => text(client, 'whoami'));
told.cooked = await authorized(client => text(client, 'cook', { dish: 'egg' }));
told.second = await authorized(client => text(client, 'whoami'));
told.pages = provider.pages;
console.log(JSON.stringify(told));
