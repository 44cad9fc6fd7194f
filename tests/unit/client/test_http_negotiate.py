"""The transport and the revision that a client of a URL negotiates, and what it caches."""

import asyncio
from collections.abc import Iterator

import pytest

from endpoint import DISCOVERED, NOT_FOUND, OPENED, WELCOME, Endpoint, client_of, refused, way_of
from raw_server import Clock, run
from toolpost.channel import Channel
from toolpost.client.client import Client
from toolpost.client.connection.negotiate import (
    MAX_CACHED_REVISIONS,
    REVISION_CACHE,
    CachedRevision,
    Connector,
)
from toolpost.errors import ChannelClosed, ConnectFailed, RequestFailed, SessionLost
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import LATEST, LATEST_SESSION

KEY = "http://host/mcp"


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    REVISION_CACHE.clear()
    yield
    REVISION_CACHE.clear()


def opened(endpoint: Endpoint, fallback: Endpoint | None = None, **options: object) -> tuple[str, ...]:
    """Connect once, and return the era and the received messages."""

    async def main() -> str:
        async with client_of(endpoint, fallback, **options) as client:
            return client.era

    return (run(main(), Clock),)


# --------------------------------------------------------------------- modern, initialize, HTTP+SSE


def test_a_modern_server_gets_one_request():
    server = Endpoint(server__discover=DISCOVERED)
    assert opened(server) == ("stateless",)
    assert server.heard == [["server/discover"]]


@pytest.mark.requirement("VER-12", "VER-13")
@pytest.mark.parametrize(
    "status", [200, 202, 204, *range(400, 600, 7), 401, 403, 404, 405, 407, 415, 422, 429, 500, 502, 503]
)
def test_a_refusal_without_a_reason_of_the_protocol_means_a_session_on_the_same_channel(status):
    server = Endpoint(server__discover=status, initialize=WELCOME)
    assert opened(server) == ("session",)
    assert server.heard == [["server/discover", *OPENED]]


@pytest.mark.requirement("VER-2", "VER-13")
@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_an_error_of_the_stateless_era_is_not_a_reason_for_a_session(code):
    server = Endpoint(server__discover={"code": code, "message": "no"}, initialize=WELCOME)
    with pytest.raises(ConnectFailed, match="no"):
        opened(server)
    assert server.heard == [["server/discover"]]


@pytest.mark.requirement("SSE-13")
@pytest.mark.parametrize(
    "status",
    [400, 404, 405, NOT_FOUND, {"code": -32000, "message": "Method not allowed."}],
)
def test_a_server_without_initialize_at_the_url_is_reached_over_http_sse(status):
    server, old = Endpoint(server__discover=status, initialize=status), Endpoint(initialize=WELCOME)
    assert opened(server, old) == ("session",)
    assert server.heard == [["server/discover", "initialize"]]
    assert old.heard == [OPENED]


@pytest.mark.parametrize(
    "status", [401, 403, 406, 415, 429, 500, 503, {"code": -32602, "message": "the server answered no"}]
)
def test_other_rejections_of_initialize_have_no_fallback(status):
    server, old = Endpoint(server__discover=404, initialize=status), Endpoint(initialize=WELCOME)
    with pytest.raises(ConnectFailed, match="could not connect: the server answered"):
        opened(server, old)
    assert old.heard == []


def test_without_http_sse_a_rejected_initialize_is_an_error():
    with pytest.raises(ConnectFailed, match="the server answered 404"):
        opened(Endpoint(server__discover=404, initialize=404))


@pytest.mark.parametrize("answer", [500, NOT_FOUND, ChannelClosed("cut off")])
def test_a_server_that_cannot_be_reached_is_reported_with_both_attempts(answer):
    old = Endpoint(initialize=answer)
    with pytest.raises(
        ConnectFailed, match="the server answered 404; the fallback for older servers failed too: "
    ):
        opened(Endpoint(server__discover=404, initialize=404), old)
    assert old.now.closed


def test_a_failed_fallback_is_reported_too():
    old = Endpoint()
    old.refuses = refused()
    with pytest.raises(
        ConnectFailed, match=r"answered 405; the fallback .*: there is no event stream"
    ) as caught:
        opened(Endpoint(server__discover=405, initialize=405), old)
    assert caught.value.__cause__ is old.refuses


@pytest.mark.parametrize("status", [401, 403, 407, 429, 500, 502, 503])
def test_a_server_that_refuses_both_handshakes_is_an_error(status):
    server = Endpoint(server__discover=status, initialize=status)
    with pytest.raises(ConnectFailed, match=f"the server answered {status}") as caught:
        opened(server, Endpoint(initialize=WELCOME))
    assert isinstance(caught.value.__cause__, RequestFailed)
    assert server.heard == [["server/discover", "initialize"]]
    assert server.now.closed


