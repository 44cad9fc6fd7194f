import copy
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.errors import CODES, HeaderMismatch, LocalProtocolError, MissingCapability, RPCError
from toolpost.protocol import headers, http_routing, jsonrpc, receive
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import STATELESS_ERA, Peer
from toolpost.protocol.events import (
    InboundRequest,
    InvalidMessageReceived,
    MessageDropped,
    NotificationReceived,
)
from toolpost.protocol.headers import METHOD, NAME, SESSION, VERSION
from toolpost.protocol.http_routing import (
    SessionRoute,
    StatelessRoute,
    get_http_status,
    mirror_headers,
)
from toolpost.protocol.jsonrpc import (
    JSONRPCErrorResponse,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import CLIENT, TASKS, Row
from toolpost.protocol.revisions import LATEST, REVISIONS
from toolpost.types.base import UNSET, Raw, Result
from toolpost.types.client_requests import ElicitParams
from toolpost.types.initialize import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    ClientCapabilities,
    ElicitationCapability,
    Implementation,
    ListCapability,
    ResourcesCapability,
    ServerCapabilities,
)
from toolpost.types.tools import TaskParams

MODERN: Final = LATEST.date
LEGACY: Final = [revision.date for revision in REVISIONS.values() if not revision.stateless]
EVERYTHING: Final = ServerCapabilities(
    tools=ListCapability(),
    resources=ResourcesCapability(subscribe=True),
    prompts=ListCapability(),
    completions={},
    logging={},
)
ME: Final = Implementation("server", "1")
FACTS: Final[dict[str, Any]] = {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: {}}


def encode_headers(sent: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in sent.items()}


class Rejected(NamedTuple):
    """The exception of `classify`, as a value."""

    error: RPCError


def classify(
    sent: Mapping[str, str], message: JSONRPCMessage | None, party: LocalPeer
) -> StatelessRoute | SessionRoute | Rejected:
    try:
        return http_routing.classify(encode_headers(sent), message, party)
    except RPCError as error:
        return Rejected(error)


def verify_headers(
    sent: Mapping[str, str],
    incoming: InboundRequest,
    annotated: http_routing.HeaderAnnotations | None = None,
) -> None:
    http_routing.verify_headers(encode_headers(sent), incoming, annotated)


def server(*supported: str, can: ServerCapabilities = EVERYTHING) -> Connection:
    return Connection(LocalPeer(ME, can, supported=supported or tuple(REVISIONS)))


def read(**members: Any) -> JSONRPCMessage:
    return jsonrpc.decode(json.dumps({"jsonrpc": "2.0", **members}).encode())


def request(method: str, params: Any = None, **members: Any) -> JSONRPCMessage:
    return read(id=7, method=method, params=params, **members)


class Post:
    """A valid stateless request that a test can change."""

    def __init__(self, method: str = "tools/call", name: str | None = "add") -> None:
        self.sent = {VERSION: MODERN, METHOD: method}
        self.params: dict[str, Any] = {"_meta": copy.deepcopy(FACTS)}
        self.method = method
        self.annotated: dict[str, tuple[str, ...]] | None = None
        self.asks = False
        if name is not None:
            self.sent[NAME] = name
            self.params["uri" if method == "resources/read" else "name"] = name

    @property
    def meta(self) -> dict[str, Any]:
        return self.params["_meta"]

    @property
    def message(self) -> JSONRPCMessage:
        return request(self.method, self.params)

    def walk(self, connection: Connection | None = None) -> tuple[int, RPCError | None]:
        """Return the status and the error, in the order of an HTTP endpoint's checks."""
        connection = connection or server()
        message = self.message
        route = classify(self.sent, message, connection.local_peer)
        if isinstance(route, Rejected):
            return 400, route.error
        assert isinstance(message, JSONRPCRequest)
        assert isinstance(route, StatelessRoute)
        incoming = route.incoming or receive.handle_request(connection, message)
        if isinstance(incoming, InvalidMessageReceived):
            assert isinstance(incoming.error, RPCError)
            return get_http_status(incoming.error.code), incoming.error
        assert isinstance(incoming, InboundRequest)
        try:
            verify_headers(self.sent, incoming, self.annotated)
            if self.asks:
                STATELESS_ERA.make_client_request(
                    connection,
                    incoming,
                    "elicitation/create",
                    ElicitParams(message="Who?", requested_schema={}),
                )
        except RPCError as error:
            return get_http_status(error.code), error
        return 200, None


# --------------------------------------------------------------------- the order of checks


def _no_version(post: Post) -> None:
    del post.sent[VERSION]


def _no_capabilities(post: Post) -> None:
    del post.meta[CLIENT_CAPABILITIES]


def _two_versions(post: Post) -> None:
    post.meta[PROTOCOL_VERSION] += "x"


def _future(post: Post) -> None:
    post.sent[VERSION] = post.meta[PROTOCOL_VERSION] = "2999-01-01"


def _wrong_method(post: Post) -> None:
    post.sent[METHOD] = "tools/list"


def _unknown_method(post: Post) -> None:
    post.method = post.sent[METHOD] = "tools/conjure"


def _wrong_name(post: Post) -> None:
    post.sent[NAME] = "subtract"


def _wrong_argument(post: Post) -> None:
    post.annotated = {"mcp-param-a": ("a",)}
    post.params["arguments"] = {"a": 1}
    post.sent["mcp-param-a"] = "2"


def _wrong_params(post: Post) -> None:
    post.params["requestState"] = 5


def _needs_capability(post: Post) -> None:
    post.asks = True


