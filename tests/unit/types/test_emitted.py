"""Everything we send is valid in the official schema of its revision.

Values of every kind go through both ends of a conversation, in each revision and direction; the JSON between
the ends is judged by the official schema. This also shows that what one end writes the other can read, and
that nothing newer reaches an older peer in a form that it could not read.
"""

import json
from collections.abc import Container
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

import struct_values
from official_schema import Official
from pair import CLIENT, SERVER, Pair, arrived, open_pair
from schema_definitions import ROW, text
from toolpost import errors, types
from toolpost.errors import LocalProtocolError, RPCError
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.downgrade import downgrade_value
from toolpost.protocol.eras import STATELESS_ERA
from toolpost.protocol.events import (
    CancellationReceived,
    InvalidMessageReceived,
    NotificationReceived,
    ProgressReceived,
    ResponseReceived,
)
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS
from toolpost.types import Raw

# A revision has up to thirty methods, each with its own search: a share of the usual number is enough.
searching = hypothesis.settings(max_examples=hypothesis.settings().max_examples // 5)

SESSION = [date for date in DATES if not REVISIONS[date].stateless]
STATELESS_DATES = [date for date in DATES if REVISIONS[date].stateless]

OPENING = {"initialize", "server/discover"}
"""Requests that open a conversation; they have a test of their own."""


def each(part: str, role: str, *, without: Container[str] = ()) -> list[Any]:
    """All methods of all revisions: of `requests`, or of `notifications`, that this role may send."""
    return [
        pytest.param(date, name, id=f"{date} {name}")
        for date in DATES
        for name in getattr(REVISIONS[date], part)[role]
        if name not in without
    ]


@pytest.fixture(scope="module")
def officials(schemas):
    return {date: Official(date, schema) for date, schema in schemas.items()}


# --------------------------------------------------------------------- what is checked


def parsed(data: bytes | None) -> Any:
    assert data is not None, "nothing was sent"
    return json.loads(data)


def check_request(official: Official, data: bytes) -> Any:
    message = json.loads(data)
    official.check(message, "JSONRPCRequest", official.message(message["method"]))
    return message


def check_notice(official: Official, data: bytes) -> Any:
    message = json.loads(data)
    assert "id" not in message
    official.check(message, "JSONRPCNotification", official.message(message["method"]))
    return message


def check_reply(
    official: Official, data: bytes | None, method: str, request_id: Any, result: str = ""
) -> Any:
    message = parsed(data)
    response = official.result(method) + "Response"
    official.check(message, "JSONRPCResponse", *({response} & official.definitions.keys()))
    official.check(message["result"], result or official.result(method))
    assert message["id"] == request_id
    return message


def read(connection: Connection, data: bytes | None) -> Any:
    """The result as the other end reads it."""
    assert data is not None
    [event] = connection.receive(data)
    assert isinstance(event, ResponseReceived), event
    return event.result


def same(result: Any, sent: Any) -> bool:
    return text(json.loads(jsonrpc.encode(result))) == text(sent)


# --------------------------------------------------------------------- opening


@pytest.mark.requirement("LIFE-2", "LIFE-3")
@pytest.mark.parametrize("date", SESSION)
@searching
@given(data=st.data())
def test_a_handshake(officials, date, data):
    pair = draw_pair(data, date)
    [asked, answered, greeted] = pair.opening
    request = check_request(officials[date], asked)
    assert request["params"].keys() == {"protocolVersion", "capabilities", "clientInfo"}
    reply = check_reply(officials[date], answered, "initialize", request["id"])
    assert reply["result"]["protocolVersion"] == date
    check_notice(officials[date], greeted)
    assert pair.client.peer is not None
    assert pair.server.peer is not None
    assert pair.client.peer.info == pair.server.local_peer.info
    assert pair.client.peer.capabilities == pair.server.local_peer.capabilities
    assert pair.server.peer.info == pair.client.local_peer.info
    assert pair.server.peer.capabilities == pair.client.local_peer.capabilities


@pytest.mark.requirement("DISC-1", "DISC-2", "META-7", "META-8", "META-9")
@pytest.mark.parametrize("date", STATELESS_DATES)
@searching
@given(data=st.data())
def test_a_discovery(officials, date, data):
    pair = draw_pair(data, date)
    [asked, answered] = pair.opening
    request = check_request(officials[date], asked)
    meta = request["params"]["_meta"]
    assert meta[types.PROTOCOL_VERSION] == date
    assert meta[types.CLIENT_INFO] == json.loads(jsonrpc.encode(pair.client.local_peer.info))
    assert types.CLIENT_CAPABILITIES in meta
    reply = check_reply(officials[date], answered, "server/discover", request["id"])
    assert reply["result"]["_meta"][types.SERVER_INFO] == json.loads(
        jsonrpc.encode(pair.server.local_peer.info)
    )
    assert "tasks" not in reply["result"]["capabilities"]
    assert "tasks" not in meta[types.CLIENT_CAPABILITIES]


def draw_pair(data: st.DataObject, date: str) -> Pair:
    info = struct_values.of(types.Implementation)
    client = LocalPeer(data.draw(info), data.draw(struct_values.of(types.ClientCapabilities)))
    server = LocalPeer(data.draw(info), data.draw(struct_values.of(types.ServerCapabilities)))
    return open_pair(date, client, server)


# --------------------------------------------------------------------- requests of a client


@pytest.mark.requirement("MSG-1", "MSG-5", "MSG-9", "MSG-10", "MSG-11", "META-7", "META-8", "META-16")
@pytest.mark.requirement("CACHE-1")
@pytest.mark.parametrize(("date", "method"), each("requests", "client", without=OPENING))
@searching
@given(data=st.data())
def test_requests_of_a_client_and_their_results(officials, date, method, data):
    official, pair = officials[date], open_pair(date)
    row = REVISIONS[date].requests["client"][method]
    assert row.result is not None
    params = data.draw(
        struct_values.of(row.params) | st.none()
        if takes_nothing(row.params)
        else struct_values.of(row.params)
    )
    meta = data.draw(st.none() | struct_values.META)
    outgoing, incoming = pair.ask(method, params, meta=meta, progress=data.draw(st.booleans()))
    request = check_request(official, outgoing.data)
    assert incoming.meta.items() >= (meta or {}).items()
    told = downgrade_value(
        params or row.params(), pair.revision
    )  # what belongs to other revisions is not said
    assert jsonrpc.encode(stripped(incoming.params)) == jsonrpc.encode(told)
    result = data.draw(struct_values.of(row.result))
    answer = pair.server.reply(incoming.id, result)
    sent = check_reply(official, answer, method, request["id"])["result"]
    assert same(read(pair.client, answer), sent)
    # What belongs to the stateless era is always there in it, and never elsewhere.
    assert (sent.get("resultType") == "complete") is pair.revision.stateless
    assert (types.SERVER_INFO in sent.get("_meta", {})) is pair.revision.stateless
    cached = issubclass(row.result, types.CacheableResult)
    hints = sent.keys() & {"ttlMs", "cacheScope"}
    assert hints == ({"ttlMs", "cacheScope"} if cached and pair.revision.stateless else set())


def takes_nothing(params: type) -> bool:
    return params in {types.Params, types.PaginatedRequestParams, types.ClientRequestParams}


def stripped(params: Any) -> Any:
    """The parameters without what the connection added."""
    params.meta = types.UNSET
    return params


@pytest.mark.parametrize("date", DATES)
@searching
@given(result=struct_values.of(types.CallToolResult))
def test_structured_content_fits_the_revision(date, result):
    pair = open_pair(date)
    _, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
    answer = pair.server.reply(incoming.id, result)
    sent = parsed(answer)["result"]
    structured = result.structured_content
    allowed = {None: False, "object": isinstance(structured, dict), "any": structured is not types.UNSET}
    assert ("structuredContent" in sent) is allowed[pair.revision.structured]
    if structured is not types.UNSET and pair.revision.structured != "any":
        assert sent["content"], "a client that cannot read the structure reads text"


@pytest.mark.parametrize("date", ["2025-11-25"])
@searching
@given(result=struct_values.of(types.CreateTaskResult))
def test_a_call_that_became_a_task(officials, date, result):
    pair = open_pair(date)
    params = types.CallToolParams(name="t", task=types.TaskMetadata(ttl=1))
    outgoing, incoming = pair.ask("tools/call", params)
    check_request(officials[date], outgoing.data)
    answer = pair.server.reply(incoming.id, result)
    check_reply(officials[date], answer, "tools/call", outgoing.id, "CreateTaskResult")


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("progress", [True, False])
def test_meta_that_stands_in_the_parameters_is_not_lost(date, progress):
    """Parameters that were read, such as those that a gateway passes on, hold their `_meta` as raw bytes."""
    params = types.CallToolParams(name="t", meta=Raw(b'{"com.example/a":[1]}'))
    _, incoming = open_pair(date).ask("tools/call", params, progress=progress)
    assert incoming.meta["com.example/a"] == [1]


# --------------------------------------------------------------------- content

TEXT = types.TextContent("t", annotations=types.Annotations(audience=["user"], priority=0.5))
LINK = types.ResourceLink(
    uri="file:///a", name="n", description="d", icons=[types.Icon("https://example.com/i")]
)
BLOCKS = [
    TEXT,
    LINK,
    types.ImageContent(data="aGk=", mime_type="image/png", meta={"a": 1}),
    types.AudioContent(data="aGk=", mime_type="audio/wav"),
    types.EmbeddedResource(types.ResourceContents(uri="file:///a", text="t")),
    types.EmbeddedResource(types.ResourceContents(uri="file:///a", blob="aGk=", mime_type="image/png")),
    types.ToolUseContent(id="1", name="n", input={"a": [1, None]}),
    types.ToolResultContent(tool_use_id="1", content=[TEXT, LINK]),
    types.ToolResultContent(tool_use_id="1", content=[TEXT], structured_content={"a": None}),
]
MANY = [*([block] for block in BLOCKS), BLOCKS, []]
NOT_OBJECTS = [None, True, 1.5, "s", []]


def kinds(blocks: Any) -> str:
    """The name of a test case: which blocks it has."""
    if isinstance(blocks, list):
        return f"[{','.join(map(kinds, blocks))}]"
    return blocks.__struct_config__.tag


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("blocks", MANY, ids=kinds)
def test_content_of_a_tool(officials, date, blocks):
    for structured in (types.UNSET, *NOT_OBJECTS, {}, {"a": None}):
        pair = open_pair(date)
        outgoing, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
        result = types.CallToolResult(content=blocks, structured_content=structured)
        answer = pair.server.reply(incoming.id, result)
        sent = check_reply(officials[date], answer, "tools/call", outgoing.id)["result"]
        # What an older peer cannot read as structure is said in text, unless the author has done so.
        spelled = structured is not types.UNSET and TEXT not in blocks and date != DATES[-1]
        assert len(sent["content"]) == len(blocks) + spelled


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("block", BLOCKS, ids=kinds)
def test_content_of_a_prompt(officials, date, block):
    pair = open_pair(date)
    outgoing, incoming = pair.ask("prompts/get", types.GetPromptParams(name="p"))
    messages = [types.PromptMessage("user", block), types.PromptMessage("assistant", TEXT)]
    answer = pair.server.reply(incoming.id, types.GetPromptResult(messages=messages))
    sent = check_reply(officials[date], answer, "prompts/get", outgoing.id)["result"]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("said", [*BLOCKS, *MANY], ids=kinds)
def test_content_of_a_question_to_the_model(officials, date, said):
    check_question(officials[date], messages=[types.SamplingMessage("user", said)])


def check_question(official: Official, **members: Any) -> None:
    pair = open_pair(official.date)
    params = types.CreateMessageParams(max_tokens=1, **members)
    if pair.revision.stateless:
        _, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
        ask = STATELESS_ERA.make_client_request(pair.server, incoming, "sampling/createMessage", params)
        official.check(json.loads(jsonrpc.encode(ask)), "CreateMessageRequest")
    else:
        outgoing, _ = pair.ask_back("sampling/createMessage", params)
        check_request(official, outgoing.data)


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("said", [*BLOCKS, *MANY], ids=kinds)
def test_content_of_an_answer_of_the_model(officials, date, said):
    check_answer(officials[date], said)


def check_answer(official: Official, said: Any) -> None:
    pair = open_pair(official.date)
    result = types.CreateMessageResult(role="assistant", content=said, model="m")
    if pair.revision.stateless:
        sent = json.loads(jsonrpc.encode(downgrade_value(result, pair.revision)))
        official.check(sent, "CreateMessageResult", "InputResponse")
    else:
        question = types.CreateMessageParams(messages=[], max_tokens=1)
        outgoing, incoming = pair.ask_back("sampling/createMessage", question)
        answer = pair.client.reply(incoming.id, result)
        check_reply(official, answer, "sampling/createMessage", outgoing.id)


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("structured", NOT_OBJECTS)
def test_structured_content_for_a_model(officials, date, structured):
    """Like a tool's own result: before it could be anything, structured content had to be an object."""
    block = types.ToolResultContent(tool_use_id="1", content=[TEXT], structured_content=structured)
    alone_and_among_others: list[Any] = [block, [block], [TEXT, block]]
    for said in alone_and_among_others:
        check_question(officials[date], messages=[types.SamplingMessage("user", said)])
        check_answer(officials[date], said)


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"type": ["object", "null"]}, {"type": "object"}])
def test_output_schemas(officials, date, schema):
    """Before structured content could be anything, an output schema had to describe an object."""
    tool = types.Tool(name="t", input_schema={"type": "object"}, output_schema=schema)
    pair = open_pair(date)
    outgoing, incoming = pair.ask("tools/list")
    answer = pair.server.reply(incoming.id, types.ListToolsResult(tools=[tool]))
    check_reply(officials[date], answer, "tools/list", outgoing.id)
    check_question(officials[date], messages=[], tools=[tool])


