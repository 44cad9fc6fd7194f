"""The hooks of both eras, and the `_meta` of requests."""

import json
from typing import Any, Literal

import msgspec
import pytest
from conversation import (
    CLIENT_CAN,
    CLIENT_PARTY,
    PARAMS,
    RESULTS,
    SERVER_CAN,
    SERVER_PARTY,
    SESSIONS,
    Conversation,
    every_revision,
    every_session,
    marked,
    message,
    one,
    parse,
    party,
    refusal,
    talk,
    told,
    without,
)

from toolpost.errors import CapabilityNotDeclared, InvalidParams, LocalProtocolError, MissingCapability
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import ERAS, SESSION_ERA, STATELESS_ERA, Peer, has_protocol_version, read_meta
from toolpost.protocol.events import ErrorReceived, InboundRequest, OutboundRequest, ResponseReceived
from toolpost.protocol.methods import CLIENT, DATES, SERVER
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, REVISIONS
from toolpost.types import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    UNSET,
    CallToolResult,
    ClientCapabilities,
    ClientRequestParams,
    CreateMessageParams,
    ElicitParams,
    Implementation,
    InputRequest,
    InputRequiredResult,
    ListenResult,
    ListResourcesResult,
    ListToolsResult,
    Raw,
    ServerCapabilities,
    Tool,
    ToolChoice,
    WireStruct,
)
from toolpost.types.initialize import CacheableResult

OLDEST, *_, NEWEST = DATES
ASKS = {
    "roots/list": ClientRequestParams(),
    "sampling/createMessage": CreateMessageParams(messages=[], max_tokens=1),
    "elicitation/create": ElicitParams(message="Who?", requested_schema={"type": "object", "properties": {}}),
}
ASKING = {"tools/call", "prompts/get", "resources/read"}


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def test_each_era_has_its_hooks():
    assert {revision.era: ERAS[revision.era] for revision in REVISIONS.values()} == {
        "session": SESSION_ERA,
        "stateless": STATELESS_ERA,
    }


# --------------------------------------------------------------------- what a request says of itself


@pytest.mark.parametrize("params", [UNSET, raw({}), raw({"_meta": None}), raw({"_meta": {}})])
def test_a_request_may_say_nothing_of_itself(params):
    meta = read_meta(params)
    said = (meta.progress_token, meta.protocol_version, meta.client_capabilities, meta.client_info)
    assert (*said, meta.log_level) == (UNSET,) * 5


def test_a_request_names_its_sender():
    said = marked(
        meta={
            "progressToken": "p",
            CLIENT_INFO: {"name": "n", "version": "v"},
            LOG_LEVEL: "notice",
            "com.example/else": [1],
        },
        capabilities={"sampling": {}},
    )
    meta = read_meta(raw(said))
    assert meta.progress_token == "p"
    assert meta.protocol_version == NEWEST
    assert meta.client_capabilities
    assert meta.client_capabilities.sampling
    assert meta.client_info == Implementation("n", "v")
    assert meta.log_level == "notice"


@pytest.mark.parametrize(
    "params",
    [
        pytest.param([], id="params"),
        pytest.param({"_meta": 5}, id="meta"),
        pytest.param({"_meta": {"progressToken": 1.5}}, id="fraction as token"),
        pytest.param({"_meta": {"progressToken": None}}, id="null as token"),
        pytest.param({"_meta": {PROTOCOL_VERSION: 1}}, id="revision"),
        pytest.param({"_meta": {PROTOCOL_VERSION: None}}, id="null as revision"),
        pytest.param({"_meta": {CLIENT_CAPABILITIES: []}}, id="capabilities"),
        pytest.param({"_meta": {CLIENT_INFO: {"name": "n"}}}, id="name tag"),
        pytest.param({"_meta": {LOG_LEVEL: "loud"}}, id="log level"),
    ],
)
def test_a_fact_of_the_wrong_type_is_invalid(params):
    with pytest.raises(InvalidParams, match="Invalid params: "):
        read_meta(raw(params))


