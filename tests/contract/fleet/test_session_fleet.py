"""Sessions on several workers that share a store: whichever worker a request reaches serves it."""

import asyncio
from itertools import cycle
from typing import Any

import pytest

from fleet import fleet, fleets_on, turns
from hosted import FIRST, OLD, OLDER, Stage, call, legacy, message, modern, opening, run
from redis_servers import redis_server
from revision_dates import DATES
from session_site import ELICITS, listening, steps, text, tool
from sse_talk import JSON, READY, talk
from toolpost import Context, Server
from toolpost.server.middleware import RateLimit
from waiting import until

MENU = "kitchen://menu"
REVISIONS = pytest.mark.parametrize("revision", [FIRST, OLDER, OLD])
GONE = "The worker that served this call died"


@pytest.fixture(scope="module", params=["memory", "redis"], autouse=True)
def store(request, tmp_path_factory):
    """The store that the workers of this module share."""
    if request.param == "memory":
        yield
        return
    with redis_server(tmp_path_factory.mktemp("redis")) as server, fleets_on(server):
        yield


def accepted(question: int, value: int) -> bytes:
    """The answer to a question."""
    return message(id=question, result={"action": "accept", "content": {"value": value}})


# --------------------------------------------------------------------- requests


@pytest.mark.requirement("HTTPL-22", "HTTPL-24")
@pytest.mark.parametrize("count", [2, 3])
@REVISIONS
def test_a_session_is_served_by_whichever_worker_it_reaches(count, revision):
    async def main():
        async with fleet(count) as workers:
            first, *others = workers
            opened = await first.post(legacy(revision=None), opening(revision))
            session = opened.headers["mcp-session-id"]
            ready = await others[0].post(legacy(session, revision), message("notifications/initialized"))
            assert (ready.status, ready.body) == (202, b"")
            for number, worker in zip(range(1, 31), cycle(workers), strict=False):
                assert (
                    text(await worker.post(legacy(session, revision), tool("echo", number, text="x"))) == "x"
                )
                assert (await worker.post(legacy(session, revision), message("ping", id="p"))).json[
                    "result"
                ] == {}

    run(main)


def test_large_handshake_data_reaches_all_workers():
    """Data that does not fit into the session id is in the store."""

    async def main():
        async with fleet() as (a, b):
            much = {"experimental": {"much": {"text": "x" * 5000}}, **ELICITS}
            session = await a.open(OLD, much)
            assert len(session) < 2000
            wire, _ = await b.begin("POST", legacy(session), tool("asked", 1))
            await wire.event()
            question = (await wire.event()).json
            assert (await a.post(legacy(session), accepted(question["id"], 7))).status == 202
            assert "7" in text(await wire.event())

    run(main)


@pytest.mark.requirement("SEC-5")
def test_a_session_belongs_to_its_principal_at_all_workers():
    def principal(scope):
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    async def main():
        async with fleet(principal=principal) as (a, b):
            ann, bob = {"X-User": "ann"}, {"X-User": "bob"}
            session = await a.open(headers=ann)
            ping = message("ping", id=1)
            for _ in range(2):  # known to the worker or not
                for other in (bob, {}):
                    assert (await b.post({**legacy(session), **other}, ping)).status == 404
                    assert (await b.ask("GET", "/mcp", {**listening(session), **other})).status == 404
                    assert (await b.ask("DELETE", "/mcp", {**legacy(session), **other})).status == 404
                assert (await b.post({**legacy(session), **ann}, ping)).status == 200

    run(main)


def test_a_handshake_may_be_completed_at_another_worker():
    async def main():
        async with fleet() as workers:
            a, b = workers
            session = (await a.post(legacy(revision=None), opening())).headers["mcp-session-id"]
            assert (await b.post(legacy(session), message("notifications/initialized"))).status == 202
            for worker in (a, b):
                assert (await worker.post(legacy(session), message("ping", id=1))).status == 200
            assert workers.store.messages == 0

    run(main)


def test_a_session_that_is_used_at_one_worker_is_not_idle_at_another():
    async def main():
        async with fleet(idle=2) as (a, b):
            session = await a.open()
            late = asyncio.get_running_loop().time() + 3  # settings that are older are read again
            while asyncio.get_running_loop().time() < late:
                assert (await b.post(legacy(session), message("ping", id=1))).status == 200
            assert (await a.post(legacy(session), message("ping", id=1))).status == 200

    run(main)


