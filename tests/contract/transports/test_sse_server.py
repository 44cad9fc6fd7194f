"""HTTP+SSE, the transport of the first revision: one stream, and POSTs."""

import asyncio

import pytest

from hosted import OLD, call, hosted, kitchen, legacy, message, opening, run, serving
from revision_dates import DATES
from sse_talk import GET, JSON, talk, talking
from toolpost import Context, Server


@pytest.mark.requirement("SSE-1", "SSE-2", "SSE-4", "SSE-10", "SSE-12")
@pytest.mark.parametrize("revision", [DATES[0], OLD])
def test_a_conversation(revision):
    async def main():
        async with talking() as (_, client):
            assert client.endpoint.startswith("/messages?session_id=")
            await client.greet(revision)
            answer = await client.ask(message("tools/call", call("echo", text="hi"), "x"))
            assert (answer["id"], answer["result"]["content"][0]["text"]) == ("x", "hi")
            assert "error" not in answer
            lost = await client.ask(message("no/such", id=7))
            assert (lost["id"], lost["error"]["code"]) == (7, -32601)
            assert "result" not in lost
            # The same server answers others at its own path.
            session = await client.site.open()
            assert (await client.site.post(legacy(session), message("ping", id=1))).status == 200

    run(main)


def test_notifications_and_questions_come_on_the_same_stream():
    async def main():
        async with talking() as (_, client):
            await client.greet(OLD, {"elicitation": {}})
            params = {**call("steps", count=2), "_meta": {"progressToken": 1}}
            await client.say(message("tools/call", params, 1))
            said = [await client.hear() for _ in range(3)]
            assert [each.get("id") for each in said] == [None, None, 1]
            question = await client.ask(message("tools/call", call("asked"), 2))
            assert question["method"] == "elicitation/create"
            accepted = {"action": "accept", "content": {"value": 3}}
            answer = await client.ask(message(id=question["id"], result=accepted))
            assert answer["id"] == 2

    run(main)


def test_an_id_that_is_in_use_is_refused_on_the_stream():
    async def main():
        async with talking() as (stage, client):
            await client.greet()
            await client.say(message("tools/call", call("quiet"), 5))
            await stage.begun.wait()
            refused = await client.ask(message("ping", id=5))
            assert refused["error"]["code"] == -32600
            stage.go.set()
            assert (await client.hear())["result"]["content"][0]["text"] == "waited"

    run(main)


def test_cancelled_calls_say_nothing_more():
    async def main():
        async with talking() as (stage, client):
            await client.greet()
            await client.say(message("tools/call", call("quiet"), 5))
            await stage.begun.wait()
            await client.say(message("notifications/cancelled", {"requestId": 5}))
            await stage.ended.wait()
            assert (await client.ask(message("ping", id=6)))["id"] == 6

    run(main)


def test_a_post_must_contain_a_message():
    async def main():
        async with talking() as (_, client):
            await client.greet()
            for body, status in ((b"{", 400), (b"[1]", 400), (b'{"id":1}', 400), (b"", 400)):
                assert (await client.post(body)).status == status
            batch = b"[%b]" % message("ping", id=1)
            assert (await client.post(batch)).status == 400
            assert (await client.post(message("ping", id=1), {"Content-Type": "text/plain"})).status == 415
            assert (await client.ask(message("ping", id=2)))["id"] == 2

    run(main)


def test_the_two_kinds_of_session_are_kept_apart():
    """A message posted to the wrong endpoint would be answered on a stream without a reader."""

    async def main():
        async with talking() as (_, client):
            await client.greet()
            site = client.site
            session = await site.open()
            for verb, body in (("POST", message("ping", id=1)), ("DELETE", None)):
                assert (await site.ask(verb, "/mcp", legacy(client.session), body)).status == 404
            got = await site.ask("GET", "/mcp", {**GET, "Mcp-Session-Id": client.session})
            assert got.status == 404
            wrong = await site.ask("POST", f"/messages?session_id={session}", JSON, message("ping", id=1))
            assert wrong.status == 404
            assert (await client.ask(message("ping", id=2)))["id"] == 2

    run(main)


