"""`Extension` and forwarding in connections: declarations, and accepted, rejected and rewritten messages."""

from typing import Any

import pytest
from conversation import CLIENT_CAN, CLIENT_INFO, SERVER_CAN, SERVER_INFO, Conversation, one, parse, talk

from toolpost.errors import CapabilityNotDeclared, InvalidParams, LocalProtocolError, MissingCapability
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest, InvalidMessageReceived, ResponseReceived
from toolpost.protocol.extension import Extension
from toolpost.protocol.forward import ForwardedResult, make_raw_row, read_forwarded, read_members
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, REVISIONS, Revision
from toolpost.types.base import Params, Raw, Result
from toolpost.types.initialize import ClientCapabilities
from toolpost.types.notifications import NotificationParams
from toolpost.types.tools import CallToolParams

NAME = "com.example/notes"


class Note(Params):
    id: str


class NoteText(Result):
    text: str


class Receipt(Result):
    note: str


def make_notes(**options: Any) -> Extension:
    """An extension with one of each kind."""
    notes = Extension(NAME, settings={"limit": 3}, **options)

    @notes.method("notes/read", Note, NoteText, named="id")
    def read(ctx: object, params: Note) -> NoteText:
        raise AssertionError("only the registration is tested")

    @notes.result("tools/call", "receipt", Receipt)
    def redeem(client: object, receipt: Receipt) -> Result:
        raise AssertionError("only the registration is tested")

    @notes.listen_filter("noteIds", list[str], "notifications/notes/changed", NotificationParams, _matches)
    def accept(ctx: object, ids: list[str]) -> list[str]:
        raise AssertionError("only the registration is tested")

    assert notes.routes["notes/read"] is read
    assert notes.resolvers[Receipt] is redeem
    assert notes.listen_filters[0].accept is accept
    return notes


def _matches(accepted: Any, params: Any) -> bool:
    raise AssertionError("only the registration is tested")


def talk_about(
    notes: Extension,
    revision: Revision = LATEST,
    *,
    by_client: bool = True,
    by_server: bool = True,
    forwards: bool = False,
) -> Conversation:
    """A conversation whose ends declare the extension, or not."""
    client = LocalPeer(CLIENT_INFO, CLIENT_CAN, extensions=[notes] if by_client else [])
    served = [notes] if by_server else []
    server = LocalPeer(SERVER_INFO, SERVER_CAN, extensions=served, forwards=forwards)
    return talk(revision, client=client, server=server)


# --------------------------------------------------------------------- extensions


def test_an_extension_has_a_name_a_revision_and_each_method_once():
    notes = make_notes()
    assert repr(notes) == f"<Extension {NAME}>"
    assert {row.extension for row in notes.rows.values()} == {NAME}
    with pytest.raises(ValueError, match="notes/read is already registered"):
        notes.method("notes/read", Note, NoteText)
    with pytest.raises(ValueError, match="Note has no field 'ident'"):
        notes.method("notes/find", Note, NoteText, named="ident")
    with pytest.raises(ValueError, match="tools/call is a protocol method"):
        notes.method("tools/call", Note, NoteText)
    with pytest.raises(ValueError, match="a prefix, a slash and a name"):
        Extension("notes")
    with pytest.raises(ValueError, match="since: unknown revision '1999-01-01'"):
        Extension(NAME, since="1999-01-01")


def test_extensions_of_one_server_do_not_contradict_each_other():
    other = Extension("com.example/other")
    other.method("notes/read", Note, NoteText)
    with pytest.raises(ValueError, match="two extensions define"):
        LocalPeer(SERVER_INFO, SERVER_CAN, extensions=[make_notes(), other])
    other = Extension("com.example/other")
    other.result("notes/none", "receipt", Receipt)
    with pytest.raises(ValueError, match="a result for notes/none"):
        LocalPeer(SERVER_INFO, SERVER_CAN, extensions=[other])


@pytest.mark.requirement("VER-5")
def test_both_ends_find_the_settings_of_the_other():
    notes = make_notes()
    conversation = talk_about(notes)
    outgoing = conversation.client.request("notes/read", Note(id="7"))
    incoming = one(conversation.server.receive(outgoing.data), InboundRequest)
    assert notes.require(incoming.peer.capabilities) == {"limit": 3}
    with pytest.raises(MissingCapability, match="must declare the extension"):
        notes.require(None)
    answer = conversation.server.reply(incoming.id, NoteText(text="milk"))
    assert answer is not None
    result = one(conversation.client.receive(answer), ResponseReceived).result
    assert isinstance(result, NoteText)
    assert result.text == "milk"