@pytest.mark.parametrize(
    ("params", "stateless"),
    [
        (UNSET, False),
        (raw({}), False),
        (raw([]), False),
        (raw({"_meta": 5}), False),
        (raw({"_meta": None}), False),
        (raw({"_meta": {"progressToken": 1}}), False),
        (raw({"_meta": {PROTOCOL_VERSION: NEWEST}}), True),
        (raw({"_meta": {PROTOCOL_VERSION: "2099-01-01"}}), True),
        (raw({"_meta": {PROTOCOL_VERSION: None, CLIENT_CAPABILITIES: 5}}), True),
    ],
)
def test_the_key_of_the_revision_marks_a_stateless_request(params, stateless):
    assert has_protocol_version(params) is stateless


# --------------------------------------------------------------------- open


@pytest.mark.requirement("LIFE-2")
@every_session
def test_a_session_opens_with_initialize(revision):
    client = Connection(CLIENT_PARTY, revision=revision)
    opening = SESSION_ERA.open(client)
    assert parse(opening.data) == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": revision.date,
            "capabilities": {
                "roots": {"listChanged": True},
                "sampling": {},
                "elicitation": {},
                "tasks": {"list": {}, "cancel": {}},
            },
            "clientInfo": {"name": "a client", "version": "1"},
        },
    }
    assert client.lifecycle.state == "opening"


@pytest.mark.requirement("META-7", "META-8", "META-9")
def test_a_stateless_conversation_opens_with_discover():
    client = Connection(CLIENT_PARTY)
    assert parse(STATELESS_ERA.open(client).data) == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "server/discover",
        "params": {
            "_meta": {
                CLIENT_INFO: {"name": "a client", "version": "1"},
                PROTOCOL_VERSION: NEWEST,
                CLIENT_CAPABILITIES: {"roots": {}, "sampling": {}, "elicitation": {}},
            }
        },
    }
    assert client.lifecycle.state == "new"


@pytest.mark.parametrize(("era", "revision"), [(SESSION_ERA, LATEST), (STATELESS_ERA, LATEST_SESSION)])
def test_an_era_opens_only_its_own_revisions(era, revision):
    with pytest.raises(LocalProtocolError, match="a client cannot send"):
        era.open(Connection(CLIENT_PARTY, revision=revision))


# --------------------------------------------------------------------- admit


def test_a_session_accepts_its_own_client():
    server = talk(LATEST_SESSION).server
    incoming = one(server.receive(message(id=7, method="tools/list", params={})), InboundRequest)
    assert incoming.peer is server.peer


def test_a_ping_before_the_handshake_has_no_peer():
    incoming = one(Connection(SERVER_PARTY).receive(message(id=1, method="ping")), InboundRequest)
    assert incoming.peer == Peer(LATEST_SESSION)


@pytest.mark.requirement("META-10")
@pytest.mark.parametrize("missing", [PROTOCOL_VERSION, CLIENT_CAPABILITIES])
def test_a_stateless_request_carries_its_facts(missing):
    facts = marked()
    del facts["_meta"][missing]
    meta = read_meta(raw(facts))
    with pytest.raises(InvalidParams, match=missing):
        STATELESS_ERA.check_meta(meta)


@pytest.mark.requirement("META-10")
def test_a_stateless_request_without_capabilities_is_refused():
    params = {"_meta": {PROTOCOL_VERSION: NEWEST}}
    events = Connection(SERVER_PARTY).receive(message(id=1, method="tools/list", params=params))
    assert refusal(events) == {
        "code": -32602,
        "message": f"Invalid params: _meta lacks {CLIENT_CAPABILITIES}",
    }


@pytest.mark.requirement("META-10")
@pytest.mark.parametrize("method", ["tools/list", "ping", "server/discover", "nonsense"])
def test_a_server_without_handshake_demands_the_facts(method):
    server = Connection(party(SERVER_CAN, supported=[NEWEST]))
    assert refusal(server.receive(message(id=1, method=method)))["code"] == -32602
    assert server.incoming == {}


@pytest.mark.requirement("VER-1")
@pytest.mark.parametrize("requested", ["2099-01-01", "", *(revision.date for revision in SESSIONS)])
def test_a_revision_that_is_not_spoken_statelessly_is_refused(requested):
    server = Connection(SERVER_PARTY)
    events = server.receive(message(id=1, method="tools/list", params=marked(revision=requested)))
    error = refusal(events)
    assert error["code"] == -32022
    assert error["data"] == {"supported": list(DATES), "requested": requested}