# What is wrong, the status, the code, how the message begins: in the order of the specification's suite.
FAULTS: Final[list[tuple[Callable[[Post], None], int, int, str]]] = [
    (_no_version, 400, -32020, "mcp-protocol-version: the header is missing"),
    (_no_capabilities, 400, -32602, "Invalid params: _meta lacks"),
    (_two_versions, 400, -32020, "mcp-protocol-version: the header is"),
    (_future, 400, -32022, "Unsupported protocol version: 2999-01-01"),
    (_wrong_method, 400, -32020, "mcp-method: the header is"),
    (_unknown_method, 404, -32601, "Method not found: tools/conjure"),
    # Mirrored headers are compared once the body can be read, so invalid params are reported first.
    (_wrong_params, 200, -32602, "Invalid params for tools/call"),
    (_wrong_name, 400, -32020, "mcp-name: the header is"),
    (_wrong_argument, 400, -32020, "mcp-param-a: the header is"),
    (_needs_capability, 400, -32021, "elicitation/create needs"),
]


def _name(fault: tuple[Callable[[Post], None], int, int, str]) -> str:
    return fault[0].__name__.strip("_")


def test_a_post_without_a_fault_goes_through():
    assert Post().walk() == (200, None)
    assert Post("resources/read", "file:///a").walk() == (200, None)
    assert Post("prompts/get", "greet").walk() == (200, None)
    assert Post("tools/list", None).walk() == (200, None)
    assert Post("server/discover", None).walk() == (200, None)


@pytest.mark.requirement(
    "META-10", "META-11", "META-14", "VER-1", "HDR-25", "HTTPM-16", "HTTPM-17", "HTTPM-18"
)
@pytest.mark.parametrize("fault", FAULTS, ids=_name)
def test_each_fault_has_its_status_and_its_code(fault):
    break_, expected, code, text = fault
    post = Post()
    break_(post)
    found, error = post.walk()
    assert error is not None
    assert (found, error.code) == (expected, code)
    assert error.message.startswith(text)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(first, second, id=f"{_name(first)} before {_name(second)}")
        for index, first in enumerate(FAULTS)
        for second in FAULTS[index + 1 :]
    ],
)
def test_of_two_faults_the_earlier_one_is_reported(first, second):
    post = Post()
    second[0](post)
    first[0](post)
    found, error = post.walk()
    assert error is not None
    assert error.message.startswith(first[3])
    assert (found, error.code) == (first[1], first[2])


# --------------------------------------------------------------------- version headers


@pytest.mark.parametrize("version", [MODERN, f" {MODERN}", f"\t{MODERN} \t"])
def test_white_space_around_a_header_does_not_count(version):
    post = Post()
    post.sent[VERSION] = version
    post.sent[METHOD] = " tools/call\t"
    post.sent[NAME] = "\tadd "
    assert post.walk() == (200, None)


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("", id="empty"),
        pytest.param("  ", id="blank"),
        pytest.param("2", id="too short"),
        pytest.param("2025-11-2", id="cut"),
        pytest.param("2025-11-25x", id="a legacy one and more"),
        pytest.param("2025-11-25, 2025-11-25", id="a legacy one twice"),
        pytest.param(f"{MODERN}, {MODERN}", id="the modern one twice"),
        pytest.param("DRAFT-2026-v1", id="a draft"),
        pytest.param("v999.0.0", id="nonsense"),
        pytest.param("2999-01-01", id="the future"),
        pytest.param("x" * 100_000, id="long"),
    ],
)
def test_an_unknown_version_is_newer_than_ours(version):
    # Without facts in the body it is not even a request of the stateless era …
    route = classify({VERSION: version}, request("tools/list"), server().local_peer)
    assert isinstance(route, Rejected)
    assert route.error.code == -32602
    # … with other facts it contradicts itself …
    route = classify({VERSION: version}, request("tools/list", {"_meta": FACTS}), server().local_peer)
    assert isinstance(route, Rejected)
    assert route.error.code == -32020
    assert len(route.error.message) < 300
    # … with the same it is not supported.
    said = version.strip(" \t")
    route = classify(
        {VERSION: version},
        request("tools/list", {"_meta": {**FACTS, PROTOCOL_VERSION: said}}),
        server().local_peer,
    )
    assert isinstance(route, Rejected)
    assert route.error.code == -32022
    assert route.error.data == {"supported": list(REVISIONS), "requested": jsonrpc.shorten(said)}


@pytest.mark.requirement("VER-1", "HTTPM-17")
@pytest.mark.parametrize("version", LEGACY)
def test_a_stateless_request_cannot_name_a_revision_of_the_session_era(version):
    post = Post()
    post.sent[VERSION] = post.meta[PROTOCOL_VERSION] = version
    found, error = post.walk()
    assert error is not None
    assert (found, error.code) == (400, -32022)
    assert error.data == {"supported": list(REVISIONS), "requested": version}


@pytest.mark.requirement("VER-1", "HTTPM-17")
def test_a_server_may_choose_not_to_support_the_modern_revision():
    found, error = Post().walk(server(*LEGACY))
    assert error is not None
    assert (found, error.code) == (400, -32022)
    assert error.data == {"supported": LEGACY, "requested": MODERN}


@pytest.mark.requirement("HTTPM-16", "HDR-25")
@pytest.mark.parametrize("version", [*LEGACY, MODERN, "2999-01-01"])
def test_header_and_meta_name_the_same_version(version):
    for other in [*LEGACY, MODERN, "2999-01-01", "", MODERN.lower() + " "]:
        if other == version:
            continue
        post = Post()
        post.sent[VERSION], post.meta[PROTOCOL_VERSION] = version, other
        found, error = post.walk()
        assert error is not None
        assert (found, error.code) == (400, -32020)
        assert version in error.message


# --------------------------------------------------------------------- facts in the body


