"""Answers to server requests: callbacks, results and declared capabilities."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from raw_server import run
from toolpost.client.callbacks import RequestCallbacks, parse_questions
from toolpost.errors import InvalidParams, LocalProtocolError, RemoteProtocolError, UserRejected
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import Row
from toolpost.protocol.revisions import LATEST
from toolpost.types import (
    UNSET,
    ClientCapabilities,
    ClientRequestParams,
    ClientTasksCapability,
    CreateMessageParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitParams,
    ElicitResult,
    ImageContent,
    Implementation,
    InputRequest,
    ListCapability,
    Raw,
    Result,
    Root,
    SamplingCapability,
    SamplingMessage,
    TextContent,
    Tool,
    ToolChoice,
)

QUESTION = CreateMessageParams(messages=[SamplingMessage("user", TextContent("hi"))], max_tokens=5)
FORM = ElicitParams(message="who?", requested_schema={"type": "object", "properties": {}})
URL = ElicitParams(message="visit", mode="url", url="https://a.example")


def answered(answers: RequestCallbacks, method: str, params: Any = None, raw: Any = None) -> Any:
    async def main() -> Any:
        incoming = InboundRequest(1, Row(method, ClientRequestParams, Result), params, Peer(LATEST))
        incoming.raw = UNSET if raw is None else raw
        return await answers.answer_request(incoming)

    try:
        return run(main())
    finally:
        answers.threads.close()


# --------------------------------------------------------------------- what is declared


async def sample(_: CreateMessageParams) -> str:
    return "hello"


async def elicit(_: ElicitParams) -> None:
    return None


@pytest.mark.requirement("ELIC-7", "ELIC-8", "SAMP-1", "SAMP-2", "ROOT-1")
@pytest.mark.parametrize(
    ("options", "declared"),
    [
        ({}, b"{}"),
        ({"sampling": sample}, b'{"sampling":{}}'),
        ({"elicitation": elicit}, b'{"elicitation":{}}'),
        ({"roots": []}, b'{"roots":{"listChanged":true}}'),
        ({"roots": list}, b'{"roots":{"listChanged":true}}'),
        (
            {
                "elicitation": elicit,
                "declared": ClientCapabilities(
                    elicitation=ElicitationCapability(form={}, url={}), extensions={"a.b/c": {}}
                ),
            },
            b'{"elicitation":{"form":{},"url":{}},"extensions":{"a.b/c":{}}}',
        ),
        (
            {
                "sampling": sample,
                "declared": ClientCapabilities(sampling=SamplingCapability(tools={}), experimental={"x": {}}),
            },
            b'{"sampling":{"tools":{}},"experimental":{"x":{}}}',
        ),
        (
            {"roots": [], "declared": ClientCapabilities(roots=ListCapability())},
            b'{"roots":{}}',
        ),
    ],
)
def test_a_callback_declares_its_capability(options, declared):
    capabilities = RequestCallbacks(**options).capabilities
    assert jsonrpc.encode(capabilities) == declared
    LocalPeer(Implementation("me", "1"), capabilities)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"declared": ClientCapabilities(sampling=SamplingCapability())},
            "sampling requires the callback on_sampling",
        ),
        ({"declared": ClientCapabilities(roots=ListCapability())}, "roots requires the callback on_roots"),
        ({"declared": ClientCapabilities(tasks=ClientTasksCapability())}, "task"),
        ({"custom": {"roots/list": dict}}, "roots/list is a protocol method"),
        ({"roots": ["https://a.example"]}, "file:// URI"),
    ],
)
def test_invalid_callbacks_fail_in_the_constructor(options, text):
    with pytest.raises(ValueError, match=text):
        RequestCallbacks(**options)


@pytest.mark.parametrize("roots", ["/a", Path("/a"), Root("file:///a")])
def test_one_root_is_not_a_list_of_roots(roots):
    with pytest.raises(TypeError, match="list of roots"):
        RequestCallbacks(roots=roots)


# --------------------------------------------------------------------- ping


@pytest.mark.requirement("PING-1")
def test_ping_is_answered_with_nothing():
    assert jsonrpc.encode(answered(RequestCallbacks(), "ping")) == b"{}"


# --------------------------------------------------------------------- sampling


@pytest.mark.parametrize(
    ("said", "content"),
    [
        ("hello", TextContent("hello")),
        (ImageContent("aGk=", "image/png"), ImageContent("aGk=", "image/png")),
        ([TextContent("a"), TextContent("b")], [TextContent("a"), TextContent("b")]),
    ],
)
def test_a_sampling_answer_may_be_short(said, content):
    result = answered(RequestCallbacks(sampling=lambda _: said), "sampling/createMessage", QUESTION)
    assert (result.role, result.content, result.model) == ("assistant", content, "unknown")


def test_a_sampling_answer_may_be_complete():
    full = CreateMessageResult(role="assistant", content=TextContent("x"), model="m", stop_reason="endTurn")
    assert answered(RequestCallbacks(sampling=lambda _: full), "sampling/createMessage", QUESTION) is full


@pytest.mark.requirement("SAMP-15")
def test_a_declined_sampling_request_is_a_rejection():
    with pytest.raises(UserRejected) as caught:
        answered(RequestCallbacks(sampling=lambda _: None), "sampling/createMessage", QUESTION)
    assert caught.value.code == -1


@pytest.mark.parametrize("said", [7, ["text"], {"role": "assistant"}])
def test_a_sampling_callback_that_returns_nonsense_is_reported(said):
    with pytest.raises(TypeError, match=r"^on_sampling: expected a string, .* or None to decline, not \w+$"):
        answered(RequestCallbacks(sampling=lambda _: said), "sampling/createMessage", QUESTION)


@pytest.mark.requirement("SAMP-4")
@pytest.mark.parametrize(
    "more", [{"tools": [Tool("t", {"type": "object"})]}, {"tool_choice": ToolChoice("required")}]
)
def test_sampling_with_tools_needs_to_be_declared(more):
    params = CreateMessageParams(messages=QUESTION.messages, max_tokens=5, **more)
    with pytest.raises(InvalidParams, match="tools"):
        answered(RequestCallbacks(sampling=sample), "sampling/createMessage", params)
    declared = ClientCapabilities(sampling=SamplingCapability(tools={}))
    assert answered(RequestCallbacks(sampling=sample, declared=declared), "sampling/createMessage", params)


# --------------------------------------------------------------------- elicitation


class Fields(Mapping[str, Any]):
    """A mapping that is not a dict."""

    def __getitem__(self, key: str) -> Any:
        return {"a": 1}[key]

    def __iter__(self):
        return iter(["a"])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("value", "action", "content"),
    [
        (None, "decline", None),
        (False, "decline", None),
        (True, "accept", {}),
        ({"a": 1}, "accept", {"a": 1}),
        (Fields(), "accept", {"a": 1}),
        (ElicitResult("accept", {"a": 1}), "accept", {"a": 1}),
        (ElicitResult("accept"), "accept", {}),
        (ElicitResult("decline", {"a": 1}), "decline", None),
        (ElicitResult("cancel"), "cancel", None),
    ],
)
def test_an_elicitation_answer_may_be_short(value, action, content):
    result = answered(RequestCallbacks(elicitation=lambda _: value), "elicitation/create", FORM)
    assert (result.action, result.content) == (action, content)


def test_an_elicitation_callback_that_returns_nonsense_is_reported():
    with pytest.raises(TypeError, match=r"^on_elicitation: expected a dict .* an ElicitResult, not str$"):
        answered(RequestCallbacks(elicitation=lambda _: "yes"), "elicitation/create", FORM)  # type: ignore[arg-type] - it is the case


@pytest.mark.requirement("ELIC-15")
@pytest.mark.parametrize(
    ("schema", "content"),
    [
        (None, {"b": 2}),
        ({}, {"b": 2}),
        ({"properties": 7}, {"b": 2}),
        ({"properties": {"a": {"default": 1}, "b": {"default": 1}, "c": {}, "d": 7}}, {"a": 1, "b": 2}),
    ],
)
def test_omitted_fields_get_their_defaults(schema, content):
    params = ElicitParams(message="?", requested_schema=schema)
    result = answered(RequestCallbacks(elicitation=lambda _: {"b": 2}), "elicitation/create", params)
    assert result.content == content


@pytest.mark.requirement("ELIC-42")
def test_an_answer_that_the_form_does_not_allow_is_not_sent():
    params = ElicitParams(
        message="?", requested_schema={"properties": {"age": {"type": "integer"}}, "required": ["age"]}
    )
    for content, wrong in (({"age": "old"}, "'age' must be an integer"), (True, "'age' is missing")):
        with pytest.raises(LocalProtocolError, match=f"^on_elicitation: invalid answer: {wrong}$") as caught:
            answered(
                RequestCallbacks(elicitation=lambda _, given=content: given), "elicitation/create", params
            )
        assert not caught.value.retry_safe
    for action in ("decline", "cancel"):
        result = ElicitResult(action, {"age": "old"})
        assert (
            answered(
                RequestCallbacks(elicitation=lambda _, r=result: r), "elicitation/create", params
            ).content
            is None
        )


@pytest.mark.requirement("ELIC-8", "ELIC-11", "ELIC-21")
@pytest.mark.parametrize(
    ("capability", "good", "bad"),
    [
        (None, [FORM], [URL]),
        (ElicitationCapability(), [FORM], [URL]),
        (ElicitationCapability(form={}), [FORM], [URL]),
        (ElicitationCapability(url={}), [URL], [FORM]),
        (ElicitationCapability(form={}, url={}), [FORM, URL], []),
    ],
)
def test_a_mode_that_was_not_declared_is_refused(capability, good, bad):
    declared = ClientCapabilities(elicitation=capability)
    answers = RequestCallbacks(elicitation=lambda _: True, declared=declared)
    for params in good:
        assert answered(answers, "elicitation/create", params).action == "accept"
    for params in bad:
        with pytest.raises(InvalidParams, match="does not offer elicitation in"):
            answered(answers, "elicitation/create", params)


def test_a_visit_has_no_content():
    declared = ClientCapabilities(elicitation=ElicitationCapability(url={}))
    answers = RequestCallbacks(elicitation=lambda _: {"a": 1}, declared=declared)
    assert answered(answers, "elicitation/create", URL).content is None


# --------------------------------------------------------------------- roots


@pytest.mark.requirement("ROOT-3")
@pytest.mark.parametrize("form", ["list", "function", "async function"])
def test_roots_may_be_paths(form, tmp_path):
    places = [Root("file:///a", name="A"), "file:///b", str(tmp_path), tmp_path / "x y"]

    async def tell() -> list[Any]:
        return places

    roots: Any = {"list": places, "function": lambda: places, "async function": tell}[form]
    result = answered(RequestCallbacks(roots=roots), "roots/list")
    assert result.roots == [
        Root("file:///a", name="A"),
        Root("file:///b"),
        Root(tmp_path.as_uri(), name=tmp_path.name),
        Root((tmp_path / "x y").as_uri(), name="x y"),
    ]


def test_the_root_of_everything_has_no_name():
    assert answered(RequestCallbacks(roots=["/"]), "roots/list").roots == [Root("file:///")]


def test_a_roots_callback_with_invalid_roots_fails():
    with pytest.raises(ValueError, match="file://"):
        answered(RequestCallbacks(roots=lambda: ["https://a.example"]), "roots/list")


# --------------------------------------------------------------------- custom methods


@pytest.mark.parametrize(
    ("value", "result"),
    [({"b": 2}, b'{"b":2}'), (None, b"{}"), (Result(meta={"x": 1}), b'{"_meta":{"x":1}}')],
)
def test_a_custom_method_is_plain_json(value, result):
    asked: list[Any] = []

    def own(params: dict[str, Any]) -> Any:
        asked.append(params)
        return value

    answers = RequestCallbacks(custom={"x/own": own})
    assert answers.custom_rows["x/own"].name == "x/own"
    given = answered(answers, "x/own", None, Raw(b'{"a":1}'))
    assert jsonrpc.encode(given) == result
    answered(answers, "x/own")
    assert asked == [{"a": 1}, {}]


@pytest.mark.parametrize("value", [7, "text", [1], False])
def test_a_handler_that_returns_no_object_is_reported(value):
    with pytest.raises(TypeError, match="the handler of x/own must return an object"):
        answered(RequestCallbacks(custom={"x/own": lambda _: value}), "x/own")


def test_params_that_are_not_an_object_are_rejected():
    with pytest.raises(InvalidParams, match="Invalid params for x/own"):
        answered(RequestCallbacks(custom={"x/own": dict}), "x/own", None, Raw(b'{"n":1e999}'))


# --------------------------------------------------------------------- asks inside results


def asked(*asks: tuple[str, str, str]) -> Any:
    return parse_questions({key: InputRequest(method, Raw(params.encode())) for key, method, params in asks})


def responded(answers: RequestCallbacks, questions: Any, given: Any = None, declared: Any = None) -> Any:
    async def main() -> Any:
        return await answers.answer_questions(
            questions, given or {}, declared or answers.capabilities, LATEST
        )

    try:
        return run(main())
    finally:
        answers.threads.close()


ALL = asked(
    ("a", "sampling/createMessage", '{"messages":[],"maxTokens":1}'),
    ("b", "elicitation/create", '{"message":"?"}'),
    ("c", "roots/list", "{}"),
)
ANSWERS = {
    "a": b'{"role":"assistant","content":{"type":"text","text":"hello"},"model":"unknown"}',
    "b": b'{"action":"accept","content":{"n":1}}',
    "c": b'{"roots":[{"uri":"file:///r"}]}',
}
EVERYTHING = ClientCapabilities(
    sampling=SamplingCapability(), elicitation=ElicitationCapability(), roots=ListCapability()
)


@pytest.mark.requirement("MRTR-17")
def test_a_result_that_wants_input_is_answered_from_the_same_callbacks():
    async def accept(_: ElicitParams) -> dict[str, Any]:
        return {"n": 1}

    answers = RequestCallbacks(sampling=sample, elicitation=accept, roots=["file:///r"])
    assert {key: bytes(value) for key, value in responded(answers, ALL).items()} == ANSWERS


def test_answers_may_be_given_as_callbacks_return_them():
    given = {"c": ["file:///r"], "a": "hello", "b": {"n": 1}}
    responses = responded(RequestCallbacks(), ALL, given, EVERYTHING)
    assert {key: bytes(value) for key, value in responses.items()} == ANSWERS
    assert list(responses) == ["a", "b", "c"]


def test_callbacks_answer_the_omitted_questions():
    responses = responded(
        RequestCallbacks(roots=["file:///r"]), ALL, {"a": "hello", "b": {"n": 1}}, EVERYTHING
    )
    assert bytes(responses["c"]) == ANSWERS["c"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a": "x", "b": True}, r"'c' is missing \(roots/list\), and this client has no callback for it"),
        ({"a": "x", "b": True, "c": [], "d": 1}, "unknown key 'd'; use one of 'a', 'b', 'c'"),
    ],
)
def test_answers_that_are_missing_or_too_many_are_reported(given, text):
    with pytest.raises(ValueError, match=text):
        responded(RequestCallbacks(), ALL, given, EVERYTHING)


@pytest.mark.parametrize(
    ("key", "value", "error", "text"),
    [
        ("a", 7, TypeError, r"answers\['a'\]: expected .* not int"),
        ("a", None, UserRejected, "rejected"),
        ("b", "yes", TypeError, r"answers\['b'\]: expected .* not str"),
        ("c", "/r", TypeError, "list of roots"),
        ("c", ["https://a.example"], ValueError, "file://"),
    ],
)
def test_answers_that_are_given_are_looked_at_like_those_of_callbacks(key, value, error, text):
    given = {"a": "x", "b": True, "c": [], key: value}
    with pytest.raises(error, match=text):
        responded(RequestCallbacks(), ALL, given, EVERYTHING)


@pytest.mark.requirement("ELIC-42")
def test_answers_that_are_given_are_held_against_the_form():
    form = '{"message":"?","requestedSchema":{"properties":{"n":{"type":"number"}}}}'
    questions = asked(("q", "elicitation/create", form))
    with pytest.raises(LocalProtocolError, match=r"^answers\['q'\]: .*: 'n' must be a number$"):
        responded(RequestCallbacks(), questions, {"q": {"n": "x"}}, EVERYTHING)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (("a", "tools/list", "{}"), "tools/list, which this client does not offer"),
        (
            ("a", "sampling/createMessage", '{"messages":[],"maxTokens":1}'),
            "sampling/createMessage, which this client does not offer",
        ),
        (("a", "elicitation/create", '{"message":7}'), "invalid params for elicitation/create"),
        (
            ("a", "elicitation/create", '{"message":"?","mode":"url","url":"https://a.example"}'),
            "elicitation/create: this client does not offer elicitation in url mode",
        ),
    ],
)
def test_an_ask_that_may_not_be_asked_is_the_servers_fault(ask, text):
    with pytest.raises(RemoteProtocolError, match=text):
        responded(RequestCallbacks(elicitation=elicit), asked(ask))


def test_a_callback_that_fails_is_the_callers_to_see():
    def fail(_: ElicitParams) -> None:
        raise LookupError("no user")

    with pytest.raises(LookupError, match="no user"):
        responded(RequestCallbacks(elicitation=fail), asked(("a", "elicitation/create", '{"message":"?"}')))
