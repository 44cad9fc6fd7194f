// The client of npm's @modelcontextprotocol/client 2.x. Mode: legacy, auto, or a revision to pin.

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

import { CAPABILITIES, Peer, WAY, opened, run } from './checks.mjs';

const TRANSPORTS = { Stdio: StdioClientTransport, Http: StreamableHTTPClientTransport, Sse: SSEClientTransport };

class Theirs extends Peer {
    // This client turns −32002 with a URI in its data into an error of its own with the newer code.
    get notFound() {
        return -32602;
    }

    another(way = WAY) {
        return connect(way);
    }

    async watched(uri, during) {
        if (!this.stateless) return super.watched(uri, during);
        const watching = await this.client.listen({ toolsListChanged: true, resourceSubscriptions: [uri] });
        if (!watching.honoredFilter.toolsListChanged) throw new Error('lists are not watched');
        await during();
        await watching.close();
    }
}

async function connect(way) {
    const { mode } = way;
    const client = new Client(
        { name: 'client', version: '2' },
        {
            capabilities: CAPABILITIES,
            versionNegotiation: { mode: ['legacy', 'auto'].includes(mode) ? mode : { pin: mode } },
        },
    );
    const peer = new Theirs(client);
    for (const [method, handler] of Object.entries(peer.handlers)) client.setRequestHandler(method, handler);
    client.setNotificationHandler('notifications/message', notice => void peer.logs.push(notice.params));
    for (const method of ['notifications/resources/updated', 'notifications/tools/list_changed']) {
        client.setNotificationHandler(method, () => void peer.notices.add(method));
    }
    peer.transport = opened(way, TRANSPORTS);
    await client.connect(peer.transport);
    peer.revision = client.getNegotiatedProtocolVersion();
    return peer;
}

const peer = await connect(WAY);
await run(peer);
await peer.leave();
