// The client of npm's @ai-sdk/mcp. Mode: auto, or legacy: without a probe.

import { ElicitationRequestSchema, createMCPClient } from '@ai-sdk/mcp';
import { Experimental_StdioMCPTransport as Stdio } from '@ai-sdk/mcp/mcp-stdio';

import { Peer, WAY, opened, run } from './checks.mjs';

class Http {
    constructor(url) {
        this.type = 'http';
        this.url = url.href;
    }
}

class Sse extends Http {
    type = 'sse';
}

// The names of the methods that the cases call.
const renamed = mcp => ({
    getServerVersion: () => mcp.serverInfo,
    getInstructions: () => mcp.instructions,
    listTools: params => mcp.listTools({ params }),
    listResources: params => mcp.listResources({ params }),
    listResourceTemplates: () => mcp.listResourceTemplates(),
    readResource: params => mcp.readResource(params),
    listPrompts: params => mcp.listPrompts({ params }),
    getPrompt: params => mcp.getPrompt(params),
    complete: params => mcp.complete(params),
});

class Theirs extends Peer {
    // A call the way their agents make it; they know the tools that there were at the start.
    tool({ name, arguments: args }, { signal }) {
        const tool = this.tools[name];
        if (tool === undefined) return this.mcp.callTool({ name, arguments: args });
        return tool.execute(args, { toolCallId: '1', messages: [], abortSignal: signal });
    }
}

const mcp = await createMCPClient({
    transport: opened(WAY, { Stdio, Http, Sse }),
    protocolVersionDiscovery: WAY.mode === 'auto',
    capabilities: { elicitation: {} },
});
const peer = new Theirs(renamed(mcp));
peer.unable = [
    // They have nothing for what these need.
    'progress',
    'log',
    'sampling',
    'roots',
    'an example that asks twice, books between, and asks the model',
    'list changed, subscription',
    'ping',
    'two clients at once, one hears what the other does',
    'clients of both eras and of HTTP+SSE at once',
    'a stream that is cut is resumed',
    'a stream that is cut fails one call alone',
    // They do not tell the server.
    'cancellation',
    // They wait for the rest of an interrupted stream, but do not ask for it.
    'a stream that the server interrupts is resumed',
];
mcp.onElicitationRequest(ElicitationRequestSchema, peer.handlers['elicitation/create']);
peer.mcp = mcp;
peer.tools = await mcp.tools();
peer.revision = mcp.initializeResult.protocolVersion;
await run(peer);
await mcp.close();
