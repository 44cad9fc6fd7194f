// npm's @modelcontextprotocol/sdk 1.x over stdio.

import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';

import { furnish } from './sdk_tools.mjs';

await furnish(0).connect(new StdioServerTransport());
