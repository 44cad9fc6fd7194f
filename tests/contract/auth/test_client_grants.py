"""Grants without a login, and tokens that are bound to a key."""

import json
import subprocess
import sys
import time
from typing import Any
from urllib.parse import parse_qsl

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from dpop_site import bound
from fake_authorization_site import AuthSites, run
from scripted import answer, scripted
from toolpost import AuthError, ClientCredentials, EnterpriseManaged, WorkloadIdentity
from toolpost.errors import InsufficientScope, TokenRejected

KEY = ECKey.generate_key("P-256", private=True)
PEM = KEY.as_pem(private=True).decode()


# --------------------------------------------------------------------- client credentials


def test_a_program_shows_its_secret():
    async def visit(sites: AuthSites) -> None:
        sites.challenge = 'Bearer scope="a"'
        async with sites.client(ClientCredentials("me", "se cret", scopes="b")) as mcp:
            await mcp.call_tool("anything")
        [(form, headers)] = sites.forms
        assert form == {"grant_type": "client_credentials", "scope": "a b", "resource": sites.server}
        assert headers["authorization"] == "Basic bWU6c2UrY3JldA=="
        assert not sites.registered

    run(visit)


@pytest.mark.parametrize("key", [PEM, PEM.encode(), KEY.as_dict(private=True)])
def test_a_program_signs_its_identity(key):
    async def visit(sites: AuthSites) -> None:
        sites.metadata = {"token_endpoint_auth_methods_supported": ["private_key_jwt"]}
        async with sites.client(ClientCredentials("me", private_key=key, key_id="k1")) as mcp:
            await mcp.call_tool("anything")
        [(form, headers)] = sites.forms
        assert form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        assert "authorization" not in headers
        token = jwt.decode(form["client_assertion"], KEY, algorithms=["ES256"])
        assert token.header["kid"] == "k1"
        assert token.claims["iss"] == token.claims["sub"] == "me"
        assert token.claims["aud"] == sites.issuer
        assert 0 < token.claims["exp"] - time.time() <= 60

    run(visit)


def test_a_program_gets_a_new_token_before_the_old_one_ends():
    async def visit(sites: AuthSites) -> None:
        sites.token = {"expires_in": 0, "refresh_token": ...}
        async with sites.client(ClientCredentials("me", "secret")) as mcp:
            sites.token = {"refresh_token": ...}
            before = len(sites.grants)
            await mcp.call_tool("anything")
            await mcp.call_tool("anything")
        assert sites.grants[before:] == ["client_credentials"]

    run(visit)


def test_a_program_may_ask_for_more():
    async def visit(sites: AuthSites) -> None:
        sites.needs = ("write",)
        async with sites.client(ClientCredentials("me", "secret", scopes=["read"])) as mcp:
            await mcp.call_tool("anything")
        assert [form["scope"] for form, _ in sites.forms] == ["read", "read write"]

    run(visit)


def test_a_secret_is_not_shown_to_a_second_authorization_server():
    async def visit(sites: AuthSites) -> None:
        auth = ClientCredentials("me", "secret", issuer="https://as.example")
        with pytest.raises(AuthError, match=r"the credentials are for https://as\.example"):
            await sites.client(auth).connect()
        assert not sites.forms

    run(visit)


