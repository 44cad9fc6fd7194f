"""The untrusted environment of a client: folders, files, full disks, redirects, malformed responses."""

import asyncio
import base64
import json
import logging
import os
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote_plus, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_authorization_site import CALLED, DISCOVERED, NEWEST, AuthSites, browse, origin, run
from scripted import Heard, answer
from toolpost import AuthError, Client, ClientCredentials, FileTokens, MemoryTokens, OAuth
from toolpost.errors import AuthorizationRequired
from waiting import list_descriptors

# --------------------------------------------------------------------- folders and files


def test_a_wait_for_a_lock_that_is_cancelled_leaves_nothing_open(tmp_path):
    async def use() -> None:
        kept = FileTokens(tmp_path)

        async def enter() -> None:
            async with kept.lock("k"):
                await asyncio.sleep(0)

        async with kept.lock("k"):
            before = len(list_descriptors())
            for turns in [0, 1, 2, 3] * 50:
                task = asyncio.ensure_future(enter())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            await asyncio.get_running_loop().shutdown_default_executor()
            assert len(list_descriptors()) == before

    asyncio.run(use())


def somebody_elses(folder: Path) -> Path:
    if os.geteuid():
        return Path("/")
    os.chown(folder, 65534, 65534)
    return folder


@pytest.mark.parametrize(
    ("mode", "match"), [(0o755, "is readable"), (0o777, "is writable"), (None, "belongs to another user")]
)
def test_a_folder_that_others_can_read_is_rejected_before_the_login(tmp_path, mode, match):
    folder = somebody_elses(tmp_path) if mode is None else tmp_path
    if mode is not None:
        tmp_path.chmod(mode)

    async def visit(sites: AuthSites) -> None:
        with pytest.raises(AuthError, match=match) as caught:
            await sites.client(sites.oauth(storage=FileTokens(folder))).connect()
        assert caught.value.hint is not None
        assert f"chmod 700 {folder}" in caught.value.hint
        assert not sites.authorized

    run(visit)
    with pytest.raises(AuthError, match=match):
        asyncio.run(FileTokens(folder).put("k", "v"))


