"""The whole login, from the first 401 to a call that succeeds."""

import asyncio
import json
import os
import stat

import aiohttp
import pytest

from fake_authorization_site import AuthSites, browse, follow, origin, run
from scripted import answer
from toolpost import AuthError, FileTokens, MemoryTokens, OAuth, SyncClient
from toolpost.errors import AuthorizationRequired, InsufficientScope, TokenRejected


@pytest.mark.requirement(
    "AUTH-4", "AUTH-6", "AUTH-7", "AUTH-14", "AUTH-25", "AUTH-26", "AUTH-33", "AUTH-34", "AUTH-40",
    "AUTH-43", "AUTH-44", "AUTH-61", "AUTH-64", "AUTH-67",
)  # fmt: skip
def test_the_whole_sequence():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            assert (await mcp.call_tool("anything")).text == "done"
        [registered], [authorized], [(form, _)] = sites.registered, sites.authorized, sites.forms
        assert registered["application_type"] == "native"
        assert registered["grant_types"] == ["authorization_code", "refresh_token"]
        assert registered["redirect_uris"] == [authorized["redirect_uri"]]
        assert authorized["redirect_uri"].startswith("http://127.0.0.1:")
        assert authorized["resource"] == form["resource"] == sites.server
        assert (authorized["response_type"], authorized["code_challenge_method"]) == ("code", "S256")
        assert "scope" not in authorized
        assert form["client_id"] == "client-1"
        first, *others = sites.heard
        assert "authorization" not in first[2]
        assert {headers["authorization"] for _, _, headers in others} == {"Bearer access-1-secret"}
        assert sites.looked == [
            "/.well-known/oauth-protected-resource/mcp",
            "/.well-known/oauth-authorization-server",
            "/register",
            "/authorize",
            "/token",
        ]

    run(visit)


def test_stored_tokens_are_reused():
    async def visit(sites: AuthSites) -> None:
        storage = MemoryTokens()
        for _ in range(3):
            async with sites.client(sites.oauth(storage=storage)) as mcp:
                await mcp.call_tool("anything")
        assert len(sites.authorized) == 1
        assert [headers.get("authorization") for _, _, headers in sites.heard].count(None) == 1

    run(visit)


# --------------------------------------------------------------------- the redirect listener


@pytest.mark.parametrize("redirect_uri", [None, "http://localhost/back", "http://127.0.0.1/"])
def test_the_redirect_uri_is_the_address_of_the_listener(redirect_uri):
    async def visit(sites: AuthSites) -> None:
        async with sites.client(sites.oauth(open_url=follow, redirect_uri=redirect_uri)) as mcp:
            await mcp.call_tool("anything")
        assert len(sites.authorized) == 1

    run(visit)


async def ask(url: str, method: str = "GET", **options) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url, **options) as response:
        return response.status, await response.text()


@pytest.mark.requirement("AUTH-67")
def test_other_requests_to_the_redirect_listener_are_refused():
    async def visit(sites: AuthSites) -> None:
        seen: list[int] = []
        finished = asyncio.Event()

        async def open_url(url: str) -> None:
            back = await browse(url)
            here, query = back.split("?", 1)
            strays = [
                f"{origin(here)}/favicon.ico",
                here,
                f"{here}?code=stolen&state=guessed",
                f"{back}&state=twice",
                f"{here}?{'&'.join(f'p{n}=1' for n in range(100))}",
                f"{here}?error=access_denied&error_description=<script>",
            ]
            for stray in strays:
                status, text = await ask(stray)
                assert "script" not in text
                seen.append(status)
            seen.append((await ask(back, "POST"))[0])
            seen.append((await ask(back, headers={"Host": "evil.example"}))[0])
            await asyncio.shield(asyncio.create_task(finish(f"{here}?{query}")))

        async def finish(url: str) -> None:
            status, text = await ask(url)
            assert "close this window" in text
            seen.append(status)
            finished.set()

        async with sites.client(sites.oauth(open_url=open_url)) as mcp:
            await mcp.call_tool("anything")
        await finished.wait()
        assert seen == [404, 400, 400, 400, 400, 400, 405, 421, 200]

    run(visit)


