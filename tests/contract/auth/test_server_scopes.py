"""Scopes: of every request, of a tool, implied ones, and the challenge for more."""

from typing import Any

import pytest

from hosted import FIRST, call, legacy, message, modern, opening, run, serving
from protected_server import RESOURCE, bearer, guarded, kitchen
from toolpost import Auth, Cache, Handler, Jwt, Principal, Server, SyncClient
from toolpost.errors import MissingScopes
from toolpost.testing import TokenIssuer

WHERE = 'resource_metadata="http://127.0.0.1/.well-known/oauth-protected-resource/mcp"'


def token(mint: TokenIssuer, *scopes: str, **more: Any) -> dict[str, str]:
    return bearer(mint.token(RESOURCE, scopes=scopes, **more))


def needs(*scopes: str) -> str:
    return f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}", {WHERE}'


COOK = ("tools/call", call("cook", dish="egg"))
NEEDING = [
    (COOK, ["read", "write"]),
    (("tools/call", call("burn")), ["burn", "read", "write"]),
    (("resources/read", {"uri": "kitchen://till"}), ["money", "read"]),
    (("resources/read", {"uri": "kitchen://till/monday"}), ["money", "read"]),
    (("prompts/get", {"name": "recipe", "arguments": {"dish": "egg"}}), ["read", "write"]),
    (
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "recipe"}, "argument": {"name": "dish", "value": "e"}},
        ),
        ["read", "write"],
    ),
]


@pytest.mark.requirement("AUTH-50", "AUTH-51")
def test_the_scopes_of_every_request():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            headers, body = modern("tools/list")
            answer = await site.post({**headers, **token(mint, "write")}, body)
            assert (answer.status, answer.headers["www-authenticate"]) == (403, needs("read"))

    run(main)


@pytest.mark.requirement("AUTH-51", "AUTH-52", "AUTH-53", "AUTH-58")
@pytest.mark.parametrize(("asked", "scopes"), NEEDING)
def test_a_rejected_request_names_all_required_scopes_in_both_eras(asked, scopes):
    async def main() -> None:
        async with guarded() as (site, mint, server):
            server.prompts.get("recipe").complete("dish")(lambda value: ["egg"])  # pyright: ignore[reportOptionalMemberAccess] - it is there
            little, enough = token(mint, "read"), token(mint, *scopes)
            headers, body = modern(*asked)
            old = legacy(await site.open(headers=little))
            for sent, said in ((headers, body), (old, message(*asked, id=5))):
                answer = await site.post({**sent, **little}, said)
                assert (answer.status, answer.headers["www-authenticate"]) == (403, needs(*scopes))
                assert answer.json["error"]["code"] == MissingScopes.code
                # A step up: the same session, another token.
                answer = await site.post({**sent, **enough}, said)
                assert answer.status == 200, answer
                assert "result" in answer.json

    run(main)


@pytest.mark.requirement("AUTH-51")
def test_a_tool_that_is_not_allowed_does_not_run():
    ran: list[str] = []

    async def main() -> None:
        async with guarded() as (site, mint, server):

            @server.tool(scopes="write money")
            def spend() -> str:
                ran.append("spent")
                return "spent"

            headers, body = modern("tools/call", call("spend"))
            answer = await site.post({**headers, **token(mint, "read", "write")}, body)
            assert (answer.status, ran) == (403, [])
            assert answer.headers["www-authenticate"] == needs("money", "read", "write")
            answer = await site.post({**headers, **token(mint, "read", "write", "money")}, body)
            assert (answer.status, ran) == (200, ["spent"])

    run(main)


def test_after_the_first_event_the_status_cannot_change():
    """The response has begun: the error comes at its end."""

    async def main() -> None:
        async with guarded() as (site, mint, _):
            headers, body = modern("tools/call", call("talk"), meta={"progressToken": 1})
            wire, head = await site.begin("POST", {**headers, **token(mint, "read")}, body)
            assert head.status == 200
            *_, last = await wire.events()
            assert (last.json["error"]["code"], last.json["error"]["data"]) == (403, {"scope": "burn"})

    run(main)


def test_a_batch_is_answered_one_by_one():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            little = token(mint, "read")
            session = await site.open(FIRST, headers=little)
            both = b"[" + message(*COOK, id=1) + b"," + message("ping", id=2) + b"]"
            answer = await site.post({**legacy(session, FIRST), **little}, both)
            assert answer.status == 200
            assert sorted("error" in each for each in answer.json) == [False, True]

    run(main)