@pytest.mark.parametrize("options", [{}, {"client_secret": "x", "private_key": PEM}])
def test_one_of_secret_and_key_is_given(options):
    with pytest.raises(ValueError, match="either client_secret= or private_key="):
        ClientCredentials("me", **options)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        ("nonsense", "ES256"),
        (PEM, "RS256"),
        (PEM, "HS256"),
        (PEM, "none"),
        (RSAKey.generate_key(2048).as_pem(private=True), "ES256"),
        (OctKey.generate_key(256).as_dict(private=True), "ES256"),
        (KEY.as_dict(private=False), "ES256"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_without_being_shown(key, algorithm):
    with pytest.raises(AuthError) as caught:
        ClientCredentials("me", private_key=key, algorithm=algorithm)
    assert "PRIVATE" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_without_the_extra_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['joserfc'] = None\n"
        "from toolpost import ClientCredentials, AuthError\n"
        "ClientCredentials('me', 'secret')\n"
        "try: ClientCredentials('me', private_key='x')\n"
        "except AuthError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'toolpost[auth]'" in done.stdout


# --------------------------------------------------------------------- workload identity


def test_a_workload_sends_the_jwt_of_its_platform():
    async def visit(sites: AuthSites) -> None:
        async with sites.client(WorkloadIdentity("the.jwt", scopes=["a"])) as mcp:
            await mcp.call_tool("anything")
        [(form, _)] = sites.forms
        assert form == {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": "the.jwt",
            "scope": "a",
            "resource": sites.server,
        }

    run(visit)


def test_a_workload_that_is_refused_does_not_try_again():
    async def visit(sites: AuthSites) -> None:
        said = b'{"error": "invalid_grant", "error_description": "issuer not trusted"}'
        seen: list[Any] = []

        def refuse(heard) -> bytes:
            seen.append(heard)
            return answer(400, said)

        sites.paths["/token"] = refuse
        with pytest.raises(AuthError, match="invalid_grant: issuer not trusted"):
            await sites.client(WorkloadIdentity("the.jwt")).connect()
        assert len(seen) == 1

    run(visit)


def test_a_workload_that_is_refused_later_does_not_try_again_either():
    async def visit(sites: AuthSites) -> None:
        seen: list[Any] = []
        sites.token = {"expires_in": 0, "refresh_token": ...}
        async with sites.client(WorkloadIdentity("the.jwt")) as mcp:

            def refuse(heard) -> bytes:
                seen.append(heard)
                return answer(400, b'{"error": "invalid_grant"}')

            sites.paths["/token"] = refuse
            with pytest.raises(AuthError, match="invalid_grant"):
                await mcp.call_tool("anything")
        assert len(seen) == 1

    run(visit)


def test_a_workload_does_not_ask_for_more():
    async def visit(sites: AuthSites) -> None:
        sites.needs = ("write",)
        async with sites.client(WorkloadIdentity("the.jwt")) as mcp:
            with pytest.raises(InsufficientScope):
                await mcp.call_tool("anything")
        assert len(sites.forms) == 1

    run(visit)


def test_an_assertion_may_be_asked_for():
    async def later() -> str:
        return "async.jwt"

    class ReturnsAwaitable:
        def __call__(self):
            return later()

    async def visit(sites: AuthSites) -> None:
        for source in (lambda: "sync.jwt", later, ReturnsAwaitable()):
            sites.valid.clear()
            async with sites.client(WorkloadIdentity(source, client_id="me")):
                pass
        assert [form["assertion"] for form, _ in sites.forms] == ["sync.jwt", "async.jwt", "async.jwt"]
        assert {form["client_id"] for form, _ in sites.forms} == {"me"}
        with pytest.raises(AuthError, match="must return a string"):
            await sites.client(WorkloadIdentity(lambda: "")).connect()

    run(visit)


# --------------------------------------------------------------------- an enterprise


def enterprise(idp: str, **options: Any) -> EnterpriseManaged:
    usual: dict[str, Any] = {"idp_client_id": "at-idp", "idp_token_endpoint": f"{idp}/token"}
    usual |= {"client_id": "me", "client_secret": "secret"}
    return EnterpriseManaged("the.id.token", **(usual | options))


ID_JAG = {
    "access_token": "the.id.jag",
    "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag",
    "token_type": "N_A",
}


@pytest.mark.parametrize("by_issuer", [True, False])
def test_a_company_vouches_for_its_employee(by_issuer):
    async def visit(sites: AuthSites) -> None:
        asked: list[dict[str, str]] = []

        async def idp(heard) -> None:
            if heard.path.startswith("/.well-known"):
                said = {"issuer": company.url, "token_endpoint": f"{company.url}/token"}
            else:
                asked.append(dict(parse_qsl(heard.body.decode())))
                said = ID_JAG
            await heard.write(answer(200, json.dumps(said).encode()))

        async with scripted(idp, "") as company:
            where = {"idp_issuer": company.url, "idp_token_endpoint": None} if by_issuer else {}
            async with sites.client(enterprise(company.url, **where, scopes="a")) as mcp:
                await mcp.call_tool("anything")
        assert asked == [
            {
                "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
                "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
                "audience": sites.issuer,
                "resource": sites.server,
                "subject_token": "the.id.token",
                "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
                "scope": "a",
                "client_id": "at-idp",
            }
        ]
        [(form, headers)] = sites.forms
        assert (form["assertion"], form["grant_type"]) == (
            "the.id.jag",
            "urn:ietf:params:oauth:grant-type:jwt-bearer",
        )
        assert headers["authorization"].startswith("Basic ")
        assert "the.id.token" not in str(sites.forms)

    run(visit)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (answer(200, b"{}"), "sent an invalid response"),
        (answer(200, json.dumps(ID_JAG | {"issued_token_type": "x"}).encode()), "the wrong type"),
        (answer(403, b'{"error": "access_denied"}'), "access_denied"),
    ],
)
def test_a_company_that_does_not_vouch(said, match):
    async def visit(sites: AuthSites) -> None:
        async def idp(heard) -> None:
            await heard.write(said)

        async with scripted(idp, "") as company:
            with pytest.raises(AuthError, match=match):
                await sites.client(enterprise(company.url)).connect()
        assert not sites.forms

    run(visit)