def test_an_endless_header_does_not_block_the_login():
    async def visit(sites: AuthSites) -> None:
        async def open_url(url: str) -> None:
            back = await browse(url)
            port = int(back.split(":")[2].split("/")[0])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /" + b"x" * 100_000)
            try:
                await follow(url)
            finally:
                writer.close()

        async with sites.client(sites.oauth(open_url=open_url)) as mcp:
            await mcp.call_tool("anything")

    run(visit)


def test_port_and_registration_are_reused():
    async def visit(sites: AuthSites) -> None:
        storage = MemoryTokens()
        async with sites.client(sites.oauth(storage=storage)) as mcp:
            await mcp.call_tool("anything")
        sites.valid.clear()
        sites.refresh.clear()
        async with sites.client(sites.oauth(storage=storage)) as mcp:
            await mcp.call_tool("anything")
        assert len(sites.registered) == 1
        first, second = sites.authorized
        assert first["redirect_uri"] == second["redirect_uri"]
        # Another process has the port now, so the client uses another one and registers again.
        port = int(second["redirect_uri"].split(":")[2].split("/")[0])
        sites.valid.clear()
        sites.refresh.clear()
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        try:
            async with sites.client(sites.oauth(storage=storage)) as mcp:
                await mcp.call_tool("anything")
        finally:
            taken.close()
            await taken.wait_closed()
        assert len(sites.registered) == 2

    run(visit)


def test_a_port_in_use_is_reported():
    async def visit(sites: AuthSites) -> None:
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        try:
            with pytest.raises(AuthError, match="cannot listen"):
                await sites.client(sites.oauth(redirect_uri=f"http://127.0.0.1:{port}/x")).connect()
        finally:
            taken.close()
            await taken.wait_closed()

    run(visit)


# --------------------------------------------------------------------- other ways to show the page


def test_a_blocking_open_url_may_return_the_redirect():
    async def visit(sites: AuthSites) -> None:
        loop = asyncio.get_running_loop()

        def open_url(url: str) -> str:
            return asyncio.run_coroutine_threadsafe(browse(url), loop).result()

        async with sites.client(sites.oauth(open_url=open_url)) as mcp:
            await mcp.call_tool("anything")

    run(visit)


def test_a_code_may_be_typed():
    async def visit(sites: AuthSites) -> None:
        async def open_url(url: str) -> str:
            return (await browse(url)).partition("code=")[2].partition("&")[0] + "\n"

        async with sites.client(sites.oauth(open_url=open_url)) as mcp:
            await mcp.call_tool("anything")

    run(visit)


def test_the_redirect_may_lead_to_a_custom_page():
    async def visit(sites: AuthSites) -> None:
        page = "https://app.example/back"
        async with sites.client(sites.oauth(redirect_uri=page)) as mcp:
            await mcp.call_tool("anything")
        assert sites.registered[0]["application_type"] == "web"
        assert sites.forms[0][0]["redirect_uri"] == page

        async def tell_nothing(_: str) -> None:
            pass

        sites.valid.clear()
        with pytest.raises(AuthorizationRequired, match="open_url returned nothing"):
            await sites.client(sites.oauth(redirect_uri=page, open_url=tell_nothing)).connect()

    run(visit)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("", "neither a URL nor a code"),
        ("https://elsewhere.example/?code=1&state=2", "a different URL"),
        ("http://[", "cannot be parsed|a different URL"),
    ],
)
def test_the_redirect_of_a_login_is_validated(said, match):
    async def visit(sites: AuthSites) -> None:
        async def open_url(_: str) -> str:
            return said

        with pytest.raises(AuthError, match=match):
            await sites.client(sites.oauth(open_url=open_url)).connect()
        assert not sites.forms

    run(visit)


def test_a_page_that_cannot_be_opened_is_reported():
    async def visit(sites: AuthSites) -> None:
        def open_url(_: str) -> None:
            raise OSError("no display")

        with pytest.raises(AuthorizationRequired, match="could not be opened: OSError"):
            await sites.client(sites.oauth(open_url=open_url)).connect()

        with pytest.raises(AuthorizationRequired, match="open_url returned int"):
            await sites.client(sites.oauth(open_url=lambda _: 5)).connect()

    run(visit)


