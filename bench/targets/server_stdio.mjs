// npm's @modelcontextprotocol/server 2.x over stdio.

import { serveStdio } from '@modelcontextprotocol/server/stdio';

import { furnish } from './server_tools.mjs';

serveStdio(() => furnish(0));
