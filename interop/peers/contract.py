"""What the Python clients of others try on our kitchen, through an adapter that speaks plain JSON.

Runs inside a peer's environment, so it imports nothing but the standard library. It prints a plan, then one
JSON object per case. `checks.mjs` is the same for Node.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import anyio

ODD = 'grüße, 世界 🍲 \u2028 \\ " \t\r\n\x7f'
WAYS = ("stdio", "http", "sse")
EVERYWHERE = (*WAYS, "alone")  # the last is HTTP with neither sessions nor event streams for older clients


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


class Peer(Protocol):
    """A client of somebody else, connected."""

    over: str
    revision: str
    server_info: dict[str, Any]
    instructions: str | None
    logs: list[dict[str, Any]]
    notices: list[str]
    asked: list[dict[str, Any]]

    async def page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """One page of a list."""
        ...

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, progress: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """The result of a tool."""
        ...

    async def cancel_call(self, name: str) -> None:
        """Call a tool and cancel that."""
        ...

    async def read(self, uri: str) -> dict[str, Any]:
        """What a resource holds."""
        ...

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """A prompt."""
        ...

    async def complete(self, kind: str, of: str, argument: str, value: str) -> dict[str, Any]:
        """How an argument goes on."""
        ...

    async def set_level(self, level: str) -> None:
        """Choose what is logged."""
        ...

    async def watched(self, uri: str, during: Callable[[], Awaitable[Any]]) -> None:
        """Do something while a resource and the lists are watched; return when a notice about it came."""
        ...

    async def ping(self) -> None:
        """Hear whether the server is there."""
        ...

    def another(self, mode: str = "", over: str = "") -> "AbstractAsyncContextManager[Peer]":
        """A second client of the same server, connected in the same way, or in this one."""
        ...


class Case(NamedTuple):
    """A named function, and where it applies."""

    what: str
    run: Callable[[Peer], Awaitable[None]]
    since: str
    era: str
    over: tuple[str, ...]

    def applies(self, peer: Peer) -> bool:
        """Whether a connection has what the case needs."""
        era = "stateless" if stateless(peer) else "session"
        return peer.revision >= self.since and self.era in {"", era} and peer.over in self.over


CASES: list[Case] = []


def case(what: str, since: str = "", era: str = "", over: tuple[str, ...] = WAYS) -> Callable[..., Any]:
    """Add a function as a case."""

    def add(run: Callable[[Peer], Awaitable[None]]) -> Callable[[Peer], Awaitable[None]]:
        CASES.append(Case(what, run, since, era, over))
        return run

    return add


def without(*checks: Callable[[Peer], Awaitable[None]]) -> None:
    """Leave out cases that a client cannot pass with any server."""
    CASES[:] = [case for case in CASES if case.run not in checks]


def only(*checks: Callable[[Peer], Awaitable[None]]) -> None:
    """Leave out all cases but these."""
    CASES[:] = [case for case in CASES if case.run in checks]


def stateless(peer: Peer) -> bool:
    """Whether there is no session."""
    return peer.revision >= "2026"


def elicited(params: dict[str, Any]) -> dict[str, Any]:
    """What the user puts into a form."""
    value = params["requestedSchema"]["properties"].get("value")
    if value is None:
        return {"dish": "soup", "portions": 2}
    return {"value": 3 if value["type"] == "integer" else "art"}


def plain(model: Any) -> dict[str, Any]:
    """A model of pydantic's as it travels."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def text(result: dict[str, Any]) -> str:
    """The text of a result."""
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