@pytest.mark.requirement("HTTPM-16")
@pytest.mark.parametrize("meta", [FACTS, {PROTOCOL_VERSION: "2025-11-25"}, {PROTOCOL_VERSION: 5}])
def test_facts_without_a_version_header_are_a_mismatch(meta):
    route = classify({METHOD: "tools/list"}, request("tools/list", {"_meta": meta}), server().local_peer)
    assert isinstance(route, Rejected)
    assert route.error.code == -32020
    assert "missing" in route.error.message


@pytest.mark.requirement("META-10", "META-11")
@pytest.mark.parametrize(
    "params",
    [
        pytest.param(None, id="no params"),
        pytest.param({}, id="no _meta"),
        pytest.param({"_meta": None}, id="null"),
        pytest.param({"_meta": {}}, id="empty"),
        pytest.param({"_meta": {PROTOCOL_VERSION: MODERN}}, id="no capabilities"),
        pytest.param({"_meta": {CLIENT_CAPABILITIES: {}}}, id="no version"),
        pytest.param({"_meta": {PROTOCOL_VERSION.lower(): MODERN, CLIENT_CAPABILITIES: {}}}, id="other case"),
        pytest.param({"_meta": 5}, id="number"),
        pytest.param({"_meta": []}, id="array"),
        pytest.param({"_meta": "x"}, id="text"),
        pytest.param([], id="array as params"),
        pytest.param(5, id="number as params"),
        pytest.param({"_meta": {**FACTS, PROTOCOL_VERSION: 20260728}}, id="version is a number"),
        pytest.param({"_meta": {**FACTS, PROTOCOL_VERSION: None}}, id="version is null"),
        pytest.param({"_meta": {**FACTS, PROTOCOL_VERSION: [MODERN]}}, id="version is an array"),
        pytest.param({"_meta": {**FACTS, CLIENT_CAPABILITIES: None}}, id="capabilities are null"),
        pytest.param({"_meta": {**FACTS, CLIENT_CAPABILITIES: []}}, id="capabilities are an array"),
        pytest.param({"_meta": {**FACTS, CLIENT_CAPABILITIES: True}}, id="capabilities are true"),
        pytest.param({"_meta": {**FACTS, CLIENT_CAPABILITIES: {"roots": 1}}}, id="a capability is a number"),
        pytest.param({"_meta": {**FACTS, CLIENT_INFO: "me"}}, id="name tag is a text"),
        pytest.param({"_meta": {**FACTS, CLIENT_INFO: {"name": "me"}}}, id="name tag lacks its version"),
        pytest.param({"_meta": {**FACTS, LOG_LEVEL: "loud"}}, id="log level that there is not"),
        pytest.param({"_meta": {**FACTS, "progressToken": 1.5}}, id="progress token is a fraction"),
    ],
)
def test_a_request_that_lacks_its_facts_is_refused(params):
    route = classify(
        {VERSION: MODERN, METHOD: "tools/list"}, request("tools/list", params), server().local_peer
    )
    assert isinstance(route, Rejected)
    assert route.error.code == -32602


def asked(connection: Connection, identity: int, meta: Mapping[str, Any]) -> InboundRequest:
    """A call that has passed all checks."""
    message = read(id=identity, method="tools/call", params={"name": "add", "_meta": meta})
    route = classify({VERSION: MODERN, METHOD: "tools/call", NAME: "add"}, message, connection.local_peer)
    assert isinstance(message, JSONRPCRequest)
    assert isinstance(route, StatelessRoute)
    incoming = route.incoming
    assert isinstance(incoming, InboundRequest)
    assert incoming.peer is route.peer
    return incoming


@pytest.mark.requirement("META-12", "META-13", "META-15", "STATE-1")
def test_the_route_identifies_the_client_for_each_request():
    connection, question = server(), ElicitParams(message="Who?", requested_schema={})
    meta = {
        **FACTS,
        CLIENT_CAPABILITIES: {"elicitation": {}},
        CLIENT_INFO: {"name": "client", "version": "2"},
        LOG_LEVEL: "debug",
        "progressToken": "p",
        "io.example/other": [1],
    }
    first = asked(connection, 1, meta)
    assert first.peer.revision is LATEST
    assert first.peer.capabilities == ClientCapabilities(elicitation=ElicitationCapability())
    assert first.peer.info == Implementation("client", "2")
    assert first.peer.log_level == "debug"
    assert first.token == "p"
    assert (
        STATELESS_ERA.make_client_request(connection, first, "elicitation/create", question).method
        == "elicitation/create"
    )

    second = asked(connection, 2, FACTS)
    assert second.peer == Peer(LATEST, ClientCapabilities())
    assert second.token is None
    with pytest.raises(MissingCapability) as caught:
        STATELESS_ERA.make_client_request(connection, second, "elicitation/create", question)
    assert caught.value.data == {"requiredCapabilities": {"elicitation": {}}}


@pytest.mark.parametrize("session", ["s", "", "no such session", "ä", "x" * 10_000])
def test_a_session_id_means_nothing_to_a_stateless_request(session):
    post = Post()
    post.sent[SESSION] = session
    post.sent[headers.LAST_EVENT] = "5"
    assert post.walk() == (200, None)


# --------------------------------------------------------------------- methods and names


@pytest.mark.requirement("HDR-25", "HDR-27")
@pytest.mark.parametrize(
    ("said", "text"),
    [
        pytest.param(None, "missing", id="missing"),
        pytest.param("", "is ''", id="empty"),
        pytest.param("TOOLS/LIST", "'TOOLS/LIST'", id="upper case"),
        pytest.param("tools/call", "'tools/call'", id="another"),
        pytest.param("tools/list,tools/list", "'tools/list,tools/list'", id="twice"),
        pytest.param("=?base64?dG9vbHMvbGlzdA==?=", "base64", id="in Base64, which is for values"),
    ],
)
def test_the_method_header_repeats_the_method(said, text):
    post = Post("tools/list", None)
    del post.sent[METHOD]
    if said is not None:
        post.sent[METHOD] = said
    found, error = post.walk()
    assert error is not None
    assert (found, error.code) == (400, -32020)
    assert text in error.message
    assert "'tools/list'" in error.message


