"""What servers may try with a client that logs in: each attack is tried, and refused before it does harm."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from expected_limits import MAX_DOCUMENT
from fake_authorization_site import Town, browse, origin, run
from scripted import answer, scripted
from toolpost import AuthError, Client, MemoryTokens, OAuth
from toolpost.errors import AuthorizationRequired


async def refused(town: Town, match: str, **options: Any) -> None:
    with pytest.raises(AuthError, match=match):
        await town.client(town.oauth(**options)).connect()


def attack(
    match: str, prepare: Callable[[Town], object], *, asked: tuple[str, ...] = (), **options: Any
) -> None:
    """Prepare a town, see that a client does not log in there, and whom it has asked before it saw that."""

    async def visit(town: Town) -> None:
        done = prepare(town)
        if isinstance(done, Awaitable):
            await done
        await refused(town, match, **options)
        assert not town.forms
        for path in ("/register", "/authorize"):
            assert (path in town.looked) == (path in asked), town.looked

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
    def lie(town: Town) -> None:
        named = other.format(root=origin(town.server), url=town.server)
        town.resource = {"resource": named}

    attack("is about .*, and not about|is no http or https URL", lie)


@pytest.mark.requirement("AUTH-41", "AUTH-42")
@pytest.mark.parametrize("form", ["{root}", "{root}/", "{url}/", "{upper}/mcp"])
def test_a_resource_may_be_called_by_its_origin_or_in_capitals(form):
    async def visit(town: Town) -> None:
        root = origin(town.server)
        named = form.format(root=root, url=town.server, upper=root.replace("http", "HTTP"))
        town.resource = {"resource": named}
        async with town.client():
            pass
        assert town.authorized[0]["resource"] == named  # exactly as published

    run(visit)


@pytest.mark.requirement("AUTH-17")
@pytest.mark.parametrize("other", ["https://honest.example", "{issuer}/", "{upper}", "{issuer}:80"])
def test_metadata_of_another_issuer(other):
    def lie(town: Town) -> None:
        town.metadata = {"issuer": other.format(issuer=town.issuer, upper=town.issuer.upper())}

    attack("the metadata at .* is of", lie)


@pytest.mark.parametrize(
    ("document", "match"),
    [
        ({"resource": 5}, "cannot be read"),
        ({"authorization_servers": []}, "names no authorization server"),
        ({"authorization_servers": "x"}, "cannot be read"),
        ({"authorization_servers": ["file:///etc/passwd"]}, "no http or https URL"),
        ({"authorization_servers": ["javascript:alert(1)"]}, "no http or https URL"),
        ({"authorization_servers": ["https://user:pass@as.example"]}, "a user or a password"),
        ({"authorization_servers": ["http://as.example"]}, "not https"),
        ({"authorization_servers": ["https://as.example/?x=1"]}, "no query"),
        ({"authorization_servers": ["https://as.example\r\nX: y"]}, "no URL"),
        ({"authorization_servers": ["https://[::1"]}, "no URL"),
        ({"authorization_servers": ["https://as.example:0"]}, "no http or https URL"),
    ],
)
@pytest.mark.requirement("SEC-4", "SEC-14")
def test_resource_metadata_that_cannot_be_used(document, match):
    def lie(town: Town) -> None:
        town.resource = document

    attack(match, lie)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (answer(200, b"[]"), "no JSON object"),
        (answer(200, b"{" * 5000), "no JSON object"),
        (answer(503, b""), "answers with 503"),
        (answer(200, b"x" * (MAX_DOCUMENT + 1)), "more than"),
    ],
)
def test_a_document_that_is_none(body, match):
    def lie(town: Town) -> None:
        town.paths["/.well-known/oauth-protected-resource/mcp"] = lambda _: body

    attack(match, lie)


def test_a_page_for_every_path_is_no_document():
    async def visit(town: Town) -> None:
        town.challenge = "Bearer"
        town.paths["/.well-known/oauth-protected-resource/mcp"] = lambda _: answer(200, b"<p>hi", "text/html")
        found = b'{"resource": "%b", "authorization_servers": ["%b"]}'
        said = found % (town.server.encode(), town.issuer.encode())
        town.paths["/.well-known/oauth-protected-resource"] = lambda _: answer(200, said)
        async with town.client():
            pass

    run(visit)


# --------------------------------------------------------------------- PKCE


@pytest.mark.requirement("AUTH-64", "AUTH-65")
@pytest.mark.parametrize("methods", [..., None, [], ["plain"], ["s256"]])
def test_a_server_that_cannot_do_pkce(methods):
    def lower(town: Town) -> None:
        town.metadata = {"code_challenge_methods_supported": methods}

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

    def lie(town: Town) -> None:
        town.metadata = {"authorization_endpoint": page}

    attack(
        "the page to log in|has no page",
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
def test_who_answers_is_compared_with_who_was_asked(advertised, iss, good, error):
    async def visit(town: Town) -> None:
        town.metadata = {"authorization_response_iss_parameter_supported": advertised}

        def say(said: dict[str, str]) -> dict[str, str]:
            if error is not None:
                said = {"state": said["state"], "error": error, "error_description": "evil words"}
            if iss is None:
                return said
            return {**said, "iss": iss.format(issuer=town.issuer, upper=town.issuer.upper())}

        town.redirect = say
        client = town.client()
        if good and error is None:
            await client.connect()
            await client.close()
            return
        with pytest.raises(AuthError) as caught:
            await client.connect()
        assert isinstance(caught.value, AuthorizationRequired) is good  # else nobody looks at the error
        assert "evil words" not in str(caught.value)
        assert not town.forms

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
def test_an_answer_with_another_state(change):
    def lie(town: Town) -> None:
        town.redirect = change

    attack("its state is another", lie, asked=("/register", "/authorize"))


def test_an_answer_that_says_something_twice():
    async def twice(url: str) -> str:
        return await browse(url) + "&code=another"

    attack("says something twice", lambda _: None, asked=("/register", "/authorize"), open_url=twice)


def test_a_code_is_used_once():
    async def visit(town: Town) -> None:
        async with town.client():
            pass
        [(form, _)] = town.forms
        assert form["code"] not in town.codes
        town.valid.clear()
        town.refresh.clear()
        stolen = form["code"]
        town.redirect = lambda said: {**said, "code": stolen}
        with pytest.raises(AuthError, match="invalid_grant"):
            await town.client().connect()

    run(visit)


@pytest.mark.requirement("SEC-3", "SEC-4")
@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/x", "https://169.254.169.254/x", "file:///etc/passwd"]
)
@pytest.mark.parametrize("where", ["challenge", "issuer", "token_endpoint", "registration_endpoint"])
def test_no_place_in_metadata_leads_there(target, where):
    async def visit(town: Town) -> None:
        if where == "challenge":
            town.challenge = f'Bearer resource_metadata="{target}"'
        elif where == "issuer":
            town.resource = {"authorization_servers": [target]}
        else:
            town.metadata = {where: target}
        await refused(town, "leads into a network|not https|no http or https URL")

    run(visit)


@pytest.mark.requirement("SEC-4")
def test_metadata_is_not_followed_to_another_origin():
    async def visit(town: Town) -> None:
        heard: list[Any] = []

        async def listen(request: Any) -> None:
            heard.append(request)

        async with scripted(listen) as elsewhere:
            for location in (elsewhere.url, "https://169.254.169.254/", "file:///etc/passwd", "http://["):
                moved = answer(302, kind=None, Location=location)
                town.paths["/.well-known/oauth-protected-resource/mcp"] = lambda _, moved=moved: moved
                await refused(town, "redirected to")
            town.paths.clear()
            town.paths["/register"] = lambda _: answer(307, kind=None, Location=elsewhere.url)
            await refused(town, r"could not be registered: .*HTTP 307")
            del town.paths["/register"]
            town.paths["/token"] = lambda _: answer(307, kind=None, Location=elsewhere.url)
            await refused(town, "HTTP 307")
        assert not heard

    run(visit)


def test_metadata_is_followed_within_its_origin_but_not_for_ever():
    async def visit(town: Town) -> None:
        place = "/.well-known/oauth-protected-resource/mcp"
        town.paths[place] = lambda _: answer(301, kind=None, Location="/there")
        said = b'{"resource": "%b", "authorization_servers": ["%b"]}'
        town.paths["/there"] = lambda _: answer(200, said % (town.server.encode(), town.issuer.encode()))
        async with town.client():
            pass
        town.paths["/there"] = lambda _: answer(301, kind=None, Location="/there")
        await refused(town, "more than 3 times")

    run(visit)


# --------------------------------------------------------------------- mix-up, migration, credentials


@pytest.mark.requirement("AUTH-18", "AUTH-19", "AUTH-30", "AUTH-31")
def test_a_changed_authorization_server_means_a_new_registration():
    async def visit(town: Town) -> None:
        other = Town()
        async with scripted(other.serve_issuer, "") as second:
            other.issuer, other.server, other.valid = second.url, town.server, town.valid
            other.made = 100
            async with town.client() as mcp:
                town.valid.clear()
                town.resource = {"authorization_servers": [other.issuer]}
                await mcp.call_tool("anything")
            assert len(town.registered) == len(other.registered) == 1
            assert town.grants == ["authorization_code"]  # nobody has tried to refresh there
            assert other.grants == ["authorization_code"]  # nor to use the refresh token here

    run(visit)


@pytest.mark.requirement("AUTH-24", "AUTH-29", "AUTH-30", "AUTH-32")
@pytest.mark.parametrize("named", [True, False])
def test_credentials_are_shown_to_one_authorization_server_only(named):
    async def visit(town: Town) -> None:
        evil = Town()
        async with scripted(evil.serve_issuer, "") as second:
            evil.issuer, evil.server = second.url, town.server
            options = {"client_id": "me", "client_secret": "s:&%"} | (
                {"issuer": town.issuer} if named else {}
            )
            auth = town.oauth(**options)
            async with town.client(auth) as mcp:
                assert not town.registered
                [(_, headers)] = town.forms
                assert headers["authorization"] == "Basic bWU6cyUzQSUyNiUyNQ=="  # me:s%3A%26%25
                town.valid.clear()
                town.refresh.clear()
                town.resource = {"authorization_servers": [evil.issuer]}
                with pytest.raises(AuthError, match=r"the server names|is from"):
                    await mcp.call_tool("anything")
            assert not evil.forms
            assert not evil.authorized

    run(visit)


def test_stored_credentials_stay_where_they_are_from():
    async def visit(town: Town) -> None:
        storage = MemoryTokens()
        async with town.client(town.oauth(client_id="me", client_secret="s", storage=storage)):
            pass
        town.valid.clear()
        town.refresh.clear()
        town.resource = {"authorization_servers": [f"{town.issuer}/other"]}
        await refused(town, "has|credentials|publishes", client_id="me", client_secret="s", storage=storage)
        assert len(town.authorized) == 1

    run(visit)


@pytest.mark.requirement("AUTH-15", "AUTH-16")
def test_an_issuer_is_looked_for_in_all_places_in_order():
    async def visit(town: Town) -> None:
        town.resource = {"authorization_servers": [f"{town.issuer}/tenant"]}
        await refused(town, "publishes no metadata")
        assert town.looked[1:] == [
            "/.well-known/oauth-authorization-server/tenant",
            "/.well-known/openid-configuration/tenant",
            "/tenant/.well-known/openid-configuration",
        ]
        town.looked.clear()
        town.resource, town.metadata = {}, None
        await refused(town, "publishes no metadata")
        assert town.looked[1:] == [
            "/.well-known/oauth-authorization-server",
            "/.well-known/openid-configuration",
        ]

    run(visit)


@pytest.mark.requirement("AUTH-6")
def test_servers_of_the_second_revision_are_their_own_authorization_server():
    async def visit(town: Town) -> None:
        town.challenge, town.resource = "Bearer", None
        root = origin(town.server)
        for path in ("register", "token"):
            town.paths[f"/{path}"] = {
                "register": lambda h: town.answer_registration(h.body),
                "token": town.answer_token,
            }[path]

        async def user(url: str) -> str:
            assert url.startswith(f"{root}/authorize?")
            return await browse(url.replace(root, town.issuer))

        async with town.client(town.oauth(open_url=user)) as mcp:
            await mcp.call_tool("anything")
        assert town.looked[:3] == [
            "/.well-known/oauth-protected-resource/mcp",
            "/.well-known/oauth-protected-resource",
            "/.well-known/oauth-authorization-server",
        ]

    run(visit)


# --------------------------------------------------------------------- registration


@pytest.mark.requirement("AUTH-20", "AUTH-21", "AUTH-22", "AUTH-23")
@pytest.mark.parametrize(("supported", "used"), [(True, True), (False, False), (None, False)])
def test_a_document_of_ones_own_is_used_where_it_is_read(supported, used):
    async def visit(town: Town) -> None:
        page = "https://app.example/client.json"
        town.metadata = {"client_id_metadata_document_supported": supported}
        async with town.client(town.oauth(client_metadata_url=page)):
            pass
        assert (town.authorized[0]["client_id"] == page) is used
        assert bool(town.registered) is not used

    run(visit)


@pytest.mark.requirement("AUTH-27", "AUTH-28", "AUTH-33")
@pytest.mark.parametrize(
    ("said", "match"),
    [
        (answer(400, b'{"error": "invalid_redirect_uri"}'), "does not like http://127.0.0.1"),
        (
            answer(400, b'{"error": "no\\n", "error_description": "go\\u001b away"}'),
            "HTTP 400: go away.*by hand",
        ),
        (answer(201, b"{}"), "no registration"),
        (answer(500, b"<html>"), "HTTP 500"),
    ],
)
def test_a_registration_that_fails_is_told(said, match):
    async def visit(town: Town) -> None:
        town.paths["/register"] = lambda _: said
        await refused(town, match)

    run(visit)


@pytest.mark.requirement("AUTH-28")
def test_a_server_that_registers_nobody_needs_somebody_to_do_it():
    def close(town: Town) -> None:
        town.metadata = {"registration_endpoint": ...}

    attack("give client_id=", close)


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
def test_arguments_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match=r"\w"):
        OAuth(**options)
    with pytest.raises(TypeError):
        OAuth([5])  # pyright: ignore[reportArgumentType] - on purpose


# --------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"access_token": ...}, "no token"),
        ({"token_type": "mac"}, "of a kind"),
        ({"access_token": "a\r\nX: y"}, "no header"),
        ({"access_token": ""}, "no header"),
        ({"token_type": "DPoP"}, "bound the token"),
    ],
)
def test_a_token_that_cannot_be_used(said, match):
    async def visit(town: Town) -> None:
        body = {"access_token": "t", "token_type": "Bearer"} | said
        text = json.dumps({name: value for name, value in body.items() if value is not ...}).encode()
        town.paths["/token"] = lambda _: answer(200, text)
        await refused(town, match)

    run(visit)


@pytest.mark.requirement("AUTH-47")
def test_a_token_goes_to_no_other_origin_and_into_no_query():
    async def visit(town: Town) -> None:
        heard: list[Any] = []

        async def listen(request: Any) -> None:
            heard.append(request)

        async with scripted(listen) as elsewhere, town.client() as mcp:
            town.paths["/mcp"] = lambda _: answer(307, kind=None, Location=elsewhere.url)
            with pytest.raises(Exception, match="redirects elsewhere"):
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
def test_metadata_that_cannot_be_read():
    def lie(town: Town) -> None:
        town.metadata = {"token_endpoint": 5}

    attack("cannot be read", lie)


def test_a_server_without_a_token_endpoint():
    async def visit(town: Town) -> None:
        town.metadata = {"token_endpoint": ...}
        await refused(town, "no token endpoint")

    run(visit)


def test_an_issuer_that_cannot_be_reached():
    def close(town: Town) -> None:
        town.resource = {"authorization_servers": ["http://127.0.0.1:1"]}

    attack("cannot be had: the connection was refused", close)
