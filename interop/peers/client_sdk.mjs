// The client of npm's @modelcontextprotocol/sdk 1.x.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    LATEST_PROTOCOL_VERSION,
    ListRootsRequestSchema,
    LoggingMessageNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';

import { CAPABILITIES, Peer, WAY, opened, run } from './checks.mjs';

const TRANSPORTS = { Stdio: StdioClientTransport, Http: StreamableHTTPClientTransport, Sse: SSEClientTransport };

class Theirs extends Peer {
    tool(params, options) {
        return this.client.callTool(params, undefined, options);
    }

    another(way = WAY) {
        return connect(way);
    }
}

async function connect(way) {
    const client = new Client({ name: 'sdk', version: '1' }, { capabilities: CAPABILITIES });
    const peer = new Theirs(client);
    // Before, it did not resume the stream of a request.
    if (LATEST_PROTOCOL_VERSION < '2025-11-25') peer.unable.push('a stream that is cut is resumed');
    client.setRequestHandler(CreateMessageRequestSchema, peer.handlers['sampling/createMessage']);
    client.setRequestHandler(ElicitRequestSchema, peer.handlers['elicitation/create']);
    client.setRequestHandler(ListRootsRequestSchema, peer.handlers['roots/list']);
    client.setNotificationHandler(LoggingMessageNotificationSchema, notice => void peer.logs.push(notice.params));
    client.fallbackNotificationHandler = async notice => void peer.notices.add(notice.method);

    // Nobody but a transport is told the revision.
    const transport = opened(way, TRANSPORTS);
    const told = transport.setProtocolVersion?.bind(transport);
    transport.setProtocolVersion = revision => {
        peer.revision = revision;
        told?.(revision);
    };
    await client.connect(transport);
    peer.transport = transport;
    return peer;
}

const peer = await connect(WAY);
await run(peer);
await peer.leave();
