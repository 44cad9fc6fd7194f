"""A person logs in: the whole sequence, from the first refusal to a call that goes through."""

import asyncio
import json
import os
import stat

import aiohttp
import pytest

from fake_authorization_site import Town, browse, follow, origin, run
from scripted import answer
from toolpost import AuthError, FileTokens, MemoryTokens, OAuth, SyncClient
from toolpost.errors import AuthorizationRequired, InsufficientScope, TokenRejected


@pytest.mark.requirement(
    "AUTH-4", "AUTH-6", "AUTH-7", "AUTH-14", "AUTH-25", "AUTH-26", "AUTH-33", "AUTH-34", "AUTH-40",
    "AUTH-43", "AUTH-44", "AUTH-61", "AUTH-64", "AUTH-67",
)  # fmt: skip
def test_the_whole_sequence():
    async def visit(town: Town) -> None:
        async with town.client() as mcp:
            assert (await mcp.call_tool("anything")).text == "done"
        [registered], [authorized], [(form, _)] = town.registered, town.authorized, town.forms
        assert registered["application_type"] == "native"
        assert registered["grant_types"] == ["authorization_code", "refresh_token"]
        assert registered["redirect_uris"] == [authorized["redirect_uri"]]
        assert authorized["redirect_uri"].startswith("http://127.0.0.1:")
        assert authorized["resource"] == form["resource"] == town.server
        assert (authorized["response_type"], authorized["code_challenge_method"]) == ("code", "S256")
        assert "scope" not in authorized
        assert form["client_id"] == "client-1"
        first, *others = town.heard
        assert "authorization" not in first[2]
        assert {headers["authorization"] for _, _, headers in others} == {"Bearer access-1-secret"}
        assert town.looked == [
            "/.well-known/oauth-protected-resource/mcp",
            "/.well-known/oauth-authorization-server",
            "/register",
            "/authorize",
            "/token",
        ]

    run(visit)


def test_tokens_are_found_again():
    async def visit(town: Town) -> None:
        storage = MemoryTokens()
        for _ in range(3):
            async with town.client(town.oauth(storage=storage)) as mcp:
                await mcp.call_tool("anything")
        assert len(town.authorized) == 1
        assert [headers.get("authorization") for _, _, headers in town.heard].count(None) == 1

    run(visit)


# --------------------------------------------------------------------- the browser comes back to us


@pytest.mark.parametrize("redirect_uri", [None, "http://localhost/back", "http://127.0.0.1/"])
def test_the_browser_is_sent_to_where_we_listen(redirect_uri):
    async def visit(town: Town) -> None:
        async with town.client(town.oauth(open_url=follow, redirect_uri=redirect_uri)) as mcp:
            await mcp.call_tool("anything")
        assert len(town.authorized) == 1

    run(visit)


async def ask(url: str, method: str = "GET", **options) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url, **options) as response:
        return response.status, await response.text()


@pytest.mark.requirement("AUTH-67")
def test_others_who_knock_meanwhile_are_sent_away():
    async def visit(town: Town) -> None:
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

        async with town.client(town.oauth(open_url=open_url)) as mcp:
            await mcp.call_tool("anything")
        await finished.wait()
        assert seen == [404, 400, 400, 400, 400, 400, 405, 421, 200]

    run(visit)


def test_a_head_that_never_ends_disturbs_nobody():
    async def visit(town: Town) -> None:
        async def open_url(url: str) -> None:
            back = await browse(url)
            port = int(back.split(":")[2].split("/")[0])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /" + b"x" * 100_000)
            try:
                await follow(url)
            finally:
                writer.close()

        async with town.client(town.oauth(open_url=open_url)) as mcp:
            await mcp.call_tool("anything")

    run(visit)