def test_an_extension_since_a_session_revision_is_declared_in_the_handshake():
    notes = make_notes(since=LATEST_SESSION.date)
    conversation = talk_about(notes, LATEST_SESSION)
    assert conversation.client.peer is not None
    assert notes.find_settings(conversation.client.peer.capabilities) == {"limit": 3}
    older = next(iter(REVISIONS.values()))
    assert conversation.server.local_peer.select_capabilities(older) is SERVER_CAN


@pytest.mark.requirement("VER-5")
def test_a_method_of_an_extension_that_is_not_declared_is_refused_on_both_sides():
    notes = make_notes()
    with pytest.raises(CapabilityNotDeclared, match=f"does not offer the extension {NAME}"):
        talk_about(notes, by_server=False).client.request("notes/read", Note(id="7"))
    conversation = talk_about(notes)
    conversation.client.set_peer(Peer(LATEST))
    party = LocalPeer(CLIENT_INFO, CLIENT_CAN)
    outgoing = conversation.client.request("notes/read", Note(id="7"), party=party)
    refused = one(conversation.server.receive(outgoing.data), InvalidMessageReceived)
    assert parse(refused.data)["error"]["data"] == {"requiredCapabilities": {"extensions": {NAME: {}}}}


@pytest.mark.requirement("MSG-14")
@pytest.mark.parametrize("is_declared", [True, False])
def test_a_result_of_an_extension_goes_to_clients_that_declare_it(is_declared):
    conversation = talk_about(make_notes(), by_client=is_declared)
    outgoing = conversation.client.request("tools/call", CallToolParams(name="slow"))
    incoming = one(conversation.server.receive(outgoing.data), InboundRequest)
    receipt = Receipt(note="7", result_type="receipt")
    if not is_declared:
        with pytest.raises(LocalProtocolError, match="a result of type 'receipt'"):
            conversation.server.reply(incoming.id, receipt)
        return
    answer = conversation.server.reply(incoming.id, receipt)
    assert answer is not None
    result = one(conversation.client.receive(answer), ResponseReceived).result
    assert isinstance(result, Receipt)
    assert result.note == "7"


def test_other_capabilities_leave_the_extensions_of_an_end():
    client = LocalPeer(CLIENT_INFO, CLIENT_CAN, extensions=[make_notes()])
    other = client.with_capabilities(ClientCapabilities())
    assert (other.extensions, other.supported) == (client.extensions, client.supported)
    declared = other.select_capabilities(LATEST)
    assert declared == ClientCapabilities(extensions={NAME: {"limit": 3}})


def test_a_method_of_the_protocol_stays_where_an_extension_does_not_replace_it():
    notes = Extension(NAME)
    notes.method("tasks/get", Note, NoteText)
    server = LocalPeer(SERVER_INFO, SERVER_CAN, extensions=[notes])
    assert server.served_rows[LATEST.date]["tasks/get"] is notes.rows["tasks/get"]
    assert server.served_rows[LATEST_SESSION.date]["tasks/get"].extension is None


# --------------------------------------------------------------------- raw passage


def test_parameters_to_forward_are_an_object():
    assert read_members(b'{"a":[1, 2]}') == {"a": Raw(b"[1, 2]")}
    with pytest.raises(LocalProtocolError, match="not a JSON object"):
        read_members(b"[]")


def test_a_raw_row_accepts_any_type_of_result():
    row = make_raw_row("tools/call")
    assert (row.named, row.member, row.repeatable) == ("name", "name", False)
    assert make_raw_row("resources/read").repeatable
    assert make_raw_row("com.example/any").named is None
    assert row.read_result(Raw(b'{"resultType":"receipt"}'), "receipt").result_type == "receipt"


def test_a_server_that_forwards_takes_methods_that_it_does_not_know():
    conversation = talk_about(make_notes(), forwards=True)
    outgoing = conversation.client.request(make_raw_row("com.example/any"), {"a": 1})
    assert one(conversation.server.receive(outgoing.data), InboundRequest).row.name == "com.example/any"


