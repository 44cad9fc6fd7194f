// A host page on ext-apps: calls a tool of the server at `?mcp=`, and shows its app in a frame.
import { AppBridge, PostMessageTransport, getToolUiResourceUri } from "@modelcontextprotocol/ext-apps/app-bridge";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const MIME_TYPE = "text/html;profile=mcp-app";
const asked = new URLSearchParams(location.search);
const report = (text) => { document.querySelector("#report").textContent = text; };

try {
  const client = new Client(
    { name: "host", version: "1.0" },
    { capabilities: { extensions: { "io.modelcontextprotocol/ui": { mimeTypes: [MIME_TYPE] } } } },
  );
  await client.connect(new StreamableHTTPClientTransport(new URL(asked.get("mcp"))));
  const { tools } = await client.listTools();
  const tool = tools.find((each) => each.name === asked.get("tool"));
  const uri = getToolUiResourceUri(tool);
  const { contents: [page] } = await client.readResource({ uri });
  if (page.mimeType !== MIME_TYPE) throw new Error(`${uri} is ${page.mimeType}`);

  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  document.body.append(frame);
  const bridge = new AppBridge(client, { name: "host", version: "1.0" }, { serverTools: {} });
  const input = JSON.parse(asked.get("arguments"));
  bridge.oninitialized = async () => {
    await bridge.sendToolInput({ arguments: input });
    await bridge.sendToolResult(await client.callTool({ name: tool.name, arguments: input }));
    report(`shown: ${uri}`);
  };
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  frame.srcdoc = page.text;
} catch (error) {
  report(`failed: ${error.stack}`);
}