@pytest.mark.requirement("VER-1")
def test_a_revision_that_was_not_chosen_is_refused():
    server = Connection(party(SERVER_CAN, supported=[OLDEST]))
    error = refusal(server.receive(message(id=1, method="tools/list", params=marked())))
    assert error["code"] == -32022
    assert error["data"] == {"supported": [OLDEST], "requested": NEWEST}


def test_a_stateless_peer_is_described_by_its_request():
    server = Connection(SERVER_PARTY)
    params = marked(
        meta={CLIENT_INFO: {"name": "n", "version": "v"}, LOG_LEVEL: "error"}, capabilities={"roots": {}}
    )
    incoming = one(server.receive(message(id=1, method="tools/list", params=params)), InboundRequest)
    assert incoming.peer.revision is LATEST
    assert isinstance(incoming.peer.capabilities, ClientCapabilities)
    assert incoming.peer.capabilities.roots is not None
    assert incoming.peer.info == Implementation("n", "v")
    assert incoming.peer.log_level == "error"
    bare = one(server.receive(message(id=2, method="tools/list", params=marked())), InboundRequest)
    assert bare.peer == Peer(LATEST, ClientCapabilities())


@pytest.mark.requirement("STATE-1", "STATE-2", "META-12", "META-15")
def test_nothing_is_inferred_from_earlier_requests():
    server = talk(LATEST_SESSION).server  # this session declared everything
    rich = marked(PARAMS["tools/call"], {LOG_LEVEL: "debug"}, capabilities={"elicitation": {}})
    first = one(server.receive(message(id="a", method="tools/call", params=rich)), InboundRequest)
    poor = marked(PARAMS["tools/call"])
    second = one(server.receive(message(id="b", method="tools/call", params=poor)), InboundRequest)
    assert STATELESS_ERA.make_client_request(server, first, "elicitation/create", ASKS["elicitation/create"])
    with pytest.raises(MissingCapability):
        STATELESS_ERA.make_client_request(server, second, "elicitation/create", ASKS["elicitation/create"])
    assert second.peer.info is None
    assert server.log("error", "x", to=first)
    assert server.log("error", "x", to=second) is None


# --------------------------------------------------------------------- stamp_request


@every_session
def test_a_session_request_is_not_stamped(revision):
    client = talk(revision).client
    assert "params" not in parse(client.request("tools/list").data)
    stamped = parse(client.request("tools/list", meta={"com.example/a": 1}, progress=True).data)
    assert stamped["params"] == {"_meta": {"com.example/a": 1, "progressToken": stamped["id"]}}


@pytest.mark.requirement("META-7", "META-8", "META-9", "MRTR-23")
def test_every_stateless_request_carries_the_facts():
    client = talk(LATEST).client
    facts = {
        CLIENT_INFO: {"name": "a client", "version": "1"},
        PROTOCOL_VERSION: NEWEST,
        CLIENT_CAPABILITIES: {"roots": {}, "sampling": {}, "elicitation": {}},
    }
    for method in LATEST.requests[CLIENT]:
        assert parse(client.request(method, PARAMS[method]).data)["params"] == {
            **PARAMS[method],
            "_meta": facts,
        }
    retry = {"name": "add", "inputResponses": {"q": {"action": "decline"}}, "requestState": "s"}
    assert parse(client.request("tools/call", retry).data)["params"] == {**retry, "_meta": facts}


def test_a_caller_adds_to_the_facts_and_cannot_change_them():
    client = Connection(CLIENT_PARTY)
    meta = {"traceparent": "00-0-0-00", PROTOCOL_VERSION: "2099-01-01", LOG_LEVEL: "info"}
    stamped = parse(client.request("tools/list", meta=meta, progress=True).data)["params"]["_meta"]
    assert stamped["traceparent"] == "00-0-0-00"
    assert stamped[PROTOCOL_VERSION] == NEWEST
    assert stamped[LOG_LEVEL] == "info"
    assert stamped["progressToken"] == 1
    assert meta[PROTOCOL_VERSION] == "2099-01-01"


# --------------------------------------------------------------------- stamp_result


def _answer(revision, method, result):
    """Return the bytes of the server and the event of the client, for a result of `method`."""
    conversation = talk(revision)
    outgoing, incoming = conversation.ask(method)
    data = conversation.server.reply(incoming.id, result)
    assert data is not None
    return outgoing, parse(data)["result"], one(conversation.client.receive(data), ResponseReceived).result


