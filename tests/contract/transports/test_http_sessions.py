"""Sessions over HTTP: owners, expiry, and no event lost, repeated or sent to another session."""

import json
from typing import Any

import pytest

from hosted import (
    FIRST,
    OLD,
    OLDER,
    Stage,
    hosted,
    kitchen,
    legacy,
    message,
    run,
)
from session_site import ELICITS, listening, stage_and_site, steps, text, tool
from toolpost import Context, Server
from waiting import until

# --------------------------------------------------------------------- whose they are


@pytest.mark.requirement("HTTPL-22", "HTTPL-27")
def test_a_session_belongs_to_the_principal_that_opened_it():
    def principal(scope):
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    async def main():
        async with hosted(kitchen(), principal=principal) as site:
            ann, bob = {"X-User": "ann"}, {"X-User": "bob"}
            session = await site.open(headers=ann)
            ping = message("ping", id=1)
            assert (await site.post({**legacy(session), **ann}, ping)).status == 200
            for other in (bob, {}):
                assert (await site.post({**legacy(session), **other}, ping)).status == 404
                assert (await site.ask("GET", "/mcp", {**listening(session), **other})).status == 404
                assert (await site.ask("GET", "/mcp", {**listening(session, "0."), **other})).status == 404
                assert (await site.ask("DELETE", "/mcp", {**legacy(session), **other})).status == 404
            assert (await site.post({**legacy(session), **ann}, ping)).status == 200

    run(main)


def test_a_function_knows_its_principal():
    server = Server("who")

    @server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.principal} {ctx.request.headers.get('x-word')}"

    async def main():
        async with hosted(server, principal=lambda _: "ann") as site:
            session = await site.open()
            answer = await site.post({**legacy(session), "X-Word": "please"}, tool("who", 1))
            assert text(answer) == "ann please"

    run(main)


def test_state_belongs_to_one_session():
    server = Server("state")

    @server.tool
    async def count(ctx: Context) -> str:
        count = await ctx.state.get("n", 0) + 1
        await ctx.state.set("n", count)
        return str(count)

    async def main():
        async with hosted(server) as site:
            first, second = await site.open(), await site.open()
            said = [text(await site.post(legacy(each), tool("count", 1))) for each in (first, first, second)]
            assert said == ["1", "2", "1"]

    run(main)


@pytest.mark.requirement("HTTPL-8", "HTTP-7")
@pytest.mark.parametrize("revision", [OLDER, OLD])
def test_a_question_comes_on_the_stream_of_its_call(revision):
    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open(revision, ELICITS)
            general, _ = await site.begin("GET", listening(session, revision=revision))
            wire, _ = await site.begin("POST", legacy(session, revision), tool("asked", 1))
            if revision == OLD:
                assert (await wire.event()).data == ""
            question = await wire.event()
            assert question.json["method"] == "elicitation/create"
            answer = message(id=question.json["id"], result={"action": "accept", "content": {"value": 7}})
            posted = await site.post(legacy(session, revision), answer)
            assert (posted.status, posted.body) == (202, b"")
            said = await wire.event()
            assert "7" in text(said)
            assert await wire.event() is None
            await site.ask("DELETE", "/mcp", legacy(session))
            assert [event for event in await general.events() if event.data] == []

    run(main)


def test_an_answer_of_another_session_is_ignored():
    async def main():
        async with hosted(kitchen()) as site:
            session, other = await site.open(OLD, ELICITS), await site.open(OLD, ELICITS)
            wire, _ = await site.begin("POST", legacy(session), tool("asked", 1))
            await wire.event()
            question = (await wire.event()).json["id"]
            forged = message(id=question, result={"action": "accept", "content": {"value": 666}})
            assert (await site.post(legacy(other), forged)).status == 202
            right = message(id=question, result={"action": "decline"})
            assert (await site.post(legacy(session), right)).status == 202
            assert "Declined" in text(await wire.event())

    run(main)


@pytest.mark.parametrize("name", ["quiet", "noisy"])
def test_a_cancelled_call_ends_its_post(name):
    async def main():
        async with stage_and_site() as (stage, site):
            session = await site.open()
            wire = await site.wire()
            await wire.ask("POST", "/mcp", legacy(session), tool(name, 5, token=1))
            await stage.begun.wait()
            cancel = message("notifications/cancelled", {"requestId": 5})
            assert (await site.post(legacy(session), cancel)).status == 202
            await stage.ended.wait()
            if name == "quiet":
                answer = await wire.answer()
                assert (answer.status, answer.body) == (202, b"")
            else:
                await wire.head()
                assert steps(await wire.events()) == [1]
            # The id is free again.
            stage.go.set()
            assert text(await site.post(legacy(session), tool("quiet", 5))) == "waited"

    run(main)


