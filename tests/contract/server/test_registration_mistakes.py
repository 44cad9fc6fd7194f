"""Mistakes at registration are rejected immediately, and the error says what to write instead."""

import asyncio
import gc
import math
import sys
import warnings
from functools import partial
from typing import Any, cast

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Handler, MCPError, Server, SignatureError, SyncClient, SyncContext
from toolpost.errors import InvalidParams
from toolpost.server.middleware import Concurrency, Logging, RateLimit, Timeout
from toolpost.types import Annotations, Icon, Tool, ToolAnnotations

OBJECT: Any = {"type": "object"}
DANGLING: Any = {"properties": {"a": {"$ref": "#/$defs/nowhere"}}}

# --------------------------------------------------------------------- keywords


A_SERVER: Any = Server("s")
WRONG: Any = {"instruction": "x"}
TIMOUT: Any = {"timout": 1}
UNTYPED: Any = Client


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (
            lambda: Server("s", **WRONG),
            r"^Server\(\) has no keyword 'instruction'; did you mean instructions\?$",
        ),
        (
            lambda: Handler(**WRONG),
            r"^Handler\(\) has no keyword 'instruction'; did you mean instructions\?$",
        ),
        (
            lambda: UNTYPED(A_SERVER, timout=1),
            r"^Client\(\) has no keyword 'timout'; did you mean timeout",
        ),
        (lambda: SyncClient(A_SERVER, **TIMOUT), "did you mean timeout"),
        (lambda: A_SERVER.tool(annotation=1), r"^Server.tool\(\) has .* did you mean annotations"),
        (lambda: A_SERVER.prompt(titel=1), r"^Server.prompt\(\) has .* did you mean title"),
        (lambda: A_SERVER.resource("a:b", mimetype=1), "did you mean mime_type"),
        (lambda: A_SERVER.asgi(public_uri=1), r"^Server.asgi\(\) has .* did you mean public_url"),
        (
            lambda: A_SERVER.factory(print, max_inflight=1),
            r"^Server.factory\(\) has .* did you mean max_in_flight",
        ),
        (A_SERVER.factory, r"^Server.factory\(\) missing"),
        (lambda: A_SERVER.run(worker=1), r"^Server.run\(\) has .* did you mean workers"),
        (lambda: A_SERVER.run(xyz=1), r"^Server.run\(\) has no keyword 'xyz'$"),
        (lambda: UNTYPED(A_SERVER).call_tool(), r"^Client.call_tool\(\) missing"),
    ],
)
def test_a_wrong_keyword_is_named_with_the_class_that_the_user_knows(mistake, said):
    with pytest.raises(TypeError, match=said):
        mistake()


# --------------------------------------------------------------------- hints


def show(server: Server) -> list[Tool]:
    with SyncClient(server) as client:
        return client.list_tools()


@pytest.mark.parametrize("hints", [{"read_only_hint": True}, {"readOnlyHint": True}])
@pytest.mark.parametrize(
    "icon",
    [
        {"src": "https://a.b/c.png", "mime_type": "image/png"},
        {"src": "https://a.b/c.png", "mimeType": "image/png"},
    ],
)
def test_hints_and_icons_may_be_dicts_in_either_spelling(hints: Any, icon: Any):
    server = Server("s", icons=[icon])
    server.tool(name="made", annotations=hints, icons=[icon])(lambda: 1)
    server.tool(name="changed")(lambda: 1).update(annotations=hints, icons=[icon])
    server.add_tool(Tool("added", OBJECT, annotations=hints, icons=[icon]), lambda arguments: 1)
    for tool in show(server):
        assert tool.annotations == ToolAnnotations(read_only_hint=True)
        assert tool.icons == [Icon("https://a.b/c.png", "image/png")]
    assert server.info.icons == [Icon("https://a.b/c.png", "image/png")]
    edited: Any = {"lastModified": "2026-07-28"}
    resource = server.resource("a:b", name="x", annotations=edited)(lambda: "")
    assert cast("Any", resource).resource.annotations == Annotations(last_modified="2026-07-28")


@pytest.mark.parametrize(
    ("hints", "said"),
    [
        ({"readOnlyHint": "yes"}, r"^annotations: Expected `bool \| null`, got `str` - at `\$.readOnlyHint`"),
        (ToolAnnotations(read_only_hint=cast("Any", "yes")), "^annotations: Expected `bool"),
        ({"readonly_hint": True}, "^annotations: unknown key 'readonly_hint'; did you mean read_only_hint"),
        ({"x": True}, "^annotations: unknown key 'x'$"),
        (True, r"^annotations must be ToolAnnotations\(…\), not True"),
    ],
)
def test_hints_that_clients_could_not_read_are_refused(hints: Any, said):
    server = Server("s")
    with pytest.raises(TypeError, match=said):
        server.tool(name="made", annotations=hints)(lambda: 1)
    with pytest.raises(TypeError, match=said):
        server.add_tool(Tool("added", OBJECT, annotations=hints), lambda arguments: 1)
    kept = server.tool(name="kept")(lambda: 1)
    with pytest.raises(TypeError, match=said):
        kept.update(annotations=hints)
    assert [tool.name for tool in show(server)] == ["kept"]


