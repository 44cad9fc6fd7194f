"""The client that the official conformance suite starts, once for each scenario.

One function per scenario. The last line on stdout marks the end of the scenario for the judge. The suite's
contract: the URL is the argument; scenario, revision and context are in the environment.
"""

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any, Final

from toolpost import (
    AuthError,
    Client,
    ClientCredentials,
    EnterpriseManaged,
    MemoryTokens,
    OAuth,
    WorkloadIdentity,
)
from toolpost.errors import RemoteProtocolError
from toolpost.types import ElicitParams

DONE: Final = "The scenario was gone through."
"""The last line of output; missing if the driver was killed."""

Grant = OAuth | ClientCredentials | EnterpriseManaged | WorkloadIdentity
Scenario = Callable[[Client, dict[str, Any]], Awaitable[None]]


async def knock(mcp: Client, _context: dict[str, Any]) -> None:
    """Connect to a server without features."""
    await mcp.ping()


async def look(mcp: Client, _context: dict[str, Any]) -> None:
    """List the tools, without fetching references."""
    await mcp.list_tools()


async def add(mcp: Client, _context: dict[str, Any]) -> None:
    """Add two numbers."""
    await mcp.list_tools()
    await mcp.call_tool("add_numbers", {"a": 5, "b": 3})


async def fill_in_defaults(mcp: Client, _context: dict[str, Any]) -> None:
    """Accept a form with its defaults."""
    await mcp.list_tools()
    await mcp.call_tool("test_client_elicitation_defaults")


async def reconnect(mcp: Client, _context: dict[str, Any]) -> None:
    """Lose a stream, and resume it for the response."""
    await mcp.list_tools()
    await mcp.call_tool("test_reconnection")


async def echo_schema(mcp: Client, _context: dict[str, Any]) -> None:
    """Return a schema unchanged."""
    tools = {tool.name: tool for tool in await mcp.list_tools()}
    await mcp.call_tool("json_schema_echo", {"schema": tools["json_schema_2020_12_tool"].input_schema})


async def be_asked(mcp: Client, _context: dict[str, Any]) -> None:
    """Call tools that send requests of different kinds."""
    await mcp.list_tools()
    for ending in ("echo_state", "unrelated", "no_state", "no_result_type"):
        await mcp.call_tool(f"test_mrtr_{ending}")


async def use_everything(mcp: Client, _context: dict[str, Any]) -> None:
    """Send one request of each kind, to check its headers."""
    await mcp.list_tools()
    await mcp.call_tool("test_headers")
    for resource in await mcp.list_resources():
        await mcp.read_resource(resource.uri)
    for prompt in await mcp.list_prompts():
        await mcp.get_prompt(prompt.name)


async def make_calls(mcp: Client, context: dict[str, Any]) -> None:
    """Make the calls in the context of the scenario."""
    await mcp.list_tools()
    for call in context["toolCalls"]:
        await mcp.call_tool(call["name"], call["arguments"])


async def use_first(mcp: Client, _context: dict[str, Any]) -> None:
    """List the tools, and call the first one."""
    tools = await mcp.list_tools()
    for tool in tools[:1]:
        await mcp.call_tool(tool.name)


async def call_all(mcp: Client, _context: dict[str, Any]) -> None:
    """Call every tool."""
    for tool in await mcp.list_tools():
        await mcp.call_tool(tool.name, raise_on_error=False)


async def list_skills(mcp: Client, _context: dict[str, Any]) -> None:
    """List the skills, and read nothing."""
    await mcp.list_skills()


async def refuse_skills(mcp: Client, _context: dict[str, Any]) -> None:
    """Read a file of each skill only if its manifest is the one in the list, which it is not."""
    for skill in await mcp.list_skills():
        try:
            await mcp.read_skill(skill)
        except RemoteProtocolError:
            continue
        raise AssertionError(f"{skill.uri} is not the file in the list, but was accepted")