@pytest.mark.parametrize("name", [None, "quiet"])
def test_a_session_that_listens_or_works_at_one_worker_is_not_idle_at_another(name):
    """A session that is in use for long does not delay the search for idle ones."""

    async def main():
        async with fleet(idle=2) as (a, b):
            session = await a.open()
            wire = await b.site.wire()
            if name is None:
                await wire.ask("GET", "/mcp", listening(session))
                await wire.head()
            else:
                await wire.ask("POST", "/mcp", legacy(session), tool(name, 1))
                await b.stage.begun.wait()
            late = asyncio.get_running_loop().time() + 3
            await until(lambda: asyncio.get_running_loop().time() > late)
            for worker in (a, b):
                assert (await worker.post(legacy(session), message("ping", id=2))).status == 200

    run(main)


def test_a_session_that_no_worker_uses_is_idle_at_all():
    async def main():
        async with fleet(idle=0.1) as (a, b):
            session = await a.open()
            assert (await b.post(legacy(session), message("ping", id=1))).status == 200
            # Each may have to wait for what the other has noted.
            late = asyncio.get_running_loop().time() + 3
            await until(lambda: asyncio.get_running_loop().time() > late)
            for worker in (a, b):
                assert (await worker.post(legacy(session), message("ping", id=1))).status == 404

    run(main)


@pytest.mark.parametrize(("asker", "answerer"), [(0, 1), (1, 0), (1, 2)])
@pytest.mark.parametrize("revision", [OLDER, OLD])
def test_a_question_is_answered_at_any_worker(asker, answerer, revision):
    async def main():
        async with fleet(3) as workers:
            session = await workers[0].open(revision, ELICITS)
            wire, _ = await workers[asker].begin("POST", legacy(session, revision), tool("asked", 1))
            if revision == OLD:
                assert (await wire.event()).data == ""
            question = (await wire.event()).json
            assert question["method"] == "elicitation/create"
            posted = await workers[answerer].post(legacy(session, revision), accepted(question["id"], 7))
            assert (posted.status, posted.body) == (202, b"")
            assert "7" in text(await wire.event())
            assert await wire.event() is None

    run(main)


def test_questions_of_many_workers_are_not_confused():
    async def main():
        async with fleet(3) as workers:
            session = await workers[0].open(OLD, ELICITS)
            wires = []
            for number in range(12):
                wire, _ = await workers[number % 3].begin("POST", legacy(session), tool("asked", number))
                await wire.event()
                wires.append((wire, (await wire.event()).json["id"]))
            assert len({question for _, question in wires}) == len(wires)
            for value, (_, question) in enumerate(wires):
                posted = await workers[(value + 1) % 3].post(legacy(session), accepted(question, 100 + value))
                assert posted.status == 202
            for value, (wire, _) in enumerate(wires):
                assert str(100 + value) in text(await wire.event())

    run(main)


def test_an_answer_of_another_session_is_ignored_by_all_workers():
    async def main():
        async with fleet() as (a, b):
            session, other = await a.open(OLD, ELICITS), await a.open(OLD, ELICITS)
            wire, _ = await b.begin("POST", legacy(session), tool("asked", 1))
            await wire.event()
            question = (await wire.event()).json["id"]
            assert (await a.post(legacy(other), accepted(question, 666))).status == 202
            assert (await a.post(legacy(session), accepted(question, 7))).status == 202
            said = text(await wire.event())
            assert "7" in said
            assert "666" not in said

    run(main)


@pytest.mark.requirement("CANC-1")
@pytest.mark.parametrize("name", ["quiet", "noisy"])
def test_a_call_is_cancelled_at_any_worker(name):
    async def main():
        async with fleet() as (a, b):
            session = await a.open()
            wire = await b.site.wire()
            await wire.ask("POST", "/mcp", legacy(session), tool(name, 5, token=1))
            await b.stage.begun.wait()
            cancel = message("notifications/cancelled", {"requestId": 5})
            assert (await a.post(legacy(session), cancel)).status == 202
            await b.stage.ended.wait()
            if name == "quiet":
                answer = await wire.answer()
                assert (answer.status, answer.body) == (202, b"")
            else:
                await wire.head()
                assert steps(await wire.events()) == [1]

    run(main)