# --------------------------------------------------------------------- decorators


@pytest.mark.requirement("RES-10")
@pytest.mark.parametrize(
    "uri", ["nouri", "a_b://x", "/a/b", "a/b:c", "1a:b", "", "{+uri}", "{/a}:b", "users/{id}", ":a"]
)
def test_a_resource_needs_a_scheme(uri):
    with pytest.raises(ValueError, match="must start with a scheme") as refused:
        Server("s").resource(uri)
    assert repr(uri) in str(refused.value)


def test_the_error_about_a_missing_scheme_shows_one():
    with pytest.raises(ValueError, match=r"as in 'config://a/b'"):
        Server("s").resource("/a/b")


@pytest.mark.parametrize(
    "uri", ["config://app", "urn:a", "a+b-c.d:e", "{kind}://x", "git{kind}:x", "x:{+rest}"]
)
def test_any_scheme_is_accepted(uri):
    Server("s").resource(uri)


@pytest.mark.parametrize("given", [test_the_error_about_a_missing_scheme_shows_one, 5, None])
def test_a_resource_without_its_uri_is_refused(given: Any):
    with pytest.raises(TypeError, match=r'pass one, as in @server\.resource\("config://app"\)'):
        Server("s").resource(given)


@pytest.mark.parametrize("kind", ["tool", "prompt"])
def test_a_name_is_passed_by_keyword(kind):
    with pytest.raises(TypeError, match=r"use name='kinds'"):
        getattr(Server("s"), kind)("kinds")


@pytest.mark.parametrize("kind", ["tool", "prompt"])
def test_a_value_that_is_not_a_function_is_refused(kind):
    with pytest.raises(TypeError, match=r"5 is not callable \(pass a function\)"):
        getattr(Server("s"), kind)(5)


@pytest.mark.parametrize(
    ("tool", "error", "said"),
    [
        ("x", TypeError, "add_tool takes a Tool and a function, not 'x'"),
        (Tool("x", cast("Any", None)), TypeError, "the input schema of 'x' must be a dict, not None"),
        (Tool(cast("Any", 5), OBJECT), TypeError, "name must be a string, not 5"),
        (Tool("x", OBJECT, output_schema=cast("Any", 5)), TypeError, "output schema of 'x' must be a dict"),
        (Tool("x", OBJECT | DANGLING), ValueError, "the input schema of 'x' is not valid: Pointer"),
        (
            Tool("x", OBJECT, output_schema=DANGLING),
            ValueError,
            "the output schema of 'x' is not valid: Pointer",
        ),
        (
            Tool("x", OBJECT, icons=cast("Any", ["https://a.example"])),
            TypeError,
            "icons must be a list of Icon",
        ),
    ],
)
def test_a_custom_tool_is_validated(tool, error, said):
    server = Server("s")
    with pytest.raises(error, match=said):
        server.add_tool(tool, lambda arguments: arguments)
    assert len(server.tools) == 0


@pytest.mark.parametrize("given", [{"name": 5}, {"title": 5}, {"description": 5}])
@pytest.mark.parametrize("kind", ["tool", "prompt", "resource", "template"])
def test_displayed_fields_must_be_strings(kind, given):
    server = Server("s")
    offers: Any = {
        "tool": server.tool,
        "prompt": server.prompt,
        "resource": partial(server.resource, "a://b"),
        "template": partial(server.resource, "a://{x}"),
    }
    with pytest.raises(TypeError, match=f"{next(iter(given))} must be a string, not 5"):
        offers[kind](**{"name": "n", **given})(lambda x="": x)


# --------------------------------------------------------------------- keywords


@pytest.mark.parametrize("kind", [Server, Handler])
@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"name": 5}, TypeError, "name must be a string, not 5"),
        ({"version": 1.0}, TypeError, "version must be a string, not 1.0"),
        ({"instructions": ["a"]}, TypeError, "instructions must be a string"),
        (
            {"revisions": ["2025"]},
            ValueError,
            f"revisions: unknown value .2025. .expected one of: {DATES[0]}",
        ),
        ({"revisions": [DATES[0], 5]}, ValueError, "revisions: unknown value 5"),
        ({"revisions": []}, ValueError, "revisions must contain at least one of"),
        ({"revisions": DATES[0]}, TypeError, "revisions must be a list"),
        ({"revisions": None}, TypeError, "revisions must be a list"),
        ({"middleware": [3]}, TypeError, "invalid middleware 3: expected an `async def`"),
        ({"middleware": [Logging]}, TypeError, r"middleware must be an instance, not a class: use Logging\("),
        ({"middleware": Logging()}, TypeError, "middleware must be a list"),
        (
            {"declares": ["tool"]},
            ValueError,
            "declares: unknown value .tool. .expected one of: tools, resources, p",
        ),
        ({"declares": "tools"}, TypeError, "declares must be a list, such as .'tools'., not 'tools'"),
        ({"max_in_flight": 0}, ValueError, "max_in_flight must be at least 1, not 0"),
        ({"max_in_flight": "9"}, TypeError, "max_in_flight must be an integer, not '9'"),
        ({"threads": 0}, ValueError, "threads must be at least 1, not 0"),
        ({"threads": True}, TypeError, "threads must be an integer, not True"),
        ({"icons": ["https://a.example/a.png"]}, TypeError, "icons must be a list of Icon objects"),
        ({"icons": Icon("https://a.example/a.png")}, TypeError, "icons must be a list, even if"),
    ],
)
def test_a_keyword_that_cannot_work_is_named(kind, given, error, said):
    with pytest.raises(error, match=said):
        kind(**given)


