"""URL elicitation: requested, required, and completed; each only for the client of the user."""

import asyncio
import re
from typing import Any

import pytest

from expected_limits import MAX_URL_ELICITATIONS
from revision_dates import DATES
from toolpost import Client, Context, Server, SyncContext
from toolpost.errors import InternalError, RPCError, UrlElicitationRequired, UserRejected
from toolpost.types import ClientCapabilities, ElicitationCapability, ElicitResult

NEW, SESSION = DATES[-1], DATES[-2]
BOTH = pytest.mark.parametrize("revision", [SESSION, NEW])
URL = ClientCapabilities(elicitation=ElicitationCapability(url={}))


def signing_in() -> tuple[Server, set[str]]:
    """A server whose tools require a login first, and the users who have logged in."""
    server = Server("s")
    signed: set[str] = set()

    @server.tool
    def secret(ctx: SyncContext) -> str:
        if not signed:
            raise ctx.url_required("Sign in first", "https://a.example/in", elicitation_id="visit-1")
        return "42"

    @server.tool
    async def go(ctx: Context, many: int = 1) -> str:
        answers = [
            await ctx.elicit_url("Pay", "https://a.example/pay", elicitation_id=f"pay-{number}")
            for number in range(many)
        ]
        return repr(answers[-1])

    return server, signed


@pytest.mark.requirement("ELIC-19", "ELIC-20")
def test_a_session_client_gets_the_url_and_calls_again():
    server, signed = signing_in()

    async def main() -> str:
        async with Client(server, revision=SESSION, on_elicitation=lambda _: True, capabilities=URL) as mcp:
            with pytest.raises(UrlElicitationRequired, match="Sign in first") as caught:
                await mcp.call_tool("secret")
            assert caught.value.code == -32042
            assert caught.value.data == {
                "elicitations": [
                    {
                        "mode": "url",
                        "message": "Sign in first",
                        "url": "https://a.example/in",
                        "elicitationId": "visit-1",
                    }
                ]
            }
            signed.add("me")
            return (await mcp.call_tool("secret")).text

    assert asyncio.run(main()) == "42"


@pytest.mark.requirement("ERR-6", "ELIC-30")
@pytest.mark.parametrize("visits", [1, 3])
def test_a_stateless_client_is_asked_until_the_user_was_there(visits):
    server, signed = signing_in()
    seen: list[str] = []

    def elicit(params: Any) -> bool:
        seen.append(params.url)
        if len(seen) == visits:
            signed.add("me")
        return True

    async def main() -> str:
        async with Client(server, revision=NEW, on_elicitation=elicit, capabilities=URL) as mcp:
            return (await mcp.call_tool("secret")).text

    assert asyncio.run(main()) == "42"
    assert seen == ["https://a.example/in"] * visits


def test_a_user_who_does_not_go_ends_the_call():
    server, _ = signing_in()

    async def main() -> None:
        async with Client(server, revision=NEW, on_elicitation=lambda _: False, capabilities=URL) as mcp:
            await mcp.call_tool("secret")

    with pytest.raises(UserRejected, match="declined to visit the URL: Sign in first"):
        asyncio.run(main())


@pytest.mark.requirement("ELIC-9", "MRTR-6", "ELIC-19")
@pytest.mark.parametrize("revision", DATES)
def test_a_client_that_shows_no_urls_is_not_sent_to_one(revision):
    server, _ = signing_in()
    forms = None if revision < DATES[2] else lambda _: True

    async def main() -> int:
        async with Client(server, revision=revision, on_elicitation=forms) as mcp:
            with pytest.raises(RPCError) as caught:
                await mcp.call_tool("secret")
            return caught.value.code

    assert asyncio.run(main()) == (-32021 if revision == NEW else -32603)


def test_one_that_names_no_url_is_an_error_of_the_server():
    server = Server("s")

    @server.tool
    def odd() -> str:
        raise UrlElicitationRequired("somewhere", {"elicitations": []})

    async def main() -> None:
        async with Client(server, revision=NEW, on_elicitation=lambda _: True, capabilities=URL) as mcp:
            await mcp.call_tool("odd")

    with pytest.raises(InternalError, match="somewhere"):
        asyncio.run(main())