@pytest.mark.requirement("HDR-25")
def test_white_space_in_a_method_is_in_no_header():
    """A header is read without the white space around it, so it cannot repeat such a method."""
    post = Post("tools/list ", None)
    post.sent[METHOD] = "tools/list "
    found, error = post.walk()
    assert error is not None
    assert (found, error.code) == (400, -32020)


@pytest.mark.requirement("HTTPM-18")
@pytest.mark.parametrize(
    "method",
    [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/result",
        "tasks/list",
        "tasks/get",
        "tasks/cancel",
        "roots/list",
        "sampling/createMessage",
        "elicitation/create",
        "notifications/initialized",
        "tools/conjure",
        "Tools/List",
        "",
    ],
)
def test_a_method_that_the_modern_revision_lacks_is_unknown(method):
    # Also where the same server knows it in the session era (the facts decide, not the method).
    post = Post(method, None)
    post.params |= {
        "protocolVersion": LEGACY[-1],
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
        "uri": "file:///a",
        "level": "info",
        "taskId": "t",
    }
    found, error = post.walk()
    assert error is not None
    assert (found, error.code) == (404, -32601)


@pytest.mark.requirement("ERR-10", "HTTPM-18")
@pytest.mark.parametrize(
    "method", [row.name for row in LATEST.requests[CLIENT].values() if row.needs is not None]
)
def test_a_method_that_is_not_offered_is_unknown(method):
    found, error = Post(method, "x").walk(server(can=ServerCapabilities()))
    assert error is not None
    assert (found, error.code) == (404, -32601)


@pytest.mark.requirement("HDR-20", "HDR-25")
@pytest.mark.parametrize(
    ("method", "name"), [("tools/call", "add"), ("prompts/get", "greet"), ("resources/read", "file:///a")]
)
def test_the_name_header_repeats_the_name(method, name):
    right = [name, f" {name}\t", f"=?base64?{b64encode(name.encode()).decode()}?="]
    wrong = [None, "", name.upper(), f"{name}x", f"{name}, {name}", "=?base64?!?=", "ä", f"{name}\x00"]
    for said in right:
        post = Post(method, name)
        post.sent[NAME] = said
        assert post.walk() == (200, None)
    for said in wrong:
        post = Post(method, name)
        post.sent.pop(NAME)
        if said is not None:
            post.sent[NAME] = said
        found, error = post.walk()
        assert error is not None
        assert (found, error.code) == (400, -32020)
        assert error.message.startswith(NAME)


@pytest.mark.parametrize("method", ["tools/list", "server/discover", "completion/complete"])
def test_a_name_header_that_nothing_asks_for_is_not_looked_at(method):
    post = Post(method, None)
    post.params |= {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "a", "value": ""}}
    post.sent[NAME] = "whatever"
    assert post.walk() == (200, None)


@pytest.mark.requirement("HDR-22", "HDR-23", "HDR-25", "HDR-26")
@pytest.mark.parametrize(
    ("arguments", "said", "agrees"),
    [
        pytest.param({"a": 42}, "42", True, id="integer"),
        pytest.param({"a": 42}, "42.0", True, id="integer in another spelling"),
        pytest.param({"a": 42.0}, "42", True, id="the body in another spelling"),
        pytest.param({"a": True}, "true", True, id="boolean"),
        pytest.param({"a": "é"}, "=?base64?w6k=?=", True, id="Base64"),
        pytest.param({"a": ""}, "", True, id="empty"),
        pytest.param({"a": None}, None, True, id="null has no header"),
        pytest.param({}, None, True, id="absent has no header"),
        pytest.param(UNSET, None, True, id="no arguments at all"),
        pytest.param({"a": 42}, None, False, id="missing"),
        pytest.param({"a": 42}, "43", False, id="another integer"),
        pytest.param({"a": "x"}, "X", False, id="another case"),
        pytest.param({"a": "é"}, "é", False, id="characters that no header may have"),
        pytest.param({"a": None}, "", False, id="a header for null"),
        pytest.param({}, "x", False, id="a header for nothing"),
        pytest.param(UNSET, "x", False, id="a header and no arguments"),
        pytest.param([], "x", False, id="a header and arguments of the wrong type"),
        pytest.param([], None, True, id="arguments of the wrong type are not our business"),
        pytest.param(5, None, True, id="nor is a number"),
    ],
)
def test_param_headers_repeat_the_annotated_arguments(arguments, said, agrees):
    post = Post()
    post.annotated = {"mcp-param-a": ("a",)}
    if arguments is not UNSET:
        post.params["arguments"] = arguments
    if said is not None:
        post.sent["mcp-param-a"] = said
    post.sent["mcp-param-b"] = "nobody asked for this one"
    found, error = post.walk()
    if agrees:
        assert (found, error) == (200, None)
    else:
        assert error is not None
        assert (found, error.code) == (400, -32020)


UNREADABLE: Final = "1e400"