def test_a_cancellation_of_another_session_cancels_nothing():
    async def main():
        async with fleet() as (a, b):
            session, other = await a.open(), await a.open()
            wire = await b.site.wire()
            await wire.ask("POST", "/mcp", legacy(session), tool("quiet", 5))
            await b.stage.begun.wait()
            cancel = message("notifications/cancelled", {"requestId": 5})
            assert (await a.post(legacy(other), cancel)).status == 202
            await turns(20)
            b.stage.go.set()
            assert text(await wire.answer()) == "waited"

    run(main)


def test_a_cancellation_overtakes_its_request_on_the_way_to_another_worker():
    async def main():
        async with fleet() as (a, b):
            session, other = await a.open(), await a.open()
            cancel = message("notifications/cancelled", {"requestId": 5})
            assert (await a.post(legacy(session), cancel)).status == 202
            await turns(5)
            answer = await b.post(legacy(session), tool("echo", 5, text="x"))
            assert answer.json["error"]["message"] == "The request was cancelled before it arrived"
            assert text(await b.post(legacy(other), tool("echo", 5, text="x"))) == "x"
            assert text(await b.post(legacy(session), tool("echo", 6, text="x"))) == "x"

    run(main)


# --------------------------------------------------------------------- streams


def adds_work(server: Server, stage: Stage) -> None:
    """Add a tool that sends two messages, waits, and sends two more."""

    @server.tool
    async def work(ctx: Context) -> str:
        for number in range(1, 3):
            await ctx.progress(number)
        stage.begun.set()
        await stage.go.wait()
        for number in range(3, 5):
            await ctx.progress(number)
        return "done"


@pytest.mark.requirement("HTTPL-18", "HTTPL-21")
@pytest.mark.parametrize("seen", [0, 1, 2])
@pytest.mark.parametrize("revision", [OLDER, OLD])
def test_a_stream_is_resumed_at_another_worker_without_loss_or_double(revision, seen):
    async def main():
        async with fleet(more=adds_work) as (a, b):
            session = await a.open(revision)
            broken, _ = await b.begin("POST", legacy(session, revision), tool("work", 1, token="a"))
            await b.stage.begun.wait()
            first = [await broken.event() for _ in range(seen + (revision == OLD))]
            first = first or [await broken.event()]
            await broken.abort()
            back, head = await a.begin("GET", listening(session, first[-1].id, revision))
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            b.stage.go.set()
            rest = await back.events()
            assert steps([*first, *rest]) == [1, 2, 3, 4]
            assert rest[-1].json["id"] == 1
            ids = [event.id for event in [*first, *rest] if event.data]
            assert len(ids) == len(set(ids)) == 5

    run(main)


def test_a_stream_wanders_from_worker_to_worker():
    """Each connection is cut after one event, and the next one reaches another worker."""

    def adds_steps(server: Server, stage: Stage) -> None:
        @server.tool
        async def count(upto: int, ctx: Context) -> str:
            for number in range(upto):
                await ctx.progress(number + 1)
                await stage.go.wait()
            return "done"

    async def main():
        async with fleet(3, adds_steps) as workers:
            session = await workers[0].open()
            wire, _ = await workers[0].begin("POST", legacy(session), tool("count", 1, token=1, upto=12))
            events = [await wire.event(), await wire.event()]
            for worker in (workers * 5)[1:14]:
                await wire.abort()
                workers[0].stage.go.set()
                wire, head = await worker.begin("GET", listening(session, events[-1].id))
                assert head.status == 200
                assert (await wire.event()).data == ""
                event = await wire.event()
                if event is None:
                    break
                events.append(event)
            assert steps(events) == list(range(1, 13))
            assert text(events[-1]) == "done"

    run(main)


def test_a_reader_that_waits_at_another_worker_causes_no_traffic():
    async def main():
        async with fleet(more=adds_work) as workers:
            a, b = workers
            session = await a.open()
            broken, _ = await b.begin("POST", legacy(session), tool("work", 1, token=1))
            events = [await broken.event() for _ in range(3)]
            await broken.abort()
            back, _ = await a.begin("GET", listening(session, events[-1].id))
            await back.event()
            before = workers.store.messages
            await turns(200)
            assert workers.store.messages - before < 20
            b.stage.go.set()
            assert steps(await back.events()) == [3, 4]

    run(main)


