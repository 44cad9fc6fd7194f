"""Request states: bound to client, method and arguments; all others are rejected."""

import asyncio
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosted import call, modern, run, serving
from request_state_talk import REFUSED, Name, Talk, made
from toolpost import Context, KeyRing, MCPError, Server
from toolpost.errors import InvalidParams


def test_a_question_may_have_a_name_of_its_own():
    async def main() -> str:
        async with Talk(made()) as talk:
            first = await talk.ask()
            assert list(first.input_requests) == ["user_name"]
            return (await talk.ask(first.request_state)).content[0].text

    assert asyncio.run(main()) == "Hello, Ann!"


@pytest.mark.requirement("MRTR-3")
def test_two_questions_of_one_name_have_two_keys():
    server = Server("s")

    @server.tool
    async def greet(ctx: Context) -> str:
        first, second = await asyncio.gather(
            ctx.elicit("One?", Name, key="user_name"), ctx.elicit("Two?", Name, key="user_name")
        )
        return f"{first} {second}"

    async def main() -> list[str]:
        async with Talk(server) as talk:
            return list((await talk.ask()).input_requests)

    assert asyncio.run(main()) == ["user_name", "user_name-2"]


@pytest.mark.requirement("MRTR-22")
def test_an_answer_belongs_to_the_words_that_were_asked():
    """A question that changed under its name is asked again, whatever the client sends for the old one."""
    server = Server("s")
    words = ["Your name?", "Your dog's name?"]

    @server.tool
    async def greet(ctx: Context) -> str:
        answer = await ctx.elicit(words[0], Name, key="user_name")
        return repr(answer)

    async def main() -> str:
        async with Talk(server) as talk:
            first = await talk.ask()
            del words[0]
            second = await talk.ask(first.request_state)
            assert "dog" in bytes(second.input_requests["user_name"].params).decode()
            return (await talk.ask(second.request_state)).content[0].text

    assert asyncio.run(main()) == "Accepted(data=Name(name='Ann'))"


# --------------------------------------------------------------------- what a state is bound to


@pytest.mark.requirement("MRTR-8", "MRTR-9", "MRTR-10", "MRTR-11", "ELIC-31")
@pytest.mark.parametrize(
    ("where", "who", "params"),
    [
        ({}, "bea", {}),
        ({}, None, {}),
        ({"name": "t"}, "ann", {}),
        ({"keys": KeyRing(["x" * 32])}, "ann", {}),
        ({}, "ann", {"name": "other"}),
        ({}, "ann", {"arguments": {"word": "Bye"}}),
        ({}, "ann", {"arguments": {}}),
        ({}, "ann", {"name": "greeting", "method": "prompts/get"}),
    ],
)
def test_a_state_is_good_for_one_caller_one_server_and_one_request(where, who, params, caplog):
    async def main() -> None:
        async with Talk(made(), "ann") as talk, Talk(made(**where), who) as thief:
            first = await talk.ask(arguments={"word": "Hi"})
            changed: dict[str, Any] = {"arguments": {"word": "Hi"}, **params}
            with pytest.raises(InvalidParams, match=REFUSED):
                await thief.ask(first.request_state, **changed)
            result = await talk.ask(first.request_state, arguments={"word": "Hi"})
            assert result.content[0].text == "Hi, Ann!"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "request state rejected" in caplog.text


def test_a_key_is_rotated_without_a_loss():
    async def main() -> str:
        async with Talk(made(keys=KeyRing(["a" * 32]))) as old:
            state = (await old.ask()).request_state
        async with Talk(made(keys=KeyRing(["b" * 32, "a" * 32]))) as new:
            return (await new.ask(state)).content[0].text

    assert asyncio.run(main()) == "Hello, Ann!"


def test_a_single_use_state_needs_the_state():
    async def main() -> Any:
        async with Talk(made(answer_once=True)) as talk:
            answer = {"action": "accept", "content": {"name": "Ann"}}
            return await talk.ask(inputResponses={"user_name": answer})

    assert asyncio.run(main()).input_requests