def test_a_session_belongs_to_the_principal_that_opened_it():
    async def main():
        def principal(scope):
            return dict(scope["headers"]).get(b"x-user", b"").decode() or None

        async with hosted(kitchen(), principal=principal) as site:
            wire, _ = await site.begin("GET", {**GET, "X-User": "ann"}, target="/sse")
            endpoint = (await wire.event()).data
            for user, status in (("bob", 404), ("ann", 202)):
                posted = await site.ask("POST", endpoint, {**JSON, "X-User": user}, opening())
                assert posted.status == status
            assert (await wire.event()).json["id"] == 0

    run(main)


def test_the_handshake_has_its_time():
    async def main():
        async with hosted(kitchen(), handshake=0.05) as site:
            client = await talk(site)
            assert await client.wire.events() == []
            assert (await client.post(message("ping", id=1))).status == 404

    run(main)


@pytest.mark.requirement("SSE-12")
def test_the_stream_at_the_path_of_the_others():
    async def main():
        async with hosted(kitchen(), sse="/mcp") as site:
            client = await talk(site, "/mcp")
            await client.greet()
            assert (await client.ask(message("ping", id=1)))["id"] == 1
            session = await site.open()
            wire, head = await site.begin("GET", {**GET, "Mcp-Session-Id": session})
            assert head.status == 200
            assert (await wire.event()).kind is None
            assert (await site.ask("GET", "/sse", GET)).status == 404

    run(main)


def test_other_paths():
    async def main():
        async with hosted(kitchen(), sse="/old/sse", messages="/old/say/") as site:
            client = await talk(site, "/old/sse")
            assert client.endpoint.startswith("/old/say/?session_id=")
            await client.greet()

    run(main)


@pytest.mark.parametrize("root", ["/a b/é", "/api"])
def test_mounted_under_a_prefix(root):
    """The server sends the endpoint with the prefix that the client needs."""

    async def main():
        inner = kitchen().asgi()

        async def app(scope, receive, send):
            if scope["type"] == "http":
                path = root + scope["path"].removeprefix("/under")
                scope = {**scope, "root_path": root, "path": path, "raw_path": None}
            await inner(scope, receive, send)

        async with serving(app) as site:
            wire, head = await site.begin("GET", GET, target="/under/sse")
            assert head.status == 200
            endpoint = (await wire.event()).data
            quoted = {"/api": "/api", "/a b/é": "/a%20b/%C3%A9"}[root]
            assert endpoint.startswith(f"{quoted}/messages?session_id=")
            posted = await site.ask("POST", endpoint.replace(quoted, "/under"), JSON, opening())
            assert posted.status == 202
            assert (await wire.event()).json["id"] == 0

    run(main)


def test_many_large_answers_at_once():
    """More than the log of a session holds, and all of them arrive."""
    server = Server("large")

    @server.tool
    async def large(ctx: Context) -> str:
        await asyncio.sleep(0)
        return "x" * 200_000

    async def main():
        async with hosted(server) as site:
            client = await talk(site)
            await client.greet()
            wire = await site.wire()
            for number in range(1, 61):
                await wire.ask("POST", client.endpoint, JSON, message("tools/call", call("large"), number))
                assert (await wire.answer()).status == 202
            ids = {(await client.hear())["id"] for _ in range(60)}
            assert ids == set(range(1, 61))

    run(main)


def test_a_changed_list_is_reported():
    async def main():
        server = kitchen()
        async with hosted(server) as site:
            client = await talk(site)
            await client.greet()
            await client.ask(message("ping", id=1))
            server.tools.remove("echo")
            assert (await client.hear())["method"] == "notifications/tools/list_changed"

    run(main)


@pytest.mark.parametrize(
    ("public_url", "endpoint"),
    [
        ("https://example.com/tools", "/tools/messages"),
        ("https://example.com/tools/mcp", "/tools/messages"),
        ("https://example.com/a%20b/mcp/", "/a%20b/messages"),
        ("https://example.com/mcp", "/messages"),
        ("https://example.com", "/messages"),
    ],
)
def test_behind_a_proxy_that_removes_a_prefix(public_url, endpoint):
    """The server sends the endpoint below its public URL."""

    async def main():
        async with serving(kitchen().asgi(public_url=public_url)) as site:
            wire, head = await site.begin("GET", GET, target="/sse")
            assert head.status == 200
            assert (await wire.event()).data.startswith(f"{endpoint}?session_id=")

    run(main)