def test_the_same_port_is_taken_again_and_the_registration_too():
    async def visit(town: Town) -> None:
        storage = MemoryTokens()
        async with town.client(town.oauth(storage=storage)) as mcp:
            await mcp.call_tool("anything")
        town.valid.clear()
        town.refresh.clear()
        async with town.client(town.oauth(storage=storage)) as mcp:
            await mcp.call_tool("anything")
        assert len(town.registered) == 1
        first, second = town.authorized
        assert first["redirect_uri"] == second["redirect_uri"]
        # Somebody else has the port now: another one, and so another registration.
        port = int(second["redirect_uri"].split(":")[2].split("/")[0])
        town.valid.clear()
        town.refresh.clear()
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        try:
            async with town.client(town.oauth(storage=storage)) as mcp:
                await mcp.call_tool("anything")
        finally:
            taken.close()
            await taken.wait_closed()
        assert len(town.registered) == 2

    run(visit)


def test_a_port_that_is_taken_is_told():
    async def visit(town: Town) -> None:
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        try:
            with pytest.raises(AuthError, match="nobody can listen"):
                await town.client(town.oauth(redirect_uri=f"http://127.0.0.1:{port}/x")).connect()
        finally:
            taken.close()
            await taken.wait_closed()

    run(visit)


# --------------------------------------------------------------------- other ways to show the page


def test_a_function_that_blocks_may_tell_where_the_user_was_sent():
    async def visit(town: Town) -> None:
        loop = asyncio.get_running_loop()

        def open_url(url: str) -> str:
            return asyncio.run_coroutine_threadsafe(browse(url), loop).result()

        async with town.client(town.oauth(open_url=open_url)) as mcp:
            await mcp.call_tool("anything")

    run(visit)


def test_a_code_may_be_typed():
    async def visit(town: Town) -> None:
        async def open_url(url: str) -> str:
            return (await browse(url)).partition("code=")[2].partition("&")[0] + "\n"

        async with town.client(town.oauth(open_url=open_url)) as mcp:
            await mcp.call_tool("anything")

    run(visit)


def test_a_page_of_ones_own_may_be_where_the_user_is_sent():
    async def visit(town: Town) -> None:
        page = "https://app.example/back"
        async with town.client(town.oauth(redirect_uri=page)) as mcp:
            await mcp.call_tool("anything")
        assert town.registered[0]["application_type"] == "web"
        assert town.forms[0][0]["redirect_uri"] == page

        async def tell_nothing(_: str) -> None:
            pass

        town.valid.clear()
        with pytest.raises(AuthorizationRequired, match="nobody tells"):
            await town.client(town.oauth(redirect_uri=page, open_url=tell_nothing)).connect()

    run(visit)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("", "neither an address nor a code"),
        ("https://elsewhere.example/?code=1&state=2", "another address"),
        ("http://[", "cannot be read|another address"),
    ],
)
def test_what_a_user_comes_back_with_has_to_make_sense(said, match):
    async def visit(town: Town) -> None:
        async def open_url(_: str) -> str:
            return said

        with pytest.raises(AuthError, match=match):
            await town.client(town.oauth(open_url=open_url)).connect()
        assert not town.forms

    run(visit)


def test_a_page_that_cannot_be_opened_is_told():
    async def visit(town: Town) -> None:
        def open_url(_: str) -> None:
            raise OSError("no display")

        with pytest.raises(AuthorizationRequired, match="could not be opened: OSError"):
            await town.client(town.oauth(open_url=open_url)).connect()

        with pytest.raises(AuthorizationRequired, match="open_url returned a int"):
            await town.client(town.oauth(open_url=lambda _: 5)).connect()

    run(visit)


def test_the_user_may_decline():
    async def visit(town: Town) -> None:
        town.redirect = lambda said: {"error": "access_denied", "state": said["state"]}
        with pytest.raises(AuthorizationRequired, match="declined"):
            await town.client().connect()
        town.redirect = lambda said: {"error": "what\x1b[31m", "state": said["state"]}
        with pytest.raises(AuthorizationRequired, match="an error that we do not know"):
            await town.client().connect()
        town.redirect = lambda said: {"state": said["state"]}
        with pytest.raises(AuthError, match="has no code"):
            await town.client().connect()
        assert not town.forms

    run(visit)