# --------------------------------------------------------------------- asks of a server


def asked(date: str, method: str) -> st.SearchStrategy[Any]:
    """The parameters of a question, as far as the revision can put it at all."""
    if method != "elicitation/create":
        return struct_values.of(ROW[method].params)
    if date == "2025-06-18":
        return struct_values.elicitations(several=False)
    return struct_values.elicitations(several=True) | struct_values.url_elicitations()


@pytest.mark.parametrize(("date", "method"), each("requests", "server"))
@searching
@given(data=st.data())
def test_requests_of_a_server_and_their_results(officials, date, method, data):
    official, pair = officials[date], open_pair(date)
    row = REVISIONS[date].requests["server"][method]
    assert row.result is not None
    params = data.draw(asked(date, method))
    outgoing, incoming = pair.ask_back(method, params)
    request = check_request(official, outgoing.data)
    answer = pair.client.reply(incoming.id, data.draw(struct_values.of(row.result)))
    reply = check_reply(official, answer, method, request["id"])
    assert same(read(pair.server, answer), reply["result"])


@pytest.mark.requirement("MRTR-4", "MRTR-5")
@pytest.mark.parametrize("date", STATELESS_DATES)
@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])
@searching
@given(data=st.data())
def test_asks_inside_a_result_and_answers_inside_a_retry(officials, date, method, data):
    official, pair = officials[date], open_pair(date)
    row = REVISIONS[date].requests["client"][method]
    params = data.draw(struct_values.of(row.params))
    outgoing, incoming = pair.ask(method, params)
    asks: dict[str, types.InputRequest] = {}
    for name in REVISIONS[date].input_requests:
        ask = STATELESS_ERA.make_client_request(pair.server, incoming, name, data.draw(asked(date, name)))
        official.check(json.loads(jsonrpc.encode(ask)), "InputRequest", official.message(name))
        asks[name] = ask
    kept = data.draw(st.dictionaries(st.sampled_from(sorted(asks)), st.none()))
    wanted = types.InputRequiredResult(
        input_requests={name: asks[name] for name in kept} or None,
        request_state=data.draw(struct_values.TEXT if kept else struct_values.TEXT.filter(bool)),
    )
    answer = pair.server.reply(incoming.id, wanted)
    reply = check_reply(official, answer, method, outgoing.id, "InputRequiredResult")
    assert reply["result"]["resultType"] == "input_required"
    result = read(pair.client, answer)
    assert isinstance(result, types.InputRequiredResult)
    assert same(result, reply["result"])
    params.request_state = result.request_state
    params.input_responses = {name: answered(data, date, name) for name in kept} or None
    again, retried = pair.ask(method, params)
    check_request(official, again.data)
    assert retried.params.request_state == wanted.request_state