TIMES: Any = [
    ("5", TypeError, "timeout must be a number of seconds, or None for no limit, not '5'"),
    (True, TypeError, "timeout must be a number of seconds"),
    (-1, ValueError, "timeout must be more than 0 seconds, or None for no limit, not -1"),
    (0, ValueError, "timeout must be more than 0"),
    (math.nan, ValueError, "timeout must be more than 0"),
]


@pytest.mark.parametrize(("timeout", "error", "said"), TIMES)
def test_a_time_must_be_a_number(timeout, error, said):
    with pytest.raises(error, match=said):
        Server("s", timeout=timeout)
    with pytest.raises(error, match=said):
        Server("s").tool(name="x", timeout=timeout)(lambda: "")
    with pytest.raises(error, match=said):
        Server("s").add_tool(Tool("x", OBJECT), lambda arguments: arguments, timeout=timeout)
    with pytest.raises(error, match=said.replace("timeout", "seconds")):
        Timeout(timeout)


def test_counts_must_be_integers():
    with pytest.raises(ValueError, match="page_size must be at least 1"):
        Server("s", page_size=0)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        Concurrency(0)
    with pytest.raises(ValueError, match="calls must be at least 1"):
        RateLimit(0)
    with pytest.raises(ValueError, match="seconds must be more than 0"):
        RateLimit(1, 0)


def test_valid_arguments_are_accepted():
    server = Server(
        "s",
        timeout=0.5,
        page_size=1,
        max_in_flight=1,
        threads=1,
        middleware=(Logging(),),
        revisions=DATES[:1],
    )
    assert server.revisions == DATES[:1]
    assert Server("s", timeout=None, middleware=iter([Logging()])).middleware


async def waits(ctx: SyncContext) -> None:
    """An async function with the context of sync functions."""


def works(arguments: dict[str, Any], ctx: Context) -> None:
    """A sync function with the context of async functions."""


def test_an_async_function_gets_a_context_and_others_a_sync_one():
    server = Server("s")
    for offer in (server.tool, server.prompt, server.resource("a://b")):
        with pytest.raises(SignatureError, match="`ctx`: an async function gets Context, not SyncContext"):
            offer(waits)
    with pytest.raises(SignatureError, match="a sync function gets SyncContext, not Context"):
        server.add_tool(Tool("x", OBJECT), works)


# --------------------------------------------------------------------- names


def test_an_unknown_name_gets_a_suggestion():
    async def main() -> None:
        server = Server("s")
        server.tool(name="kinds")(lambda: "")
        server.prompt(name="greet")(lambda: "")
        async with Client(server) as client:
            with pytest.raises(InvalidParams, match=r"Unknown tool: kindz; did you mean kinds\?$"):
                await client.call_tool("kindz")
            with pytest.raises(InvalidParams, match=r"Unknown prompt: great; did you mean greet\?$"):
                await client.get_prompt("great")
            with pytest.raises(InvalidParams, match=r"Unknown tool: nothing$"):
                await client.call_tool("nothing")
            with pytest.raises(InvalidParams, match=r"Unknown tool: x{79}…$"):
                await client.call_tool("x" * 100_000)

    asyncio.run(main())


# --------------------------------------------------------------------- loops


def test_inside_a_running_loop_the_error_names_the_coroutine_to_await():
    async def main() -> None:
        with pytest.raises(
            RuntimeError, match=r"cannot run in an event loop: .*await server\.serve_stdio\(\)"
        ):
            Server("s").run()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(one.message) for one in caught if "never awaited" in str(one.message)] == []


IN_A_LOOP = """
import asyncio
from toolpost import Server

async def main():
    server = Server("looped")
    server.tool(name="one")(lambda: "1")
    await server.serve_stdio(max_line=5000)

asyncio.run(main())
"""


def test_a_server_may_be_served_in_a_custom_loop():
    async def main() -> None:
        async with Client([sys.executable, "-c", IN_A_LOOP]) as client:
            assert (await client.call_tool("one")).text == "1"
            with pytest.raises(MCPError, match="5000"):
                await client.call_tool("one", {"x": "x" * 6000})

    asyncio.run(main())