SCENARIOS: Final[dict[str, Scenario]] = {
    "elicitation-sep1034-client-defaults": fill_in_defaults,
    "http-custom-headers": make_calls,
    "http-invalid-tool-headers": call_all,
    "http-standard-headers": use_everything,
    "initialize": knock,
    "json-schema-2020-12-preservation": echo_schema,
    "json-schema-ref-no-deref": look,
    "request-metadata": knock,
    "sep-2640-client-no-prefetch": list_skills,
    "sep-2640-client-verify-digest": refuse_skills,
    "sep-2640-client-verify-frontmatter": refuse_skills,
    "sep-2640-client-verify-size": refuse_skills,
    "sep-2322-client-request-state": be_asked,
    "sse-retry": reconnect,
    "tools_call": add,
}


AUTH: Final = "auth/"

REFUSED: Final = frozenset(
    {
        "auth/iss-normalized",
        "auth/iss-supported-missing",
        "auth/iss-unexpected",
        "auth/iss-wrong-issuer",
        "auth/metadata-issuer-mismatch",
        "auth/resource-mismatch",
        "auth/scope-retry-limit",
    }
)
"""Scenarios that must fail: a client must detect a forged value, or a request without end."""

CLIENT_METADATA: Final = "https://conformance-test.local/client-metadata.json"


class _Stay(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None."""


def visit(url: str) -> str:
    """Act as the browser of a user who agrees. Returns the URL of the redirect."""
    try:
        with urllib.request.build_opener(_Stay).open(url) as page:
            raise AssertionError(f"the page does not redirect: {page.status}")
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.headers["location"]


def authorizer(scenario: str, context: dict[str, Any]) -> Grant | None:
    """Return the credentials in a scenario about authorization; None in others."""
    client_id, secret = context.get("client_id", ""), context.get("client_secret")
    match scenario.removeprefix(AUTH):
        case "client-credentials-jwt":
            return ClientCredentials(
                client_id,
                private_key=context["private_key_pem"],
                algorithm=context["signing_algorithm"],
            )
        case "client-credentials-basic":
            return ClientCredentials(client_id, secret)
        case "enterprise-managed-authorization":
            return EnterpriseManaged(
                context["idp_id_token"],
                idp_client_id=context["idp_client_id"],
                idp_issuer=context["idp_issuer"],
                idp_token_endpoint=context["idp_token_endpoint"],
                client_id=client_id,
                client_secret=secret,
            )
        case "wif-jwt-bearer":
            return WorkloadIdentity(context["valid_jwt"], client_id=client_id)
        case "pre-registration":
            return OAuth(
                client_id=client_id,
                client_secret=secret,
                issuer=context.get("issuer"),
                storage=MemoryTokens(),
                open_url=visit,
            )
        case _ if scenario.startswith(AUTH):
            return OAuth(storage=MemoryTokens(), open_url=visit, client_metadata_url=CLIENT_METADATA)
        case _:
            return None


def agree(question: ElicitParams) -> dict[str, Any]:
    """Accept every question, with the defaults of the form."""
    fields: dict[str, Any] = (question.requested_schema or {}).get("properties", {})
    return {
        name: True for name, field in fields.items() if field["type"] == "boolean" and "default" not in field
    }


async def main(url: str) -> None:
    """Run the scenario that the environment names."""
    name = os.environ["MCP_CONFORMANCE_SCENARIO"]
    scenario = use_first if name.startswith(AUTH) else SCENARIOS[name]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    try:
        async with Client(
            url,
            auth=authorizer(name, context),
            revision=os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"],
            on_elicitation=agree,
            on_sampling=lambda _: "This is a test response from the client",
            on_roots=["file:///test/root"],
        ) as mcp:
            await scenario(mcp, context)
    except AuthError:
        if name not in REFUSED:
            raise
    else:
        if name in REFUSED:
            raise AssertionError("the scenario succeeded, but must fail")
    print(DONE)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