def test_the_last_reader_of_a_stream_ends_the_earlier_one_on_another_worker():
    async def main():
        async with fleet(3, adds_work) as (a, b, c):
            session = await a.open()
            broken, _ = await b.begin("POST", legacy(session), tool("work", 1, token=1))
            events = [await broken.event() for _ in range(3)]
            await broken.abort()
            readers: list[Any] = []
            for worker in (a, c, b, a):
                reader, head = await worker.begin("GET", listening(session, events[-1].id))
                assert head.status == 200
                await reader.event()
                readers.append(reader)
            for earlier in readers[:-1]:
                assert [event for event in await earlier.events() if event.data] == []
            b.stage.go.set()
            assert steps(await readers[-1].events()) == [3, 4]

    run(main)


def test_readers_that_come_at_once_to_all_workers_leave_one():
    async def main():
        async with fleet(3, adds_work) as workers:
            session = await workers[0].open()
            broken, _ = await workers[0].begin("POST", legacy(session), tool("work", 1, token=1))
            events = [await broken.event() for _ in range(3)]
            await broken.abort()
            begun = [worker.begin("GET", listening(session, events[-1].id)) for worker in workers * 3]
            readers = [reader for reader, _ in await asyncio.gather(*begun)]
            await turns(200)
            workers[0].stage.go.set()
            told = [steps(await reader.events()) for reader in readers]
            assert sorted(told) == [[]] * 8 + [[3, 4]]

    run(main)


def test_an_answer_is_fetched_at_another_worker_after_the_stream_was_closed():
    async def main():
        async with fleet() as (a, b):
            session = await a.open()
            wire, _ = await b.begin("POST", legacy(session), tool("polled", 1, token=1))
            events = await wire.events()
            assert steps(events) == [1]
            back, _ = await a.begin("GET", listening(session, events[-1].id))
            b.stage.go.set()
            rest = await back.events()
            assert steps(rest) == [2]
            assert text(rest[-1]) == "polled"

    run(main)


@pytest.mark.parametrize("resumes", ["before", "after"])
def test_a_stream_whose_worker_dies_ends_with_an_error(resumes):
    async def main():
        async with fleet(more=adds_work) as workers:
            a, b = workers
            session = await a.open()
            broken, _ = await b.begin("POST", legacy(session), tool("work", "call 1", token=1))
            events = [await broken.event() for _ in range(2)]
            await broken.abort()
            if resumes == "after":
                workers.store.kill(1)
            back, head = await a.begin("GET", listening(session, events[-1].id))
            assert head.status == 200
            if resumes == "before":
                assert [(await back.event()).data == "", *steps([await back.event()])] == [True, 2]
                workers.store.kill(1)
            rest = await back.events()
            assert steps(rest) == ([2] if resumes == "after" else [])
            assert rest[-1].json["id"] == "call 1"
            assert rest[-1].json["error"]["code"] == -32603
            assert rest[-1].json["error"]["message"].startswith(GONE)
            # The session lives on.
            assert text(await a.post(legacy(session), tool("echo", 2, text="x"))) == "x"

    run(main)


def test_a_stream_whose_worker_stops_ends_with_an_error():
    async def main():
        async with fleet(more=adds_work, drain=0) as (a, b):
            session = await a.open()
            broken, _ = await b.begin("POST", legacy(session), tool("work", 1, token=1))
            events = [await broken.event() for _ in range(3)]
            await broken.abort()
            back, _ = await a.begin("GET", listening(session, events[-1].id))
            await back.event()
            await b.site.app.stop()
            [said] = await back.events()
            assert said.json["id"] == 1
            assert said.json["error"]["code"] == -32603
            assert text(await a.post(legacy(session), tool("echo", 2, text="x"))) == "x"

    run(main)


# --------------------------------------------------------------------- the general stream