@pytest.mark.requirement("HDR-23", "HDR-25")
@pytest.mark.parametrize(
    ("arguments", "said", "complaint"),
    [
        pytest.param('{"a":"eu","z":%s}', {}, "mcp-param-a: the header is missing", id="missing"),
        pytest.param('{"z":%s,"a":"eu"}', {"a": "us"}, "mcp-param-a: the header is 'us'", id="another"),
        pytest.param('{"z":%s}', {"a": "us"}, "mcp-param-a: the header is present", id="for nothing"),
        pytest.param('{"b":{"c":1,"z":%s}}', {}, "mcp-param-c: the header is missing", id="below, missing"),
        pytest.param('{"b":{"c":1,"z":%s}}', {"c": "2"}, "mcp-param-c: the header is", id="below, another"),
        pytest.param('{"a":%s}', {}, "the argument 'a' cannot be read", id="itself"),
        pytest.param('{"a":%s}', {"a": "1"}, "the argument 'a' cannot be read", id="itself, with a header"),
        pytest.param('{"b":{"c":%s}}', {"c": "1"}, "the argument 'c' cannot be read", id="below, itself"),
        pytest.param('{"b":%s}', {}, "the argument 'b' cannot be read", id="on the way"),
        pytest.param("%s", {}, "the arguments cannot be read", id="all of them"),
    ],
)
def test_unreadable_params_do_not_prevent_the_comparison_of_headers(arguments, said, complaint):
    with pytest.raises(HeaderMismatch, match=re.escape(complaint)):
        verify_raw(arguments, said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param('{"z":%s,"a":"eu","b":{"c":1,"z":%s}}', {"a": "eu", "c": "1"}, id="both"),
        pytest.param('{"z":%s,"a":null,"b":[%s]}', {}, id="neither"),
        pytest.param('{"b":{"c":null,"d":[%s]}}', {}, id="null below"),
    ],
)
def test_what_cannot_be_read_elsewhere_is_not_our_business(arguments, said):
    verify_raw(arguments, said)


def verify_raw(arguments: str, said: Mapping[str, str]) -> None:
    """Verify a call whose arguments, written with %s in them, contain an unreadable number."""
    post = Post()
    post.params["arguments"] = "here"
    data = json.dumps({"jsonrpc": "2.0", "id": 7, "method": post.method, "params": post.params})
    message = jsonrpc.decode(data.replace('"here"', arguments.replace("%s", UNREADABLE)).encode())
    connection = server()
    route = classify(post.sent, message, connection.local_peer)
    assert isinstance(route, StatelessRoute)
    assert isinstance(message, JSONRPCRequest)
    incoming = route.incoming or receive.handle_request(connection, message)
    assert isinstance(incoming, InboundRequest)
    sent = post.sent | {f"mcp-param-{name}": value for name, value in said.items()}
    verify_headers(sent, incoming, {"mcp-param-a": ("a",), "mcp-param-c": ("b", "c")})


def test_without_annotations_the_arguments_are_not_read():
    for annotated in (None, {}):
        post = Post()
        post.annotated = annotated
        post.params["arguments"] = {"a": 1}
        post.sent["mcp-param-a"] = "2"
        assert post.walk() == (200, None)


# --------------------------------------------------------------------- notifications, responses, batches


@pytest.mark.parametrize("sent", [{}, {METHOD: "notifications/cancelled"}])
@pytest.mark.parametrize("params", [None, {}, {"requestId": 1}, {"_meta": {PROTOCOL_VERSION: MODERN}}])
def test_a_notification_needs_a_version_and_no_facts(sent, params):
    message = read(method="notifications/cancelled", params=params)
    connection = server()
    route = classify({VERSION: MODERN, **sent}, message, connection.local_peer)
    assert route == StatelessRoute()
    assert isinstance(route, StatelessRoute)
    event = connection.receive_message(message)
    assert isinstance(event, NotificationReceived | MessageDropped)


@pytest.mark.requirement("VER-1", "HTTPM-16", "HTTPM-17", "HDR-25")
@pytest.mark.parametrize(
    ("sent", "meta", "code"),
    [
        pytest.param({}, {PROTOCOL_VERSION: MODERN}, -32020, id="facts without a header"),
        pytest.param({VERSION: "2999-01-01"}, {}, -32022, id="unsupported"),
        pytest.param({VERSION: ""}, {}, -32022, id="empty"),
        pytest.param({VERSION: "2999-01-01", METHOD: "x"}, {}, -32022, id="unsupported, and wrong method"),
        pytest.param({VERSION: MODERN, METHOD: "x"}, {}, -32020, id="wrong method"),
        pytest.param({VERSION: MODERN}, {PROTOCOL_VERSION: "2999-01-01"}, -32020, id="facts of the future"),
        pytest.param({VERSION: MODERN}, {PROTOCOL_VERSION: LEGACY[-1]}, -32020, id="facts of the past"),
        pytest.param({VERSION: LEGACY[-1]}, {PROTOCOL_VERSION: MODERN}, -32020, id="header of the past"),
        pytest.param({VERSION: LEGACY[-1]}, {PROTOCOL_VERSION: LEGACY[-1]}, -32022, id="both of the past"),
    ],
)
def test_a_notification_that_contradicts_itself_is_rejected(sent, meta, code):
    route = classify(
        sent, read(method="notifications/cancelled", params={"_meta": meta}), server().local_peer
    )
    assert isinstance(route, Rejected)
    assert route.error.code == code


@pytest.mark.requirement("HTTPM-4")
@pytest.mark.parametrize("version", [MODERN, "2999-01-01"])
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(JSONRPCResponse(7, Raw(b"{}")), id="answer"),
        pytest.param(JSONRPCErrorResponse(7, 1, ""), id="error"),
        pytest.param(JSONRPCErrorResponse(None, 1, ""), id="error without an id"),
        pytest.param(None, id="batch"),
    ],
)
def test_only_a_single_request_or_notification_is_posted_to_the_stateless_era(version, message):
    route = classify({VERSION: version}, message, server().local_peer)
    assert isinstance(route, Rejected)
    assert route.error.code == -32600
    # The id is of a request of ours, not of theirs: an error with it would answer something else.