def test_an_absent_server_is_an_error_with_a_hint_and_without_retries():
    server = Endpoint(server__discover=RequestFailed("the connection was refused", sent=False))
    with pytest.raises(ConnectFailed, match=r"the connection was refused \(check that the server is running"):
        opened(server, Endpoint(initialize=WELCOME))
    assert server.heard == [["server/discover"]]
    server.table["server/discover"] = RequestFailed("no name", sent=False, hint="look it up")
    with pytest.raises(ConnectFailed, match=r"no name \(look it up\)"):
        opened(server)


def test_a_rejected_initialized_notification_does_not_end_the_connection():
    class Picky(Endpoint):
        def answer(self, channel, message):
            channel.broken = RequestFailed("the server answered 400", status=400)
            return WELCOME

    old = Endpoint(initialize=WELCOME)
    assert opened(Picky(), old, revision=DATES[3]) == ("session",)
    assert old.heard == []


def test_an_unanswered_probe_is_cancelled():
    server = Endpoint(server__discover=None, initialize=WELCOME)
    assert opened(server) == ("session",)
    assert sorted(server.heard[0]) == sorted(["server/discover", "notifications/cancelled", *OPENED])


# --------------------------------------------------------------------- pinned


def test_a_pinned_session_falls_back_too():
    server, old = Endpoint(initialize=405), Endpoint(initialize={**WELCOME, "protocolVersion": DATES[0]})
    assert opened(server, old, revision=DATES[0]) == ("session",)
    assert server.heard == [["initialize"]]


def test_a_pinned_stateless_client_does_not():
    server = Endpoint(server__discover=404, initialize=WELCOME)
    with pytest.raises(ConnectFailed, match="404"):
        opened(server, Endpoint(initialize=WELCOME), revision=DATES[-1])
    assert server.heard == [["server/discover"]]


def test_a_transport_with_sessions_only_is_not_probed():
    async def main() -> None:
        old = Endpoint(initialize=WELCOME)
        client = Client("http://host/sse")
        client._session._connector = Connector("old", old.open, session=True)
        for _ in range(2):
            async with client:
                assert client.era == "session"
        assert old.heard == [OPENED, OPENED]
        client = Client("http://host/sse", revision=DATES[-1])
        client._session._connector = Connector("old", old.open, session=True)
        with pytest.raises(ConnectFailed, match="old: the server requires a session"):
            await client.connect()

    run(main())


# --------------------------------------------------------------------- verdicts


@pytest.mark.requirement("VER-7")
def test_the_revision_is_remembered_for_the_next_client_of_a_url():
    server = Endpoint(server__discover=404, initialize=WELCOME)
    for _ in range(2):
        assert opened(server, key=KEY) == ("session",)
    assert server.heard == [["server/discover", *OPENED], OPENED]
    assert REVISION_CACHE.get(KEY) == CachedRevision(LATEST_SESSION)
    assert opened(server, key="another") == ("session",)
    assert server.heard[2:] == [["server/discover", *OPENED]]


@pytest.mark.requirement("VER-7")
def test_the_transport_is_part_of_the_cache_entry():
    server, old = Endpoint(server__discover=404, initialize=404), Endpoint(initialize=WELCOME)
    for _ in range(2):
        assert opened(server, old, key=KEY) == ("session",)
    assert server.heard == [["server/discover", "initialize"]]
    assert old.heard == [OPENED, OPENED]
    assert opened(server, old, key=KEY, revision=DATES[3]) == ("session",)
    assert len(server.heard) == 1
    # Without a fallback there is no second attempt, whatever was cached.
    plain = Endpoint(initialize=WELCOME)
    assert opened(plain, key=KEY) == ("session",)


@pytest.mark.requirement("VER-7")
@pytest.mark.parametrize("refusal", [404, 400, NOT_FOUND, {}])
def test_a_wrong_cached_revision_is_dropped_and_detected_again(refusal):
    server = Endpoint(server__discover=DISCOVERED, initialize=refusal)
    REVISION_CACHE[KEY] = CachedRevision(LATEST_SESSION)
    assert opened(server, key=KEY) == ("stateless",)
    assert server.heard == [["initialize"], ["server/discover"]]
    assert REVISION_CACHE.get(KEY) == CachedRevision(LATEST)


@pytest.mark.requirement("VER-7")
@pytest.mark.parametrize("gone", [True, False])
def test_a_cached_transport_that_no_longer_works_is_dropped(gone):
    server, old = Endpoint(server__discover=DISCOVERED), Endpoint(initialize=404)
    old.refuses = refused() if gone else None
    REVISION_CACHE[KEY] = CachedRevision(LATEST_SESSION, via_fallback=True)
    assert opened(server, old, key=KEY) == ("stateless",)
    assert REVISION_CACHE.get(KEY) == CachedRevision(LATEST)


def test_a_stateless_server_that_was_slow_to_start_is_asked_again():
    server, old = Endpoint(server__discover=[None, DISCOVERED], initialize=NOT_FOUND), Endpoint()
    old.refuses = refused()
    assert opened(server, old) == ("stateless",)
    assert server.heard[1:] == [["server/discover"]]