@pytest.mark.requirement("MRTR-5")
@pytest.mark.parametrize("date", STATELESS_DATES)
def test_an_empty_filter_is_not_sent(date):
    pair = open_pair(date)
    _, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
    with pytest.raises(LocalProtocolError, match="questions, a state, or both"):
        pair.server.reply(incoming.id, types.InputRequiredResult())


@pytest.mark.requirement("MRTR-2")
@pytest.mark.parametrize(("date", "method"), each("requests", "client", without=OPENING))
def test_only_three_requests_may_be_answered_with_a_question(date, method):
    pair = open_pair(date)
    params: dict[str, Any] = {
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": "p"},
            "argument": {"name": "a", "value": ""},
        },
        "logging/setLevel": {"level": "info"},
        "subscriptions/listen": {"notifications": {}},
    }
    _, incoming = pair.ask(method, params.get(method, {"name": "n", "uri": "u:", "taskId": "1"}))
    wish = types.InputRequiredResult(request_state="s")
    if pair.revision.stateless and method in {"tools/call", "prompts/get", "resources/read"}:
        assert pair.server.reply(incoming.id, wish)
    else:
        with pytest.raises(LocalProtocolError, match="cannot ask for input"):
            pair.server.reply(incoming.id, wish)


def answered(data: st.DataObject, date: str, method: str) -> Raw:
    kind = REVISIONS[date].input_requests[method].result
    assert kind is not None
    answer = data.draw(struct_values.of(kind))
    answer.result_type = None
    return Raw(jsonrpc.encode(downgrade_value(answer, REVISIONS[date])))