RESULTS = [
    pytest.param(
        LATEST,
        LATEST,
        "tools/call",
        b'{"content":[],"x":1,"_meta":{"a":1,"io.modelcontextprotocol/serverInfo":{}}}',
        {"content": [], "x": 1, "resultType": "complete", "_meta": {"a": 1}},
        id="between stateless peers",
    ),
    pytest.param(
        LATEST_SESSION,
        LATEST,
        "tools/list",
        b'{"tools":[]}',
        {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": {}},
        id="a list gets cache hints",
    ),
    pytest.param(
        LATEST_SESSION,
        LATEST_SESSION,
        "tools/list",
        b'{"tools":[],"ttlMs":5,"cacheScope":"public","resultType":"complete"}',
        {"tools": []},
        id="a session has no members of the stateless era",
    ),
    pytest.param(
        LATEST,
        LATEST_SESSION,
        "tools/call",
        b'{"content":[],"structuredContent":[1],"resultType":"complete"}',
        {"content": [{"type": "text", "text": "[1]"}]},
        id="an older peer gets a translation",
    ),
]


@pytest.mark.parametrize(("source", "target", "method", "raw", "expected"), RESULTS)
def test_a_forwarded_result_gets_the_members_of_its_connection(source, target, method, raw, expected):
    conversation = talk(target)
    incoming = conversation.ask(method).incoming
    answer = conversation.server.reply(incoming.id, ForwardedResult(raw, "complete", source.date))
    result = parse(answer)["result"]
    info = result.get("_meta", {}).pop("io.modelcontextprotocol/serverInfo", None)
    assert result == expected
    assert (info is not None) is target.stateless


def test_a_session_cannot_get_a_result_that_needs_more():
    conversation = talk(LATEST_SESSION)
    incoming = conversation.ask("tools/call").incoming
    forwarded = ForwardedResult(b'{"resultType":"input_required"}', "input_required", LATEST.date)
    with pytest.raises(LocalProtocolError, match="'input_required' result of tools/call cannot be sent"):
        conversation.server.reply(incoming.id, forwarded)


@pytest.mark.requirement("MSG-14")
@pytest.mark.parametrize("revision", [LATEST, LATEST_SESSION])
@pytest.mark.parametrize("by_client", [True, False])
def test_a_forwarded_result_of_an_extension_needs_a_client_that_declares_it(
    revision: Revision, by_client: bool
):
    conversation = talk_about(make_notes(since=LATEST_SESSION.date), revision, by_client=by_client)
    incoming = conversation.ask("tools/call").incoming
    forwarded = ForwardedResult(b'{"resultType":"receipt","note":"n"}', "receipt", LATEST.date)
    if by_client and revision is LATEST:
        assert parse(conversation.server.reply(incoming.id, forwarded))["result"]["resultType"] == "receipt"
        return
    with pytest.raises(LocalProtocolError, match="'receipt': it belongs to no extension that"):
        conversation.server.reply(incoming.id, forwarded)


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
def test_a_forwarded_request_for_input_answers_only_methods_that_may_ask(method: str):
    conversation = talk(LATEST)
    incoming = conversation.ask(method).incoming
    forwarded = ForwardedResult(b'{"requestState":"s"}', "input_required", LATEST.date)
    if method == "tools/call":
        assert parse(conversation.server.reply(incoming.id, forwarded))["result"]["requestState"] == "s"
        return
    with pytest.raises(LocalProtocolError, match="result of tools/list cannot be sent"):
        conversation.server.reply(incoming.id, forwarded)


@pytest.mark.requirement("ERR-6")
@pytest.mark.parametrize(
    ("revision", "method", "message", "code"),
    [
        (LATEST, "resources/read", "Resource not found: a://b", -32602),
        (LATEST_SESSION, "resources/read", "Resource not found: a://b", -32002),
        (LATEST_SESSION, "resources/read", "Unknown resource: a://b", -32002),
        (LATEST_SESSION, "resources/read", "Invalid params: no URI", -32602),
        (LATEST_SESSION, "tools/call", "Resource not found: a://b", -32602),
    ],
)
def test_a_missing_resource_has_a_code_of_its_own_in_a_session(
    revision: Revision, method: str, message: str, code: int
):
    conversation = talk(revision)
    incoming = conversation.ask(method).incoming
    assert parse(conversation.server.fail(incoming.id, InvalidParams(message)))["error"]["code"] == code


def test_only_a_complete_result_is_read():
    raw = b'{"contents":[]}'
    read = read_forwarded("resources/read", ForwardedResult(raw, "complete", LATEST.date))
    assert read.raw == raw
    with pytest.raises(LocalProtocolError, match="unexpected result type for resources/read: 'receipt'"):
        read_forwarded("resources/read", ForwardedResult(raw, "receipt", LATEST.date))


def test_an_extension_for_all_clients_marks_its_rows_and_a_lifespan_is_kept():
    notes = make_notes(for_all_clients=True)
    assert all(row.for_all_clients for row in notes.rows.values())
    assert not any(row.for_all_clients for row in make_notes().rows.values())

    def run(server: object) -> Any:
        raise AssertionError("only the registration is tested")

    assert notes.lifespan(run) is run
    assert notes.lifespans == [run]
