"""The untrusted environment of a client: folders, files, full disks, redirects, malformed responses."""

import asyncio
import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fake_authorization_site import browse
from protected_server import place
from toolpost import AuthError, Client, FileTokens, MemoryTokens, OAuth
from toolpost.auth.client.login import MAX_CONNECTIONS, RedirectListener
from toolpost.auth.client.storage import ResilientStorage, default_folder
from toolpost.auth.client.token_endpoint import parse_token_response
from toolpost.testing import AuthorizationServer
from waiting import list_descriptors


def link(path: Path) -> None:
    other = path.with_name("planted")
    other.write_text("planted")
    other.chmod(0o600)
    path.symlink_to(other)


def open_file(path: Path) -> None:
    path.write_text("planted")
    path.chmod(0o640)


@pytest.mark.parametrize(
    ("plant", "match"),
    [
        (link, "could not read"),
        (lambda path: os.mkfifo(path, 0o600), "is not a file"),
        (lambda path: path.mkdir(mode=0o700), "is not a file"),
        (open_file, "is readable by other users"),
    ],
)
def test_only_a_file_of_our_own_is_read(tmp_path, caplog, plant, match):
    kept = FileTokens(tmp_path)
    plant(kept._path("k"))
    before = len(list_descriptors())
    assert asyncio.run(kept.get("k")) is None
    assert match in caplog.text
    assert "planted" not in caplog.text
    assert len(list_descriptors()) == before


def test_a_lock_follows_no_link(tmp_path):
    async def use() -> None:
        kept = FileTokens(tmp_path / "folder")
        await kept.put("k", "v")
        kept._path("k", "lock").symlink_to(tmp_path / "created")
        with pytest.raises(AuthError, match="cannot be used for tokens"):
            async with kept.lock("k"):
                pass

    asyncio.run(use())
    assert not (tmp_path / "created").exists()


def test_a_file_of_another_user_is_not_read(tmp_path, caplog):
    if os.geteuid():
        # Only root can give a file away: the folder then belongs to another user, as shown above.
        return
    kept = FileTokens(tmp_path)
    asyncio.run(kept.put("k", "v"))
    os.chown(kept._path("k"), 65534, 65534)
    assert asyncio.run(kept.get("k")) is None
    assert "belongs to another user" in caplog.text
    asyncio.run(kept.put("k", "new"))
    assert asyncio.run(kept.get("k")) == "new"


@pytest.mark.parametrize(("value", "used"), [("rel", False), ("", False), ("/there", True)])
def test_a_relative_folder_for_state_is_ignored(monkeypatch, value, used):
    monkeypatch.setenv("XDG_STATE_HOME", value)
    expected = Path("/there") if used else Path.home() / ".local" / "state"
    assert default_folder() == expected / "toolpost" / "tokens"


class Moody(MemoryTokens):
    """A storage that may fail."""

    fails = False

    def get(self, key: str, /) -> str | None:
        if self.fails:
            raise RuntimeError("it is locked")
        return super().get(key)

    def put(self, key: str, value: str, /) -> None:
        if self.fails:
            raise KeyError(value)
        super().put(key, value)

    def delete(self, key: str, /) -> None:
        raise OSError("never")


def test_a_storage_that_fails_is_reported_and_replaced(caplog):
    async def use() -> None:
        moody = Moody()
        vault = ResilientStorage(moody)
        await vault.put("k", "old")
        moody.fails = True
        await vault.put("k", "s3cret")
        await vault.put("l", "s3cret")
        await vault.delete("j")
        with pytest.raises(AuthError, match="token storage Moody failed"):
            await vault.get("k")
        moody.fails = False
        assert await vault.get("k") == "old"  # its contents are unknown, and so is the newer token
        assert await vault.get("l") == "s3cret"
        moody.put("l", "of another program")
        assert await vault.get("l") == "of another program"
        assert await vault.get("l") == "of another program"

    asyncio.run(use())
    assert len(caplog.records) == 1
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        {"key": {"kty": "EC", "x": "broken"}},
        {"key": {}},
        {"key": None},
        {"access": "a\r\nX: y"},
        {"kind": "mac"},
        {"refresh": ""},
    ],
)
def test_damaged_tokens_are_requested_again(caplog, damage):
    async def visit() -> None:
        storage = MemoryTokens()
        async with AuthorizationServer.serve() as login, place(login, dpop=True) as url:
            for _ in range(2):
                async with Client(url, auth=OAuth(storage=storage, open_url=browse)):
                    pass
            assert login.request_counts["authorize"] == 1
            [name] = [name for name in storage._values if name.startswith("tokens\n")]
            storage.put(name, json.dumps(json.loads(storage._values[name]) | damage))
            async with Client(url, auth=OAuth(storage=storage, open_url=browse)) as mcp:
                await mcp.call_tool("whoami")
            assert login.request_counts["authorize"] == 2

    asyncio.run(visit())
    assert "cannot be read; requesting new ones" in caplog.text


# --------------------------------------------------------------------- guests


def test_silent_connections_do_not_block_the_browser():
    async def visit() -> None:
        async with RedirectListener("http://127.0.0.1/callback").open() as listener:
            listener.accept = lambda _: True
            port = urlsplit(listener.redirect_uri).port
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS + 3)]
            reader, browser = await asyncio.open_connection("127.0.0.1", port)
            browser.write(f"GET /callback?code=1 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            assert await listener.redirect_parameters == [("code", "1")]
            gone = await asyncio.gather(*(one.read() for one, _ in idle[:4]), return_exceptions=True)
            assert all(isinstance(one, ConnectionError) or one == b"" for one in gone)
        for _, writer in [*idle, (reader, browser)]:
            writer.close()

    asyncio.run(visit())


# --------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"expires_in": True}, r"invalid token response: Expected .*expires_in"),
        ({"expires_in": [1]}, r"invalid token response: Expected .*expires_in"),
        ({"scope": ["a"]}, r"invalid token response: Expected .*scope"),
        ({"scope": 5}, r"invalid token response: Expected .*scope"),
        ({"token_type": None}, r"invalid token response: Expected .*token_type"),
        ({"token_type": "Bearer\n"}, "of an unsupported type"),
        ({"access_token": "s3cret\n"}, "in a header"),
        ({"access_token": "s3cret s3cret"}, "in a header"),
        ({"access_token": "s3crét"}, "in a header"),
        ({"access_token": ["s3cret"]}, r"invalid token response: Expected .*access_token"),
        ({"refresh_token": "s3cret\n"}, "in a header"),
    ],
)
def test_an_answer_that_is_not_a_token_is_reported_without_being_shown(said, match):
    with pytest.raises(AuthError, match=match) as caught:
        parse_token_response({"access_token": "s3cret", "token_type": "Bearer"} | said, (), None)
    assert "s3c" not in str(caught.value)


def test_a_refresh_token_that_is_empty_is_none():
    said = {"access_token": "t", "token_type": "Bearer", "refresh_token": ""}
    assert parse_token_response(said, (), None).refresh is None