def test_a_user_who_does_nothing_is_not_waited_for_for_ever():
    async def visit(town: Town) -> None:
        async def look_away(_: str) -> None:
            pass

        auth = town.oauth(open_url=look_away, timeout=0.05)
        with pytest.raises(AuthorizationRequired, match=r"nobody has logged in within 0\.05 s"):
            await town.client(auth).connect()

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
def test_the_scopes_that_are_asked_for(challenge, supported, own, asked):
    async def visit(town: Town) -> None:
        town.challenge = challenge
        town.resource = {"scopes_supported": supported}
        async with town.client(town.oauth(scopes=own)):
            pass
        assert town.authorized[0].get("scope") == asked

    run(visit)


@pytest.mark.parametrize(
    ("listed", "asked"),
    [(["a", "offline_access"], "a offline_access"), (["a"], "a"), (None, "a")],
)
def test_offline_access_is_asked_for_where_it_is_offered(listed, asked):
    async def visit(town: Town) -> None:
        town.challenge = 'Bearer scope="a offline_access"' if listed is None else 'Bearer scope="a"'
        town.metadata = {"scopes_supported": listed}
        async with town.client():
            pass
        assert town.authorized[0]["scope"] == asked
        assert ("prompt" in town.authorized[0]) == ("offline" in asked)

    run(visit)


@pytest.mark.requirement("AUTH-55", "AUTH-56", "AUTH-57")
def test_more_scopes_are_asked_for_with_those_there_were():
    async def visit(town: Town) -> None:
        town.challenge, town.needs = 'Bearer scope="read"', ("write",)
        async with town.client() as mcp:
            await mcp.call_tool("anything")
        assert [asked["scope"] for asked in town.authorized] == ["read", "read write"]
        assert town.grants == ["authorization_code"] * 2

    run(visit)


@pytest.mark.requirement("AUTH-59")
def test_a_server_that_never_has_enough_is_given_up():
    async def visit(town: Town) -> None:
        town.challenge, town.needs = 'Bearer scope="read"', ("write",)
        town.redirect = lambda said: said
        town.token = {"scope": "read"}  # what is asked for is not granted
        issue = town.issue
        town.issue = lambda scopes=(): issue(("read",))
        async with town.client() as mcp:
            for _ in range(3):
                with pytest.raises(InsufficientScope, match="it wants write"):
                    await mcp.call_tool("anything")
        assert len(town.authorized) == 3

    run(visit)


def test_a_server_that_thinks_of_ever_new_scopes_is_given_up():
    async def visit(town: Town) -> None:
        async with town.client() as mcp:
            count = iter(range(100))
            town.paths["/mcp"] = lambda _: answer(
                403,
                kind=None,
                WWW_Authenticate=f'Bearer error="insufficient_scope", scope="s{next(count)}"',
            )
            for _ in range(2):
                with pytest.raises(InsufficientScope):
                    await mcp.call_tool("anything")
        assert len(town.authorized) == 1 + 3

    run(visit)


def test_a_server_that_refuses_what_it_asked_for_is_given_up_at_once():
    async def visit(town: Town) -> None:
        town.challenge, town.needs = 'Bearer scope="read"', ("read",)
        issue = town.issue
        town.issue = lambda scopes=(): issue(())
        async with town.client() as mcp:
            with pytest.raises(InsufficientScope):
                await mcp.call_tool("anything")
        assert len(town.authorized) == 1

    run(visit)


def test_a_token_that_is_refused_although_it_is_new_is_no_reason_to_go_on():
    async def visit(town: Town) -> None:
        town.valid = _Nothing()
        with pytest.raises(TokenRejected, match="has just issued"):
            await town.client().connect()
        assert len(town.authorized) == 1

    run(visit)


class _Nothing(dict):
    def __contains__(self, _key: object) -> bool:
        return False


# --------------------------------------------------------------------- refreshing