def test_the_user_may_decline():
    async def visit(sites: AuthSites) -> None:
        sites.redirect = lambda said: {"error": "access_denied", "state": said["state"]}
        with pytest.raises(AuthorizationRequired, match="declined"):
            await sites.client().connect()
        sites.redirect = lambda said: {"error": "what\x1b[31m", "state": said["state"]}
        with pytest.raises(AuthorizationRequired, match="rejected the login: unknown error"):
            await sites.client().connect()
        sites.redirect = lambda said: {"state": said["state"]}
        with pytest.raises(AuthError, match="has no code"):
            await sites.client().connect()
        assert not sites.forms

    run(visit)


def test_waiting_for_the_user_times_out():
    async def visit(sites: AuthSites) -> None:
        async def look_away(_: str) -> None:
            pass

        auth = sites.oauth(open_url=look_away, timeout=0.05)
        with pytest.raises(AuthorizationRequired, match=r"the user did not log in within 0\.05 s"):
            await sites.client(auth).connect()

    run(visit)


# --------------------------------------------------------------------- scopes


@pytest.mark.requirement("AUTH-9", "AUTH-10", "AUTH-12", "AUTH-13")
@pytest.mark.parametrize(
    ("challenge", "supported", "own", "asked"),
    [
        ('Bearer scope="a b"', ["c"], None, "a b"),
        ("Bearer", ["c", "d"], None, "c d"),
        ("Bearer", None, None, None),
        ("", None, None, None),
        ("Bearer", ["c"], ["e"], "e"),
        ('Bearer scope="a"', ["c"], "e f", "a e f"),
    ],
)
def test_the_requested_scopes(challenge, supported, own, asked):
    async def visit(sites: AuthSites) -> None:
        sites.challenge = challenge
        sites.resource = {"scopes_supported": supported}
        async with sites.client(sites.oauth(scopes=own)):
            pass
        assert sites.authorized[0].get("scope") == asked

    run(visit)


@pytest.mark.parametrize(
    ("listed", "asked"),
    [(["a", "offline_access"], "a offline_access"), (["a"], "a"), (None, "a")],
)
def test_offline_access_is_requested_if_it_is_offered(listed, asked):
    async def visit(sites: AuthSites) -> None:
        sites.challenge = 'Bearer scope="a offline_access"' if listed is None else 'Bearer scope="a"'
        sites.metadata = {"scopes_supported": listed}
        async with sites.client():
            pass
        assert sites.authorized[0]["scope"] == asked
        assert ("prompt" in sites.authorized[0]) == ("offline" in asked)

    run(visit)


@pytest.mark.requirement("AUTH-55", "AUTH-56", "AUTH-57")
def test_additional_scopes_are_requested_with_the_previous_ones():
    async def visit(sites: AuthSites) -> None:
        sites.challenge, sites.needs = 'Bearer scope="read"', ("write",)
        async with sites.client() as mcp:
            await mcp.call_tool("anything")
        assert [asked["scope"] for asked in sites.authorized] == ["read", "read write"]
        assert sites.grants == ["authorization_code"] * 2

    run(visit)


@pytest.mark.requirement("AUTH-59")
def test_the_client_gives_up_on_a_server_that_always_requires_the_same_scope():
    async def visit(sites: AuthSites) -> None:
        sites.challenge, sites.needs = 'Bearer scope="read"', ("write",)
        sites.redirect = lambda said: said
        sites.token = {"scope": "read"}  # the requested scope is not granted
        issue = sites.issue
        sites.issue = lambda scopes=(): issue(("read",))
        async with sites.client() as mcp:
            for _ in range(3):
                with pytest.raises(InsufficientScope, match="required: write"):
                    await mcp.call_tool("anything")
        assert len(sites.authorized) == 3

    run(visit)


def test_the_client_gives_up_on_a_server_that_always_requires_new_scopes():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            count = iter(range(100))
            sites.paths["/mcp"] = lambda _: answer(
                403,
                kind=None,
                WWW_Authenticate=f'Bearer error="insufficient_scope", scope="s{next(count)}"',
            )
            for _ in range(2):
                with pytest.raises(InsufficientScope):
                    await mcp.call_tool("anything")
        assert len(sites.authorized) == 1 + 3

    run(visit)


def test_ungranted_scopes_are_requested_only_once():
    async def visit(sites: AuthSites) -> None:
        sites.challenge, sites.needs = 'Bearer scope="read"', ("read",)
        issue = sites.issue
        sites.issue = lambda scopes=(): issue(())
        async with sites.client() as mcp:
            with pytest.raises(InsufficientScope):
                await mcp.call_tool("anything")
        assert len(sites.authorized) == 1

    run(visit)


