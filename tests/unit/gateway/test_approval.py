"""The user is asked before a call: once, with what is called, in both eras."""

import asyncio
import json
from typing import Any

import pytest

from toolpost import Client, Context, Server
from toolpost.errors import InvalidParams, RPCError, UserRejected
from toolpost.gateway.approval import FORBIDDEN
from toolpost.gateway.policy import Policy, Rule
from toolpost.types import ElicitResult

ERAS = ["2025-11-25", "2026-07-28"]


class Shop:
    """A shop whose orders the user has to confirm."""

    def __init__(self) -> None:
        self.ordered: list[str] = []
        self.asked: list[Any] = []
        self.answers: list[ElicitResult] = []
        self.server = Server("shop", middleware=[Policy([Rule(tools="order*", then="ask"), Rule(tools="*")])])

        @self.server.tool
        def order(item: str) -> str:
            self.ordered.append(item)
            return f"ordered {item}"

        @self.server.tool
        async def order_twice(ctx: Context, item: str) -> str:
            answer = await ctx.elicit(f"Really {item}?", bool)
            self.ordered.append(item)
            return str(answer)

    async def answer(self, asked: Any) -> ElicitResult:
        self.asked.append(asked)
        return self.answers.pop(0)

    def client(self, revision: str) -> Client:
        return Client(self.server, revision=revision, on_elicitation=self.answer)


def agreed(**content: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=content)


@pytest.fixture
def shop():
    return Shop()


@pytest.mark.parametrize("revision", ERAS)
def test_the_user_sees_the_tool_and_its_arguments(shop, revision):
    shop.answers = [agreed()]

    async def main() -> None:
        async with shop.client(revision) as client:
            assert (await client.call_tool("order", {"item": "a\u202epen"})).text == "ordered a\u202epen"

    asyncio.run(main())
    (asked,) = shop.asked
    assert "the tool order" in asked.message
    assert '"item": "a\\u202epen"' in asked.message
    assert shop.ordered == ["a\u202epen"]


@pytest.mark.parametrize("revision", ERAS)
@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_without_a_yes_nothing_is_called(shop, revision, action):
    shop.answers = [ElicitResult(action=action)]

    async def main() -> None:
        async with shop.client(revision) as client:
            with pytest.raises(UserRejected, match="did not allow the tool order"):
                await client.call_tool("order", {"item": "pen"})

    asyncio.run(main())
    assert shop.ordered == []


@pytest.mark.parametrize("revision", ["2024-11-05", *ERAS])
def test_a_client_that_cannot_be_asked_is_refused(shop, revision):
    async def main() -> None:
        async with Client(shop.server, revision=revision) as client:
            with pytest.raises(RPCError, match="this client cannot ask") as refused:
                await client.call_tool("order", {"item": "pen"})
            assert refused.value.code == FORBIDDEN

    asyncio.run(main())
    assert shop.ordered == []


def test_an_answer_is_remembered_for_the_session(shop):
    shop.answers = [agreed(remember=True), agreed()]

    async def main() -> None:
        async with shop.client(ERAS[0]) as client:
            for item in ("pen", "cup"):
                await client.call_tool("order", {"item": item})
        async with shop.client(ERAS[0]) as client:
            await client.call_tool("order", {"item": "hat"})

    asyncio.run(main())
    assert len(shop.asked) == 2
    assert shop.ordered == ["pen", "cup", "hat"]


@pytest.mark.parametrize("revision", ERAS)
def test_the_call_may_ask_something_itself(shop, revision):
    shop.answers = [agreed(), agreed(value=True)]

    async def main() -> None:
        async with shop.client(revision) as client:
            await client.call_tool("order_twice", {"item": "pen"})

    asyncio.run(main())
    assert [asked.message[:6] for asked in shop.asked] == ["Allow ", "Really"]
    assert shop.ordered == ["pen"]


def test_an_approval_is_for_one_call(shop):
    """Another call, other arguments, or the same again need another one."""

    async def main() -> None:
        async with shop.client(ERAS[1]) as client:

            async def send(tool: str = "order", item: str = "pen", **more: Any) -> Any:
                params = {"name": tool, "arguments": {"item": item}, **more}
                return await client.forward("tools/call", json.dumps(params).encode())

            first = await send()
            assert first.result_type == "input_required"
            state = json.loads(first.raw)["requestState"]
            yes: dict[str, Any] = {
                "inputResponses": {"toolpost-approval": {"action": "accept", "content": {}}},
                "requestState": state,
            }
            others: list[dict[str, Any]] = [{"item": "car"}, {"tool": "order_twice"}]
            for wrong in others:
                with pytest.raises(InvalidParams, match="requestState"):
                    await send(**wrong, **yes)
            with pytest.raises(InvalidParams, match="requestState"):
                await send(inputResponses={"toolpost-approval": {"nonsense": 1}}, requestState=state)
            assert (await send(**yes)).result_type == "complete"
            with pytest.raises(InvalidParams, match="requestState"):
                await send(**yes)
            unasked = await send(inputResponses=yes["inputResponses"])
            assert unasked.result_type == "input_required"

    asyncio.run(main())
    assert shop.ordered == ["pen"]
