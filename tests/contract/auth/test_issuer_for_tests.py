"""The authorization server for tests: its metadata, its tokens, and its refusals."""

import base64
import re
import secrets
from hashlib import sha256
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
import pytest

import toolpost.testing
from hosted import run
from protected_server import RESOURCE
from raw_http import Answer, wired
from toolpost import Jwt
from toolpost.testing import AuthorizationServer, TokenIssuer

BACK = "http://127.0.0.1:3000/callback"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Browser:
    """A client of the authorization server that follows no redirects."""

    def __init__(self, issuer: AuthorizationServer, client: str = "app") -> None:
        self.issuer = issuer
        self.client = client
        self.verifier = secrets.token_urlsafe(32)
        digest = sha256(self.verifier.encode()).digest()
        self.challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    async def ask(self, method: str, path: str, headers: Any = (), body: bytes | None = None) -> Answer:
        async with wired(urlsplit(self.issuer.issuer).port or 0) as wire:
            await wire.ask(method, path, headers, body)
            return await wire.answer()

    async def authorize(self, **changes: Any) -> Answer:
        asked: dict[str, Any] = {
            "response_type": "code",
            "client_id": self.client,
            "redirect_uri": BACK,
            "code_challenge": self.challenge,
            "code_challenge_method": "S256",
            "state": "s&t",
            "scope": "read write",
            "resource": RESOURCE,
            **changes,
        }
        return await self.ask("GET", f"/authorize?{urlencode({k: v for k, v in asked.items() if v})}")

    async def token(self, headers: Any = None, **given: Any) -> Answer:
        said = {"client_id": self.client, **given}
        body = urlencode({k: v for k, v in said.items() if v}).encode()
        return await self.ask("POST", "/token", {**FORM, **(headers or {})}, body)

    async def code(self, **changes: Any) -> str:
        return back(await self.authorize(**changes))["code"]

    async def redeem(self, code: str, /, **changes: Any) -> Answer:
        given = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK}
        return await self.token(**{**given, "code_verifier": self.verifier, "resource": RESOURCE, **changes})


def back(answer: Answer) -> dict[str, str]:
    """Return the parameters of the redirect."""
    assert answer.status == 302, answer
    where = urlsplit(answer.headers["location"])
    assert f"{where.scheme}://{where.netloc}{where.path}" == BACK
    return {name: values[0] for name, values in parse_qs(where.query).items()}


def json(answer: Answer) -> Any:
    assert answer.headers["cache-control"] == "no-store"
    return msgspec.json.decode(answer.body)


@pytest.mark.requirement("AS-3", "AS-4", "AS-6")
@pytest.mark.parametrize("path", ["", "/tenant"])
def test_the_published_metadata(path):
    async def main() -> None:
        async with AuthorizationServer.serve(path, scopes=["read"]) as issuer:
            browser = Browser(issuer)
            places = [
                f"/.well-known/oauth-authorization-server{path}",
                f"{path}/.well-known/openid-configuration",
            ]
            for place in places:
                told = json(await browser.ask("GET", place))
                assert told["issuer"] == issuer.issuer
                assert told["code_challenge_methods_supported"] == ["S256"]
                assert told["authorization_response_iss_parameter_supported"] is True
                assert told["token_endpoint"] == f"{issuer.issuer}/token"
                assert told["scopes_supported"] == ["read"]
            assert (await browser.ask("GET", "/nowhere")).status == 404
            assert (await browser.ask("OPTIONS", places[0])).status == 204
            [key] = json(await browser.ask("GET", f"{path}/jwks"))["keys"]
            assert "d" not in key

    run(main)


