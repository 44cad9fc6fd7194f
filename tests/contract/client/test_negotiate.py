"""The revision that a client negotiates with every kind of server, conforming or not."""

import asyncio

import pytest

from odd_server import EXIT, NOT_FOUND, SESSIONS, WELCOME, Odd
from raw_server import ALL, Clock, RawServer, run
from revision_dates import DATES
from toolpost import Client
from toolpost.errors import ConnectFailed, RPCError, UnsupportedRevision
from toolpost.testing import ScriptedChannel
from toolpost.types import ServerCapabilities

DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": [*DATES],
    "capabilities": {"tools": {}},
    "instructions": "be kind",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "new", "version": "1"}},
}
SILENCE = None


OPENED = ["initialize", "notifications/initialized"]


# --------------------------------------------------------------------- decent servers


@pytest.mark.requirement("LIFE-2", "LIFE-4", "LIFE-7", "LIFE-14", "VER-9", "VER-10", "DISC-5")
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("date", DATES)
def test_every_revision_is_spoken_pinned_or_found_out(date, pinned):
    async def main() -> None:
        server = RawServer(supported=DATES if pinned else (date,), instructions="be kind")
        async with Client(server, revision=date if pinned else None) as client:
            assert client.revision == date
            assert client.era == ("stateless" if date == DATES[-1] else "session")
            assert client.server_info is not None
            assert client.server_info.name == "raw"
            assert client.capabilities == ALL
            assert client.instructions == "be kind"
            assert (client.discover_result is not None) is (client.era == "stateless")
            assert client.connected
            await client.ping()
            assert len(server.methods) == 2  # a server that knows no discover does not see it as a request
            assert server.methods[0] == ("server/discover" if client.era == "stateless" else "initialize")

    run(main())


def test_a_server_of_all_revisions_is_spoken_to_in_the_newest():
    async def main() -> None:
        async with Client(RawServer()) as client:
            assert client.revision == DATES[-1]
            assert client.discover_result is not None
            assert client.discover_result.supported_versions == [*DATES]

    run(main())


@pytest.mark.parametrize("date", SESSIONS)
def test_a_pinned_session_is_not_probed(date):
    async def main() -> None:
        server = Odd(initialize={**WELCOME, "protocolVersion": date})
        async with Client(server, revision=date) as client:
            assert client.revision == date
            await client.notify("x/y")
        assert server.heard == [[*OPENED, "x/y"]]

    run(main())


# --------------------------------------------------------------------- servers that know no discover


@pytest.mark.requirement("VER-11")
@pytest.mark.parametrize(
    "answer",
    [
        NOT_FOUND,
        {"code": -32600, "message": "Invalid request"},
        {"code": -32602, "message": "Invalid params"},
        {"code": -32000, "message": "Server not initialized"},
        {"code": -32001, "message": "Session not found"},
        {},
        {"supportedVersions": []},
        {"supportedVersions": [], "capabilities": {}},
        {"supportedVersions": "all of them", "capabilities": {}},
        {"resultType": "input_required", "requestState": "x"},
        {"resultType": "unheard of", "supportedVersions": [*DATES], "capabilities": {}},
    ],
)
def test_an_error_or_an_odd_result_means_a_session(answer):
    async def main() -> None:
        server = Odd(server__discover=answer, initialize=WELCOME)
        async with Client(server) as client:
            assert client.revision == DATES[3]
            await client.notify("x/y")
        assert server.heard == [["server/discover", *OPENED, "x/y"]]

    run(main())


def test_silence_means_a_session_and_the_server_is_not_bothered():
    async def main() -> None:
        server = Odd(server__discover=SILENCE, initialize=WELCOME)
        async with Client(server, probe_timeout=5.0) as client:
            assert asyncio.get_running_loop().time() == 5.0
            assert client.era == "session"
            await client.notify("x/y")
        assert server.heard == [["server/discover", *OPENED, "x/y"]]  # no cancellation before the handshake

    run(main(), Clock)