@pytest.mark.parametrize(
    "message",
    [
        JSONRPCResponse(7, Raw(b"{}")),
        JSONRPCErrorResponse(7, 1, ""),
        JSONRPCErrorResponse(None, 1, ""),
        JSONRPCNotification("notifications/initialized"),
    ],
    ids=["answer", "error", "error without an id", "notice"],
)
@pytest.mark.parametrize("version", [None, *LEGACY])
def test_every_single_message_may_be_posted_to_a_session(version, message):
    sent = {SESSION: "s"} if version is None else {SESSION: "s", VERSION: version}
    route = classify(sent, message, server().local_peer)
    assert route == SessionRoute(REVISIONS[version or "2025-03-26"], "s")


@pytest.mark.parametrize("version", [None, *LEGACY])
def test_a_batch_may_be_posted_only_where_the_revision_has_batches(version):
    revision = REVISIONS[version or "2025-03-26"]
    route = classify(
        {SESSION: "s"} | ({} if version is None else {VERSION: version}), None, server().local_peer
    )
    if revision.date == "2025-03-26":
        assert route == SessionRoute(revision, "s")
    else:
        assert isinstance(route, Rejected)
        assert route.error.code == -32600
        assert "batch" in route.error.message


# --------------------------------------------------------------------- sessions

OPENING: Final = {
    "protocolVersion": LEGACY[-1],
    "capabilities": {},
    "clientInfo": {"name": "client", "version": "1"},
}


@pytest.mark.requirement("HTTPL-32")
def test_a_request_without_a_version_is_taken_for_the_oldest_that_has_http():
    assert classify({}, request("tools/list"), server().local_peer) == SessionRoute(REVISIONS["2025-03-26"])
    message = request("tools/list", {"_meta": {"progressToken": 1}})
    assert classify({SESSION: "s"}, message, server().local_peer) == SessionRoute(
        REVISIONS["2025-03-26"], "s"
    )
    # What is broken is not marked either; the session will say what is wrong with it.
    for params in ([], 5, {"_meta": 5}, {"_meta": [PROTOCOL_VERSION]}, {"_meta": None}):
        assert isinstance(classify({}, request("tools/list", params), server().local_peer), SessionRoute)


@pytest.mark.requirement("HTTPM-19")
@pytest.mark.parametrize(
    "supported", [(MODERN,), LEGACY[2:], (*LEGACY[2:], MODERN)], ids=["modern", "legacy", "both"]
)
@pytest.mark.parametrize(
    "message",
    [request("tools/list"), JSONRPCNotification("notifications/initialized")],
    ids=["request", "notice"],
)
def test_a_server_without_that_revision_wants_the_header(supported, message):
    route = classify({}, message, server(*supported).local_peer)
    assert isinstance(route, Rejected)
    assert route.error.code == -32020
    assert VERSION in route.error.message


@pytest.mark.parametrize("version", LEGACY)
@pytest.mark.parametrize("session", [None, "s", "!~" * 2048])
def test_a_request_of_a_session_names_its_revision(version, session):
    sent = {VERSION: f" {version}\t"} if session is None else {VERSION: version, SESSION: session}
    assert classify(sent, request("tools/list"), server().local_peer) == SessionRoute(
        REVISIONS[version], session
    )


@pytest.mark.requirement("HTTPL-33")
@pytest.mark.parametrize("version", LEGACY)
@pytest.mark.parametrize(
    "message", [request("tools/list"), JSONRPCNotification("n"), None], ids=["request", "notice", "batch"]
)
def test_a_revision_that_the_server_does_not_support_is_refused(version, message):
    others = [date for date in REVISIONS if date != version]
    route = classify({VERSION: version}, message, server(*others).local_peer)
    assert isinstance(route, Rejected)
    assert route.error.code == -32022
    assert route.error.data == {"supported": others, "requested": version}
    assert ", ".join(others) in route.error.message


@pytest.mark.parametrize("session", ["", " ", "a b", "a\tb", "ä", "\x7f", "x" * 4097, " s"])
@pytest.mark.parametrize(
    "message", [request("tools/list"), request("initialize", OPENING)], ids=["request", "initialize"]
)
def test_a_session_id_that_no_server_gave_is_refused(session, message):
    route = classify({VERSION: LEGACY[-1], SESSION: session}, message, server().local_peer)
    assert isinstance(route, Rejected)
    assert route.error.code == -32600


@pytest.mark.parametrize("version", [None, *LEGACY])
@pytest.mark.parametrize(
    "supported", [tuple(REVISIONS), (LEGACY[-1],), (MODERN,)], ids=["all", "one", "modern"]
)
def test_initialize_opens_a_session_with_any_legacy_version_header(supported, version):
    sent = {} if version is None else {VERSION: version}
    route = classify(sent, request("initialize", OPENING), server(*supported).local_peer)
    assert route == SessionRoute(REVISIONS[version or "2025-03-26"], None, is_initialize=True)


def test_a_notification_opens_nothing():
    assert classify({}, JSONRPCNotification("initialize"), server().local_peer) == SessionRoute(
        REVISIONS["2025-03-26"]
    )


@pytest.mark.requirement("VER-8")
def test_a_modern_server_names_its_versions_to_a_client_that_initializes():
    connection = server(MODERN)
    message = request("initialize", OPENING)
    assert isinstance(classify({}, message, connection.local_peer), SessionRoute)
    refused = connection.receive_message(message)
    assert isinstance(refused, InvalidMessageReceived)
    assert isinstance(refused.error, RPCError)
    assert refused.error.code == -32022
    assert refused.error.data == {"supported": [MODERN], "requested": LEGACY[-1]}
    assert MODERN in refused.error.message


@pytest.mark.parametrize("version", [MODERN, "2999-01-01"])
def test_initialize_with_a_modern_header_is_not_a_handshake(version):
    route = classify({VERSION: version}, request("initialize", OPENING), server().local_peer)
    assert isinstance(route, Rejected)
    assert route.error.code == -32602