@contextmanager
def full_disk() -> Generator[None]:
    """Let no file grow during the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_does_not_lose_a_token(tmp_path, caplog):
    async def visit(sites: AuthSites) -> None:
        async with sites.client(sites.oauth(storage=FileTokens(tmp_path))) as mcp:
            before = {path: path.read_bytes() for path in tmp_path.glob("*")}
            with full_disk():
                for _ in range(3):  # the last refresh token is used, not the one in the file
                    sites.valid.clear()
                    assert (await mcp.call_tool("anything")).text == "done"
            assert sites.grants == ["authorization_code", *3 * ["refresh_token"]]
            assert {path: path.read_bytes() for path in tmp_path.glob("*")} == before
            sites.valid.clear()
            await mcp.call_tool("anything")
        [warning] = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert "only kept in memory" in warning.getMessage()
        assert "File too large" in warning.getMessage()
        async with sites.client(sites.oauth(storage=FileTokens(tmp_path))):  # it was stored in the end
            assert len(sites.authorized) == 1

    run(visit)
    assert "-secret" not in caplog.text


# --------------------------------------------------------------------- contents of error messages

SECRET = "my s3cret/of+16 chars"


def parroting(part: Any) -> Any:
    """A token endpoint whose response contains a part of the request."""

    def say(heard: Heard) -> bytes:
        form = dict(parse_qsl(heard.body.decode()))
        pair = base64.b64decode(heard.headers.get("authorization", "Basic ").split(" ")[1]).decode()
        said = part(form | {"pair": pair, "header": heard.headers.get("authorization", "")})
        return answer(400, json.dumps(said).encode())

    return say


@pytest.mark.parametrize(
    "part",
    [
        lambda form: {"error": "invalid_client", "error_description": f"wrong: {form['pair']}"},
        lambda form: {"error": "invalid_client", "error_description": unquote_plus(form["pair"])},
        lambda form: {"error": "invalid_client", "error_description": form["header"]},
        lambda form: {"error": "invalid_client", "error_description": unquote_plus(form["pair"])[4:18] + "…"},
        lambda form: {"error": "x" * 100_000, "error_description": "x" * 100_000},
        lambda form: {"error": form["header"].partition(" ")[2].rstrip("=")},
    ],
)
def test_a_secret_that_is_sent_as_a_header_is_not_repeated(caplog, part):
    caplog.set_level(logging.DEBUG)

    async def visit(sites: AuthSites) -> None:
        sites.paths["/token"] = parroting(part)
        with pytest.raises(AuthError, match="the token endpoint denied the request") as caught:
            await sites.client(ClientCredentials("job", SECRET)).connect()
        text = str(caught.value) + repr(caught.value) + caplog.text
        for secret in (SECRET, SECRET[3:12], "my+s3cret", base64.b64encode(b"job:my+s3cret")[:16].decode()):
            assert secret not in text
        assert len(str(caught.value)) < 1000

    run(visit)


@pytest.mark.parametrize("field", ["code", "code_verifier"])
@pytest.mark.parametrize("cut", [None, 12])
def test_form_values_are_not_repeated(field, cut):
    sent: list[str] = []

    def part(form: dict[str, str]) -> dict[str, str]:
        sent.append(form[field][:cut])
        return {"error": sent[0], "error_description": f"{sent[0]} is not known"}

    async def visit(sites: AuthSites) -> None:
        sites.paths["/token"] = parroting(part)
        with pytest.raises(AuthError, match="HTTP 400") as caught:
            await sites.client().connect()
        assert sent[0] not in str(caught.value)

    run(visit)


def test_text_that_is_not_secret_may_be_repeated():
    async def visit(sites: AuthSites) -> None:
        said = lambda form: {"error": "invalid_grant", "error_description": f"{form['redirect_uri']} is new"}  # noqa: E731 - short
        sites.paths["/token"] = parroting(said)
        with pytest.raises(AuthError, match=r"invalid_grant: http://127\.0\.0\.1:\d+/callback is new"):
            await sites.client().connect()

    run(visit)


# --------------------------------------------------------------------- metadata


@pytest.mark.parametrize(
    ("named", "match"),
    [
        ("http://evil@{host}/mcp", "contains a user"),
        ("http://{host}\n/mcp", "has an invalid character"),
        (" http://{host}/mcp", "has an invalid character"),
        ("http://{host}/mcp\x00", "has an invalid character"),
        ("http://{host}/mcp#", "not for"),
        ("http://{host}0000/mcp", "not a URL"),
        ("http://[{host}/mcp", "not a URL"),
    ],
)
def test_a_resource_identifier_must_be_a_url(named, match):
    async def visit(sites: AuthSites) -> None:
        sites.resource = {"resource": named.format(host=urlsplit(sites.server).netloc)}
        with pytest.raises(AuthError, match=match):
            await sites.client().connect()
        assert not sites.authorized

    run(visit)


@pytest.mark.parametrize("location", ["http://h:99999/x", "http://h:abc/x", "http://[::1/x"])
def test_metadata_that_is_redirected_to_an_invalid_url(location):
    async def visit(sites: AuthSites) -> None:
        moved = answer(302, kind=None, Location=location)
        sites.paths["/.well-known/oauth-protected-resource/mcp"] = lambda _: moved
        with pytest.raises(AuthError, match="redirects to an invalid URL"):
            await sites.client().connect()

    run(visit)


ROOT = "http://127.0.0.1"
USUAL: dict[str, dict[str, Any]] = {
    "resource": {"resource": f"{ROOT}/mcp", "authorization_servers": [ROOT], "scopes_supported": ["a"]},
    "issuer": {
        "issuer": ROOT,
        "authorization_endpoint": f"{ROOT}/authorize",
        "token_endpoint": f"{ROOT}/token",
        "registration_endpoint": f"{ROOT}/register",
        "scopes_supported": ["a", "offline_access"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
        "grant_types_supported": ["authorization_code"],
        "client_id_metadata_document_supported": False,
        "authorization_response_iss_parameter_supported": False,
        "dpop_signing_alg_values_supported": ["ES256"],
    },
    "registration": {
        "client_id": "me",
        "client_secret": "s",
        "client_secret_expires_at": 0,
        "token_endpoint_auth_method": "client_secret_basic",
    },
    "token": {
        "access_token": "t",
        "token_type": "bearer",
        "expires_in": 3600,
        "refresh_token": "r",
        "scope": "a",
    },
}
MEMBERS = [(name, member) for name, document in USUAL.items() for member in document]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    [
        *(f"{ROOT}:{port}" for port in ("0", "99999", "x", "")),
        *(
            f"{ROOT}{path}"
            for path in ("/", "/mcp", "/\n", "/mcp#", "?", "/%", "/..", "\\", "/é", "/x" * 9000)
        ),
        *(
            "http://",
            "http://[",
            "http://[::1",
            "http://a@127.0.0.1/mcp",
            "HTTP://127.0.0.1/mcp",
            "//x",
            "\0",
        ),
        *(
            "NaN",
            "-1",
            "1e999",
            "9" * 5000,
            "dpop",
            "DPoP",
            "none",
            "private_key_jwt",
            "a b",
            "a\r\nX: y",
            "",
        ),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)


class Place:
    """An MCP server and its authorization server in one, with configurable documents."""

    def __init__(self, changed: dict[str, Any]) -> None:
        self.said = {name: document | changed.get(name, {}) for name, document in USUAL.items()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path, headers = scope["path"], dict(scope["headers"])
        status, body, extra = 200, b"", []
        if path.startswith("/.well-known/"):
            named = {
                "/.well-known/oauth-protected-resource/mcp": "resource",
                "/.well-known/oauth-authorization-server": "issuer",
            }
            status, body = (200, self._document(named[path])) if path in named else (404, b"")
        elif path != "/mcp":
            body = self._document("registration" if path == "/register" else "token")
        elif b"authorization" not in headers:
            status, extra = 401, [(b"www-authenticate", b"Bearer")]
        else:
            message = json.loads((await receive())["body"])
            result = {"server/discover": DISCOVERED}.get(message["method"], CALLED)
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        start = {"type": "http.response.start", "status": status}
        await send({**start, "headers": [(b"content-type", b"application/json"), *extra]})
        await send({"type": "http.response.body", "body": body})

    def _document(self, name: str) -> bytes:
        return json.dumps(self.said[name]).encode()


def redirect(url: str) -> str:
    asked = parse_qs(urlsplit(url).query)
    return f"{asked['redirect_uri'][0]}?code=1&state={asked['state'][0]}"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(MEMBERS), VALUES)
def test_every_setting_is_used_or_rejected_wherever_it_is_passed(place, value):
    name, member = place
    site = Place({name: {member: value}})
    auth = OAuth(storage=MemoryTokens(), http=site, open_url=redirect, timeout=5.0)

    async def visit() -> None:
        try:
            async with Client(f"{ROOT}/mcp", http=site, auth=auth, revision=NEWEST) as mcp:
                await mcp.call_tool("anything")
        except AuthError as error:
            assert len(str(error)) < 2000  # noqa: PT017 - either is fine

    asyncio.run(visit())


def test_the_default_paths_are_used():
    async def visit() -> None:
        site = Place({})
        auth = OAuth(storage=MemoryTokens(), http=site, open_url=redirect, timeout=5.0)
        async with Client(f"{ROOT}/mcp", http=site, auth=auth, revision=NEWEST) as mcp:
            assert (await mcp.call_tool("anything")).text == "done"

    asyncio.run(visit())


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"client_id": ""}, "with invalid characters"),
        ({"client_id": "c\r\n"}, "with invalid characters"),
        ({"client_id": "c", "client_secret": "s3cret\n"}, "with invalid characters"),
        ({"client_id": 5}, r"sent an invalid response: Expected .*client_id"),
    ],
)
def test_an_unusable_registration_is_reported(said, match):
    async def visit(sites: AuthSites) -> None:
        sites.paths["/register"] = lambda _: answer(201, json.dumps(said).encode())
        with pytest.raises(AuthError, match=match) as caught:
            await sites.client().connect()
        assert "s3cret" not in str(caught.value)
        assert not sites.authorized

    run(visit)


# --------------------------------------------------------------------- without a browser


def test_a_code_alone_does_not_name_its_issuer():
    async def visit(sites: AuthSites) -> None:
        async def code(url: str) -> str:
            return parse_qs(urlsplit(await browse(url)).query)["code"][0]

        auth = sites.oauth(open_url=code)
        async with sites.client(auth):
            pass
        sites.metadata = {"authorization_response_iss_parameter_supported": True}
        with pytest.raises(AuthError, match=r"only a code.*return the whole URL"):
            await sites.client(sites.oauth(open_url=code)).connect()
        assert len(sites.forms) == 1
        assert origin(sites.issuer) == sites.issuer

    run(visit)


def test_without_a_browser_the_error_has_a_hint(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("webbrowser.open", lambda *_, **__: False)  # as without a browser

    async def visit(sites: AuthSites) -> None:
        with pytest.raises(AuthorizationRequired, match="no browser") as caught:
            await sites.client(sites.oauth(open_url=None)).connect()
        assert caught.value.hint is not None
        assert "open_url=" in caught.value.hint
        assert "ClientCredentials" in caught.value.hint
        assert "state=" not in str(caught.value)

    run(visit)