@BOTH
@pytest.mark.parametrize(
    "url",
    [
        "ftp://a",
        "a.example",
        "",
        "javascript:alert(1)",
        "http://",
        "https://a b",
        "https://a/\n",
        "http://[a",
    ],
)
def test_an_invalid_url_is_rejected_before_it_is_sent(revision, url):
    server = Server("s", debug=True)

    @server.tool
    async def go(ctx: Context) -> str:
        return repr(await ctx.elicit_url("Go", url))

    @server.tool
    async def must(ctx: Context) -> str:
        raise ctx.url_required("Go", url)

    async def main() -> list[str]:
        async with Client(server, revision=revision, on_elicitation=lambda _: True, capabilities=URL) as mcp:
            return [(await mcp.call_tool(name, raise_on_error=False)).text for name in ("go", "must")]

    wrong = re.escape(f"{url!r} is not a URL that a user can visit")
    assert all(re.search(wrong, text) for text in asyncio.run(main()))


def test_middleware_that_always_agrees_does_not_hold_up_the_server():
    server, _ = signing_in()

    async def agree(call: Any, go_on: Any) -> Any:
        return ElicitResult(action="accept") if call.method == "elicitation/create" else await go_on(call)

    server.middleware.append(agree)

    async def main() -> None:
        async with Client(server, revision=NEW, on_elicitation=lambda _: True, capabilities=URL) as mcp:
            await mcp.call_tool("secret")

    with pytest.raises(InternalError, match=r"visit a URL first: Sign in first \(https://a.example/in\)"):
        asyncio.run(main())


# --------------------------------------------------------------------- the end of a visit


@pytest.mark.requirement("ELIC-14", "ELIC-16")
def test_only_the_client_of_the_user_is_notified_of_the_completion():
    server, _ = signing_in()

    async def main() -> tuple[list[Any], list[Any]]:
        mine: asyncio.Queue[str] = asyncio.Queue()
        others: list[str] = []

        def hear(method: str, params: Any) -> None:
            mine.put_nowait(f"{method} {getattr(params, 'elicitation_id', '')}")

        options: Any = {"on_elicitation": lambda _: True, "capabilities": URL}
        async with (
            Client(server, revision=SESSION, on_notification=hear, **options) as first,
            Client(
                server, revision=SESSION, on_notification=lambda *_: others.append("heard"), **options
            ) as two,
            Client(server, revision=NEW, on_notification=lambda *_: others.append("new"), **options) as new,
        ):
            for client in (first, new):
                assert (await client.call_tool("go")).text == "Accepted(data=None)"
            with pytest.raises(UrlElicitationRequired):
                await first.call_tool("secret")
            server.complete_elicitation("pay-0")
            heard = [await mine.get()]
            server.complete_elicitation("pay-0")  # once is enough
            server.complete_elicitation("nobody's")
            server.complete_elicitation("visit-1")
            heard.append(await mine.get())
            assert mine.empty()
            for client in (first, two, new):
                await client.list_tools()
            return heard, others

    heard, others = asyncio.run(main())
    assert heard == [
        "notifications/elicitation/complete pay-0",
        "notifications/elicitation/complete visit-1",
    ]
    assert others == []


def test_visits_that_never_end_are_forgotten_some_day():
    server, _ = signing_in()
    many = MAX_URL_ELICITATIONS + 1

    async def main() -> list[str]:
        heard: asyncio.Queue[str] = asyncio.Queue()

        def hear(_: str, params: Any) -> None:
            heard.put_nowait(params.elicitation_id)

        async with Client(
            server, revision=SESSION, on_elicitation=lambda _: True, capabilities=URL, on_notification=hear
        ) as mcp:
            await mcp.call_tool("go", {"many": many})
            server.complete_elicitation("pay-0")
            server.complete_elicitation(f"pay-{many - 1}")
            return [await heard.get()]

    assert asyncio.run(main()) == [f"pay-{MAX_URL_ELICITATIONS}"]