@pytest.mark.parametrize("revision", [OLD, FIRST])
def test_an_id_that_is_in_use_is_refused_at_once(revision):
    async def main():
        async with stage_and_site() as (stage, site):
            session = await site.open(revision)
            wire = await site.wire()
            await wire.ask("POST", "/mcp", legacy(session, revision), tool("quiet", 5))
            await stage.begun.wait()
            refused = await site.post(legacy(session, revision), message("ping", id=5))
            assert (refused.status, refused.code) == (200, -32600)
            if revision == FIRST:
                batch = b"[%b,%b]" % (message("ping", id=5), message("ping", id=6))
                refused = await site.post(legacy(session, revision), batch)
                assert [each["error"]["code"] for each in refused.json] == [-32600] * 2
            assert (await site.post(legacy(session, revision), message("ping", id="5"))).json["result"] == {}
            stage.go.set()
            assert text(await wire.answer()) == "waited"

    run(main)


@pytest.mark.parametrize("ids", [(1, 1), (1, "1", 1)])
def test_a_batch_with_one_id_twice_is_refused(ids):
    """Responses could not be matched to requests."""

    async def main():
        async with stage_and_site() as (_, site):
            session = await site.open(FIRST)
            batch = b"[" + b",".join(tool("echo", each, text="x") for each in ids) + b"]"
            answers = (await site.post(legacy(session, FIRST), batch)).json
            assert [(each["id"], each["error"]["code"]) for each in answers] == [
                (each, -32600) for each in ids
            ]
            again = await site.post(legacy(session, FIRST), tool("echo", 1, text="x"))
            assert text(again) == "x"

    run(main)


def test_a_batch_whose_parts_are_cancelled_is_answered_in_part():
    async def main():
        async with stage_and_site() as (stage, site):
            session = await site.open(FIRST)
            wire = await site.wire()
            batch = b"[%b,%b]" % (tool("quiet", "a"), message("ping", id="b"))
            await wire.ask("POST", "/mcp", legacy(session, FIRST), batch)
            await stage.begun.wait()
            cancel = message("notifications/cancelled", {"requestId": "a"})
            assert (await site.post(legacy(session, FIRST), cancel)).status == 202
            assert [each["id"] for each in (await wire.answer()).json] == ["b"]

    run(main)


def test_a_batch_with_notifications_is_a_stream():
    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open(FIRST)
            batch = b"[%b,%b]" % (message("ping", id="b"), tool("steps", "a", token=1, count=1))
            wire, _ = await site.begin("POST", legacy(session, FIRST), batch)
            events = await wire.events()
            assert [event.json.get("id") for event in events] == ["b", None, "a"]

    run(main)


@pytest.mark.parametrize("size", [10_000, 5 * 1024 * 1024])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_may_be_larger_than_a_log(size, streamed):
    server = Server("big")

    @server.tool
    async def big(size: int, ctx: Context) -> str:
        await ctx.progress(1)
        return "x" * size

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            wire = await site.wire()
            await wire.ask(
                "POST", "/mcp", legacy(session), tool("big", 1, token=1 if streamed else None, size=size)
            )
            await wire.head()
            said = (await wire.events())[-1].json if streamed else json.loads(await wire.rest())
            assert len(said["result"]["content"][0]["text"]) == size

    run(main)


def test_fire_and_forget_posts_are_taken_in_order():
    server = Server("order")
    heard: list[Any] = []

    @server.on_notification("notifications/note")
    async def note(ctx: Context, params: dict[str, Any]) -> None:
        heard.append(params["n"])

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            wire = await site.wire()
            for number in range(20):
                await wire.ask("POST", "/mcp", legacy(session), message("notifications/note", {"n": number}))
                assert (await wire.answer()).status == 202
            await until(lambda: len(heard) == 20)
            assert heard == list(range(20))

    run(main)


@pytest.mark.requirement("HTTPL-18", "HTTPL-19")
def test_a_new_reader_takes_over_the_general_stream():
    """A client may know sooner than we do that its connection is dead."""

    async def main():
        server = kitchen()
        async with hosted(server) as site:
            session = await site.open()
            first, _ = await site.begin("GET", listening(session))
            primed = await first.event()
            server.tools.remove("echo")
            change = await first.event()
            second, head = await site.begin("GET", listening(session, change.id))
            assert head.status == 200
            assert (await second.event()).id == change.id
            server.resources.remove("kitchen://menu")
            told = await second.event()
            assert told.json["method"] == "notifications/resources/list_changed"
            assert await first.events() == []
            # Back to the very beginning: all of it again.
            third, _ = await site.begin("GET", listening(session, primed.id))
            again = [await third.event() for _ in range(3)]
            assert [event.id for event in again[1:]] == [change.id, told.id]

    run(main)


@pytest.mark.parametrize("revision", [FIRST, OLDER])
def test_older_clients_get_no_empty_event(revision):
    async def main():
        server = kitchen()
        async with hosted(server) as site:
            session = await site.open(revision)
            wire, _ = await site.begin("GET", listening(session, revision=revision))
            server.tools.remove("echo")
            assert (await wire.event()).data

    run(main)