@pytest.mark.parametrize("count", [2, 3])
def test_changes_at_any_worker_are_sent_by_all_workers(count):
    async def main():
        async with fleet(count) as workers:
            first, *_, last = workers
            session = await first.open()
            wire, _ = await first.begin("GET", listening(session))
            assert (await wire.event()).data == ""
            last.server.tools.remove("echo")
            assert (await wire.event()).json["method"] == "notifications/tools/list_changed"
            subscribe = message("resources/subscribe", {"uri": MENU}, 1)
            assert (await last.post(legacy(session), subscribe)).json["result"] == {}
            assert text(await last.post(legacy(session), tool("news", 2))) == "told"
            said = (await wire.event()).json
            assert (said["method"], said["params"]["uri"]) == ("notifications/resources/updated", MENU)
            assert text(await first.post(legacy(session), tool("news", 3))) == "told"
            assert (await wire.event()).json == said
            unsubscribe = message("resources/unsubscribe", {"uri": MENU}, 4)
            assert (await last.post(legacy(session), unsubscribe)).json["result"] == {}
            assert text(await last.post(legacy(session), tool("news", 5))) == "told"
            last.server.resources.remove(MENU)
            assert (await wire.event()).json["method"] == "notifications/resources/list_changed"

    run(main)


def test_a_stateless_client_receives_changes_of_any_worker():
    async def main():
        async with fleet() as (a, b):
            wishes = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": [MENU]}}
            wire, head = await a.begin("POST", *modern("subscriptions/listen", wishes))
            assert head.headers["content-type"] == "text/event-stream"
            assert (await wire.event()).json["method"] == "notifications/subscriptions/acknowledged"
            b.server.tools.remove("echo")
            assert (await wire.event()).json["method"] == "notifications/tools/list_changed"
            await b.post(*modern("tools/call", call("news")))
            assert (await wire.event()).json["params"]["uri"] == MENU

    run(main)


def test_a_session_has_one_reader_on_all_workers():
    async def main():
        async with fleet() as (a, b):
            session = await a.open()
            first, _ = await a.begin("GET", listening(session))
            primed = await first.event()
            for worker in (a, b):
                assert (await worker.ask("GET", "/mcp", listening(session))).status == 409
            second, head = await b.begin("GET", listening(session, primed.id))
            assert head.status == 200
            assert await first.events() == []
            await second.event()
            assert (await a.ask("GET", "/mcp", listening(session))).status == 409
            a.server.tools.remove("echo")
            said = (await second.event()).json["method"]
            while said != "notifications/tools/list_changed":
                said = (await second.event()).json["method"]
            await second.close()
            await until_free(a, session)

    async def until_free(worker, session):
        while True:
            wire, head = await worker.begin("GET", listening(session))
            if head.status == 200:
                return
            assert head.status == 409
            await wire.close()

    run(main)


@pytest.mark.parametrize("second", [0, 1])
def test_a_message_on_the_general_stream_comes_once(second):
    """A client that returns without an event id gets new events, on any worker."""

    def adds_word(server: Server, stage: Stage) -> None:
        @server.on_notification("notifications/say")
        async def say(ctx: Context, params: dict[str, str]) -> None:
            await ctx.error(params["word"])

    async def main():
        async with fleet(more=adds_word) as workers:
            session = await workers[0].open()
            headers = legacy(session)
            for number, worker in enumerate([workers[0], workers[second], workers[0]]):
                while True:
                    wire, head = await worker.begin("GET", listening(session))
                    if head.status == 200:
                        break
                    assert head.status == 409  # the end of the last connection was not noticed yet
                    await wire.close()
                await wire.event()
                say = message("notifications/say", {"word": f"word {number}"})
                assert (await workers[1].post(headers, say)).status == 202
                assert (await wire.event()).json["params"]["data"] == f"word {number}"
                await wire.close()

    run(main)


def test_a_question_on_the_general_stream_crosses_three_workers():
    """One worker asks, the client reads at another, and answers at a third."""
    seen: list[object] = []

    def adds_question(server: Server, stage: Stage) -> None:
        @server.on_notification("notifications/ask")
        async def ask(ctx: Context) -> None:
            seen.append(await ctx.roots())

    async def main():
        async with fleet(3, adds_question) as (a, b, c):
            session = await a.open(capabilities={"roots": {}})
            wire, _ = await a.begin("GET", listening(session))
            await wire.event()
            assert (await b.post(legacy(session), message("notifications/ask"))).status == 202
            question = (await wire.event()).json
            assert question["method"] == "roots/list"
            answer = message(id=question["id"], result={"roots": []})
            assert (await c.post(legacy(session), answer)).status == 202
            await until(lambda: seen)
            assert seen == [[]]

    run(main)