@every_session
def test_a_session_result_has_no_member_of_the_stateless_era(revision):
    tools = ListToolsResult(tools=[], ttl_ms=5, cache_scope="public", result_type="complete")
    assert _answer(revision, "tools/list", tools)[1] == {"tools": []}
    assert (tools.ttl_ms, tools.cache_scope, tools.result_type) == (5, "public", "complete")
    call = CallToolResult(content=[], result_type="complete")
    assert _answer(revision, "tools/call", call)[1] == {"content": []}
    assert call.result_type == "complete"


@pytest.mark.parametrize("member", [{"ttl_ms": 5}, {"cache_scope": "public"}])
def test_a_session_result_has_no_part_of_a_caching_hint(member):
    tools = ListToolsResult(tools=[], **member)
    assert _answer(LATEST_SESSION, "tools/list", tools)[1] == {"tools": []}


def test_a_session_result_that_has_none_is_not_copied():
    conversation = talk(LATEST_SESSION)
    incoming = conversation.ask("tools/list").incoming
    result = ListToolsResult(tools=[])
    assert SESSION_ERA.stamp_result(conversation.server.local_peer, incoming, result) is result


@every_session
def test_a_session_result_cannot_ask(revision):
    conversation = talk(revision)
    incoming = conversation.ask("tools/call").incoming
    with pytest.raises(LocalProtocolError, match="cannot ask for input"):
        conversation.server.reply(incoming.id, InputRequiredResult(request_state="s"))
    assert conversation.server.reply(incoming.id, RESULTS["tools/call"])


@pytest.mark.requirement("MSG-11", "META-16", "DISC-1", "DISC-2")
@pytest.mark.parametrize("method", sorted(LATEST.requests[CLIENT]))
def test_a_stateless_result_says_type_age_and_maker(method):
    kept = RESULTS[method]
    _, written, read = _answer(LATEST, method, kept)
    assert written["resultType"] == "complete"
    assert written["_meta"][SERVER_INFO] == {"name": "a server", "version": "2"}
    cacheable = isinstance(kept, CacheableResult)
    assert ("ttlMs" in written, "cacheScope" in written) == (cacheable, cacheable)
    if cacheable:
        assert (written["ttlMs"], written["cacheScope"]) == (0, "private")
    assert type(read) is type(kept)
    assert kept.meta is None
    assert kept.result_type is None


def test_a_stateless_result_keeps_the_members_of_its_author():
    resources = ListResourcesResult(
        resources=[],
        ttl_ms=9,
        cache_scope="public",
        meta={"com.example/a": 1, SERVER_INFO: {"name": "another", "version": "3"}},
    )
    _, written, _ = _answer(LATEST, "resources/list", resources)
    assert (written["ttlMs"], written["cacheScope"]) == (9, "public")
    assert written["_meta"] == {"com.example/a": 1, SERVER_INFO: {"name": "another", "version": "3"}}


@pytest.mark.requirement("META-16")
def test_an_author_adds_to_the_signature():
    _, written, _ = _answer(LATEST, "tools/call", CallToolResult(content=[], meta={"com.example/a": 1}))
    assert written["_meta"] == {"com.example/a": 1, SERVER_INFO: {"name": "a server", "version": "2"}}


@pytest.mark.requirement("META-16")
def test_an_anonymous_server_signs_nothing():
    conversation = talk(LATEST, server=party(SERVER_CAN, anonymous=True))
    incoming = conversation.ask("tools/call").incoming
    written = parse(conversation.server.reply(incoming.id, RESULTS["tools/call"]))["result"]
    assert SERVER_INFO not in written.get("_meta", {})


@pytest.mark.requirement("SUB-6", "SUB-8")
@pytest.mark.parametrize("identity", [7, "seven"])
def test_the_end_of_a_subscription_names_it(identity):
    server = Connection(SERVER_PARTY)
    server.receive(told(LATEST, "subscriptions/listen", id=identity))
    written = parse(server.reply(identity, RESULTS["subscriptions/listen"]))
    assert written["id"] == identity
    assert written["result"]["resultType"] == "complete"
    assert written["result"]["_meta"][SUBSCRIPTION_ID] == identity