# --------------------------------------------------------------------- notifications


@pytest.mark.requirement("MSG-20")
@pytest.mark.parametrize(
    ("date", "method"), each("notifications", "client", without={"notifications/initialized"})
)
@searching
@given(data=st.data())
def test_notifications_of_a_client(officials, date, method, data):
    pair = open_pair(date)
    row = REVISIONS[date].notifications["client"][method]
    params = data.draw(
        struct_values.of(row.params) | st.none()
        if row.params is types.NotificationParams
        else struct_values.of(row.params)
    )
    sent = pair.client.notify(method, params)
    check_notice(officials[date], sent)
    heard(pair.server, sent, params)


@pytest.mark.requirement("MSG-20", "META-19", "SUB-6")
@pytest.mark.parametrize(("date", "method"), each("notifications", "server"))
@searching
@given(data=st.data())
def test_notifications_of_a_server(officials, date, method, data):
    pair = open_pair(date)
    row = REVISIONS[date].notifications["server"][method]
    params = data.draw(
        struct_values.of(row.params) | st.none()
        if row.params is types.NotificationParams
        else struct_values.of(row.params)
    )
    incoming = None
    if pair.revision.stateless:
        if method in {"notifications/message", "notifications/progress"}:
            _, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
        else:
            wanted = types.ListenParams(notifications=types.SubscriptionFilter())
            _, incoming = pair.ask("subscriptions/listen", wanted)
    sent = pair.server.notify(method, params, to=incoming)
    message = check_notice(officials[date], sent)
    if incoming is not None and incoming.row.name == "subscriptions/listen":
        assert message["params"]["_meta"][types.SUBSCRIPTION_ID] == incoming.id
    heard(pair.client, sent, params)