@pytest.mark.requirement("AUTH-51")
@pytest.mark.parametrize("asked", [each for each, _ in NEEDING if each[0] != "completion/complete"])
def test_over_http_sse_the_post_is_rejected(asked):
    """Scopes that depend on arguments are reported on the stream: the status of the POST is already sent."""

    async def main() -> None:
        async with guarded() as (site, mint, _):
            little = token(mint, "read")
            wire, _ = await site.begin("GET", {"Accept": "text/event-stream", **little}, target="/sse")
            endpoint = (await wire.event()).data
            posted = {"Content-Type": "application/json"}
            assert (await site.post({**posted, **little}, opening(), endpoint)).status == 202
            await wire.event()
            await site.post({**posted, **little}, message("notifications/initialized"), endpoint)
            answer = await site.post({**posted, **little}, message(*asked, id=1), endpoint)
            if asked[1].get("name") == "burn":
                assert answer.status == 202
                assert (await wire.event()).json["error"]["code"] == MissingScopes.code
            else:
                assert answer.status == 403
                assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
            enough = token(mint, "read", "write", "money", "burn")
            assert (await site.post({**posted, **enough}, message(*asked, id=2), endpoint)).status == 202
            assert "result" in (await wire.event()).json
            # Other requests are left to the function that serves them.
            for odd in (message("tools/call", {"name": 5}, 3), message("tools/call", call("nothing"), 4)):
                assert (await site.post({**posted, **little}, odd, endpoint)).status == 202
                assert "error" in (await wire.event()).json
            assert (await site.post({**posted, **little}, message("ping", id=5), endpoint)).status == 202

    run(main)


def test_tools_without_the_scope_are_listed_so_that_clients_can_request_it():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            headers, body = modern("tools/list")
            answer = await site.post({**headers, **token(mint, "read")}, body)
            assert "cook" in {tool["name"] for tool in answer.json["result"]["tools"]}

    run(main)


@pytest.mark.requirement("AUTH-54")
@pytest.mark.parametrize(
    "implies",
    [
        {"admin": ["editor"], "editor": ["write", "read"], "read": ["read"]},
        lambda scopes: {"read", "write"} if "admin" in scopes else (),
    ],
)
def test_a_broader_scope_implies_narrower_ones(implies):
    async def main() -> None:
        async with guarded(implies=implies) as (site, mint, _):
            headers, body = modern(*COOK)
            assert (await site.post({**headers, **token(mint, "admin")}, body)).status == 200
            assert (await site.post({**headers, **token(mint, "read")}, body)).status == 403

    run(main)


def test_scopes_that_imply_each_other_come_to_an_end():
    auth = Auth("https://login.example.com", verifier=lambda _: None, implies={"a": "b", "b": "c a"})
    assert auth.expand_scopes(frozenset("a")) == frozenset("abc")


def test_a_resource_with_scopes_is_not_cached_for_others():
    async def main() -> None:
        options = {"cache": Cache(ttl=60, scope="public")}
        async with guarded(options=options) as (site, mint, _):
            seen = {}
            for uri in ("kitchen://menu", "kitchen://till", "kitchen://till/monday"):
                headers, body = modern("resources/read", {"uri": uri})
                answer = await site.post({**headers, **token(mint, "read", "money")}, body)
                seen[uri] = answer.json["result"]["cacheScope"]
            assert [*seen.values()] == ["public", "private", "private"]

    run(main)


def test_a_watch_on_a_resource_needs_its_scopes():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            little = token(mint, "read")
            session = legacy(await site.open(headers=little))
            asked = message("resources/subscribe", {"uri": "kitchen://till"}, 3)
            assert (await site.post({**session, **little}, asked)).status == 403
            assert (await site.post({**session, **token(mint, "read", "money")}, asked)).status == 200
            wishes = {"resourceSubscriptions": ["kitchen://menu", "kitchen://till"]}
            headers, body = modern("subscriptions/listen", {"notifications": wishes})
            wire, _ = await site.begin("POST", {**headers, **little}, body)
            told = (await wire.event()).json["params"]["notifications"]
            assert told["resourceSubscriptions"] == ["kitchen://menu"]

    run(main)


# --------------------------------------------------------------------- without auth


@pytest.mark.requirement("AUTH-1")
def test_in_memory_and_over_stdio_scopes_are_not_checked():
    server = kitchen(None)
    with SyncClient(server) as mcp:
        assert mcp.call_tool("cook", {"dish": "egg"}).text == "egg is ready"


@pytest.mark.parametrize(("granted", "status"), [(["write"], 200), ([], 403), (None, 403)])
def test_a_custom_principal_has_the_scopes_it_declares(granted, status):
    def who(scope: Any) -> Principal | None:
        return None if granted is None else Principal("ann", scopes=frozenset(granted))

    async def main() -> None:
        async with serving(kitchen(None).asgi(principal=who)) as site:
            headers, body = modern(*COOK)
            answer = await site.post(headers, body)
            assert answer.status == status
            if status == 403:
                told = answer.headers["www-authenticate"]
                assert told == 'Bearer error="insufficient_scope", scope="write"'

    run(main)