@pytest.mark.parametrize(
    ("connect", "probe", "waited"), [(4.0, 5.0, 2.0), (None, 5.0, 5.0), (30.0, 1.0, 1.0)]
)
def test_the_probe_leaves_time_for_the_handshake(connect, probe, waited):
    async def main() -> None:
        server = Odd(server__discover=SILENCE, initialize=WELCOME)
        async with Client(server, connect_timeout=connect, probe_timeout=probe):
            assert asyncio.get_running_loop().time() == waited

    run(main(), Clock)


def test_a_server_that_exits_on_the_probe_is_started_again_without():
    async def main() -> None:
        server = Odd(server__discover=EXIT, initialize=WELCOME)
        async with Client(server) as client:
            assert client.era == "session"
            await client.notify("x/y")
        assert server.heard == [["server/discover"], [*OPENED, "x/y"]]

    run(main())


def test_a_server_that_exits_late_on_the_probe_is_started_again_without():
    async def main() -> None:
        server = Odd(server__discover=SILENCE, initialize=[EXIT, WELCOME])
        async with Client(server) as client:
            assert client.era == "session"
            await client.notify("x/y")
        assert server.heard == [["server/discover", "initialize"], [*OPENED, "x/y"]]

    run(main(), Clock)


def test_a_channel_that_ends_on_the_probe_cannot_be_opened_again():
    async def main() -> None:
        channel = ScriptedChannel()
        channel.end("exit code 3")
        with pytest.raises(ConnectFailed, match="exit code 3") as caught:
            await Client(channel).connect()
        assert caught.value.retry_safe
        assert channel.closed

    run(main())


def test_a_channel_that_ends_on_the_handshake_cannot_be_opened_again():
    async def main() -> None:
        channel = ScriptedChannel()
        connecting = asyncio.create_task(Client(channel).connect())
        await channel.next_sent()
        assert (await channel.next_sent())["method"] == "initialize"
        channel.end("exit code 3")
        with pytest.raises(ConnectFailed, match="exit code 3"):
            await connecting

    run(main(), Clock)


def test_a_server_that_only_seemed_silent_is_asked_once_more():
    async def main() -> None:
        server = Odd(server__discover=[SILENCE, DISCOVERED], initialize=NOT_FOUND)
        async with Client(server) as client:
            assert client.era == "stateless"
        assert server.heard == [["server/discover", "initialize", "server/discover"]]

    run(main(), Clock)


# --------------------------------------------------------------------- servers that know discover


@pytest.mark.requirement("VER-2", "VER-12")
@pytest.mark.parametrize("code", [-32020, -32021, -32022])
@pytest.mark.parametrize("data", [None, 7, {}, {"supported": 7}, {"supported": ["2099-01-01", 7]}])
def test_a_modern_error_never_leads_to_a_handshake_by_guess(code, data):
    async def main() -> None:
        error = {"code": code, "message": "no", "data": data}
        server = Odd(server__discover=error, initialize=WELCOME)
        with pytest.raises(ConnectFailed, match="no") as caught:
            await Client(server).connect()
        assert isinstance(caught.value.__cause__, RPCError)
        assert server.heard == [["server/discover"]]

    run(main())


@pytest.mark.requirement("VER-2")
def test_a_list_of_sessions_in_a_modern_error_is_followed():
    async def main() -> None:
        error = {"code": -32022, "message": "no", "data": {"supported": [DATES[1], DATES[2]]}}
        server = Odd(server__discover=error, initialize={**WELCOME, "protocolVersion": DATES[2]})
        async with Client(server) as client:
            assert client.revision == DATES[2]

    run(main())


@pytest.mark.parametrize("pinned", [None, DATES[-1]])
def test_a_server_that_contradicts_itself_is_asked_twice_and_given_up(pinned):
    async def main() -> None:
        error = {"code": -32022, "message": "no", "data": {"supported": [DATES[-1]]}}
        server = Odd(server__discover=error)
        with pytest.raises(ConnectFailed) as caught:
            await Client(server, revision=pinned).connect()
        assert isinstance(caught.value.__cause__, UnsupportedRevision)
        assert server.heard == [["server/discover", "server/discover"]]

    run(main())


def test_a_discovery_that_lists_only_sessions_leads_to_a_handshake():
    async def main() -> None:
        server = Odd(server__discover={**DISCOVERED, "supportedVersions": [*SESSIONS]}, initialize=WELCOME)
        async with Client(server) as client:
            assert client.era == "session"

    run(main())


