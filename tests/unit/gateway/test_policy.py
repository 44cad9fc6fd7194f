"""Rules decide who may list, call, read and fetch what, on any server."""

import asyncio
from typing import Any

import pytest

from toolpost import Cache, Client, Server
from toolpost.errors import InvalidParams, MissingScopes, RPCError
from toolpost.gateway.access import Access
from toolpost.gateway.approval import FORBIDDEN
from toolpost.gateway.policy import Policy, Rule
from toolpost.principal import Principal
from toolpost.server.registry.proxy import ProxyEntry
from toolpost.transports.memory import memory_pair
from toolpost.types import CallToolResult, ElicitResult, PromptReference, TextContent, Tool, ToolAnnotations

ERAS = ["2025-11-25", "2026-07-28"]


async def answer(_context: Any, _params: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent("done")])


def shop(*rules: Any, **options: Any) -> Server:
    server = Server("shop", middleware=[Policy(list(rules), **options)])

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def search(word: str = "") -> str:
        return f"found {word}"

    @server.tool
    def order(item: str = "pen") -> str:
        return f"ordered {item}"

    @server.resource("shop://hours")
    def hours() -> str:
        return "9 to 5"

    @server.resource("shop://items/{name}")
    def item(name: str) -> str:
        return name

    @server.prompt
    def greet(name: str = "you") -> str:
        return f"Hello {name}"

    @greet.complete("name")
    def names(typed: str) -> list[str]:
        return [typed]

    proxied = [
        ProxyEntry(
            "peek", Tool("peek", {"type": "object"}, annotations=ToolAnnotations(read_only_hint=True)), answer
        ),
        ProxyEntry(
            "wipe",
            b'{"name":"wipe","inputSchema":{"type":"object"},"annotations":{"destructiveHint":true}}',
            answer,
        ),
        ProxyEntry(
            "mild",
            b'{"name":"mild","inputSchema":{"type":"object"},"annotations":{"destructiveHint":false}}',
            answer,
        ),
    ]
    server.tools.replace("far", proxied)
    return server


async def listed(server: Server, revision: str = ERAS[1]) -> list[str]:
    async with Client(server, revision=revision) as client:
        return [tool.name for tool in await client.list_tools()]


async def attempt(server: Server, tool: str, revision: str = ERAS[1], **arguments: Any) -> str:
    async with Client(server, revision=revision) as client:
        return (await client.call_tool(tool, arguments)).text


def test_without_rules_everything_is_allowed():
    assert asyncio.run(attempt(shop(), "order")) == "ordered pen"


@pytest.mark.parametrize("revision", ERAS)
def test_what_no_rule_matches_is_hidden(revision):
    server = shop(Rule(tools="search"))
    assert asyncio.run(listed(server, revision)) == ["search"]
    assert asyncio.run(attempt(server, "search", revision, word="pen")) == "found pen"
    with pytest.raises(InvalidParams, match=r"Unknown tool: order$"):
        asyncio.run(attempt(server, "order", revision))


def test_a_hidden_tool_and_a_missing_one_look_the_same():
    server = shop(Rule(tools="search"))
    errors = []
    for name in ("order", "ordes"):
        with pytest.raises(InvalidParams) as raised:
            asyncio.run(attempt(server, name))
        errors.append(raised.value.message.replace(name, "…"))
    assert errors[0] == errors[1]


def test_the_first_rule_that_matches_decides():
    server = shop(Rule(tools="order", then="deny"), Rule(tools="*"))
    with pytest.raises(RPCError, match="the policy does not allow it") as refused:
        asyncio.run(attempt(server, "order"))
    assert refused.value.code == FORBIDDEN
    assert "order" in asyncio.run(listed(server))


@pytest.mark.parametrize("revision", ERAS)
def test_resources_and_prompts_have_rules_too(revision):
    server = shop(Rule(tools="*"), Rule(resources="shop://items/*"))

    async def main() -> None:
        async with Client(server, revision=revision) as client:
            assert await client.list_resources() == []
            assert [each.uri_template for each in await client.list_resource_templates()] == [
                "shop://items/{name}"
            ]
            assert (await client.read_resource("shop://items/pen")).contents[0].text == "pen"
            with pytest.raises(RPCError, match="Resource not found: shop://hours"):
                await client.read_resource("shop://hours")
            assert await client.list_prompts() == []
            with pytest.raises(InvalidParams, match="Unknown prompt: greet"):
                await client.get_prompt("greet")

    asyncio.run(main())


def test_hints_of_other_servers_allow_nothing():
    server = shop(Rule(read_only=True))
    assert asyncio.run(listed(server)) == ["search"]


def test_hints_of_other_servers_deny():
    server = shop(Rule(destructive=True, upstream="far", then="hide"), Rule(tools="*"))
    assert asyncio.run(listed(server)) == ["search", "order", "peek", "mild"]


def test_a_missing_hint_counts_as_dangerous():
    rule = Rule(destructive=True, then="deny")
    assert rule.matches(Access(kind="tools", name="x"))
    assert not rule.matches(Access(kind="resources", name="x"))