def heard(connection: Connection, sent: bytes, params: Any) -> None:
    """The received message equals the sent one; messages about unknown requests are dropped."""
    [event] = connection.receive(sent)
    if isinstance(event, NotificationReceived):
        again = event.params
        again.meta = params.meta if params else None  # a subscription adds its id
        assert again == (params or type(again)())


@pytest.mark.parametrize("date", DATES)
@searching
@given(
    progress=st.lists(struct_values.FLOAT | struct_values.INTEGER, min_size=1, max_size=3),
    total=st.none() | struct_values.FLOAT,
    message=st.none() | struct_values.TEXT,
    reason=st.none() | struct_values.TEXT,
)
def test_progress_and_cancellation(officials, date, progress, total, message, reason):
    pair = open_pair(date)
    outgoing, incoming = pair.ask("tools/call", types.CallToolParams(name="t"), progress=True)
    check_request(officials[date], outgoing.data)
    for step in progress:
        told = pair.server.report_progress(incoming.id, step, total, message)
        if told is not None:
            check_notice(officials[date], told)
            [event] = pair.client.receive(told)
            assert isinstance(event, ProgressReceived)
            assert event.params.progress == step
    cancelled = pair.client.cancel(outgoing.id, reason)
    assert cancelled is not None
    check_notice(officials[date], cancelled)
    [event] = pair.server.receive(cancelled)
    assert isinstance(event, CancellationReceived)
    assert event.reason == reason