def test_a_client_without_an_open_stream_cannot_be_asked():
    server = Server("asks")
    seen: list[Any] = []

    @server.on_notification("notifications/ask")
    async def ask(ctx: Context) -> None:
        try:
            await ctx.roots()
        except Exception as error:  # noqa: BLE001 - it is looked at
            seen.append(error)
        else:
            seen.append("asked")

    async def main():
        async with hosted(server) as site:
            session = await site.open(capabilities={"roots": {}})
            assert (await site.post(legacy(session), message("notifications/ask"))).status == 202
            await until(lambda: seen)
            assert "no open stream" in str(seen.pop())
            wire, _ = await site.begin("GET", listening(session))
            await wire.event()
            assert (await site.post(legacy(session), message("notifications/ask"))).status == 202
            question = (await wire.event()).json
            if question["method"] == "notifications/cancelled":  # of the question that was not sent
                question = (await wire.event()).json
            assert question["method"] == "roots/list"
            await site.post(legacy(session), message(id=question["id"], result={"roots": []}))
            await until(lambda: seen)
            assert seen == ["asked"]

    run(main)


# --------------------------------------------------------------------- coming back


@pytest.mark.requirement("HTTPL-9", "HTTPL-18", "HTTPL-21")
@pytest.mark.parametrize("seen", [0, 1, 2])
@pytest.mark.parametrize("revision", [OLDER, OLD])
def test_a_stream_is_resumed_without_loss_or_double(revision, seen):
    """A lost connection does not cancel; the client later gets the missed events of this stream only."""
    server = Server("steps")
    stage: list[Stage] = []

    @server.tool
    async def work(ctx: Context) -> str:
        for number in range(1, 3):
            await ctx.progress(number)
        stage[0].begun.set()
        await stage[0].go.wait()
        for number in range(3, 5):
            await ctx.progress(number)
        return "done"

    async def main():
        stage[:] = [Stage()]
        async with hosted(server) as site:
            session = await site.open(revision)
            broken, _ = await site.begin("POST", legacy(session, revision), tool("work", 1, token="a"))
            other, _ = await site.begin("POST", legacy(session, revision), tool("work", 2, token="b"))
            await stage[0].begun.wait()
            first = [await broken.event() for _ in range(seen + (revision == OLD))]
            if not first:
                first = [await broken.event()]
            await broken.abort()
            back, head = await site.begin("GET", listening(session, first[-1].id, revision))
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            stage[0].go.set()
            rest = await back.events()
            assert steps([*first, *rest]) == [1, 2, 3, 4]
            assert rest[-1].json["id"] == 1
            ids = [event.id for event in [*first, *rest] if event.data]
            assert len(ids) == len(set(ids)) == 5
            tokens = {
                event.json["params"]["progressToken"]
                for event in rest
                if event.data and "method" in event.json
            }
            assert tokens == {"a"}
            theirs = await other.events()
            assert steps(theirs) == [1, 2, 3, 4]
            assert not {event.id for event in theirs} & set(ids)

    run(main)


def test_a_stream_whose_answer_was_sent_can_be_read_again():
    """The last bytes may have been lost."""

    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("steps", 1, token=1, count=3))
            events = await wire.events()
            back, _ = await site.begin("GET", listening(session, events[1].id))
            again = await back.events()
            assert [event.id for event in again[1:]] == [event.id for event in events[2:]]
            back, _ = await site.begin("GET", listening(session, events[-1].id))
            assert [event.data for event in await back.events()] == [""]

    run(main)


@pytest.mark.requirement("HTTPL-21")
def test_a_stream_of_another_session_cannot_be_resumed():
    async def main():
        async with hosted(kitchen()) as site:
            session, other = await site.open(), await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("steps", 1, token=1, count=3))
            events = await wire.events()
            for last in (events[0].id, events[1].id, f"../../{session}/stream/{events[1].id}"):
                assert (await site.ask("GET", "/mcp", listening(other, last))).status == 400

    run(main)


def test_an_event_that_never_was_cannot_be_resumed():
    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("steps", 1, token=1, count=3))
            stream = (await wire.events())[0].id
            for last in (f"{stream}x-1", f"{stream}{'9' * 5000}", f"{stream}é"):
                assert (await site.ask("GET", "/mcp", listening(session, last))).status == 400
            # Of the general stream there is always something to hear.
            back, head = await site.begin("GET", listening(session, "0.nonsense"))
            assert head.status == 200
            assert (await back.event()).id == "0."

    run(main)


@pytest.mark.parametrize("revision", [FIRST, OLDER])
def test_no_polling_for_older_clients(revision):
    async def main():
        async with stage_and_site() as (stage, site):
            session = await site.open(revision)
            wire, _ = await site.begin("POST", legacy(session, revision), tool("polled", 1, token=1))
            await stage.begun.wait()
            stage.go.set()
            events = await wire.events()
            assert all(event.data for event in events)
            assert steps(events) == [1, 2]
            assert text(events[-1]) == "polled"

    run(main)