@pytest.mark.parametrize("options", [{"idp_token_endpoint": None}, {"idp_token_endpoint": "file:///x"}])
def test_a_company_has_an_address(options):
    with pytest.raises(ValueError, match=r"idp|identity provider"):
        enterprise("https://idp.example", **options)


def test_a_bound_token_is_refreshed_with_the_same_key():
    async def visit(sites: AuthSites) -> None:
        seen = bound(sites)
        async with sites.client() as mcp:
            sites.valid.clear()
            await mcp.call_tool("anything")
        assert sites.grants == ["authorization_code", "refresh_token"]
        assert len({json.dumps(header["jwk"], sort_keys=True) for _, header, _ in seen}) == 1

    run(visit)


@pytest.mark.parametrize(
    ("dpop", "challenge", "listed", "match"),
    [
        (True, "Bearer", None, "does not list ES256"),
        ("auto", "DPoP", ["RS256"], "does not list ES256"),
        (True, "Bearer", ["ES256"], "did not issue a DPoP token"),
    ],
)
def test_a_token_that_should_be_bound_and_cannot(dpop, challenge, listed, match):
    async def visit(sites: AuthSites) -> None:
        sites.challenge = challenge
        sites.metadata = {"dpop_signing_alg_values_supported": listed}
        with pytest.raises(AuthError, match=match):
            await sites.client(sites.oauth(dpop=dpop)).connect()

    run(visit)


@pytest.mark.parametrize(("dpop", "listed"), [(False, ["ES256"]), ("auto", None)])
def test_a_plain_token_will_do_where_the_server_takes_both(dpop, listed):
    async def visit(sites: AuthSites) -> None:
        sites.challenge = 'DPoP algs="ES256", Bearer realm="x"'
        sites.metadata = {"dpop_signing_alg_values_supported": listed}
        async with sites.client(sites.oauth(dpop=dpop)) as mcp:
            await mcp.call_tool("anything")
        assert sites.heard[-1][2]["authorization"].startswith("Bearer ")

    run(visit)


def test_a_server_that_wants_ever_new_nonces_is_given_up():
    async def visit(sites: AuthSites) -> None:
        bound(sites)
        mcp, count = sites.answer_mcp, iter(range(1000))

        async def never(heard) -> bytes:
            if "dpop" not in heard.headers:
                return await mcp(heard)
            return answer(
                401, kind=None, WWW_Authenticate='DPoP error="use_dpop_nonce"', DPoP_Nonce=f"n{next(count)}"
            )

        sites.answer_mcp = never
        with pytest.raises(TokenRejected):
            await sites.client().connect()
        assert next(count) < 10

    run(visit)


def test_the_nonce_of_a_successful_response_is_stored():
    async def visit(sites: AuthSites) -> None:
        seen = bound(sites)
        mcp = sites.answer_mcp

        async def kind(heard) -> bytes:
            said = await mcp(heard)
            return said.replace(b"Content-Length", b"DPoP-Nonce: next\r\nContent-Length", 1)

        sites.answer_mcp = kind
        async with sites.client() as client:
            await client.call_tool("anything")
        assert seen[-1][2]["nonce"] == "next"

    run(visit)