# --------------------------------------------------------------------- errors

ERRORS = [
    *errors.CODES.values(),
    lambda text, data: RPCError(text, data, code=7),
    lambda text, data: RPCError(text, data, code=-32050),
]


@pytest.mark.requirement("MSG-15", "MSG-16", "MSG-17", "ERR-4", "ERR-6")
@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("error", ERRORS)
@searching
@given(message=struct_values.TEXT, data=struct_values.JSON)
def test_errors(officials, date, error, message, data):
    pair = open_pair(date)
    outgoing, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
    failed = pair.server.fail(incoming.id, error(message, data))
    sent = parsed(failed)
    officials[date].check(sent, officials[date].failure)
    assert sent["id"] == outgoing.id
    assert sent["error"]["code"] not in UNDEFINED
    assert not (pair.revision.stateless and sent["error"]["code"] in {-32002, -32042})


UNDEFINED = set(range(-32099, -32019)) - {-32020, -32021, -32022, -32042}


@pytest.mark.requirement("META-13")
@pytest.mark.parametrize("date", STATELESS_DATES)
@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
def test_a_missing_capability(officials, date, method):
    pair = open_pair(date, LocalPeer(CLIENT.info, types.ClientCapabilities()))
    outgoing, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
    with pytest.raises(errors.MissingCapability) as caught:
        STATELESS_ERA.make_client_request(pair.server, incoming, method, types.ClientRequestParams())
    failed = pair.server.fail(outgoing.id, caught.value)
    officials[date].check(parsed(failed), "MissingRequiredClientCapabilityError")


@pytest.mark.requirement("VER-1")
@pytest.mark.parametrize("date", STATELESS_DATES)
def test_an_unsupported_revision(officials, date):
    legacy = LocalPeer(SERVER.info, SERVER.capabilities, supported=SESSION)
    asking = Connection(CLIENT, revision=REVISIONS[date]).request("server/discover")
    [event] = Connection(legacy).receive(asking.data)
    assert isinstance(event, InvalidMessageReceived)
    assert event.data is not None
    sent = json.loads(event.data)
    officials[date].check(sent, "UnsupportedProtocolVersionError")
    assert sent["error"]["data"] == {"supported": SESSION, "requested": date}


@pytest.mark.parametrize("date", ["2025-11-25"])
@searching
@given(asks=st.lists(struct_values.url_elicitations(), max_size=3))
def test_a_url_that_has_to_be_visited_first(officials, date, asks):
    pair = open_pair(date)
    _, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
    error = errors.UrlElicitationRequired("Visit this first", {"elicitations": asks})
    failed = pair.server.fail(incoming.id, error)
    officials[date].check(parsed(failed), "URLElicitationRequiredError")


# --------------------------------------------------------------------- what a revision cannot say

FORM = {"type": "object", "properties": {"c": {"type": "array", "items": {"type": "string", "enum": ["a"]}}}}
URL = types.ElicitParams(message="m", mode="url", url="https://example.com")
UNSAYABLE = [
    ("2025-06-18", "elicitation/create", URL),
    ("2025-06-18", "elicitation/create", types.ElicitParams(message="m", requested_schema=FORM)),
    ("2025-11-25", "elicitation/create", URL),  # there a URL needs an id
]


@pytest.mark.parametrize(("date", "method", "params"), UNSAYABLE)
def test_unsupported_content_is_rejected_or_converted(officials, date, method, params):
    pair = open_pair(date)
    try:
        sent = pair.server.request(method, params).data
    except LocalProtocolError:
        return
    check_request(officials[date], sent)
    arrived(pair.client.receive(sent))