@pytest.mark.requirement("SUB-6")
def test_the_end_of_a_subscription_names_no_other():
    server = Connection(SERVER_PARTY)
    server.receive(told(LATEST, "subscriptions/listen", id="here"))
    forwarded = ListenResult(meta={SUBSCRIPTION_ID: "there", "com.example/a": 1})
    written = parse(server.reply("here", forwarded))["result"]["_meta"]
    assert (written[SUBSCRIPTION_ID], written["com.example/a"]) == ("here", 1)


@pytest.mark.requirement("MRTR-2")
@pytest.mark.parametrize("method", sorted(LATEST.requests[CLIENT]))
def test_only_some_results_may_ask(method):
    conversation = talk(LATEST)
    outgoing, incoming = conversation.ask(method)
    wish = InputRequiredResult(request_state="s")
    if method not in ASKING:
        with pytest.raises(LocalProtocolError, match=f"the result of {method} cannot ask for input"):
            conversation.server.reply(incoming.id, wish)
        forged = message(id=outgoing.id, result={"resultType": "input_required", "requestState": "s"})
        one(conversation.client.receive(forged), ErrorReceived)
        return
    data = conversation.server.reply(incoming.id, wish)
    assert data is not None
    written = parse(data)["result"]
    assert written["resultType"] == "input_required"
    assert not written.keys() & {"ttlMs", "cacheScope"}
    read = one(conversation.client.receive(data), ResponseReceived).result
    assert isinstance(read, InputRequiredResult)
    assert read.request_state == "s"


@pytest.mark.requirement("MRTR-5")
@pytest.mark.parametrize(
    ("requests", "state", "ok"),
    [
        (None, None, False),
        (None, "s", True),
        (None, "", True),
        ({"q": InputRequest("roots/list")}, None, True),
        ({"q": InputRequest("roots/list")}, "s", True),
    ],
)
def test_an_input_required_result_has_questions_or_a_state(requests, state, ok):
    conversation = talk(LATEST)
    incoming = conversation.ask("tools/call").incoming
    wish = InputRequiredResult(input_requests=requests, request_state=state, result_type="complete")
    if ok:
        written = parse(conversation.server.reply(incoming.id, wish))["result"]
        assert written["resultType"] == "input_required"
        assert written.get("requestState") == state
        assert wish.result_type == "complete"
    else:
        with pytest.raises(LocalProtocolError, match="must have questions, a state, or both"):
            conversation.server.reply(incoming.id, wish)
        assert conversation.server.reply(incoming.id, RESULTS["tools/call"])


# --------------------------------------------------------------------- ask


def _call(server: Connection, **capabilities: Any) -> InboundRequest:
    params = marked(PARAMS["tools/call"], capabilities=capabilities)
    return one(server.receive(message(id="call", method="tools/call", params=params)), InboundRequest)


@every_session
def test_a_session_sends_no_url_to_a_client_without_url_support(revision):
    conversation = talk(revision)
    incoming = conversation.ask("tools/call").incoming
    visit = ElicitParams(message="Log in.", mode="url", url="https://a.example", elicitation_id="1")
    why = (
        "does not offer 'elicitation.url'"
        if revision.rich_forms
        else f"clients of {revision.date} do not support"
    )
    with pytest.raises(CapabilityNotDeclared, match=why):
        SESSION_ERA.make_client_request(conversation.server, incoming, "elicitation/create", visit)


@pytest.mark.parametrize("method", sorted(ASKS))
@every_session
def test_a_session_asks_with_a_request(revision, method):
    conversation = talk(revision)
    incoming = conversation.ask("tools/call").incoming
    if method not in revision.requests[SERVER]:
        with pytest.raises(
            CapabilityNotDeclared, match=f"clients of {revision.date} do not support {method}"
        ):
            SESSION_ERA.make_client_request(conversation.server, incoming, method, ASKS[method])
        return
    ask = SESSION_ERA.make_client_request(conversation.server, incoming, method, ASKS[method])
    assert isinstance(ask, OutboundRequest)
    asked = one(conversation.client.receive(ask.data), InboundRequest)
    assert asked.row.name == method