def test_the_end_of_a_visit_is_reported_from_any_worker():
    def adds_visit(server: Server, stage: Stage) -> None:
        @server.tool
        async def visit(ctx: Context) -> str:
            return repr(await ctx.elicit_url("Pay", "https://a.example/pay", elicitation_id="pay-1"))

    async def main():
        async with fleet(3, adds_visit) as (a, b, c):
            session = await a.open(capabilities={"elicitation": {"url": {}}})
            other = await a.open(capabilities={"elicitation": {"url": {}}})
            general, _ = await a.begin("GET", listening(session))
            await general.event()
            others, _ = await b.begin("GET", listening(other))
            await others.event()
            wire, _ = await b.begin("POST", legacy(session), tool("visit", 1))
            await wire.event()
            question = (await wire.event()).json
            answer = message(id=question["id"], result={"action": "accept"})
            assert (await c.post(legacy(session), answer)).status == 202
            assert "Accepted" in text(await wire.event())
            c.server.complete_elicitation("pay-1")
            said = (await general.event()).json
            assert said["method"] == "notifications/elicitation/complete"
            assert said["params"]["elicitationId"] == "pay-1"
            c.server.tools.remove("echo")
            assert (await others.event()).json["method"] == "notifications/tools/list_changed"

    run(main)


# --------------------------------------------------------------------- what a session remembers


def said(events) -> list[object]:
    """Return the log messages."""
    return [event.json["params"]["data"] for event in events if event.data and "params" in event.json]


def test_subscriptions_at_two_workers_at_once_are_both_kept():
    def adds_dishes(server: Server, stage: Stage) -> None:
        @server.resource("kitchen://{dish}")
        def dish(dish: str) -> str:
            return dish

    async def main():
        async with fleet(more=adds_dishes) as (a, b):
            session = await a.open()
            uris = [f"kitchen://{number}" for number in range(10)]
            posts = [
                (a, b)[number % 2].post(legacy(session), message("resources/subscribe", {"uri": uri}, number))
                for number, uri in enumerate(uris)
            ]
            assert [answer.json["result"] for answer in await asyncio.gather(*posts)] == [{}] * 10
            wire, _ = await a.begin("GET", listening(session))
            await wire.event()
            for number, uri in enumerate(uris):
                (b, a)[number % 2].server.notify_resource_updated(uri)
            heard = [(await wire.event()).json["params"]["uri"] for _ in uris]
            assert sorted(heard) == uris

    run(main)


@pytest.mark.requirement("PAGE-2")
def test_a_list_is_continued_at_another_worker():
    def add_tools(server: Server, _: Stage) -> None:
        for number in range(1100):  # more than a page
            server.tool(name=f"extra-{number}")(lambda: None)

    async def main():
        async with fleet(more=add_tools) as workers:
            session, params, names = await workers[0].open(), {}, list[str]()
            for worker in cycle(workers):
                page = (await worker.post(legacy(session), message("tools/list", params, 1))).json["result"]
                names += [each["name"] for each in page["tools"]]
                if "nextCursor" not in page:
                    break
                params = {"cursor": page["nextCursor"]}
            assert params
            assert len(names) == len(set(names)) > 1100

    run(main)


def test_the_log_level_holds_on_all_workers():
    async def main():
        async with fleet() as (a, b):
            session = await a.open()
            for worker in (a, b):
                # Known there before, so that there is something old to forget.
                assert (await worker.post(legacy(session), message("ping", id=1))).status == 200
            for level, heard in (("error", ["high"]), ("info", ["low", "high"])):
                level_set = message("logging/setLevel", {"level": level}, 2)
                assert (await a.post(legacy(session), level_set)).json["result"] == {}
                for worker in (a, b):
                    wire, _ = await worker.begin("POST", legacy(session), tool("complain", 3))
                    assert said(await wire.events()) == heard

    run(main)


def test_the_log_level_holds_for_calls_that_are_running_elsewhere():
    def adds_waiting(server: Server, stage: Stage) -> None:
        @server.tool
        async def later(ctx: Context) -> str:
            await ctx.error("begins")
            await stage.go.wait()
            await ctx.info("low")
            await ctx.error("high")
            return "said"

    async def main():
        async with fleet(more=adds_waiting) as (a, b):
            session = await a.open()
            wire, _ = await b.begin("POST", legacy(session), tool("later", 1))
            first = [await wire.event() for _ in range(2)]
            level_set = message("logging/setLevel", {"level": "error"}, 2)
            assert (await a.post(legacy(session), level_set)).json["result"] == {}
            heard = ["low"]
            while "low" in heard:  # until the other worker knows the level
                other, _ = await b.begin("POST", legacy(session), tool("complain", 3))
                heard = said(await other.events())
            b.stage.go.set()
            assert said([*first, *await wire.events()]) == ["begins", "high"]

    run(main)