@pytest.mark.requirement("AS-5")
def test_from_registration_to_a_token_that_is_good():
    async def main() -> None:
        async with AuthorizationServer.serve() as issuer:
            browser = Browser(issuer)
            about = {"redirect_uris": [BACK], "token_endpoint_auth_method": "none", "client_name": "App"}
            made = await browser.ask("POST", "/register", (), msgspec.json.encode(about))
            assert made.status == 201
            assert "client_secret" not in json(made)
            browser.client = json(made)["client_id"]
            told = back(await browser.authorize())
            assert (told["state"], told["iss"]) == ("s&t", issuer.issuer)
            tokens = json(await browser.redeem(told["code"]))
            assert (tokens["token_type"], tokens["scope"]) == ("Bearer", "read write")
            whose = await Jwt(issuer.issuer, keys=issuer.jwks).verify(tokens["access_token"], RESOURCE)
            assert (whose.subject, whose.client, whose.scopes) == ("alice", browser.client, {"read", "write"})
            # At another port of this machine, as RFC 8252 has it.
            elsewhere = await browser.authorize(redirect_uri="http://127.0.0.1:4000/callback")
            assert elsewhere.status == 302

    run(main)


@pytest.mark.requirement("AS-11")
@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "nobody"},
        {"redirect_uri": "https://evil.example.com/"},
        {"redirect_uri": "http://127.0.0.1:3000/other"},
        {"redirect_uri": "javascript:alert(1)"},
        {"redirect_uri": None},
    ],
)
def test_redirects_to_unregistered_urls_are_refused(changes):
    async def main() -> None:
        async with AuthorizationServer.serve() as issuer:
            browser = Browser(issuer)
            about = msgspec.json.encode({"redirect_uris": [BACK]})
            browser.client = json(await browser.ask("POST", "/register", (), about))["client_id"]
            answer = await browser.authorize(**changes)
            assert (answer.status, "location" in answer.headers) == (400, False)

    run(main)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
    ],
)
def test_a_request_that_cannot_be_is_sent_back(changes, error):
    async def main() -> None:
        async with AuthorizationServer.serve(clients={"app": None}) as issuer:
            told = back(await Browser(issuer).authorize(**changes))
            assert told == {"error": error, "iss": issuer.issuer, "state": "s&t"}

    run(main)


@pytest.mark.parametrize(
    "changes",
    [
        {"code": "invented"},
        {"code_verifier": "x" * 43},
        {"code_verifier": None},
        {"redirect_uri": "http://127.0.0.1:3000/other"},
        {"client_id": "other"},
        {"resource": "https://other.example.com"},
        {"grant_type": "password"},
        {"client_id": "nobody"},
    ],
)
def test_a_code_is_valid_only_for_its_client(changes):
    async def main() -> None:
        async with AuthorizationServer.serve(clients={"app": None, "other": None}) as issuer:
            browser = Browser(issuer)
            answer = await browser.redeem(await browser.code(), **changes)
            assert answer.status in {400, 401}
            assert "access_token" not in json(answer)

    run(main)


@pytest.mark.requirement("AS-13")
def test_codes_and_refresh_tokens_are_good_once_and_their_family_ends_with_a_thief():
    async def main() -> None:
        async with AuthorizationServer.serve(clients={"app": None, "rs": "s"}) as issuer:
            browser = Browser(issuer)
            code = await browser.code()
            first = json(await browser.redeem(code))
            asked = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}
            second = json(await browser.token(**asked, scope="read"))
            assert second["scope"] == "read"
            assert second["refresh_token"] != first["refresh_token"]
            more = {"grant_type": "refresh_token", "refresh_token": second["refresh_token"], "scope": "admin"}
            assert json(await browser.token(**more))["error"] == "invalid_scope"
            assert json(await browser.token(**asked))["error"] == "invalid_grant"
            third = {"grant_type": "refresh_token", "refresh_token": second["refresh_token"]}
            assert json(await browser.token(**third))["error"] == "invalid_grant"
            proof = {"Authorization": "Basic " + base64.b64encode(b"rs:s").decode(), **FORM}
            said = urlencode({"token": second["access_token"]}).encode()
            assert json(await browser.ask("POST", "/introspect", proof, said)) == {"active": False}
            assert json(await browser.redeem(code))["error"] == "invalid_grant"

    run(main)