def test_an_unreachable_server_is_reported_as_such():
    server, old = Endpoint(server__discover=None, initialize=NOT_FOUND), Endpoint()
    old.refuses = refused()
    with pytest.raises(ConnectFailed, match="Method not found; the fallback for older servers failed too"):
        opened(server, old)


@pytest.mark.requirement("VER-7")
def test_a_server_that_silently_drops_the_old_transport_is_found_again():
    server = Endpoint(server__discover=404, initialize=WELCOME)

    class Silent(Endpoint):
        async def open(self) -> Channel:
            await asyncio.Event().wait()
            raise AssertionError

    REVISION_CACHE[KEY] = CachedRevision(LATEST_SESSION, via_fallback=True)
    assert opened(server, Silent(), key=KEY) == ("session",)
    assert REVISION_CACHE.get(KEY) == CachedRevision(LATEST_SESSION)


@pytest.mark.parametrize("answer", [401, 503, RequestFailed("refused", sent=False)])
def test_a_temporary_failure_keeps_the_cache_entry(answer):
    server = Endpoint(server__discover=DISCOVERED, initialize=answer)
    REVISION_CACHE[KEY] = CachedRevision(LATEST_SESSION)
    with pytest.raises(ConnectFailed):
        opened(server, key=KEY)
    assert server.heard == [["initialize"]]
    assert REVISION_CACHE.get(KEY) == CachedRevision(LATEST_SESSION)


def test_a_known_server_that_cannot_be_opened_is_an_error():
    server = Endpoint()
    server.refuses = refused()
    REVISION_CACHE[KEY] = CachedRevision(LATEST_SESSION)
    with pytest.raises(ConnectFailed, match="no event stream"):
        opened(server, key=KEY)


@pytest.mark.requirement("VER-7")
def test_a_cached_stateless_era_costs_nothing_and_may_be_wrong_too():
    server = Endpoint(server__discover=404, initialize=WELCOME)
    REVISION_CACHE[KEY] = CachedRevision(LATEST)
    assert opened(server, key=KEY) == ("session",)
    assert REVISION_CACHE.get(KEY) == CachedRevision(LATEST_SESSION)


@pytest.mark.requirement("VER-7", "HTTPL-28")
def test_a_lost_session_may_mean_that_the_server_was_upgraded():
    async def main() -> None:
        server = Endpoint(
            server__discover=[404, DISCOVERED],
            initialize=WELCOME,
            tools__list={"tools": []},
        )
        async with client_of(server, key=KEY) as client:
            server.now.forget()
            await client.list_tools()
            assert client.era == "stateless"
        assert server.heard[1] == ["server/discover", "tools/list"]
        assert REVISION_CACHE.get(KEY) == CachedRevision(LATEST)

    run(main())


def test_the_cache_is_bounded_and_has_no_entries_without_a_key():
    async def main() -> None:
        assert MAX_CACHED_REVISIONS == 256
        for number in range(MAX_CACHED_REVISIONS):
            REVISION_CACHE[f"{KEY}/{number}"] = CachedRevision(LATEST)
        async with client_of(Endpoint(server__discover=DISCOVERED), key=KEY):
            pass
        assert len(REVISION_CACHE) == MAX_CACHED_REVISIONS
        assert f"{KEY}/0" not in REVISION_CACHE
        assert REVISION_CACHE[KEY] == CachedRevision(LATEST)
        before = dict(REVISION_CACHE)
        async with client_of(Endpoint(server__discover=DISCOVERED)):
            pass
        assert before == REVISION_CACHE

    run(main())


def test_a_target_that_has_to_be_resolved_is_resolved_each_time():
    async def main() -> None:
        found: list[Connector] = [
            way_of(Endpoint(server__discover=DISCOVERED)),
            way_of(Endpoint(server__discover=404, initialize=WELCOME)),
        ]

        async def find() -> Connector:
            if not found:
                raise FileNotFoundError("mcp.json")
            return found.pop(0)

        client = Client("http://host/mcp")
        client._session._connector = Connector("mcp.json", Endpoint().open, resolve=find)
        for era in ("stateless", "session"):
            async with client:
                assert client.era == era
        with pytest.raises(ConnectFailed, match=r"mcp\.json: could not connect: mcp\.json"):
            await client.connect()

    run(main())


def test_a_lost_session_is_reported_to_all_waiters():
    async def main() -> None:
        server = Endpoint(initialize=WELCOME)
        async with client_of(server, revision=DATES[3], can_reopen=False) as client:
            server.now.forget()
            for _ in range(2):
                with pytest.raises(SessionLost):
                    await client.ping()

    run(main())


@pytest.mark.requirement("VER-7")
def test_a_fixed_revision_is_not_remembered():
    server = Endpoint(server__discover=DISCOVERED, initialize=WELCOME)
    eras = [opened(server, key=KEY, revision=revision) for revision in (DATES[-2], None, DATES[-2], None)]
    assert eras == [("session",), ("stateless",), ("session",), ("stateless",)]