def test_rules_about_upstreams_tags_and_clients():
    def access(**facts: Any) -> Access:
        return Access(kind="tools", name="search", **facts)

    assert Rule(upstream="f*").matches(access(upstream="far"))
    assert not Rule(upstream="f*").matches(access())
    assert Rule(tags=["a", "b"]).matches(access(tags=frozenset("b")))
    assert not Rule(tags="a").matches(access())
    assert Rule(clients="Ins*").matches(access(client="Inspector"))
    ann = Principal("ann", client="app", scopes=frozenset({"read"}), claims={"team": ["red"], "vip": True})
    assert Rule(subjects="ann", clients="app", has_scopes=["read"]).matches(access(principal=ann))
    assert Rule(claims={"team": "red", "vip": True}).matches(access(principal=ann))
    assert not Rule(claims={"team": "blue"}).matches(access(principal=ann))
    assert not Rule(clients="Ins*").matches(access(client="Inspector", principal=ann))
    assert not Rule(has_scopes=["write"]).matches(access(principal=ann))
    assert not Rule(subjects="ann").matches(access())
    assert not Rule(has_scopes=["read"]).matches(access())
    assert Rule(has_scopes=["read"]).matches(access(is_local=True))
    assert not Rule(tools=[]).matches(access())


def test_a_glob_is_no_regular_expression_and_matches_whole_names():
    assert not Rule(tools="sea").matches(Access(kind="tools", name="search"))
    assert not Rule(tools="s.arch").matches(Access(kind="tools", name="search"))
    assert Rule(tools="s?arch").matches(Access(kind="tools", name="search"))


def test_a_call_without_its_scopes_is_told_which():
    server = shop(Rule(tools="order", scopes=["buy"]), Rule(tools="*"))

    async def main() -> None:
        ours, theirs = memory_pair()
        serving = asyncio.create_task(server.serve(theirs, principal=Principal("ann")))
        async with Client(ours, revision=ERAS[0]) as client:
            assert (await client.call_tool("search")).text == "found "
            with pytest.raises(MissingScopes) as refused:
                await client.call_tool("order")
            assert refused.value.scopes == ["buy"]
        await serving

    asyncio.run(main())


def test_a_function_may_be_a_rule():
    seen: list[Access] = []

    def rule(access: Access) -> Any:
        seen.append(access)
        return "deny" if access.upstream == "far" else None

    server = shop(rule, Rule(tools="*"))
    with pytest.raises(RPCError, match="the policy does not allow it"):
        asyncio.run(attempt(server, "wipe"))
    assert (seen[0].name, seen[0].destructive, seen[0].trusted) == ("wipe", True, False)


def test_decisions_are_told():
    told: list[Any] = []
    server = shop(
        Rule(tools="order", then="deny"), Rule(tools="*"), on_decision=lambda _, *what: told.append(what)
    )
    asyncio.run(attempt(server, "search"))
    with pytest.raises(RPCError):
        asyncio.run(attempt(server, "order"))
    assert told == [(2, "allow"), (1, "deny")]


def test_completions_and_subscriptions_follow_the_rules():
    server = shop(
        Rule(tools="*"), Rule(resources="shop://hours", then="hide"), Rule(resources="*", then="deny")
    )

    async def main() -> None:
        async with Client(server, revision=ERAS[0]) as client:
            with pytest.raises(RPCError, match="Resource not found"):
                await client.request("resources/subscribe", {"uri": "shop://hours"})
            with pytest.raises(RPCError, match="policy"):
                await client.request("resources/subscribe", {"uri": "shop://items/pen"})
            with pytest.raises(InvalidParams, match="Unknown prompt: greet"):
                await client.complete(PromptReference("greet"), "name", "")

    asyncio.run(main())


def test_a_list_for_one_client_is_no_longer_public():
    server = Server("shop", cache=Cache(60, scope="public"), middleware=[Policy([Rule(tools="a")])])

    @server.tool
    def a() -> str:
        return ""

    @server.tool
    def b() -> str:
        return ""

    async def main() -> None:
        async with Client(server) as client:
            result = await client.request("tools/list", {})
            assert result.raw is not None
            assert b'"private"' in result.raw
            assert b'"b"' not in result.raw

    asyncio.run(main())


@pytest.mark.parametrize(
    ("rule", "mistake"),
    [
        (Rule(resources="*", read_only=True), "only tools have hints"),
        (Rule(scopes=["x"], then="deny"), "what an allowed call needs"),
    ],
)
def test_mistakes_in_rules(rule, mistake):
    (told,) = rule.list_mistakes()
    assert mistake in told


def test_what_is_unknown_may_come_from_anywhere():
    """A resource that is in no list may be one of an upstream that a rule is about."""
    unknown = Access(kind="resources", name="x://y", is_known=False)
    assert Rule(upstream="far", then="hide").matches(unknown)
    assert Rule(upstream="far", then="ask").matches(unknown)
    assert not Rule(upstream="far").matches(unknown)
    assert not Rule(tags="free").matches(unknown)
    assert not Rule(upstream="far", subjects="ann", then="hide").matches(unknown)
    assert Rule(resources="x://*").matches(unknown)


def test_a_tool_that_changes_while_the_user_is_asked_is_not_called():
    server = shop(Rule(tools="*", then="ask"))
    swapped = ProxyEntry("peek", Tool("peek", {"type": "object"}), answer)

    async def swap(_asked: Any) -> ElicitResult:
        server.tools.replace("far", [])
        server.tools.replace("near", [swapped])
        return ElicitResult(action="accept", content={})

    async def main() -> None:
        async with Client(server, revision=ERAS[0], on_elicitation=swap) as client:
            with pytest.raises(RPCError, match="it has changed meanwhile"):
                await client.call_tool("peek")

    asyncio.run(main())
