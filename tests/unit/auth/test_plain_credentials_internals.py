"""Plain credentials: a token, a function, an object; over every kind of HTTP."""

import asyncio
from collections.abc import Mapping

import pytest

from fake_authorization_site import AuthSites, run
from toolpost import AuthError, Client, Http, OAuth, Server
from toolpost.connect import make_connector
from toolpost.errors import (
    ConnectFailed,
    TokenRejected,
)
from toolpost.transports.credentials import (
    BearerToken,
    CredentialsRejection,
    OutgoingRequest,
    make_authorizer,
)


def test_a_custom_object_satisfies_the_protocol():
    class Mine:
        def __init__(self) -> None:
            self.told: list[object] = []

        async def headers(self, errand: OutgoingRequest, /) -> Mapping[str, str]:
            self.told.append(errand.method)
            return {"authorization": "Bearer mine"} if len(self.told) > 1 else {"x-key": "1"}

        async def on_rejected(self, errand: OutgoingRequest, refused: CredentialsRejection, /) -> bool:
            self.told.append((refused.status, dict(refused.sent), errand.server == errand.url))
            return True

        def on_accepted(
            self, _errand: OutgoingRequest, _headers: Mapping[str, str], sent: Mapping[str, str], /
        ) -> None:
            self.told.append(dict(sent))

    async def visit(sites: AuthSites) -> None:
        sites.valid["mine"] = ()
        mine = Mine()
        async with sites.client(mine):
            pass
        assert mine.told == ["POST", (401, {"x-key": "1"}, True), "POST", {"authorization": "Bearer mine"}]
        # An endless one is stopped.
        sites.valid.clear()
        with pytest.raises(TokenRejected):
            await sites.client(mine).connect()
        assert len(sites.heard) < 12

    run(visit)


@pytest.mark.parametrize("token", ["", "two words", "line\n", "ü", 5])
def test_an_invalid_token_is_rejected_without_being_shown(token):
    with pytest.raises(
        AuthError,
        match=r"the token function .*<lambda> .* an invalid token: (the token|a int instead)",
    ) as caught:
        raise AssertionError(asyncio.run(BearerToken(lambda: token).headers(OutgoingRequest("", "", ""))))
    assert repr(token) not in str(caught.value) or not token


def test_a_verifier_that_accepts_no_token_is_rejected():
    with pytest.raises(TypeError, match="must be a token"):
        Client("http://localhost/mcp", auth=5)  # pyright: ignore[reportArgumentType] - on purpose
    with pytest.raises(TypeError, match="is a class"):
        Client("http://localhost/mcp", auth=OAuth)  # pyright: ignore[reportArgumentType] - on purpose
    with pytest.raises(TypeError, match="auth= requires an HTTP target"):
        Client(Server("x"), auth="t0ken")
    with pytest.raises(ConnectFailed, match="mutually exclusive"):
        Client("http://localhost/mcp", headers={"Authorization": "Bearer x"}, auth="y")
    assert make_authorizer(None) is None


def test_oauth_may_stand_in_a_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made: list[object] = []

    def note(self: OAuth) -> None:
        made.append(self)

    monkeypatch.setattr(OAuth, "__init__", note)
    for entry in ({"auth": "oauth"}, {}):
        make_connector({"url": "http://localhost/mcp", **entry})
    assert len(made) == 1


def test_nothing_shows_a_token():
    for holder in (
        BearerToken("s3cret"),
        BearerToken(lambda: "s3cret"),
        Http("http://x.example", auth="s3cret"),
    ):
        assert "s3cret" not in repr(holder)
    assert "s3cret" not in repr(CredentialsRejection(401, {}, {"authorization": "Bearer s3cret"}))
    assert CredentialsRejection(401, {"www-authenticate": "A"}, {}).challenge == "A"