# --------------------------------------------------------------------- statuses


@pytest.mark.requirement("META-14", "HTTPM-16", "HTTPM-17", "HTTPM-18")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-32700, 400),
        (-32600, 400),
        (-32020, 400),
        (-32021, 400),
        (-32022, 400),
        (-32601, 404),
        (-32602, 200),
        (-32603, 200),
        (-32002, 200),
        (-1, 200),
        (0, 200),
        (10**30, 200),
    ],
)
def test_an_error_has_its_status(code, expected):
    assert get_http_status(code) == expected


def test_every_error_that_we_know_has_a_status():
    assert {get_http_status(code) for code in CODES} == {200, 400, 404}


# --------------------------------------------------------------------- what a client sends


def client() -> Connection:
    return Connection(LocalPeer(Implementation("client", "1"), ClientCapabilities()), revision=LATEST)


def sent_by(connection: Connection, method: str, params: Mapping[str, Any] | None = None) -> JSONRPCRequest:
    message = jsonrpc.decode(connection.request(method, params).data)
    assert isinstance(message, JSONRPCRequest)
    return message


@pytest.mark.requirement("HDR-1", "HTTPM-14", "HTTPM-15")
@pytest.mark.parametrize("method", list(LATEST.requests[CLIENT]))
def test_every_request_carries_its_version_and_its_method(method):
    message = sent_by(client(), method, {"name": "x", "uri": "x:y"})
    said = mirror_headers(message)
    assert isinstance(message.params, Raw)
    assert said[VERSION] == msgspec.json.decode(bytes(message.params))["_meta"][PROTOCOL_VERSION] == MODERN
    assert said[METHOD] == method
    assert set(said) <= {VERSION, METHOD, NAME}


@pytest.mark.requirement("HTTPM-15")
def test_the_version_header_repeats_the_version_of_the_body():
    params = Raw(json.dumps({"_meta": {PROTOCOL_VERSION: "2999-01-01"}}).encode())
    assert mirror_headers(JSONRPCRequest(1, "tools/list", params))[VERSION] == "2999-01-01"
    assert mirror_headers(JSONRPCNotification("notifications/cancelled", params))[VERSION] == "2999-01-01"


@pytest.mark.requirement("HTTPM-14")
@pytest.mark.parametrize(
    "params", [UNSET, Raw(b"{}"), Raw(b'{"_meta":null}'), Raw(b'{"_meta":{},"name":"x"}')]
)
def test_a_notification_carries_its_version_and_its_method(params):
    assert mirror_headers(JSONRPCNotification("notifications/cancelled", params)) == {
        VERSION: MODERN,
        METHOD: "notifications/cancelled",
    }


@pytest.mark.requirement("HDR-2", "HDR-3")
@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        pytest.param("tools/call", {"name": "add"}, "add", id="tool"),
        pytest.param("prompts/get", {"name": "greet me"}, "greet me", id="prompt"),
        pytest.param("resources/read", {"uri": "file:///a%20b"}, "file:///a%20b", id="resource"),
        pytest.param("tools/call", {"name": ""}, "", id="empty"),
        pytest.param("tools/call", {"name": "é"}, "=?base64?w6k=?=", id="not ASCII"),
        pytest.param("prompts/get", {"name": " x"}, "=?base64?IHg=?=", id="space before"),
        pytest.param("resources/read", {"uri": "x:\r\ny: z"}, "=?base64?eDoNCnk6IHo=?=", id="line break"),
        pytest.param(
            "tools/call", {"name": "=?base64?eA==?="}, "=?base64?PT9iYXNlNjQ/ZUE9PT89?=", id="sentinel"
        ),
        pytest.param("tools/call", {"name": "=?BASE64?eA==?="}, "=?BASE64?eA==?=", id="no sentinel"),
        pytest.param("tools/list", {"name": "add"}, None, id="a list has no name"),
        pytest.param("example/own", {"name": "add"}, None, id="nor has a method of others"),
    ],
)
def test_a_name_is_mirrored(method, params, name):
    said = mirror_headers(JSONRPCRequest(1, method, Raw(json.dumps(params).encode())))
    assert said.get(NAME) == name
    assert (NAME in said) is (name is not None)


@pytest.mark.requirement("HDR-4", "HDR-5", "HDR-21")
def test_annotated_arguments_are_mirrored():
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "dry": {"type": "boolean", "x-mcp-header": "Dry-Run"},
            "gone": {"type": "string", "x-mcp-header": "Gone"},
            "none": {"type": "string", "x-mcp-header": "None"},
            "deep": {"type": "object", "properties": {"er": {"type": "string", "x-mcp-header": "Method"}}},
            "plain": {"type": "string"},
        },
    }
    arguments = {"region": "us", "count": 42, "dry": False, "none": None, "deep": {"er": "é"}, "plain": "x"}
    message = sent_by(client(), "tools/call", {"name": "add", "arguments": arguments})
    assert mirror_headers(message, headers.find_annotations(schema)) == {
        VERSION: MODERN,
        METHOD: "tools/call",
        NAME: "add",
        "mcp-param-region": "us",
        "mcp-param-count": "42",
        "mcp-param-dry-run": "false",
        "mcp-param-method": "=?base64?w6k=?=",
    }


@pytest.mark.parametrize("arguments", [b"", b',"arguments":{}', b',"arguments":[]', b',"arguments":null'])
def test_a_call_without_arguments_mirrors_none(arguments):
    message = JSONRPCRequest(1, "tools/call", Raw(b'{"name":"add"%s}' % arguments))
    assert set(mirror_headers(message, {"mcp-param-a": ("a",)})) == {VERSION, METHOD, NAME}