@pytest.mark.requirement("LIFE-15")
@pytest.mark.parametrize("method", sorted(ASKS))
def test_a_session_sends_only_declared_requests(method):
    needs = LATEST_SESSION.requests[SERVER][method].needs
    assert needs
    conversation = talk(LATEST_SESSION, client=party(without(CLIENT_CAN, needs)))
    incoming = conversation.ask("tools/call").incoming
    with pytest.raises(CapabilityNotDeclared) as refused:
        SESSION_ERA.make_client_request(conversation.server, incoming, method, ASKS[method])
    assert refused.value.capability == needs
    assert refused.value.peer == "a client"


@pytest.mark.requirement("MRTR-1", "MRTR-4")
@pytest.mark.parametrize("method", sorted(ASKS))
def test_a_stateless_server_asks_with_a_part_of_its_result(method):
    server = Connection(SERVER_PARTY)
    ask = STATELESS_ERA.make_client_request(
        server, _call(server, roots={}, sampling={}, elicitation={}), method, ASKS[method]
    )
    assert isinstance(ask, InputRequest)
    wish = InputRequiredResult(input_requests={"q": ask})
    written = parse(server.reply("call", wish))["result"]["inputRequests"]
    assert written == {"q": {"method": method, "params": PARAMS[method]}}
    assert server.outgoing == {}


@pytest.mark.requirement("META-12", "META-13", "MRTR-6")
@pytest.mark.parametrize("method", sorted(ASKS))
def test_a_stateless_server_sends_only_requests_declared_by_the_client(method):
    server = Connection(SERVER_PARTY)
    incoming = _call(server)
    needs = LATEST.input_requests[method].needs
    with pytest.raises(MissingCapability) as missing:
        STATELESS_ERA.make_client_request(server, incoming, method, ASKS[method])
    error = parse(server.fail(incoming.id, missing.value))["error"]
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {needs: {}}}


@pytest.mark.requirement("META-13")
def test_a_peer_without_capabilities_is_asked_nothing():
    server = Connection(SERVER_PARTY)
    incoming = _call(server)
    incoming.peer = Peer(LATEST)
    with pytest.raises(MissingCapability):
        STATELESS_ERA.make_client_request(server, incoming, "roots/list", ASKS["roots/list"])


TOOLS = [Tool("t", {"type": "object"})]


def _user(mode: Literal["form", "url"] | None) -> tuple[str, WireStruct]:
    visit: dict[str, Any] = {"requested_schema": {"type": "object", "properties": {}}}
    if mode == "url":
        visit = {"url": "https://example.com/", "elicitation_id": "e"}
    return "elicitation/create", ElicitParams(message="Who?", mode=mode, **visit)


def _model(**tools: Any) -> tuple[str, WireStruct]:
    return "sampling/createMessage", CreateMessageParams(messages=[], max_tokens=1, **tools)


# what the client declared, what it is asked, what it lacks
finer_capabilities = pytest.mark.parametrize(
    ("declared", "question", "lacks"),
    [
        pytest.param({"elicitation": {}}, _user("form"), None, id="{} means forms"),
        pytest.param({"elicitation": {}}, _user(None), None, id="{} means forms, without a word"),
        pytest.param({"elicitation": {}}, _user("url"), "elicitation.url", id="{} means no URL"),
        pytest.param({"elicitation": {"form": {}}}, _user("form"), None, id="form for a form"),
        pytest.param({"elicitation": {"form": {}}}, _user("url"), "elicitation.url", id="form for a URL"),
        pytest.param({"elicitation": {"url": {}}}, _user("url"), None, id="url for a URL"),
        pytest.param({"elicitation": {"url": {}}}, _user("form"), "elicitation.form", id="url for a form"),
        pytest.param(
            {"elicitation": {"url": {}}}, _user(None), "elicitation.form", id="url for a silent form"
        ),
        pytest.param({"elicitation": {"form": {}, "url": {}}}, _user("form"), None, id="both for a form"),
        pytest.param({"elicitation": {"form": {}, "url": {}}}, _user("url"), None, id="both for a URL"),
        pytest.param({"sampling": {}}, _model(), None, id="no tools"),
        pytest.param({"sampling": {}}, _model(tools=TOOLS), "sampling.tools", id="undeclared tools"),
        pytest.param(
            {"sampling": {}},
            _model(tool_choice=ToolChoice("none")),
            "sampling.tools",
            id="an undeclared choice of tools",
        ),
        pytest.param({"sampling": {"tools": {}}}, _model(tools=TOOLS), None, id="declared tools"),
    ],
)