def test_a_new_token_that_is_rejected_stops_the_retries():
    async def visit(sites: AuthSites) -> None:
        sites.valid = _Nothing()
        with pytest.raises(TokenRejected, match="has just issued"):
            await sites.client().connect()
        assert len(sites.authorized) == 1

    run(visit)


class _Nothing(dict):
    def __contains__(self, _key: object) -> bool:
        return False


# --------------------------------------------------------------------- refreshing


@pytest.mark.requirement("AUTH-62")
def test_a_token_is_refreshed_before_it_expires_and_the_refresh_token_rotates():
    async def visit(sites: AuthSites) -> None:
        sites.token = {"expires_in": 0}
        async with sites.client() as mcp:
            for _ in range(3):
                await mcp.call_tool("anything")
        assert len(sites.authorized) == 1
        refreshed = [form for form, _ in sites.forms if form["grant_type"] == "refresh_token"]
        assert [form["refresh_token"] for form in refreshed] == [
            f"refresh-{number}-secret" for number in range(1, len(refreshed) + 1)
        ]
        assert {form["resource"] for form in refreshed} == {sites.server}

    run(visit)


def test_a_rejected_token_is_refreshed():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            sites.valid.clear()
            await mcp.call_tool("anything")
        assert sites.grants == ["authorization_code", "refresh_token"]

    run(visit)


def test_a_refresh_token_that_does_not_rotate_is_used_again():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            sites.token = {"refresh_token": ...}
            for _ in range(2):
                sites.valid.clear()
                sites.refresh["refresh-1-secret"] = ()
                await mcp.call_tool("anything")
        assert sites.grants == ["authorization_code", "refresh_token", "refresh_token"]

    run(visit)


@pytest.mark.parametrize("expires_in", [3600, 0])
def test_an_expired_refresh_token_leads_to_a_login(expires_in):
    async def visit(sites: AuthSites) -> None:
        sites.token = {"expires_in": expires_in}
        async with sites.client() as mcp:
            sites.valid.clear()
            sites.refresh.clear()
            sites.token = {}
            await mcp.call_tool("anything")
        assert len(sites.authorized) == 2
        assert len(sites.registered) == 1

    run(visit)


def test_a_rejected_new_token_leads_to_a_login():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            sites.valid.clear()
            issue = sites.issue

            def once(scopes: tuple[str, ...] = ()) -> bytes:
                sites.issue = issue
                said = issue(scopes)
                sites.valid.clear()
                return said

            sites.issue = once
            await mcp.call_tool("anything")
        assert sites.grants == ["authorization_code", "refresh_token", "authorization_code"]

    run(visit)


@pytest.mark.requirement("AUTH-62")
def test_a_refresh_token_is_optional():
    async def visit(sites: AuthSites) -> None:
        sites.token = {"refresh_token": ..., "expires_in": ...}
        async with sites.client() as mcp:
            sites.valid.clear()
            await mcp.call_tool("anything")
        assert sites.grants == ["authorization_code"] * 2

    run(visit)


@pytest.mark.parametrize("refresh", [True, False])
def test_an_unknown_client_is_registered_again(refresh):
    async def visit(sites: AuthSites) -> None:
        storage = MemoryTokens()
        sites.token = {} if refresh else {"refresh_token": ...}
        async with sites.client(sites.oauth(storage=storage)):
            pass
        sites.valid.clear()
        refusals = [answer(401, b'{"error": "invalid_client"}')]
        token = sites.answer_token
        sites.answer_token = lambda heard: refusals.pop() if refusals else token(heard)
        async with sites.client(sites.oauth(storage=storage)) as mcp:
            await mcp.call_tool("anything")
        assert len(sites.registered) == 2

    run(visit)


# --------------------------------------------------------------------- token storage