def test_a_client_that_speaks_for_itself():
    async def main() -> None:
        async with AuthorizationServer.serve(clients={"app": "s3cret", "public": None}) as issuer:
            browser = Browser(issuer)
            asked = {"grant_type": "client_credentials", "scope": "read", "resource": RESOURCE}
            told = json(await browser.token(**asked, client_secret="s3cret"))
            assert "refresh_token" not in told
            assert (
                await Jwt(issuer.issuer, keys=issuer.jwks).verify(told["access_token"], RESOURCE)
            ).client == "app"
            for wrong in ({"client_secret": "guess"}, {}, {"client_id": "public"}):
                assert (await browser.token(**{**asked, **wrong})).status in {400, 401}
            assert (await browser.token({"Authorization": "Basic ~"}, **asked)).status == 401

    run(main)


@pytest.mark.parametrize(
    ("about", "status"),
    [
        ({"redirect_uris": ["http://evil.example.com/"]}, 400),
        ({"redirect_uris": ["custom:app"]}, 400),
        ({"redirect_uris": []}, 400),
        ({}, 400),
        ([], 400),
        ({"redirect_uris": ["https://app.example.com/cb"]}, 201),
    ],
)
def test_only_some_clients_can_register(about, status):
    async def main() -> None:
        async with AuthorizationServer.serve() as issuer:
            browser = Browser(issuer)
            made = await browser.ask("POST", "/register", (), msgspec.json.encode(about))
            assert made.status == status
            issuer.registration = False
            assert (await browser.ask("POST", "/register", (), msgspec.json.encode(about))).status in {
                400,
                403,
            }

    run(main)


@pytest.mark.requirement("AS-10")
def test_the_consent_page_shows_the_client():
    async def main() -> None:
        async with AuthorizationServer.serve(consent=True, clients={"app": None}) as issuer:
            browser = Browser(issuer)
            issuer.clients["app"].name = "<b>App</b>"
            for answer, told in (("allow", "code"), ("deny", "error")):
                shown = await browser.authorize(scope="read <x>")
                text = shown.body.decode()
                assert "&lt;b&gt;App&lt;/b&gt;" in text
                assert "127.0.0.1:3000" in text
                assert "<li>&lt;x&gt;</li>" in text
                assert "For tests only" in text
                found = re.search(r'name="ticket" value="([^"]+)"', text)
                assert found
                said = urlencode({"ticket": unescape(found[1]), "answer": answer, "user": "bob"}).encode()
                sent = await browser.ask("POST", "/authorize", FORM, said)
                assert told in back(sent)
                # The form is good once.
                assert (await browser.ask("POST", "/authorize", FORM, said)).status == 400
                if answer == "allow":
                    token = json(await browser.redeem(back(sent)["code"]))["access_token"]
                    claims = issuer.claims_of(token)
                    assert claims
                    assert claims["sub"] == "bob"

    run(main)


def test_a_document_as_a_name():
    """A client ID metadata document is known beforehand: nothing is fetched."""

    async def main() -> None:
        url = "https://app.example.com/client.json"
        async with AuthorizationServer.serve(clients={url: None}) as issuer:
            browser = Browser(issuer, url)
            told = json(await browser.ask("GET", "/.well-known/oauth-authorization-server"))
            assert told["client_id_metadata_document_supported"] is True
            assert await browser.code()

    run(main)


def test_without_a_socket_it_is_an_application_like_any_other():
    async def main() -> None:
        issuer = AuthorizationServer("https://login.example.com")
        verifier = Jwt(issuer.issuer, http=issuer)
        assert (await verifier.verify(issuer.token(RESOURCE), RESOURCE)).subject == "alice"
        assert issuer.claims_of("opaque") is None
        assert repr(issuer) == "<AuthorizationServer https://login.example.com>"

    run(main)


def test_the_public_names_of_testing():
    assert toolpost.testing.TokenIssuer is TokenIssuer
    with pytest.raises(AttributeError, match="Nothing"):
        _ = toolpost.testing.Nothing  # pyright: ignore[reportAttributeAccessIssue] - that is the test