@pytest.mark.requirement("AUTH-62")
def test_a_token_is_refreshed_before_it_ends_and_the_refresh_token_rotates():
    async def visit(town: Town) -> None:
        town.token = {"expires_in": 0}
        async with town.client() as mcp:
            for _ in range(3):
                await mcp.call_tool("anything")
        assert len(town.authorized) == 1
        refreshed = [form for form, _ in town.forms if form["grant_type"] == "refresh_token"]
        assert [form["refresh_token"] for form in refreshed] == [
            f"refresh-{number}-secret" for number in range(1, len(refreshed) + 1)
        ]
        assert {form["resource"] for form in refreshed} == {town.server}

    run(visit)


def test_a_refused_token_is_refreshed():
    async def visit(town: Town) -> None:
        async with town.client() as mcp:
            town.valid.clear()
            await mcp.call_tool("anything")
        assert town.grants == ["authorization_code", "refresh_token"]

    run(visit)


def test_a_refresh_token_that_is_kept_goes_on_being_used():
    async def visit(town: Town) -> None:
        async with town.client() as mcp:
            town.token = {"refresh_token": ...}
            for _ in range(2):
                town.valid.clear()
                town.refresh["refresh-1-secret"] = ()
                await mcp.call_tool("anything")
        assert town.grants == ["authorization_code", "refresh_token", "refresh_token"]

    run(visit)


@pytest.mark.parametrize("expires_in", [3600, 0])
def test_a_refresh_token_that_has_ended_leads_to_a_login(expires_in):
    async def visit(town: Town) -> None:
        town.token = {"expires_in": expires_in}
        async with town.client() as mcp:
            town.valid.clear()
            town.refresh.clear()
            town.token = {}
            await mcp.call_tool("anything")
        assert len(town.authorized) == 2
        assert len(town.registered) == 1

    run(visit)


def test_a_refreshed_token_that_is_refused_leads_to_a_login():
    async def visit(town: Town) -> None:
        async with town.client() as mcp:
            town.valid.clear()
            issue = town.issue

            def once(scopes: tuple[str, ...] = ()) -> bytes:
                town.issue = issue
                said = issue(scopes)
                town.valid.clear()
                return said

            town.issue = once
            await mcp.call_tool("anything")
        assert town.grants == ["authorization_code", "refresh_token", "authorization_code"]

    run(visit)


@pytest.mark.requirement("AUTH-62")
def test_nobody_needs_a_refresh_token():
    async def visit(town: Town) -> None:
        town.token = {"refresh_token": ..., "expires_in": ...}
        async with town.client() as mcp:
            town.valid.clear()
            await mcp.call_tool("anything")
        assert town.grants == ["authorization_code"] * 2

    run(visit)


@pytest.mark.parametrize("refresh", [True, False])
def test_a_client_that_was_forgotten_is_registered_anew(refresh):
    async def visit(town: Town) -> None:
        storage = MemoryTokens()
        town.token = {} if refresh else {"refresh_token": ...}
        async with town.client(town.oauth(storage=storage)):
            pass
        town.valid.clear()
        refusals = [answer(401, b'{"error": "invalid_client"}')]
        token = town.answer_token
        town.answer_token = lambda heard: refusals.pop() if refusals else token(heard)
        async with town.client(town.oauth(storage=storage)) as mcp:
            await mcp.call_tool("anything")
        assert len(town.registered) == 2

    run(visit)


# --------------------------------------------------------------------- where tokens are kept