@pytest.mark.requirement("AUTH-60", "AUTH-68")
def test_files_are_for_their_owner_only(tmp_path):
    folder = tmp_path / "deep" / "tokens"

    async def visit(sites: AuthSites) -> None:
        async with sites.client(sites.oauth(storage=FileTokens(folder))) as mcp:
            await mcp.call_tool("anything")

    run(visit)
    files = list(folder.iterdir())
    assert {file.suffix for file in files} == {".json", ".lock"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any("access-1-secret" in file.read_text() for file in files)


@pytest.mark.parametrize("rot", [b"", b"{", b"\xff\xfe", b"[]", b'{"access": 5}'])
def test_an_unreadable_token_file_is_replaced(tmp_path, rot, caplog):
    async def visit(sites: AuthSites) -> None:
        for _ in range(2):
            async with sites.client(sites.oauth(storage=FileTokens(tmp_path))) as mcp:
                await mcp.call_tool("anything")
            for file in tmp_path.glob("*.json"):
                file.write_bytes(rot)
        assert len(sites.authorized) == 2
        assert len(sites.registered) == 2

    run(visit)
    assert "secret" not in caplog.text


def test_a_file_that_others_may_read_is_not_used(tmp_path, caplog):
    async def visit(sites: AuthSites) -> None:
        for _ in range(2):
            async with sites.client(sites.oauth(storage=FileTokens(tmp_path))):
                pass
            for file in tmp_path.glob("*.json"):
                file.chmod(0o644)
        assert len(sites.authorized) == 2

    run(visit)
    assert "is readable by other users" in caplog.text


@pytest.mark.parametrize("below", ["", "further/down"])
def test_without_a_folder_tokens_stay_in_memory_and_a_warning_is_logged_once(tmp_path, caplog, below):
    (tmp_path / "file").write_text("")

    async def visit(sites: AuthSites) -> None:
        auth = sites.oauth(storage=FileTokens(tmp_path / "file" / below))
        for _ in range(2):
            async with sites.client(auth) as mcp:
                await mcp.call_tool("anything")
        assert len(sites.authorized) == 1

    run(visit)
    [told] = caplog.records
    assert "only kept in memory" in told.getMessage()
    assert "cannot be used for tokens" in told.getMessage()


def test_by_default_tokens_are_in_the_state_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def visit(sites: AuthSites) -> None:
        async with sites.client(OAuth(open_url=browse)):
            pass

    run(visit)
    assert list((tmp_path / "toolpost" / "tokens").glob("*.json"))


def test_a_custom_object_may_store_tokens():
    kept: dict[str, str] = {}

    class Mine:
        async def get(self, key: str) -> str | None:
            return kept.get(key)

        def put(self, key: str, value: str) -> None:
            kept[key] = value

        async def delete(self, key: str) -> None:
            del kept[key]

    async def visit(sites: AuthSites) -> None:
        for _ in range(2):
            async with sites.client(sites.oauth(storage=Mine())):
                pass
        assert len(sites.authorized) == 1
        assert {json.loads(value)["issuer"] for key, value in kept.items() if "tokens" not in key} == {
            sites.issuer
        }

    run(visit)


def test_echoed_secrets_are_not_quoted(caplog):
    async def visit(sites: AuthSites) -> None:
        def echo(heard) -> bytes:
            return answer(
                400, json.dumps({"error": "invalid_grant", "error_description": heard.body.decode()}).encode()
            )

        sites.paths["/token"] = echo
        with pytest.raises(AuthError) as caught:
            await sites.client().connect()
        assert "invalid_grant" in str(caught.value)
        assert "code" not in str(caught.value).replace("invalid_grant", "")

    run(visit)
    assert "code-1" not in caplog.text


# --------------------------------------------------------------------- other clients


def test_a_client_without_await_logs_in_too(tmp_path):
    async def visit(sites: AuthSites) -> None:
        def use() -> str:
            with SyncClient(sites.server, auth=sites.oauth(storage=FileTokens(tmp_path))) as mcp:
                return mcp.call_tool("anything").text

        assert await asyncio.to_thread(use) == "done"

    run(visit)


def test_one_oauth_serves_clients_in_several_loops():
    async def visit(sites: AuthSites) -> None:
        auth = sites.oauth()

        def use() -> str:
            with SyncClient(sites.server, auth=auth) as mcp:
                return mcp.call_tool("anything").text

        assert await asyncio.gather(*(asyncio.to_thread(use) for _ in range(3))) == ["done"] * 3
        assert len(sites.authorized) == 1

    run(visit)


def test_a_missing_home_folder_matters_only_when_it_is_used(monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", os.sep)
    assert str(FileTokens().folder).endswith("toolpost/tokens")
