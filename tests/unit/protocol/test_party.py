"""The local peer: role, capabilities, revisions, and the facts in stateless messages."""

import pytest
from conversation import CLIENT_CAN, CLIENT_INFO, SERVER_CAN, SERVER_INFO, every_session, without

from toolpost.protocol.local_peer import LocalPeer, declare_capabilities, has_capability
from toolpost.protocol.methods import CLIENT, DATES, ROWS, SERVER
from toolpost.protocol.revisions import LATEST
from toolpost.types import (
    ClientCapabilities,
    ListCapability,
    Raw,
    ResourcesCapability,
    ServerCapabilities,
)

OLDEST, *_, NEWEST_SESSION, NEWEST = DATES
CLIENT_TAG = b'{"name":"a client","version":"1"}'
SERVER_TAG = b'{"name":"a server","version":"2"}'


def test_capabilities_have_a_role():
    assert LocalPeer(CLIENT_INFO, ClientCapabilities()).role == CLIENT
    assert LocalPeer(SERVER_INFO, ServerCapabilities()).role == SERVER


# --------------------------------------------------------------------- revisions


@pytest.mark.parametrize(
    ("supported", "kept"),
    [
        pytest.param(DATES, DATES, id="all"),
        pytest.param([NEWEST, OLDEST], (OLDEST, NEWEST), id="oldest first"),
        pytest.param({NEWEST, "2099-01-01"}, (NEWEST,), id="unknown ones are left out"),
        pytest.param([NEWEST, NEWEST], (NEWEST,), id="once each"),
    ],
)
def test_known_revisions_are_kept(supported, kept):
    assert LocalPeer(SERVER_INFO, ServerCapabilities(), supported=supported).supported == kept


def test_revisions_may_come_from_an_iterator():
    party = LocalPeer(SERVER_INFO, ServerCapabilities(), supported=iter([OLDEST, NEWEST]))
    assert party.supported == (OLDEST, NEWEST)


def test_all_revisions_are_supported_by_default():
    assert LocalPeer(SERVER_INFO, ServerCapabilities()).supported == DATES


@pytest.mark.parametrize("supported", [[], ["2099-01-01"]])
def test_a_party_without_a_revision_cannot_be(supported):
    with pytest.raises(ValueError, match="no known protocol revision") as error:
        LocalPeer(SERVER_INFO, ServerCapabilities(), supported=supported)
    assert NEWEST in str(error.value)


# --------------------------------------------------------------------- capabilities


@pytest.mark.parametrize(
    ("capabilities", "path", "declared"),
    [
        (ServerCapabilities(), "tools", False),
        (ServerCapabilities(tools=ListCapability()), "tools", True),
        (ServerCapabilities(tools=ListCapability()), "tools.list_changed", False),
        (ServerCapabilities(tools=ListCapability(list_changed=False)), "tools.list_changed", False),
        (ServerCapabilities(tools=ListCapability(list_changed=True)), "tools.list_changed", True),
        (ServerCapabilities(), "tools.list_changed", False),
        (ServerCapabilities(resources=ResourcesCapability(subscribe=True)), "resources.subscribe", True),
        (ServerCapabilities(resources=ResourcesCapability(list_changed=True)), "resources.subscribe", False),
        (ServerCapabilities(logging={}), "logging", True),
        (ServerCapabilities(), "sampling", False),
        (ClientCapabilities(), "tools", False),
    ],
)
def test_an_empty_object_declares_and_a_false_flag_does_not(capabilities, path, declared):
    assert has_capability(capabilities, path) is declared
    party = LocalPeer(CLIENT_INFO, capabilities)
    assert party.has_capability(path) is declared
    assert party.has_capability(path) is declared  # now from memory


@pytest.mark.parametrize("path", sorted({row.needs for row in ROWS if row.needs}))
def test_the_samples_declare_what_any_row_needs_and_less_does_not(path):
    if has_capability(CLIENT_CAN, path):
        assert not has_capability(without(CLIENT_CAN, path), path)
    else:
        assert has_capability(SERVER_CAN, path)
        assert not has_capability(without(SERVER_CAN, path), path)


@every_session
@pytest.mark.parametrize("capabilities", [CLIENT_CAN, SERVER_CAN])
def test_a_session_gets_all_capabilities(revision, capabilities):
    assert LocalPeer(CLIENT_INFO, capabilities).select_capabilities(revision) is capabilities


def test_stateless_capabilities_have_no_tasks_and_no_changing_roots():
    client = LocalPeer(CLIENT_INFO, CLIENT_CAN).select_capabilities(LATEST)
    assert isinstance(client, ClientCapabilities)
    assert client.tasks is None
    assert client.roots == ListCapability()
    assert client.sampling == CLIENT_CAN.sampling
    server = LocalPeer(SERVER_INFO, SERVER_CAN).select_capabilities(LATEST)
    assert isinstance(server, ServerCapabilities)
    assert server.tasks is None
    assert server.tools == SERVER_CAN.tools
    # nothing was changed in place
    assert CLIENT_CAN.tasks
    assert CLIENT_CAN.roots == ListCapability(list_changed=True)
    assert SERVER_CAN.tasks


def test_a_client_without_roots_declares_none():
    declared = LocalPeer(CLIENT_INFO, ClientCapabilities()).select_capabilities(LATEST)
    assert isinstance(declared, ClientCapabilities)
    assert declared.roots is None


# --------------------------------------------------------------------- facts


def _plain(facts):
    return {key: bytes(value) if isinstance(value, Raw) else value for key, value in facts.items()}


@pytest.mark.requirement("META-7", "META-8", "META-9")
def test_a_client_says_revision_capabilities_and_name():
    client = LocalPeer(CLIENT_INFO, CLIENT_CAN)
    assert _plain(client.stamps[LATEST.date]) == {
        "io.modelcontextprotocol/clientInfo": CLIENT_TAG,
        "io.modelcontextprotocol/protocolVersion": NEWEST,
        "io.modelcontextprotocol/clientCapabilities": b'{"roots":{},"sampling":{},"elicitation":{}}',
    }


@pytest.mark.requirement("META-8")
def test_a_client_that_can_do_nothing_says_so():
    facts = _plain(LocalPeer(CLIENT_INFO, ClientCapabilities()).stamps[LATEST.date])
    assert facts["io.modelcontextprotocol/clientCapabilities"] == b"{}"


@pytest.mark.requirement("META-16")
def test_a_server_says_its_name_only():
    facts = LocalPeer(SERVER_INFO, SERVER_CAN).stamps[LATEST.date]
    assert _plain(facts) == {"io.modelcontextprotocol/serverInfo": SERVER_TAG}


@pytest.mark.requirement("META-9", "META-16")
def test_an_anonymous_party_keeps_its_name_to_itself():
    client = LocalPeer(CLIENT_INFO, ClientCapabilities(), anonymous=True)
    assert set(client.stamps[LATEST.date]) == {
        "io.modelcontextprotocol/protocolVersion",
        "io.modelcontextprotocol/clientCapabilities",
    }
    assert LocalPeer(SERVER_INFO, ServerCapabilities(), anonymous=True).stamps[LATEST.date] == {}


def test_the_capabilities_of_a_server_follow_its_lists():
    tools = declare_capabilities(["tools"], complete=False, log=False)
    assert tools == ServerCapabilities(tools=ListCapability(list_changed=True))
    resources = declare_capabilities(["resources"], subscribe=False).resources
    assert resources == ResourcesCapability(list_changed=True)