async def all_of(peer: Peer, method: str, member: str) -> list[dict[str, Any]]:
    """All pages of a list."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = await peer.page(method, cursor)
        found += page[member]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


async def refusal(request: Awaitable[Any]) -> int:
    """The code that a request is refused with."""
    try:
        result = await request
    except Refused as error:
        return error.code
    raise AssertionError(f"it was not refused: {result}")


async def eventually(there: Callable[[], bool], what: str) -> None:
    """Return once something is there."""
    for _ in range(500):
        if there():
            return
        await anyio.sleep(0.01)
    raise AssertionError(f"there was no {what}")


@case("introduction", over=EVERYWHERE)
async def introduction(peer: Peer) -> None:
    assert peer.server_info["name"] == "kitchen", peer.server_info
    assert peer.server_info["version"] == "1.0"
    assert peer.instructions == "Order something."


@case("tools: list, all pages", over=EVERYWHERE)
async def list_tools(peer: Peer) -> None:
    tools = {tool["name"]: tool for tool in await all_of(peer, "tools/list", "tools")}
    assert len(tools) >= 13, sorted(tools)
    assert tools["add"]["inputSchema"]["required"] == ["a", "b"]
    assert tools["order"]["inputSchema"]["properties"]["dish"]["description"] == "what to eat"


@case("tools: output schemas, where there are any", over=EVERYWHERE)
async def output_schemas(peer: Peer) -> None:
    tools = {tool["name"]: tool for tool in await all_of(peer, "tools/list", "tools")}
    assert ("outputSchema" in tools["order"]) == (peer.revision >= "2025-06-18")


@case("tools: call, text", over=EVERYWHERE)
async def call(peer: Peer) -> None:
    assert text(await peer.call("add", {"a": 1, "b": 2})) == "3"
    assert text(await peer.call("echo", {"text": ODD})) == ODD
    large = "x" * 400_000  # it is sent twice, and clients of HTTP+SSE read events of up to 1 MiB
    assert text(await peer.call("echo", {"text": large})) == large


@case("tools: structured output", since="2025-06-18", over=EVERYWHERE)
async def structured(peer: Peer) -> None:
    result = await peer.call("order", {"dish": "soup", "portions": 2})
    assert result["structuredContent"] == {"dish": "soup", "portions": 2}, result
    assert json.loads(text(result)) == {"dish": "soup", "portions": 2}
    number = (await peer.call("add", {"a": 1, "b": 2}))["structuredContent"]
    assert number == {"result": 3}, number


@case("tools: structured output, nested", since="2025-06-18", over=EVERYWHERE)
async def nested(peer: Peer) -> None:
    soup, tea = {"dish": "soup", "portions": 2}, {"dish": "tea", "portions": 1}
    result = await peer.call("menu", {"guests": [soup, tea]})
    assert result["structuredContent"] == {"best": soup, "others": [tea]}, result


@case("tools: one block of each kind", over=EVERYWHERE)
async def media(peer: Peer) -> None:
    kinds = [block["type"] for block in (await peer.call("media"))["content"]]
    audio = "audio" if peer.revision >= "2025-03-26" else "text"
    link = "resource_link" if peer.revision >= "2025-06-18" else "text"
    assert kinds == ["image", audio, "resource", link], kinds


@case("tools: many at once", over=EVERYWHERE)
async def many(peer: Peer) -> None:
    sums: dict[int, str] = {}

    async def one(n: int) -> None:
        sums[n] = text(await peer.call("add", {"a": n, "b": 1}))

    async with anyio.create_task_group() as group:
        for n in range(50):
            group.start_soon(one, n)
    assert sums == {n: str(n + 1) for n in range(50)}


@case("errors: tool fails, arguments misfit", over=EVERYWHERE)
async def failures(peer: Peer) -> None:
    failed = await peer.call("fail")
    assert failed["isError"] is True
    assert text(failed) == "the oven is off"
    misfit = await peer.call("order", {"dish": "soup", "portions": "many"})
    assert misfit["isError"] is True
    assert "portions" in text(misfit)


@case("errors: unknown tool, resource, prompt", over=EVERYWHERE)
async def unknown(peer: Peer) -> None:
    assert await refusal(peer.call("nope")) == -32602
    assert await refusal(peer.read("config://nope")) == (-32602 if stateless(peer) else -32002)
    assert await refusal(peer.prompt("nope", {})) == -32602
    assert await refusal(peer.prompt("greet", {})) == -32602


@case("resources: list and read", over=EVERYWHERE)
async def resources(peer: Peer) -> None:
    listed = {item["uri"]: item for item in await all_of(peer, "resources/list", "resources")}
    assert set(listed) == {"config://app", "logo://png"}
    (config,) = (await peer.read("config://app"))["contents"]
    assert config["text"] == '{"heat": 3}'
    assert config["mimeType"] == "application/json"
    (logo,) = (await peer.read("logo://png"))["contents"]
    assert logo["blob"].startswith("iVBOR")


@case("resources: templates", over=EVERYWHERE)
async def templates(peer: Peer) -> None:
    (template,) = await all_of(peer, "resources/templates/list", "resourceTemplates")
    assert template["uriTemplate"] == "users://{name}/profile"
    (profile,) = (await peer.read("users://ann/profile"))["contents"]
    assert profile["text"] == "profile of ann"
    assert profile["uri"] == "users://ann/profile"


@case("prompts: list", over=EVERYWHERE)
async def prompts(peer: Peer) -> None:
    listed = {item["name"]: item for item in await all_of(peer, "prompts/list", "prompts")}
    assert set(listed) == {"greet", "talk"}
    assert [argument["name"] for argument in listed["greet"]["arguments"]] == ["name", "mood"]


@case("prompts: get", over=EVERYWHERE)
async def prompt(peer: Peer) -> None:
    (message,) = (await peer.prompt("greet", {"name": "Ann"}))["messages"]
    assert message["content"]["text"] == "Hello Ann, in a good mood"
    talk = await peer.prompt("talk", {"topic": "soup"})
    assert [message["role"] for message in talk["messages"]] == ["user", "assistant"]


@case("completion: prompt and template", over=EVERYWHERE)
async def completion(peer: Peer) -> None:
    for kind, of in (("ref/prompt", "greet"), ("ref/resource", "users://{name}/profile")):
        completed = (await peer.complete(kind, of, "name", "an"))["completion"]
        assert completed["values"] == ["ann", "anton"], completed


@case("progress")
async def progress(peer: Peer) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def step(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    assert text(await peer.call("count", {"to": 5}, step)) == "done"
    await eventually(lambda: len(seen) == 5, f"progress: {seen}")
    # The message came with 2025-03-26; before that it is one more member, which no schema forbids, and which
    # the peers' own servers send as well.
    assert seen == [(n, 5, f"at {n}") for n in range(1, 6)], seen


@case("log")
async def log(peer: Peer) -> None:
    await peer.set_level("warning")
    peer.logs.clear()
    await peer.call("count", {"to": 1})
    await eventually(lambda: bool(peer.logs), "log")
    assert [line["level"] for line in peer.logs] == ["warning"], peer.logs
    assert peer.logs[0]["data"] == {"counted": 1}


@case("sampling")
async def sampling(peer: Peer) -> None:
    peer.asked.clear()
    result = await peer.call("ask_model")
    assert text(result) == "the soup", result
    assert peer.asked[0]["systemPrompt"] == "Be brief.", peer.asked


@case("elicitation", since="2025-06-18")
async def elicitation(peer: Peer) -> None:
    peer.asked.clear()
    result = await peer.call("ask_user")
    assert text(result) == "2 x soup", result
    assert set(peer.asked[0]["requestedSchema"]["properties"]) == {"dish", "portions"}


@case("roots")
async def roots(peer: Peer) -> None:
    result = await peer.call("ask_roots")
    assert text(result) == "file:///kitchen", result


@case("an example that asks twice, books between, and asks the model", since="2025-06-18")
async def planned(peer: Peer) -> None:
    city = uuid4().hex
    result = await peer.call("plan_trip", {"city": city})
    assert text(result).endswith(", 3 days of art: the soup"), result
    assert text(await peer.call("bookings", {"city": city})) == "1"


@case("asks without a session: a clean refusal", era="session", over=("alone",))
async def refused_asks(peer: Peer) -> None:
    # There is no way for an answer, and results could not ask for input yet.
    for name in ("ask_model", "ask_user", "ask_roots"):
        result = await peer.call(name)
        assert result["isError"] is True, result


@case("list changed, subscription")
async def subscription(peer: Peer) -> None:
    async def touch() -> None:
        await peer.call("touch")
        await peer.call("grow")

    await peer.watched("config://app", touch)
    tools = [tool["name"] for tool in await all_of(peer, "tools/list", "tools")]
    assert any(name.startswith("extra") for name in tools), tools


@case("cancellation")
async def cancellation(peer: Peer) -> None:
    before = int(text(await peer.call("cancelled")))
    await peer.cancel_call("slow")
    for _ in range(100):
        if int(text(await peer.call("cancelled"))) > before:
            return
        await anyio.sleep(0.02)
    raise AssertionError("the server did not drop the call")


@case("ping", era="session", over=EVERYWHERE)
async def ping(peer: Peer) -> None:
    await peer.ping()


@case("two clients at once, one hears what the other does", over=("http", "sse"))
async def two(peer: Peer) -> None:
    async with peer.another() as other:
        sums: list[str] = []

        async def one(client: Peer, n: int) -> None:
            sums.append(text(await client.call("add", {"a": n, "b": 0})))

        async with anyio.create_task_group() as group:
            for n in range(20):
                group.start_soon(one, peer, n)
                group.start_soon(one, other, n)
        assert sorted(sums, key=int) == [str(n // 2) for n in range(40)], sums

        async def change() -> None:
            await other.call("touch")
            await other.call("grow")

        await peer.watched("config://app", change)


@case("clients of both eras and of HTTP+SSE at once", era="stateless", over=("http",))
async def three(peer: Peer) -> None:
    uri = "config://app"
    async with peer.another("legacy", "http") as older, peer.another("legacy", "sse") as oldest:
        assert not stateless(older)
        assert not stateless(oldest)

        async def change() -> None:
            await peer.call("touch")
            await peer.call("grow")

        await peer.watched(uri, lambda: older.watched(uri, lambda: oldest.watched(uri, change)))


@case("a stream that the server interrupts is resumed", since="2025-11-25", era="session", over=("http",))
async def interrupted(peer: Peer) -> None:
    result = await peer.call("pause", {"key": "pause"})
    assert text(result) == "run 1", result


@case("a stream that is cut is resumed", since="2025-03-26", era="session", over=("http",))
async def cut(peer: Peer) -> None:
    seen, step = cutting()
    result = await peer.call("hold", {"key": "hold"}, step)
    assert text(result) == "run 1", result
    assert seen == [1, 2], seen


@case("a stream that is cut fails one call alone", era="stateless", over=("http",))
async def failed(peer: Peer) -> None:
    _, step = cutting()
    try:
        result = await peer.call("hold", {"key": "hold"}, step)
    except Refused:
        pass
    else:
        raise AssertionError(f"it did not fail: {result}")
    assert text(await peer.call("add", {"a": 1, "b": 2})) == "3"


@case("tools: mirrored parameters", era="stateless", over=("http",))
async def mirrored(peer: Peer) -> None:
    await all_of(peer, "tools/list", "tools")
    for place in ("Bern", "Zürich 世界", " spaces ", ""):
        assert text(await peer.call("deliver", {"place": place, "floor": 3, "fragile": True})) == f"{place} 3"


def cutting() -> tuple[list[float], Callable[..., Any]]:
    """A list of the progress that came, and what to be told it; the first has all connections cut."""
    seen: list[float] = []

    async def step(done: float, total: float | None, message: str | None) -> None:
        del total, message
        seen.append(done)
        if len(seen) == 1:
            say(cut=True)

    return seen, step


def say(**told: Any) -> None:
    """Tell the runner something."""
    print(json.dumps(told), flush=True)


async def run(peer: Peer, expected: str) -> None:
    """Run all cases that apply."""
    fitting = [(case.what, case.run) for case in CASES if case.applies(peer)]
    say(plan=[what for what, _ in fitting])
    why = "" if peer.revision == expected else f"agreed on {peer.revision}, not on {expected}"
    say(what=f"connect → {expected}", why=why)
    for what, check in fitting:
        why = ""
        try:
            with anyio.fail_after(20):
                await check(peer)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            trace = error.__traceback__
            lines = []
            while trace is not None:
                if trace.tb_frame.f_code.co_filename == __file__:
                    lines.append(trace.tb_lineno)
                trace = trace.tb_next
            why = f"{type(error).__name__}: {error} (line {lines[-1]})"[:500]
        say(what=what, why=why)


def way(over: str, target: list[str]) -> list[str]:
    """The URL of the same server for HTTP or for HTTP+SSE."""
    paths = {"http": "/mcp", "sse": "/sse", "alone": "/mcp"}
    return [target[0].rpartition("/")[0] + paths[over]] if over in paths else target


def arguments() -> tuple[str, str, str, list[str]]:
    """How to connect, the revision to come of it, over what, and the command of the server or its URL."""
    _, mode, expected, over, *target = sys.argv
    return mode, expected, over, target