def test_an_argument_that_cannot_be_read_is_not_left_out():
    message = JSONRPCRequest(1, "tools/call", Raw(b'{"name":"add","arguments":{"a":1e400}}'))
    with pytest.raises(ValueError, match="the argument 'a' cannot be read"):
        mirror_headers(message, {"mcp-param-a": ("a",)})
    message = JSONRPCRequest(1, "tools/call", Raw(b'{"name":"add","arguments":{"a":"x","z":1e400}}'))
    assert mirror_headers(message, {"mcp-param-a": ("a",)})["mcp-param-a"] == "x"


@pytest.mark.parametrize("value", [2**53, 1.5, [], {}])
def test_an_argument_that_no_header_can_carry_is_an_error(value):
    message = JSONRPCRequest(
        1, "tools/call", Raw(json.dumps({"name": "add", "arguments": {"a": value}}).encode())
    )
    with pytest.raises(ValueError, match="mcp-param-a"):
        mirror_headers(message, {"mcp-param-a": ("a",)})


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(UNSET, id="no params"),
        pytest.param(Raw(b"{}"), id="no name"),
        pytest.param(Raw(b'{"name":5}'), id="name is a number"),
        pytest.param(Raw(b'{"name":null}'), id="name is null"),
    ],
)
def test_a_call_without_a_name_is_an_error_that_says_so(params):
    with pytest.raises((ValueError, LocalProtocolError)) as caught:
        mirror_headers(JSONRPCRequest(1, "tools/call", params))
    assert str(caught.value)


TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [
        "=?base64?eA==?=",
        "=?base64??=",
        "=?base64?=",
        " x",
        "x ",
        "\t",
        "a\r\nb: c",
        "ключ",
        "\x00",
        "42",
        "true",
    ]
)
VALUES: Final = TEXTS | st.integers(-(2**53) + 1, 2**53 - 1) | st.booleans() | st.none()
KINDS: Final = {str: "string", bool: "boolean", int: "integer", type(None): "string"}


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """An input schema with annotations at several depths, and arguments that fit it."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    arguments: dict[str, Any] = {}
    tokens = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=8)
    for token in draw(st.lists(tokens, unique_by=str.lower, max_size=5)):
        path = [*draw(st.lists(TEXTS, max_size=2)), f"p{token}"]
        part, below = schema, arguments
        given_ = draw(st.booleans())
        for name in path[:-1]:
            part = part["properties"].setdefault(f"o{name}", {"type": "object", "properties": {}})
            if given_:
                below = below.setdefault(f"o{name}", {})
        value = draw(VALUES)
        part["properties"][path[-1]] = {"type": KINDS[type(value)], "x-mcp-header": token}
        if given_:
            below[path[-1]] = value
    return schema, arguments


@pytest.mark.requirement("HDR-1", "HDR-2", "HDR-3", "HDR-4", "HDR-5", "HTTPM-14", "HTTPM-15")
@given(
    kind=st.sampled_from([("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri")]),
    name=TEXTS,
    call=calls(),
    white=st.sampled_from(["", " ", "\t", " \t "]),
)
def test_headers_of_a_client_pass_the_verification_of_a_server(kind, name, call, white):
    method, member = kind
    schema, arguments = call
    params: dict[str, Any] = {member: name}
    annotated = None
    if method == "tools/call":
        params["arguments"] = arguments
        annotated = headers.find_annotations(schema)
    message = sent_by(client(), method, params)
    said = mirror_headers(message, annotated)
    assert all(value.isascii() and value.isprintable() for value in said.values())
    sent = {header: f"{white}{value}{white}" for header, value in said.items()}

    connection = server()
    route = classify(sent, message, connection.local_peer)
    assert isinstance(route, StatelessRoute)
    assert isinstance(message, JSONRPCRequest)
    incoming = route.incoming or receive.handle_request(connection, message)
    assert isinstance(incoming, InboundRequest)
    verify_headers(sent, incoming, annotated)

    # Every header matters: without it, or with another value, the request is refused.
    for header in said.keys() - {VERSION, METHOD}:
        for broken in (
            {key: value for key, value in sent.items() if key != header},
            {**sent, header: headers.encode_value(headers.decode_value(said[header]) + "x")},
        ):
            with pytest.raises(HeaderMismatch, match=re.escape(header)):
                verify_headers(broken, incoming, annotated)
    for header in (VERSION, METHOD):
        for broken in (
            {key: value for key, value in sent.items() if key != header},
            {**sent, header: said[header] + "x"},
        ):
            refused = classify(broken, message, server().local_peer)
            assert isinstance(refused, Rejected)
            assert refused.error.code == -32020


@pytest.mark.parametrize("method", ["com.example/a\r\nx: y", "com.example/ä", "=?base64?eA==?=", " x"])
def test_a_method_that_no_header_can_carry_is_refused(method):
    with pytest.raises(ValueError, match="cannot be a header value"):
        mirror_headers(JSONRPCRequest(1, method))


def test_a_meta_of_ours_that_is_wrong_is_refused():
    with pytest.raises(ValueError, match="protocolVersion"):
        mirror_headers(
            JSONRPCRequest(1, "tools/list", Raw(json.dumps({"_meta": {PROTOCOL_VERSION: 5}}).encode()))
        )


@pytest.mark.requirement("HDR-2", "HDR-3")
def test_the_name_of_an_extension_s_request_is_mirrored_under_its_name_on_the_wire():
    row = Row("tasks/update", TaskParams, Result, client=TASKS, named="task_id")
    message = JSONRPCRequest(1, "tasks/update", Raw(b'{"taskId":"t 1"}'))
    assert mirror_headers(message, row=row)[NAME] == "t 1"
    assert NAME not in mirror_headers(message)