def test_state_is_read_at_another_worker():
    async def main():
        async with fleet(3) as (a, b, c):
            session, other = await a.open(), await a.open()
            assert text(await b.post(legacy(session), tool("recall", 1))) == "nothing"
            assert text(await a.post(legacy(session), tool("remember", 2, value="soup"))) == "kept"
            for worker in (a, b, c):
                assert text(await worker.post(legacy(session), tool("recall", 3))) == "soup"
                assert text(await worker.post(legacy(other), tool("recall", 3))) == "nothing"
            assert text(await c.post(legacy(session), tool("remember", 4, value="tea"))) == "kept"
            assert text(await a.post(legacy(session), tool("recall", 5))) == "tea"

    run(main)


@pytest.mark.requirement("HTTPL-27")
def test_a_session_that_ends_at_one_worker_ends_at_all():
    async def main():
        async with fleet(3) as (a, b, c):
            session = await a.open()
            general, _ = await c.begin("GET", listening(session))
            await general.event()
            wire = await b.site.wire()
            await wire.ask("POST", "/mcp", legacy(session), tool("quiet", 1))
            await b.stage.begun.wait()
            assert (await a.ask("DELETE", "/mcp", legacy(session))).status == 200
            await b.stage.ended.wait()
            assert (await wire.answer()).status == 202
            assert [event.data for event in await general.events()] == []
            for worker in (a, b, c):
                assert (await worker.post(legacy(session), message("ping", id=2))).status == 404
                assert (await worker.ask("GET", "/mcp", listening(session))).status == 404
                assert (await worker.ask("DELETE", "/mcp", legacy(session))).status == 404

    run(main)


def test_a_subscription_is_released_where_it_was_made():
    """`subscribe` and `unsubscribe` of a server are called once each, on the same worker."""
    hooks: dict[Server, list[str]] = {}

    def adds_hooks(server: Server, stage: Stage) -> None:
        hooks[server] = []
        subscribe, unsubscribe = server.subscribe, server.unsubscribe

        async def subscribed(uri, ctx):
            hooks[server].append("subscribe")
            await subscribe(uri, ctx)

        async def unsubscribed(uri, ctx):
            hooks[server].append("unsubscribe")
            await unsubscribe(uri, ctx)

        server.subscribe, server.unsubscribe = subscribed, unsubscribed

    async def main():
        async with fleet(3, adds_hooks) as (a, b, c):
            session = await a.open()
            for worker in (a, b, c):
                assert (await worker.post(legacy(session), message("ping", id=1))).status == 200
            subscribe = message("resources/subscribe", {"uri": MENU}, 2)
            assert (await a.post(legacy(session), subscribe)).json["result"] == {}
            assert (await c.post(legacy(session), message("ping", id=3))).status == 200
            assert (await b.ask("DELETE", "/mcp", legacy(session))).status == 200
            await until(lambda: len(hooks[a.server]) == 2)
            assert hooks == {a.server: ["subscribe", "unsubscribe"], b.server: [], c.server: []}

    run(main)


def test_the_hook_of_a_subscription_that_ends_at_another_worker_is_called_where_it_was_made():
    hooks: dict[Server, list[str]] = {}

    def adds_hook(server: Server, stage: Stage) -> None:
        hooks[server] = []
        unsubscribe = server.unsubscribe

        async def unsubscribed(uri, ctx):
            hooks[server].append(uri)
            await unsubscribe(uri, ctx)

        server.unsubscribe = unsubscribed

    async def main():
        async with fleet(3, adds_hook) as (a, b, c):
            session = await a.open()
            subscribe = message("resources/subscribe", {"uri": MENU}, 1)
            assert (await a.post(legacy(session), subscribe)).json["result"] == {}
            assert (await c.post(legacy(session), message("ping", id=2))).status == 200
            unsubscribe = message("resources/unsubscribe", {"uri": MENU}, 3)
            assert (await b.post(legacy(session), unsubscribe)).json["result"] == {}
            await until(lambda: hooks[a.server])
            assert (await b.ask("DELETE", "/mcp", legacy(session))).status == 200
            await turns(50)
            assert (hooks[a.server], hooks[c.server]) == ([MENU], [])

    run(main)


