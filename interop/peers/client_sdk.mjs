// The client of npm's @modelcontextprotocol/sdk 1.x.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import {
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    ListRootsRequestSchema,
    LoggingMessageNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';

import { CAPABILITIES, Peer, args, command, expected, run } from './checks.mjs';

class Theirs extends Peer {
    tool(params, options) {
        return this.client.callTool(params, undefined, options);
    }
}

const client = new Client({ name: 'sdk', version: '1' }, { capabilities: CAPABILITIES });
const peer = new Theirs(client);
client.setRequestHandler(CreateMessageRequestSchema, peer.handlers['sampling/createMessage']);
client.setRequestHandler(ElicitRequestSchema, peer.handlers['elicitation/create']);
client.setRequestHandler(ListRootsRequestSchema, peer.handlers['roots/list']);
client.setNotificationHandler(LoggingMessageNotificationSchema, notice => void peer.logs.push(notice.params));
client.fallbackNotificationHandler = async notice => void peer.notices.add(notice.method);

// Only HTTP transports are told the revision by an official method, so a transport has to be asked.
const transport = new StdioClientTransport({ command, args });
transport.setProtocolVersion = revision => {
    peer.revision = revision;
};
await client.connect(transport);
await run(peer, expected);
await client.close();