@pytest.mark.requirement("AUTH-60", "AUTH-68")
def test_files_are_for_their_owner_only(tmp_path):
    folder = tmp_path / "deep" / "tokens"

    async def visit(town: Town) -> None:
        async with town.client(town.oauth(storage=FileTokens(folder))) as mcp:
            await mcp.call_tool("anything")

    run(visit)
    files = list(folder.iterdir())
    assert {file.suffix for file in files} == {".json", ".lock"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any("access-1-secret" in file.read_text() for file in files)


@pytest.mark.parametrize("rot", [b"", b"{", b"\xff\xfe", b"[]", b'{"access": 5}'])
def test_a_file_that_cannot_be_read_is_got_anew(tmp_path, rot, caplog):
    async def visit(town: Town) -> None:
        for _ in range(2):
            async with town.client(town.oauth(storage=FileTokens(tmp_path))) as mcp:
                await mcp.call_tool("anything")
            for file in tmp_path.glob("*.json"):
                file.write_bytes(rot)
        assert len(town.authorized) == 2
        assert len(town.registered) == 2

    run(visit)
    assert "secret" not in caplog.text


def test_a_file_that_others_may_read_is_not_used(tmp_path, caplog):
    async def visit(town: Town) -> None:
        for _ in range(2):
            async with town.client(town.oauth(storage=FileTokens(tmp_path))):
                pass
            for file in tmp_path.glob("*.json"):
                file.chmod(0o644)
        assert len(town.authorized) == 2

    run(visit)
    assert "can be read by others" in caplog.text


@pytest.mark.parametrize("below", ["", "further/down"])
def test_where_no_folder_can_be_made_tokens_are_kept_in_memory_and_that_is_told_once(tmp_path, caplog, below):
    (tmp_path / "file").write_text("")

    async def visit(town: Town) -> None:
        auth = town.oauth(storage=FileTokens(tmp_path / "file" / below))
        for _ in range(2):
            async with town.client(auth) as mcp:
                await mcp.call_tool("anything")
        assert len(town.authorized) == 1

    run(visit)
    [told] = caplog.records
    assert "in memory only" in told.getMessage()
    assert "cannot be used for tokens" in told.getMessage()


def test_by_default_they_are_in_the_folder_for_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def visit(town: Town) -> None:
        async with town.client(OAuth(open_url=browse)):
            pass

    run(visit)
    assert list((tmp_path / "toolpost" / "tokens").glob("*.json"))


def test_an_object_of_ones_own_may_keep_them():
    kept: dict[str, str] = {}

    class Mine:
        async def get(self, key: str) -> str | None:
            return kept.get(key)

        def put(self, key: str, value: str) -> None:
            kept[key] = value

        async def delete(self, key: str) -> None:
            del kept[key]

    async def visit(town: Town) -> None:
        for _ in range(2):
            async with town.client(town.oauth(storage=Mine())):
                pass
        assert len(town.authorized) == 1
        assert {json.loads(value)["issuer"] for key, value in kept.items() if "tokens" not in key} == {
            town.issuer
        }

    run(visit)


def test_a_server_that_repeats_what_it_was_sent_is_not_quoted(caplog):
    async def visit(town: Town) -> None:
        def echo(heard) -> bytes:
            return answer(
                400, json.dumps({"error": "invalid_grant", "error_description": heard.body.decode()}).encode()
            )

        town.paths["/token"] = echo
        with pytest.raises(AuthError) as caught:
            await town.client().connect()
        assert "invalid_grant" in str(caught.value)
        assert "code" not in str(caught.value).replace("invalid_grant", "")

    run(visit)
    assert "code-1" not in caplog.text


# --------------------------------------------------------------------- other clients


def test_a_client_without_await_logs_in_too(tmp_path):
    async def visit(town: Town) -> None:
        def use() -> str:
            with SyncClient(town.server, auth=town.oauth(storage=FileTokens(tmp_path))) as mcp:
                return mcp.call_tool("anything").text

        assert await asyncio.to_thread(use) == "done"

    run(visit)


def test_one_oauth_serves_clients_in_several_loops():
    async def visit(town: Town) -> None:
        auth = town.oauth()

        def use() -> str:
            with SyncClient(town.server, auth=auth) as mcp:
                return mcp.call_tool("anything").text

        assert await asyncio.gather(*(asyncio.to_thread(use) for _ in range(3))) == ["done"] * 3
        assert len(town.authorized) == 1

    run(visit)


def test_an_environment_without_a_home_is_no_trouble_until_it_is_used(monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", os.sep)
    assert str(FileTokens().folder).endswith("toolpost/tokens")