def test_without_a_revision_in_common_there_is_no_conversation():
    async def main() -> None:
        server = Odd(server__discover={**DISCOVERED, "supportedVersions": ["2099-01-01"]}, initialize=WELCOME)
        with pytest.raises(ConnectFailed, match="the server supports 2099-01-01; this client supports"):
            await Client(server).connect()
        assert server.heard == [["server/discover"]]

    run(main())


def test_a_pinned_stateless_client_does_not_fall_back():
    async def main() -> None:
        server = Odd(server__discover=NOT_FOUND, initialize=WELCOME)
        with pytest.raises(ConnectFailed, match="Method not found"):
            await Client(server, revision=DATES[-1]).connect()
        assert server.heard == [["server/discover"]]

    run(main())


# --------------------------------------------------------------------- the handshake fails


@pytest.mark.requirement("LIFE-12")
@pytest.mark.parametrize("pinned", [None, DATES[3]])
def test_a_server_that_wants_to_speak_something_else_is_left(pinned):
    async def main() -> None:
        date = "1999-01-01" if pinned is None else DATES[0]
        server = Odd(server__discover=NOT_FOUND, initialize={**WELCOME, "protocolVersion": date})
        client = Client(server, revision=pinned)
        with pytest.raises(ConnectFailed, match=f"unsupported protocol revision of the server: {date}"):
            await client.connect()
        assert not client.connected
        assert "notifications/initialized" not in server.heard[0]

    run(main())


def test_a_server_that_refuses_the_handshake_is_an_error():
    async def main() -> None:
        server = Odd(server__discover=NOT_FOUND, initialize={"code": -32603, "message": "not today"})
        with pytest.raises(ConnectFailed, match="Odd: could not connect: not today"):
            await Client(server).connect()

    run(main())


@pytest.mark.requirement("LIFE-16", "LIFE-18")
def test_a_server_that_never_answers_is_given_up():
    async def main() -> None:
        server = Odd()
        with pytest.raises(ConnectFailed, match="could not connect within 30 s"):
            await Client(server).connect()
        assert asyncio.get_running_loop().time() == 30.0
        assert server.heard == [["server/discover", "initialize"]]  # and initialize is not cancelled

    run(main(), Clock)


# --------------------------------------------------------------------- the second time


@pytest.mark.requirement("VER-7")
def test_the_verdict_is_remembered():
    async def main() -> None:
        server = Odd(server__discover=NOT_FOUND, initialize=WELCOME)
        client = Client(server)
        for _ in range(2):
            async with client:
                assert client.era == "session"
                await client.notify("x/y")
        assert server.heard == [["server/discover", *OPENED, "x/y"], [*OPENED, "x/y"]]

    run(main())


@pytest.mark.requirement("VER-7")
@pytest.mark.parametrize("refusal", [NOT_FOUND, EXIT, {}])
def test_a_wrong_cached_revision_is_detected_again(refusal):
    async def main() -> None:
        server = Odd(server__discover=[NOT_FOUND, DISCOVERED], initialize=[WELCOME, refusal])
        client = Client(server)
        async with client:
            assert client.era == "session"
        async with client:
            assert client.era == "stateless"
        assert server.heard[1:] == [["initialize"], ["server/discover"]]

    run(main())


def test_a_channel_that_was_used_cannot_be_used_again():
    async def main() -> None:
        channel = ScriptedChannel()
        client = Client(channel, revision=DATES[3])
        connecting = asyncio.create_task(client.connect())
        sent = await channel.next_sent()
        channel.feed({"jsonrpc": "2.0", "id": sent["id"], "result": WELCOME})
        await connecting
        await client.close()
        with pytest.raises(ConnectFailed, match="already used"):
            await client.connect()

    run(main())


def test_a_stateless_server_that_hides_its_name_has_none():
    async def main() -> None:
        async with Client(Odd(server__discover={**DISCOVERED, "_meta": {}})) as client:
            assert client.server_info is None
            assert client.capabilities == ServerCapabilities(tools=client.capabilities.tools)

    run(main())
