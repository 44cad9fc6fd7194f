"""A call that asks without a session: it returns questions, and runs again with the answers."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from annotated_types import Predicate

from expected_limits import MAX_ANSWERS
from revision_dates import DATES
from stateless_calls import NEW, answering, called
from toolpost import (
    Accepted,
    Cancelled,
    Client,
    Context,
    Declined,
    RPCError,
    Server,
    SyncContext,
    ToolError,
)
from toolpost.errors import InvalidParams, LocalProtocolError
from toolpost.types import ElicitResult

SESSION = DATES[-2]
BOTH = pytest.mark.parametrize("revision", [SESSION, NEW])


@dataclass
class Order:
    number: int
    city: str = "Oslo"


@BOTH
def test_a_function_asks_in_the_middle_and_goes_on(revision):
    server = Server("s")
    runs: list[str] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        runs.append("top")
        first = await ctx.elicit("How many?", int)
        second = await ctx.elicit("Really?", int)
        poem = await ctx.sample("A poem, please")
        roots = await ctx.roots()
        return f"{first.data} {second.data} {poem.content.text} {roots[0].uri}"  # type: ignore[union-attr] - all accepted

    result, seen = called(server, revision)
    assert result.text == "1 1 A poem. file:///a"
    assert seen == ["How many?", "Really?", "sample"]
    assert len(runs) == (1 if revision == SESSION else 5)


@BOTH
def test_a_step_is_done_once(revision):
    server = Server("s")
    charged: list[int] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        def charge(amount: int) -> Order:
            charged.append(amount)
            return Order(len(charged))

        order = await ctx.step("charge", charge, 5)
        answer = await ctx.elicit("Send it?", bool)
        again = await ctx.step("charge", charge, amount=7)
        done = await ctx.elicit("Done?", bool)
        return f"{order} {again} {isinstance(answer, Accepted)} {done}"

    result, _ = called(server, revision, said={"user": True})
    assert result.text == "Order(number=1, city='Oslo') Order(number=2, city='Oslo') True Accepted(data=True)"
    assert charged == [5, 7]


@pytest.mark.parametrize("how", ["gather", "group"])
def test_questions_side_by_side_travel_in_one_round(how):
    server = Server("s")
    runs: list[str] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        runs.append("top")
        if how == "gather":
            answers = await asyncio.gather(*(ctx.elicit(f"Number {n}?", int) for n in range(3)))
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ctx.elicit(f"Number {n}?", int)) for n in range(3)]
            answers = [task.result() for task in tasks]
        return " ".join(str(answer.data) for answer in answers)  # type: ignore[union-attr] - all accepted

    result, seen = called(server, NEW, said={"user": lambda message: int(message[7])})
    assert result.text == "0 1 2"
    assert sorted(seen) == ["Number 0?", "Number 1?", "Number 2?"]
    assert len(runs) == 2


@BOTH
def test_a_function_in_a_thread_asks_too(revision):
    server = Server("s")
    ended: list[str] = []

    @server.tool
    def ask(ctx: SyncContext) -> str:
        try:
            answer = ctx.elicit("How many?", int)
            number = ctx.step("double", lambda: 21 * 2)
        except Exception:  # noqa: BLE001 - shows that it does not catch a question
            return "caught"
        else:
            return f"{answer} {number}"
        finally:
            ended.append("finally")

    result, _ = called(server, revision)
    assert result.text == "Accepted(data=1) 42"
    assert len(ended) == (1 if revision == SESSION else 2)


@BOTH
def test_prompts_and_resources_ask_too(revision):
    server = Server("s")

    @server.prompt
    async def poem(ctx: Context) -> str:
        return f"A poem of {await ctx.elicit('Lines?', int)}"

    @server.resource("x://{name}")
    async def thing(name: str, ctx: Context) -> str:
        return f"{name}: {await ctx.elicit('How much?', int)}"

    host = answering(user=3)

    async def main():
        async with Client(server, revision=revision, **host["options"]) as client:
            filled: Any = await client.get_prompt("poem")
            held = await client.read_resource("x://a")
            return filled.messages[0].content.text, held.contents[0].text

    assert asyncio.run(main()) == ("A poem of Accepted(data=3)", "a: Accepted(data=3)")
    assert host["seen"] == ["Lines?", "How much?"]


@BOTH
def test_invalid_answers_are_asked_again_with_the_reason(revision):
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        # What no schema says, so that the client lets it pass.
        return str(await ctx.elicit("How many?", Annotated[int, Predicate(odd)]))

    def odd(number: int) -> bool:
        return number % 2 == 1

    def stubborn(message: str) -> Any:
        return 7 if "is not valid" in message else 8

    result, seen = called(server, revision, said={"user": stubborn})
    assert result.text == "Accepted(data=7)"
    assert len(seen) == 2
    assert seen[1].startswith("How many?\n\nThe answer is not valid")
    with pytest.raises(ToolError, match="is not valid"):
        called(server, revision, said={"user": lambda _: 8})


@BOTH
def test_a_user_who_declines_is_not_asked_again(revision):
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        first = await ctx.elicit("How many?", int)
        return str(isinstance(first, Declined)) + str(await ctx.elicit("How many?", int))

    result, seen = called(server, revision, said={"user": ElicitResult(action="decline")})
    assert result.text == "TrueDeclined()"
    assert seen == ["How many?", "How many?"]


@pytest.mark.requirement("MRTR-6")
def test_a_client_without_the_capability_is_not_asked():
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit("How many?", int))

    async def main():
        async with Client(server, revision=NEW) as client:
            await client.call_tool("ask")

    with pytest.raises(RPCError, match="elicitation") as caught:
        asyncio.run(main())
    assert caught.value.code == -32021


# --------------------------------------------------------------------- what comes back


def asking() -> Server:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context, a: int = 0) -> str:
        return str(await ctx.elicit(f"How many {a}?", int))

    @server.tool
    async def other(ctx: Context, a: int = 0) -> str:
        return str(await ctx.elicit(f"How many {a}?", int))

    return server


def flipped(state: str) -> str:
    """The state with one letter changed."""
    return state[:40] + ("A" if state[40] != "A" else "B") + state[41:]


def rounds(server: Server, change: Any) -> Any:
    """Call once, then retry with the parameters that `change` returns."""
    host = answering()

    async def main():
        async with Client(server, revision=NEW, **host["options"]) as client:
            params: dict[str, Any] = {"name": "ask", "arguments": {"a": 1, "b": 2}}
            params["arguments"].pop("b")
            first = await client.request("tools/call", params)
            asked: Any = first
            answers = {key: {"action": "accept", "content": {"value": 5}} for key in asked.input_requests}
            retry = {**params, "inputResponses": answers, "requestState": asked.request_state}
            return await client.request("tools/call", change(retry))

    return asyncio.run(main())


@pytest.mark.requirement("MRTR-1", "MRTR-5", "MRTR-15")
def test_a_retry_carries_the_answer_and_unrequested_answers_are_ignored():
    result: Any = rounds(
        asking(),
        lambda retry: {**retry, "inputResponses": {**retry["inputResponses"], "x": {"action": "accept"}}},
    )
    assert result.content[0].text == "Accepted(data=5)"


@pytest.mark.requirement("MRTR-16")
@pytest.mark.parametrize("answers", [{}, None, "odd"])
def test_a_missing_or_odd_answer_is_asked_for_again(answers):
    def change(retry):
        if answers == "odd":
            return {**retry, "inputResponses": {key: {"action": "maybe"} for key in retry["inputResponses"]}}
        return {**retry, "inputResponses": answers}

    result: Any = rounds(asking(), change)
    assert list(result.input_requests)
    assert result.request_state


@pytest.mark.requirement("MRTR-8", "MRTR-9", "MRTR-10", "MRTR-11")
@pytest.mark.parametrize(
    "change",
    [
        lambda retry: {**retry, "requestState": "nonsense"},
        lambda retry: {**retry, "requestState": retry["requestState"][:-2]},
        lambda retry: {**retry, "requestState": flipped(retry["requestState"])},
        lambda retry: {**retry, "name": "other"},
        lambda retry: {**retry, "arguments": {"a": 2}},
        lambda retry: {**retry, "arguments": {}},
    ],
)
def test_a_state_that_is_not_of_this_call_is_refused_without_a_reason(change, caplog):
    with pytest.raises(InvalidParams, match=r"^s: Invalid params: the requestState is not valid") as caught:
        rounds(asking(), change)
    assert "forged" not in str(caught.value)
    assert "request state rejected" in caplog.text


def test_how_the_arguments_are_written_does_not_matter():
    result: Any = rounds(asking(), lambda retry: dict(reversed(list(retry.items()))))
    assert result.content[0].text == "Accepted(data=5)"


def test_a_state_of_another_server_is_refused():
    first, second = asking(), asking()
    second.info.name = "t"
    taken: list[str] = []

    def steal(retry):
        taken.append(retry["requestState"])
        return retry

    rounds(first, steal)
    with pytest.raises(InvalidParams):
        rounds(second, lambda retry: {**retry, "requestState": taken[0]})


@BOTH
def test_a_long_journal_stays_in_the_store(revision):
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        def much() -> str:
            return "x" * 100_000

        text = await ctx.step("much", much)
        await ctx.elicit("Go on?", int)
        return str(len(text))

    result, _ = called(server, revision)
    assert result.text == "100000"


def test_a_step_whose_result_is_not_json_is_an_error():
    server = Server("s", debug=True)

    @server.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.step("odd", object))

    with pytest.raises(ToolError, match="step"):
        called(server, NEW)


@BOTH
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
def test_a_step_that_raises_fails_alone(revision, is_async, kind):
    server = Server("s")

    def broken() -> int:
        raise kind("no")

    async def later() -> int:
        raise kind("no")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.step("broken", later if is_async else broken))

    with pytest.raises(ToolError, match="failed"):
        called(server, revision)


@BOTH
def test_a_step_that_has_begun_is_finished_although_its_client_has_gone(revision):
    server = Server("s")
    ended: list[str] = []

    async def main():
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def pay() -> int:
            begun.set()
            await go_on.wait()
            ended.append("paid")
            return 1

        @server.tool
        async def ask(ctx: Context) -> str:
            await asyncio.gather(ctx.step("pay", pay), ctx.elicit("How many?", int))
            return ""

        async with server.hold_lifespan():
            async with Client(server, revision=revision, **answering()["options"]) as client:
                call = asyncio.ensure_future(client.call_tool("ask"))
                await begun.wait()
                call.cancel()
                await asyncio.wait([call])
            go_on.set()
        assert not server.running_steps

    asyncio.run(main())
    assert ended == ["paid"]


# --------------------------------------------------------------------- what must not go wrong


def test_a_no_is_not_replaced_by_an_older_yes():
    """A question keeps its key but changes its message: the old answer no longer counts."""
    server = Server("s")
    price = [5]
    paid: list[int] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        sure = await ctx.elicit(f"Pay {price[0]}?", bool, key="sure")
        if not sure:
            return "not paid"
        where = await ctx.elicit("Where to?", str)
        paid.append(price[0])
        return f"paid {price[0]} {where}"

    def user(message: str) -> Any:
        if message == "Where to?":
            price[0] = 500
            return "Oslo"
        return True if message == "Pay 5?" else ElicitResult(action="decline")

    result, seen = called(server, NEW, said={"user": user})
    assert (result.text, paid) == ("not paid", [])
    assert seen == ["Pay 5?", "Where to?", "Pay 500?"]


@pytest.mark.parametrize("how", ["gather", "wait", "finally", "bare"])
def test_a_question_that_is_swallowed_is_asked_all_the_same(how, caplog):
    server = Server("s")

    async def sure(ctx: Context) -> bool:
        return isinstance(await ctx.elicit("Sure?", bool), Accepted)

    @server.tool
    async def ask(ctx: Context) -> str:
        answer: Any = None
        if how == "gather":
            (answer,) = await asyncio.gather(sure(ctx), return_exceptions=True)
        elif how == "wait":
            task = asyncio.ensure_future(sure(ctx))
            await asyncio.wait([task])
            answer = task.exception() or task.result()
        else:
            try:
                answer = await sure(ctx)
            except BaseException:  # noqa: BLE001 - shows what becomes of it
                answer = "swallowed"
        return f"done: {answer}"

    result, seen = called(server, NEW, said={"user": True})
    assert (result.text, seen) == ("done: True", ["Sure?"])
    assert "returned although a question has no answer yet" in caplog.text


@BOTH
def test_a_factory_lets_the_chosen_server_ask(revision):
    chosen = asking()

    async def choose(*_: Any) -> Server:
        return chosen

    result, seen = called(Server.factory(choose, "f"), revision, said={"user": 5})
    assert (result.text, seen) == ("Accepted(data=5)", ["How many 0?"])


@BOTH
def test_many_functions_in_threads_run_their_steps_at_once(revision):
    """Each has one thread of the pool, and needs no other."""
    server = Server("s", threads=2)

    @server.tool
    def ask(ctx: SyncContext) -> int:
        return ctx.step("double", lambda: 21 * 2)

    async def main() -> list[Any]:
        async with Client(server, revision=revision) as client:
            return await asyncio.gather(*(client.call_tool("ask") for _ in range(6)))

    assert [result.data for result in asyncio.run(main())] == [42] * 6


@BOTH
@pytest.mark.parametrize("is_async", [True, False])
def test_a_step_neither_asks_nor_runs_another(revision, is_async):
    server = Server("s")
    tried: list[str] = []

    @server.tool
    async def in_loop(ctx: Context) -> str:
        async def asks() -> str:
            return str(await ctx.elicit("In a step?", int))

        async def runs() -> str:
            return await ctx.step("inner", lambda: "x")

        for fn in (asks, runs):
            try:
                await ctx.step(fn.__name__, fn)
            except LocalProtocolError as error:
                tried.append(error.message)
        return ""

    @server.tool
    def in_thread(ctx: SyncContext) -> str:
        for name, fn in (("asks", lambda: ctx.elicit("?", int)), ("runs", lambda: ctx.step("i", lambda: 1))):
            try:
                ctx.step(name, fn)
            except LocalProtocolError as error:
                tried.append(error.message)
        return ""

    _, seen = called(server, revision, "in_loop" if is_async else "in_thread")
    assert seen == []
    assert [text.partition(":")[0] for text in tried] == [
        "a step cannot ask the client",
        "a step cannot run another step",
    ]


@BOTH
def test_two_steps_of_one_name_do_not_run_at_once(revision):
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        async def receipt(of: str) -> str:
            await asyncio.sleep(0)
            return f"receipt of {of}"

        done = await asyncio.gather(
            ctx.step("pay", receipt, "a"), ctx.step("pay", receipt, "b"), return_exceptions=True
        )
        return " | ".join(map(str, done))

    result, _ = called(server, revision)
    assert result.text.startswith("receipt of a | two steps named 'pay' run at the same time")


@BOTH
def test_a_step_requires_a_function(revision):
    server = Server("s", debug=True)

    @server.tool
    async def ask(ctx: Context) -> str:
        return await ctx.step("pay", "paid already")  # type: ignore[arg-type] - as some write it

    with pytest.raises(ToolError, match="pass the function and its arguments, not its result"):
        called(server, revision)


def test_answers_count_although_a_run_did_not_come_so_far():
    server = Server("s")
    runs: list[int] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        runs.append(1)
        words = ["A?", "B?"] if len(runs) == 1 else ["C?"] if len(runs) == 2 else ["A?", "B?", "C?"]
        answers = await asyncio.gather(*(ctx.elicit(word, int) for word in words))
        return str(len(answers))

    result, seen = called(server, NEW)
    assert (result.text, sorted(seen)) == ("3", ["A?", "B?", "C?"])


def test_more_questions_than_a_client_may_answer_at_once_take_more_rounds():
    server = Server("s")
    many = MAX_ANSWERS + 44

    @server.tool
    async def ask(ctx: Context) -> str:
        answers = await asyncio.gather(*(ctx.elicit(f"{n}?", int) for n in range(many)))
        return str(len(answers))

    result, seen = called(server, NEW)
    assert result.text == str(many)
    assert len(seen) == len(set(seen)) == many


def test_an_error_beside_a_question_counts_more():
    server = Server("s", debug=True)

    @server.tool
    async def ask(ctx: Context) -> str:
        async def fails() -> None:
            raise ValueError("beside")

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.elicit("How many?", int))
            group.create_task(fails())
        return ""

    with pytest.raises(ToolError, match="unhandled errors"):
        called(server, NEW)


@BOTH
def test_a_question_after_the_call_has_ended_raises(revision):
    server = Server("s")
    told: list[str] = []

    async def main() -> None:
        over = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        async def later(ctx: Context) -> None:
            await over.wait()
            try:
                await ctx.elicit("Too late?", int)
            except LocalProtocolError as error:
                told.append(error.message)

        @server.tool
        async def ask(ctx: Context) -> str:
            tasks.append(asyncio.ensure_future(later(ctx)))
            return "done"

        async with Client(server, revision=revision, **answering()["options"]) as client:
            await client.call_tool("ask")
            over.set()
            await asyncio.wait(tasks)

    asyncio.run(main())
    assert len(told) == 1
    assert "it can no longer ask" in told[0]


@pytest.mark.parametrize("key", ["", "x" * 129])
def test_a_key_has_a_bound(key):
    server = Server("s", debug=True)

    @server.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit("?", int, key=key))

    with pytest.raises(ToolError, match="key must have 1 to 128 characters"):
        called(server, NEW)


def test_a_refusal_counts_as_false():
    assert not Declined()
    assert not Cancelled()
    assert Accepted(data=False)