def test_over_http_without_a_principal_nothing_with_scopes_is_served():
    """An unknown principal is not allowed more than a known one."""

    async def main() -> None:
        async with serving(kitchen(None).asgi()) as site:
            headers, body = modern(*COOK)
            assert (await site.post(headers, body)).status == 403
            session = await site.open()
            assert (await site.post(legacy(session), message(*COOK, id=1))).json["error"]["code"] == 403

    run(main)


def test_a_factory_chooses_by_principal_and_its_servers_keep_their_scopes():
    seen: list[Any] = []
    mint = TokenIssuer("https://login.example.com")
    inner = kitchen(None)

    async def choose(info: Any, capabilities: Any, principal: Principal | None) -> Server:
        seen.append(principal and (principal.subject, sorted(principal.scopes)))
        return inner

    auth = Auth(mint.issuer, resource=RESOURCE, verifier=Jwt(mint.issuer, keys=mint.jwks))
    factory = Server.factory(choose, "chooser", auth=auth)

    async def main() -> None:
        async with serving(factory.asgi()) as site:
            headers, body = modern(*COOK)
            assert (await site.post(headers, body)).status == 401
            assert (await site.post({**headers, **token(mint, "read")}, body)).status == 403
            assert (await site.post({**headers, **token(mint, "write")}, body)).status == 200
            little = token(mint, "read")
            session = await site.open(headers=little)
            assert (await site.post({**legacy(session), **little}, message(*COOK, id=1))).status == 403
            enough = {**legacy(session), **token(mint, "read", "write")}
            assert (await site.post(enough, message(*COOK, id=2))).status == 200

    run(main)
    assert seen == [("alice", ["read"]), ("alice", ["write"]), ("alice", ["read"])]


# --------------------------------------------------------------------- what cannot work


@pytest.mark.requirement("AUTH-63")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"scopes": ["offline_access"]}, "offline_access"),
        ({"scopes": ['a"b']}, "is not a valid scope"),
        ({"issuer": []}, "issuer"),
        ({"issuer": ["https://a.example.com", "https://b.example.com"], "verifier": None}, "verifier="),
        ({"issuer": "http://login.example.com"}, "https"),
        ({"issuer": "https://user:pw@login.example.com"}, "user name"),
        ({"issuer": "https://login.example.com/#x"}, "fragment"),
        ({"issuer": "javascript:alert(1)"}, "must be a URL"),
        ({"resource": "not a url"}, "resource"),
        ({"resource": "https://[::1"}, "resource"),
    ],
)
def test_invalid_arguments_are_reported_at_once(wrong, says):
    given: dict[str, Any] = {"issuer": "https://login.example.com", "verifier": lambda _: None, **wrong}
    with pytest.raises(ValueError, match=says) as caught:
        Auth(**given)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"scopes": 5}, {"scopes": [5]}, {"verifier": 5}, {"verifier": Server}, {"implies": 5}]
)
def test_arguments_of_another_type_are_refused_at_once(wrong):
    given: dict[str, Any] = {"issuer": "https://login.example.com", "verifier": lambda _: None, **wrong}
    with pytest.raises(TypeError):
        Auth(**given)


@pytest.mark.parametrize("wrong", ["token", Auth, 5])
def test_a_server_takes_an_auth(wrong):
    with pytest.raises(TypeError, match="Auth"):
        Handler("h", auth=wrong)


def test_auth_and_principal_are_one_too_many():
    auth = Auth("https://login.example.com", resource=RESOURCE, verifier=lambda _: None)
    with pytest.raises(ValueError, match="mutually exclusive"):
        Server("s", auth=auth).asgi(principal=lambda _: "ann")


def test_auth_over_http_requires_a_public_url():
    auth = Auth("https://login.example.com", verifier=lambda _: None)
    with pytest.raises(ValueError, match="public_url"):
        Server("s", auth=auth).asgi()
    with pytest.raises(ValueError, match="public_url"):
        Server("s", auth=auth).run(http="0.0.0.0:0")


def test_the_repr_of_a_principal_shows_no_secret():
    principal = Principal("ann", "https://a", "c", frozenset({"b", "a"}), {"email": "ann@example.com"})
    assert repr(principal) == "Principal('ann', issuer='https://a', client='c', scopes='a b')"
    assert str(principal) == "ann"
    assert hash(principal) == hash(Principal("ann", "https://a"))
    keys = {Principal("ann").key, Principal("", client="ann").key, Principal("ann", "https://a").key}
    assert len(keys) == 3
    with pytest.raises(TypeError, match="principal must be a string"):
        Principal.from_value(5)  # pyright: ignore[reportArgumentType] - that is the test