def test_workers_that_do_not_share_a_store_cannot_take_answers_once():
    with pytest.raises(ValueError, match="a store that all 2 workers share"):
        made(answer_once=True).run(http="127.0.0.1:0", workers=2, stateless=True)


@pytest.mark.parametrize("seconds", [0, -1, "soon", None, float("inf"), 1e300])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises((TypeError, ValueError), match="answer_timeout"):
        Server("s", answer_timeout=seconds)


# --------------------------------------------------------------------- what a client makes up


def changed(state: str, draw: Any) -> str:
    """Return a corrupted state: parts of it are changed, lost, doubled, or mixed with other text."""
    raw = bytearray(urlsafe_b64decode(state + "=" * (-len(state) % 4)))
    kind = draw(st.sampled_from(["flip", "cut", "grow", "text", "swap"]))
    at = draw(st.integers(0, len(raw) - 1))
    if kind == "flip":
        raw[at] ^= 1 << draw(st.integers(0, 7))
    elif kind == "cut":
        del raw[at:]
    elif kind == "grow":
        raw[at:at] = draw(st.binary(min_size=1, max_size=40))
    elif kind == "swap":
        raw = raw[at:] + raw[:at] if at else raw[::-1]
    else:
        return draw(st.text(max_size=200))
    return urlsafe_b64encode(bytes(raw)).decode().rstrip("=")


@pytest.mark.requirement("MRTR-8", "MRTR-9", "MRTR-10")
@pytest.mark.parametrize("encrypts", [True, False])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_other_string_is_taken_for_a_state(encrypts, data):
    keys = KeyRing(["k" * 32], encrypt=encrypts)

    async def main() -> None:
        async with Talk(made(keys=keys), "ann") as talk:
            first = await talk.ask()
            for _ in range(5):
                state = changed(first.request_state, data.draw)
                if state == first.request_state:
                    continue
                with pytest.raises(MCPError) as caught:
                    await talk.ask(state)
                assert isinstance(caught.value, InvalidParams), state
            assert (await talk.ask(first.request_state)).content[0].text == "Hello, Ann!"

    asyncio.run(main())


@pytest.mark.requirement("MRTR-13", "MRTR-14")
@pytest.mark.parametrize(
    ("params", "refused"),
    [
        ({"requestState": 5}, True),
        ({"requestState": {}}, True),
        ({"inputResponses": []}, True),
        ({"inputResponses": "x"}, True),
        ({"requestState": None, "inputResponses": None}, False),
        ({"inputResponses": {}}, False),
        ({"inputResponses": {"user_name": None}}, False),
        ({"inputResponses": {"user_name": 12345}}, False),
        ({"inputResponses": {"user_name": {"action": "accept", "content": {"name": 5}}}}, False),
        ({"inputResponses": {"": {}}}, False),
    ],
)
def test_odd_members_are_refused_or_the_question_is_asked_again(params, refused):
    async def main() -> Any:
        async with Talk(made()) as talk:
            return await talk.ask(**params)

    if refused:
        with pytest.raises(InvalidParams):
            asyncio.run(main())
    else:
        assert asyncio.run(main()).input_requests


def test_bad_states_with_long_ids_do_not_flood_the_log(caplog):
    async def main() -> None:
        async with serving(made().asgi()) as site:
            for number in range(20):
                params = {**call("greet"), "requestState": "bad" * 10_000}
                answer = await site.post(*modern("tools/call", params, id=f"{number}{'x' * 100_000}"))
                assert answer.json["error"]["code"] == -32602

    with caplog.at_level(logging.INFO, "toolpost"):
        run(main)
    logged = [each for each in caplog.messages if "request state rejected" in each]
    assert 0 < len(logged) < 20
    assert max(map(len, caplog.messages)) < 1000