@pytest.mark.requirement("MRTR-6", "ELIC-9", "SAMP-3", "META-13")
@finer_capabilities
def test_a_request_is_asked_only_in_the_ways_that_it_declared(declared, question, lacks):
    server = Connection(SERVER_PARTY)
    incoming = _call(server, **declared)
    if lacks is None:
        assert STATELESS_ERA.make_client_request(server, incoming, *question)
        return
    with pytest.raises(MissingCapability) as missing:
        STATELESS_ERA.make_client_request(server, incoming, *question)
    outer, inner = lacks.split(".")
    assert missing.value.data == {"requiredCapabilities": {outer: {inner: {}}}}


@pytest.mark.requirement("LIFE-15", "ELIC-9", "SAMP-3")
@finer_capabilities
def test_a_session_is_asked_only_in_the_ways_that_it_declared(declared, question, lacks):
    conversation = talk(LATEST_SESSION, client=party(msgspec.convert(declared, ClientCapabilities)))
    incoming = conversation.ask("tools/call").incoming
    if lacks is None:
        assert SESSION_ERA.make_client_request(conversation.server, incoming, *question)
        return
    with pytest.raises(CapabilityNotDeclared) as missing:
        SESSION_ERA.make_client_request(conversation.server, incoming, *question)
    assert missing.value.capability == lacks


@pytest.mark.requirement("MRTR-2")
@pytest.mark.parametrize("method", sorted(set(LATEST.requests[CLIENT]) - ASKING))
def test_most_requests_cannot_ask(method):
    conversation = talk(LATEST)
    incoming = conversation.ask(method).incoming
    with pytest.raises(LocalProtocolError, match=f"{method} cannot ask the client"):
        STATELESS_ERA.make_client_request(conversation.server, incoming, "roots/list", ASKS["roots/list"])


@pytest.mark.requirement("MRTR-4")
@pytest.mark.parametrize("method", ["ping", "tools/call", "tasks/get", "com.example/ask"])
def test_most_things_cannot_be_asked(method):
    server = Connection(SERVER_PARTY)
    with pytest.raises(LocalProtocolError, match=f"{method} cannot be sent to a client"):
        STATELESS_ERA.make_client_request(server, _call(server), method, ClientRequestParams())


# --------------------------------------------------------------------- introductions


@pytest.mark.requirement("LIFE-3", "LIFE-9")
@every_session
def test_a_server_introduces_itself_to_a_session(revision):
    conversation = Conversation(revision).open("opening")
    [identity] = conversation.server.incoming
    introduction = conversation.server.local_peer.introduce(
        conversation.server.incoming[identity].peer.revision, "Be kind."
    )
    assert parse(conversation.server.reply(identity, introduction))["result"] == {
        "protocolVersion": revision.date,
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
            "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
        },
        "serverInfo": {"name": "a server", "version": "2"},
        "instructions": "Be kind.",
    }


@pytest.mark.requirement("DISC-1", "DISC-2", "VER-3")
def test_a_server_introduces_itself_when_discovered():
    conversation = Conversation(LATEST).open("opening")
    [identity] = conversation.server.incoming
    introduction = conversation.server.local_peer.introduce(
        conversation.server.incoming[identity].peer.revision
    )
    assert parse(conversation.server.reply(identity, introduction))["result"] == {
        "supportedVersions": list(DATES),
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        },
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_INFO: {"name": "a server", "version": "2"}},
    }


@every_revision
def test_a_client_remembers_the_servers_identity(revision):
    conversation = talk(revision)
    peer = conversation.client.peer
    assert peer
    assert peer.revision is revision
    assert peer.info == Implementation("a server", "2")
    assert isinstance(peer.capabilities, ServerCapabilities)
    assert peer.capabilities.tools
    assert conversation.client.revision is revision


@pytest.mark.requirement("CACHE-2")
@pytest.mark.parametrize(("age", "scope"), [(-1, None), (1.5, None), (True, None), (None, "everybody")])
def test_cache_hints_are_validated(age, scope):
    conversation = talk(LATEST)
    identity = conversation.ask("tools/list").incoming.id
    with pytest.raises(LocalProtocolError, match="public or private"):
        conversation.server.reply(identity, ListToolsResult(tools=[], ttl_ms=age, cache_scope=scope))
    assert identity in conversation.server.incoming