# --------------------------------------------------------------------- HTTP+SSE


def test_http_sse_takes_posts_at_any_worker():
    def adds_roots(server: Server, stage: Stage) -> None:
        @server.tool
        async def listen(ctx: Context) -> str:
            return repr(await ctx.roots())

    async def main():
        async with fleet(3, adds_roots, sse="/sse") as (a, b, c):
            client = await talk(a.site)
            assert (
                await b.ask("POST", client.endpoint, JSON, opening(DATES[0], {"roots": {}}))
            ).status == 202
            assert (await client.hear())["result"]["protocolVersion"] == DATES[0]
            assert (await c.ask("POST", client.endpoint, JSON, READY)).status == 202
            for number, worker in enumerate([a, b, c] * 5):
                posted = await worker.ask("POST", client.endpoint, JSON, tool("echo", number, text="x"))
                assert (posted.status, posted.body) == (202, b"")
                assert (await client.hear())["id"] == number
            # What it asks comes on the same stream, and is answered anywhere.
            assert (await b.ask("POST", client.endpoint, JSON, tool("listen", 99))).status == 202
            question = await client.hear()
            assert question["method"] == "roots/list"
            answer = message(id=question["id"], result={"roots": []})
            assert (await c.ask("POST", client.endpoint, JSON, answer)).status == 202
            assert (await client.hear())["result"]["content"][0]["text"] == "[]"
            await client.wire.close()
            while (await a.ask("POST", client.endpoint, JSON, message("ping", id=1))).status == 202:
                pass

    run(main)


def test_the_http_sse_session_of_a_dead_worker_is_gone():
    async def main():
        async with fleet(sse="/sse") as workers:
            a, b = workers
            client = await talk(a.site)
            await client.greet()
            workers.store.kill(0)
            assert (await b.ask("POST", client.endpoint, JSON, message("ping", id=1))).status == 404

    run(main)


# --------------------------------------------------------------------- without sessions


def test_stateless_calls_send_nothing_to_other_workers():
    async def main():
        async with fleet() as workers:
            before = workers.store.messages
            for worker in workers:
                for number in range(5):
                    answer = await worker.post(*modern("tools/call", call("echo", text="x"), number))
                    assert text(answer) == "x"
            session = await workers[0].open()
            for worker in workers:
                for number in range(5):
                    assert text(await worker.post(legacy(session), tool("echo", number, text="x"))) == "x"
            assert workers.store.messages - before == 0

    run(main)


# --------------------------------------------------------------------- limits


def test_a_shared_rate_limit_counts_the_calls_at_all_workers():
    def limits(server: Server, stage: Stage) -> None:
        server.middleware.append(RateLimit(4, 3600, tool="echo", shared=True))

    async def main():
        async with fleet(more=limits) as workers:
            session = await workers[0].open()
            answers = [
                (await worker.post(legacy(session), tool("echo", number, text="x"))).json
                for number, worker in zip(range(1, 7), cycle(workers), strict=False)
            ]
            assert ["result" in answer for answer in answers] == [True] * 4 + [False] * 2
            assert "at most 4 in 3600 s" in answers[-1]["error"]["message"]

    run(main)


# --------------------------------------------------------------------- broadcasts


def test_a_broadcast_reaches_each_worker_once():
    heard: list[tuple[int, Any]] = []
    servers: list[Server] = []

    def listens(server: Server, stage: Stage) -> None:
        number = len(servers)
        servers.append(server)

        @server.on_broadcast("prices")
        async def load(data: Any) -> None:
            heard.append((number, data))

        @server.on_broadcast("prices")
        def fail(data: Any) -> None:
            raise RuntimeError(f"no {data}")

        @server.on_broadcast("orders")
        async def ignore(data: Any) -> None:
            heard.append((-1, data))

    async def main():
        async with fleet(3, listens):
            await servers[1].broadcast("prices", {"pen": 2})
            await until(lambda: len(heard) == 3)
            await servers[0].broadcast("prices")
            await until(lambda: len(heard) == 6)
        assert sorted(heard[:3]) == [(number, {"pen": 2}) for number in range(3)]
        assert sorted(heard[3:]) == [(number, None) for number in range(3)]

    run(main)
