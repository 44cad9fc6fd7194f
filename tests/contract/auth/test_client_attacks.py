"""Attacks of servers on a client that logs in. The client rejects each of them before it does harm."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from expected_limits import MAX_DOCUMENT
from fake_authorization_site import AuthSites, browse, origin, run
from scripted import answer, scripted
from toolpost import AuthError, Client, MemoryTokens, OAuth
from toolpost.errors import AuthorizationRequired


async def refused(sites: AuthSites, match: str, **options: Any) -> None:
    with pytest.raises(AuthError, match=match):
        await sites.client(sites.oauth(**options)).connect()


def attack(
    match: str, prepare: Callable[[AuthSites], object], *, asked: tuple[str, ...] = (), **options: Any
) -> None:
    """Prepare sites, check that a client does not log in, and return the requests that it sent before."""

    async def visit(sites: AuthSites) -> None:
        done = prepare(sites)
        if isinstance(done, Awaitable):
            await done
        await refused(sites, match, **options)
        assert not sites.forms
        for path in ("/register", "/authorize"):
            assert (path in sites.looked) == (path in asked), sites.looked

    run(visit)


# --------------------------------------------------------------------- metadata


@pytest.mark.requirement("AUTH-4", "AUTH-18")
@pytest.mark.parametrize(
    "other",
    [
        "https://other.example/mcp",
        "http://127.0.0.1:1/mcp",
        "{root}/mcpx",
        "{root}/mcp/below",
        "x",
        "{url}#x",
    ],
)
def test_metadata_of_another_resource(other):
    def lie(sites: AuthSites) -> None:
        named = other.format(root=origin(sites.server), url=sites.server)
        sites.resource = {"resource": named}

    attack("is for .*, not for|is not an http or https URL", lie)


@pytest.mark.requirement("AUTH-41", "AUTH-42")
@pytest.mark.parametrize("form", ["{root}", "{root}/", "{url}/", "{upper}/mcp"])
def test_a_resource_may_be_named_by_its_origin_or_in_capitals(form):
    async def visit(sites: AuthSites) -> None:
        root = origin(sites.server)
        named = form.format(root=root, url=sites.server, upper=root.replace("http", "HTTP"))
        sites.resource = {"resource": named}
        async with sites.client():
            pass
        assert sites.authorized[0]["resource"] == named  # exactly as published

    run(visit)


@pytest.mark.requirement("AUTH-17")
@pytest.mark.parametrize("other", ["https://honest.example", "{issuer}/", "{upper}", "{issuer}:80"])
def test_metadata_of_another_issuer(other):
    def lie(sites: AuthSites) -> None:
        sites.metadata = {"issuer": other.format(issuer=sites.issuer, upper=sites.issuer.upper())}

    attack("the metadata at .* is for", lie)


@pytest.mark.parametrize(
    ("document", "match"),
    [
        ({"resource": 5}, "cannot be read"),
        ({"authorization_servers": []}, "lists no authorization server"),
        ({"authorization_servers": "x"}, "cannot be read"),
        ({"authorization_servers": ["file:///etc/passwd"]}, "not an http or https URL"),
        ({"authorization_servers": ["javascript:alert(1)"]}, "not an http or https URL"),
        ({"authorization_servers": ["https://user:pass@as.example"]}, "a user name or password"),
        ({"authorization_servers": ["http://as.example"]}, "not https"),
        ({"authorization_servers": ["https://as.example/?x=1"]}, "no query"),
        ({"authorization_servers": ["https://as.example\r\nX: y"]}, "not a URL"),
        ({"authorization_servers": ["https://[::1"]}, "not a URL"),
        ({"authorization_servers": ["https://as.example:0"]}, "not an http or https URL"),
    ],
)
@pytest.mark.requirement("SEC-4", "SEC-14")
def test_resource_metadata_that_cannot_be_used(document, match):
    def lie(sites: AuthSites) -> None:
        sites.resource = document

    attack(match, lie)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (answer(200, b"[]"), "not a JSON object"),
        (answer(200, b"{" * 5000), "not a JSON object"),
        (answer(503, b""), "responded with 503"),
        (answer(200, b"x" * (MAX_DOCUMENT + 1)), "exceeds the limit"),
    ],
)
def test_an_invalid_document_is_rejected(body, match):
    def lie(sites: AuthSites) -> None:
        sites.paths["/.well-known/oauth-protected-resource/mcp"] = lambda _: body

    attack(match, lie)


def test_a_page_for_every_path_is_not_a_document():
    async def visit(sites: AuthSites) -> None:
        sites.challenge = "Bearer"
        sites.paths["/.well-known/oauth-protected-resource/mcp"] = lambda _: answer(
            200, b"<p>hi", "text/html"
        )
        found = b'{"resource": "%b", "authorization_servers": ["%b"]}'
        said = found % (sites.server.encode(), sites.issuer.encode())
        sites.paths["/.well-known/oauth-protected-resource"] = lambda _: answer(200, said)
        async with sites.client():
            pass

    run(visit)


# --------------------------------------------------------------------- PKCE


@pytest.mark.requirement("AUTH-64", "AUTH-65")
@pytest.mark.parametrize("methods", [..., None, [], ["plain"], ["s256"]])
def test_a_server_without_pkce_is_rejected(methods):
    def lower(sites: AuthSites) -> None:
        sites.metadata = {"code_challenge_methods_supported": methods}

    attack("PKCE", lower)


# --------------------------------------------------------------------- pages


@pytest.mark.requirement("SEC-14", "SEC-15")
@pytest.mark.parametrize(
    "page",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "vbscript:x",
        "https://as.example/`touch x`",
        'https://as.example/"; rm -rf',
        "http://as.example/authorize",
        "-https://as.example",
        "https:///authorize",
        "https://as.example/x#y",
        ...,
    ],
)
def test_a_page_that_must_not_be_opened(page):
    opened: list[str] = []

    def lie(sites: AuthSites) -> None:
        sites.metadata = {"authorization_endpoint": page}

    attack(
        "the login page|has no login page",
        lie,
        asked=() if page is ... else ("/register",),
        open_url=opened.append,
    )
    assert not opened


# --------------------------------------------------------------------- answers


@pytest.mark.requirement("AUTH-35", "AUTH-36", "AUTH-37", "AUTH-38", "AUTH-39")
@pytest.mark.parametrize(
    ("advertised", "iss", "good"),
    [
        (True, "{issuer}", True),
        (True, None, False),
        (True, "https://evil.example", False),
        (True, "{issuer}/", False),
        (True, "{upper}", False),
        (True, "", False),
        (False, "{issuer}", True),
        (False, None, True),
        (False, "https://evil.example", False),
        (None, "{issuer}", True),
        (None, None, True),
        (None, "{issuer}/", False),
    ],
)
@pytest.mark.parametrize("error", [None, "access_denied"])
def test_the_issuer_of_an_answer_is_compared_with_the_one_asked(advertised, iss, good, error):
    async def visit(sites: AuthSites) -> None:
        sites.metadata = {"authorization_response_iss_parameter_supported": advertised}

        def say(said: dict[str, str]) -> dict[str, str]:
            if error is not None:
                said = {"state": said["state"], "error": error, "error_description": "evil words"}
            if iss is None:
                return said
            return {**said, "iss": iss.format(issuer=sites.issuer, upper=sites.issuer.upper())}

        sites.redirect = say
        client = sites.client()
        if good and error is None:
            await client.connect()
            await client.close()
            return
        with pytest.raises(AuthError) as caught:
            await client.connect()
        assert isinstance(caught.value, AuthorizationRequired) is good  # otherwise the error is not retrieved
        assert "evil words" not in str(caught.value)
        assert not sites.forms

    run(visit)


@pytest.mark.requirement("AUTH-67")
@pytest.mark.parametrize(
    "change",
    [
        lambda said: {"code": said["code"]},
        lambda said: {**said, "state": ""},
        lambda said: {**said, "state": said["state"] + "x"},
        lambda said: {**said, "state": "ü"},
    ],
)
def test_a_redirect_with_another_state_is_rejected(change):
    def lie(sites: AuthSites) -> None:
        sites.redirect = change

    attack("has the wrong state", lie, asked=("/register", "/authorize"))


def test_a_duplicate_parameter_in_the_redirect_is_rejected():
    async def twice(url: str) -> str:
        return await browse(url) + "&code=another"

    attack("repeats a parameter", lambda _: None, asked=("/register", "/authorize"), open_url=twice)


def test_a_code_is_used_once():
    async def visit(sites: AuthSites) -> None:
        async with sites.client():
            pass
        [(form, _)] = sites.forms
        assert form["code"] not in sites.codes
        sites.valid.clear()
        sites.refresh.clear()
        stolen = form["code"]
        sites.redirect = lambda said: {**said, "code": stolen}
        with pytest.raises(AuthError, match="invalid_grant"):
            await sites.client().connect()

    run(visit)


@pytest.mark.requirement("SEC-3", "SEC-4")
@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/x", "https://169.254.169.254/x", "file:///etc/passwd"]
)
@pytest.mark.parametrize("where", ["challenge", "issuer", "token_endpoint", "registration_endpoint"])
def test_no_url_in_metadata_may_lead_there(target, where):
    async def visit(sites: AuthSites) -> None:
        if where == "challenge":
            sites.challenge = f'Bearer resource_metadata="{target}"'
        elif where == "issuer":
            sites.resource = {"authorization_servers": [target]}
        else:
            sites.metadata = {where: target}
        await refused(sites, "is in a private network|not https|not an http or https URL")

    run(visit)


@pytest.mark.requirement("SEC-4")
def test_metadata_is_not_followed_to_another_origin():
    async def visit(sites: AuthSites) -> None:
        heard: list[Any] = []

        async def listen(request: Any) -> None:
            heard.append(request)

        async with scripted(listen) as elsewhere:
            for location in (elsewhere.url, "https://169.254.169.254/", "file:///etc/passwd", "http://["):
                moved = answer(302, kind=None, Location=location)
                sites.paths["/.well-known/oauth-protected-resource/mcp"] = lambda _, moved=moved: moved
                await refused(sites, "redirects to")
            sites.paths.clear()
            sites.paths["/register"] = lambda _: answer(307, kind=None, Location=elsewhere.url)
            await refused(sites, r"could not be registered: .*HTTP 307")
            del sites.paths["/register"]
            sites.paths["/token"] = lambda _: answer(307, kind=None, Location=elsewhere.url)
            await refused(sites, "HTTP 307")
        assert not heard

    run(visit)


def test_metadata_redirects_stay_within_the_origin_and_are_limited():
    async def visit(sites: AuthSites) -> None:
        place = "/.well-known/oauth-protected-resource/mcp"
        sites.paths[place] = lambda _: answer(301, kind=None, Location="/there")
        said = b'{"resource": "%b", "authorization_servers": ["%b"]}'
        sites.paths["/there"] = lambda _: answer(200, said % (sites.server.encode(), sites.issuer.encode()))
        async with sites.client():
            pass
        sites.paths["/there"] = lambda _: answer(301, kind=None, Location="/there")
        await refused(sites, "more than 3 times")

    run(visit)


# --------------------------------------------------------------------- mix-up, migration, credentials


@pytest.mark.requirement("AUTH-18", "AUTH-19", "AUTH-30", "AUTH-31")
def test_a_changed_authorization_server_means_a_new_registration():
    async def visit(sites: AuthSites) -> None:
        other = AuthSites()
        async with scripted(other.serve_issuer, "") as second:
            other.issuer, other.server, other.valid = second.url, sites.server, sites.valid
            other.made = 100
            async with sites.client() as mcp:
                sites.valid.clear()
                sites.resource = {"authorization_servers": [other.issuer]}
                await mcp.call_tool("anything")
            assert len(sites.registered) == len(other.registered) == 1
            assert sites.grants == ["authorization_code"]  # no refresh happened
            assert other.grants == ["authorization_code"]  # nor to use the refresh token here

    run(visit)


@pytest.mark.requirement("AUTH-24", "AUTH-29", "AUTH-30", "AUTH-32")
@pytest.mark.parametrize("named", [True, False])
def test_credentials_are_shown_to_one_authorization_server_only(named):
    async def visit(sites: AuthSites) -> None:
        evil = AuthSites()
        async with scripted(evil.serve_issuer, "") as second:
            evil.issuer, evil.server = second.url, sites.server
            options = {"client_id": "me", "client_secret": "s:&%"} | (
                {"issuer": sites.issuer} if named else {}
            )
            auth = sites.oauth(**options)
            async with sites.client(auth) as mcp:
                assert not sites.registered
                [(_, headers)] = sites.forms
                assert headers["authorization"] == "Basic bWU6cyUzQSUyNiUyNQ=="  # me:s%3A%26%25
                sites.valid.clear()
                sites.refresh.clear()
                sites.resource = {"authorization_servers": [evil.issuer]}
                with pytest.raises(AuthError, match=r"the server names|is from"):
                    await mcp.call_tool("anything")
            assert not evil.forms
            assert not evil.authorized

    run(visit)


def test_stored_credentials_are_sent_only_to_their_issuer():
    async def visit(sites: AuthSites) -> None:
        storage = MemoryTokens()
        async with sites.client(sites.oauth(client_id="me", client_secret="s", storage=storage)):
            pass
        sites.valid.clear()
        sites.refresh.clear()
        sites.resource = {"authorization_servers": [f"{sites.issuer}/other"]}
        await refused(sites, "has|credentials|publishes", client_id="me", client_secret="s", storage=storage)
        assert len(sites.authorized) == 1

    run(visit)


@pytest.mark.requirement("AUTH-15", "AUTH-16")
def test_the_metadata_of_an_issuer_is_searched_in_order():
    async def visit(sites: AuthSites) -> None:
        sites.resource = {"authorization_servers": [f"{sites.issuer}/tenant"]}
        await refused(sites, "publishes no metadata")
        assert sites.looked[1:] == [
            "/.well-known/oauth-authorization-server/tenant",
            "/.well-known/openid-configuration/tenant",
            "/tenant/.well-known/openid-configuration",
        ]
        sites.looked.clear()
        sites.resource, sites.metadata = {}, None
        await refused(sites, "publishes no metadata")
        assert sites.looked[1:] == [
            "/.well-known/oauth-authorization-server",
            "/.well-known/openid-configuration",
        ]

    run(visit)


@pytest.mark.requirement("AUTH-6")
def test_servers_of_the_second_revision_are_their_own_authorization_server():
    async def visit(sites: AuthSites) -> None:
        sites.challenge, sites.resource = "Bearer", None
        root = origin(sites.server)
        for path in ("register", "token"):
            sites.paths[f"/{path}"] = {
                "register": lambda h: sites.answer_registration(h.body),
                "token": sites.answer_token,
            }[path]

        async def user(url: str) -> str:
            assert url.startswith(f"{root}/authorize?")
            return await browse(url.replace(root, sites.issuer))

        async with sites.client(sites.oauth(open_url=user)) as mcp:
            await mcp.call_tool("anything")
        assert sites.looked[:3] == [
            "/.well-known/oauth-protected-resource/mcp",
            "/.well-known/oauth-protected-resource",
            "/.well-known/oauth-authorization-server",
        ]

    run(visit)


# --------------------------------------------------------------------- registration


@pytest.mark.requirement("AUTH-20", "AUTH-21", "AUTH-22", "AUTH-23")
@pytest.mark.parametrize(("supported", "used"), [(True, True), (False, False), (None, False)])
def test_a_client_metadata_document_is_used_if_it_is_supported(supported, used):
    async def visit(sites: AuthSites) -> None:
        page = "https://app.example/client.json"
        sites.metadata = {"client_id_metadata_document_supported": supported}
        async with sites.client(sites.oauth(client_metadata_url=page)):
            pass
        assert (sites.authorized[0]["client_id"] == page) is used
        assert bool(sites.registered) is not used

    run(visit)


@pytest.mark.requirement("AUTH-27", "AUTH-28", "AUTH-33")
@pytest.mark.parametrize(
    ("said", "match"),
    [
        (answer(400, b'{"error": "invalid_redirect_uri"}'), "does not accept http://127.0.0.1"),
        (
            answer(400, b'{"error": "no\\n", "error_description": "go\\u001b away"}'),
            "HTTP 400: go away.*manually",
        ),
        (answer(201, b"{}"), "registration endpoint sent an invalid response"),
        (answer(500, b"<html>"), "HTTP 500"),
    ],
)
def test_a_failed_registration_is_reported(said, match):
    async def visit(sites: AuthSites) -> None:
        sites.paths["/register"] = lambda _: said
        await refused(sites, match)

    run(visit)


@pytest.mark.requirement("AUTH-28")
def test_without_dynamic_registration_a_client_id_is_required():
    def close(sites: AuthSites) -> None:
        sites.metadata = {"registration_endpoint": ...}

    attack("pass client_id=", close)


@pytest.mark.parametrize(
    "options",
    [
        {"client_secret": "x"},
        {"issuer": "https://as.example"},
        {"client_metadata_url": "http://app.example/c.json"},
        {"client_metadata_url": "https://app.example/"},
        {"client_metadata_url": "what"},
        {"redirect_uri": "http://app.example/back"},
        {"redirect_uri": "https://app.example/back"},
        {"redirect_uri": "https://127.0.0.1/back"},
        {"redirect_uri": "myapp://back"},
        {"redirect_uri": "http://127.0.0.1/back?x=1"},
        {"scopes": ["a b"]},
        {"scopes": ['"']},
    ],
)
@pytest.mark.requirement("AUTH-66", "AUTH-22")
def test_invalid_arguments_are_rejected(options):
    with pytest.raises(ValueError, match=r"\w"):
        OAuth(**options)
    with pytest.raises(TypeError):
        OAuth([5])  # pyright: ignore[reportArgumentType] - on purpose


# --------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"access_token": ...}, "invalid token response"),
        ({"token_type": "mac"}, "of an unsupported type"),
        ({"access_token": "a\r\nX: y"}, "in a header"),
        ({"access_token": ""}, "in a header"),
        ({"token_type": "DPoP"}, "a DPoP token without a proof"),
    ],
)
def test_an_unusable_token_is_rejected(said, match):
    async def visit(sites: AuthSites) -> None:
        body = {"access_token": "t", "token_type": "Bearer"} | said
        text = json.dumps({name: value for name, value in body.items() if value is not ...}).encode()
        sites.paths["/token"] = lambda _: answer(200, text)
        await refused(sites, match)

    run(visit)


@pytest.mark.requirement("AUTH-47")
def test_a_token_goes_to_no_other_origin_and_into_no_query():
    async def visit(sites: AuthSites) -> None:
        heard: list[Any] = []

        async def listen(request: Any) -> None:
            heard.append(request)

        async with scripted(listen) as elsewhere, sites.client() as mcp:
            sites.paths["/mcp"] = lambda _: answer(307, kind=None, Location=elsewhere.url)
            with pytest.raises(Exception, match="redirects to another place"):
                await mcp.call_tool("anything")
        assert not heard

    run(visit)


@pytest.mark.requirement("SEC-4")
def test_a_server_elsewhere_needs_https():
    async def look() -> None:
        with pytest.raises(AuthError, match="not https"):
            await Client("http://mcp.example/mcp", auth=OAuth(storage=MemoryTokens())).connect()

    asyncio.run(look())


@pytest.mark.requirement("AUTH-17")
def test_unreadable_metadata_is_reported():
    def lie(sites: AuthSites) -> None:
        sites.metadata = {"token_endpoint": 5}

    attack("cannot be read", lie)


def test_a_server_without_a_token_endpoint():
    async def visit(sites: AuthSites) -> None:
        sites.metadata = {"token_endpoint": ...}
        await refused(sites, "no token endpoint")

    run(visit)


def test_an_issuer_that_cannot_be_reached():
    def close(sites: AuthSites) -> None:
        sites.resource = {"authorization_servers": ["http://127.0.0.1:1"]}

    attack("could not fetch .*: the connection was refused", close)
