"""The contract of HTTP backends, for each of them: requests, responses and errors."""

import asyncio
import gzip
import socket
import ssl
import sys
import zlib
from itertools import pairwise

import aiohttp
import httpx
import httpx2
import pytest

from scripted import END, answer, chunk, scripted, stream
from toolpost.errors import ConnectFailed, RequestFailed
from toolpost.protocol.line_framing import READ_SIZE
from toolpost.transports.backends.asgi import AsgiBackend
from toolpost.transports.backends.backend import Backend, describe_error, open_backend
from toolpost.transports.http_sender import (
    MAX_QUOTE_LENGTH,
    MAX_REDIRECTS,
    HttpSender,
    build_refusal,
    check_accepted,
)
from toolpost.transports.targets import Http
from waiting import until

LIBRARIES = ["aiohttp", "httpx2"]
MIB = 1024 * 1024


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


async def dead_port() -> int:
    """A port without a listener."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


def exchange(engine, script, then, *, method="POST", headers=None, body=b"{}"):
    """The result of `then` for the response, and the request that the server received."""

    async def main():
        backend = open_backend(engine)
        try:
            async with (
                scripted(script) as server,
                backend.send(method, server.url, headers or {}, body) as response,
            ):
                return await then(response), server
        finally:
            await backend.close()

    return run(main)


async def whole(response):
    return response.status, response.headers.get("x-one"), await response.read()


# --------------------------------------------------------------------- every library


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_request_goes_out_and_its_response_comes_in(library):
    async def script(heard):
        await heard.write(answer(418, b"short and stout", X_One="1"))

    headers = {"x-key": "a b", "content-type": "application/json"}
    got, server = exchange(library, script, whole, headers=headers, body=b'{"n":1}')
    assert got == (418, "1", b"short and stout")
    (heard,) = server.heard
    assert (heard.method, heard.path, heard.body) == ("POST", "/mcp", b'{"n":1}')
    assert headers.items() <= heard.headers.items()
    assert "cookie" not in heard.headers


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_url_is_sent_as_it_was_written(library):
    async def main():
        async with scripted(lambda heard: heard.write(answer())) as server:
            backend = open_backend(library)
            async with backend.send("GET", f"{server.url}/%7Ea?sig=a%2Fb&x=%20", {}):
                pass
            await backend.close()
            assert server.heard[0].path.startswith("/mcp/%7Ea?sig=a%2Fb")

    run(main)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_large_body_goes_out_and_a_larger_one_comes_in(library):
    big = bytes(range(256)) * 4096 * 3

    async def script(heard):
        assert heard.body == big
        await heard.write(answer(body=big * 2))

    got, _ = exchange(library, script, whole, body=big)
    assert got[2] == big * 2


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_body_is_read_as_it_arrives(library):
    go_on = asyncio.Event()

    async def script(heard):
        await heard.write(stream(b"one", end=False))
        await go_on.wait()
        await heard.write(chunk(b"two") + END)

    async def then(response):
        chunks = response.chunks()
        first = await anext(chunks)
        go_on.set()
        return first, [piece async for piece in chunks]

    got, _ = exchange(library, script, then)
    assert got == (b"one", [b"two"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_that_leaves_early_closes_the_connection(library):
    async def main():
        gone = asyncio.Event()

        async def script(heard):
            await heard.write(stream(b"one", end=False))
            await heard.gone()
            gone.set()

        async with scripted(script) as server:
            backend = open_backend(library)
            async with backend.send("POST", server.url, {}, b"{}") as response:
                await anext(response.chunks())
            await gone.wait()
            await backend.close()

    run(main)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("where", ["before the status", "in the body"])
def test_a_task_that_is_cancelled_leaves_no_connection(library, where):
    async def main():
        gone = asyncio.Event()
        here = asyncio.Event()

        async def script(heard):
            if where == "in the body":
                await heard.write(stream(b"one", end=False))
            here.set()
            await heard.gone()
            gone.set()

        async with scripted(script) as server:
            backend = open_backend(library)

            async def work():
                async with backend.send("POST", server.url, {}, b"{}") as response:
                    await response.read()

            task = asyncio.create_task(work())
            await here.wait()
            task.cancel()
            await gone.wait()
            assert (await asyncio.wait({task}))[0]
            assert task.cancelled()
            await backend.close()

    run(main)


@pytest.mark.parametrize("library", LIBRARIES)
def test_connections_are_used_again_and_cookies_are_not_kept(library):
    async def main():
        async with scripted(lambda heard: heard.write(answer(body=b"1", Set_Cookie="a=b; Path=/"))) as server:
            backend = open_backend(library)
            for _ in range(3):
                async with backend.send("POST", server.url, {}, b"{}") as response:
                    await response.read()
            await backend.close()
            assert server.connections == 1
            assert not any("cookie" in heard.headers for heard in server.heard)

    run(main)


@pytest.mark.parametrize("library", LIBRARIES)
def test_hundreds_of_requests_are_under_way_at_once(library):
    async def main():
        count, here, go = 300, 0, asyncio.Event()

        async def script(heard):
            nonlocal here
            here += 1
            if here == count:
                go.set()
            await go.wait()
            await heard.write(answer(body=heard.body))

        async with scripted(script) as server:
            backend = open_backend(library)

            async def work(n):
                async with backend.send("POST", server.url, {}, b"%d" % n) as response:
                    return await response.read()

            assert await asyncio.gather(*map(work, range(count))) == [b"%d" % n for n in range(count)]
            await backend.close()

    run(main)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_body_over_the_limit_is_refused_also_if_it_is_packed(library, packed):
    bomb = bytes(64 * MIB)

    async def script(heard):
        if packed:
            await heard.write(answer(body=gzip.compress(bomb), Content_Encoding="gzip"))
        else:
            await heard.write(answer(body=bomb[: 2 * MIB]))

    async def then(response):
        with pytest.raises(RequestFailed, match=f"limit of {MIB} bytes") as refused:
            await response.read(MIB)
        return refused.value.hint

    got, _ = exchange(library, script, then)
    assert "max_answer" in got


@pytest.mark.parametrize("library", LIBRARIES)
def test_compressed_bodies_are_decompressed_and_corrupt_ones_are_errors(library):
    async def then(response):
        return await response.read()

    packed = answer(body=zlib.compress(b"hello" * 100), Content_Encoding="deflate")
    assert exchange(library, lambda heard: heard.write(packed), then)[0] == b"hello" * 100
    wrong = answer(body=b"no gzip at all, this", Content_Encoding="gzip")
    with pytest.raises(RequestFailed) as refused:
        exchange(library, lambda heard: heard.write(wrong), then)
    assert refused.value.sent


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_redirect_is_handed_back(library):
    script = lambda heard: heard.write(answer(307, Location="/elsewhere"))  # noqa: E731 - one line says it all

    async def then(response):
        return response.status, response.headers["location"]

    assert exchange(library, script, then)[0] == (307, "/elsewhere")


# --------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("case", "words", "sent"),
    [
        ("refused", "refused", False),
        ("no such host", "resolved", False),
        ("no TLS there", "TLS", False),
        ("closed at once", "closed the connection", True),
        ("cut in the body", "cut off|closed the connection early", True),
        ("no HTTP", "not valid HTTP|not speak HTTP", True),
    ],
)
def test_errors_are_explained_without_secrets(library, case, words, sent, monkeypatch):
    def unknown(*_args, **_kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def script(heard):
        if case == "cut in the body":
            await heard.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        if case == "no HTTP":
            await heard.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        heard.cut() if case != "no HTTP" else await heard.gone()

    async def main():
        async with scripted(script) as server:
            url = f"{server.url}?key=secret"
            if case == "refused":
                url = f"http://127.0.0.1:{await dead_port()}/mcp?key=secret"
            elif case == "no such host":
                monkeypatch.setattr(socket, "getaddrinfo", unknown)
                url = "http://nowhere.invalid/mcp?key=secret"
            elif case == "no TLS there":
                url = url.replace("http:", "https:")
                server.greeting = b"220 mail.example ESMTP\r\n"
            backend = open_backend(library)
            with pytest.raises(RequestFailed, match=words) as failed:
                async with backend.send("POST", url, {"x-key": "secret"}, b"{}") as response:
                    await response.read()
            await backend.close()
            assert failed.value.sent is sent
            assert failed.value.retry_safe is not sent
            assert failed.value.status is None
            assert "secret" not in str(failed.value)
            assert failed.value.__cause__ is not None

    run(main)


def chained(*errors):
    """The first error, caused by the second and so on."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (chained(RuntimeError("x"), OSError("y"), ConnectionRefusedError()), "the connection was refused"),
        (chained(RuntimeError("x"), TimeoutError()), "the connection timed out"),
        (BrokenPipeError(), "the connection was reset"),
        (OSError(113, "No route to host"), "No route to host"),
        (OSError("http://user:secret@host"), "OSError"),
        (ValueError("secret"), "ValueError"),
        (chained(*(RuntimeError(str(n)) for n in range(100)), OSError(1, "too deep")), "RuntimeError"),
    ],
)
def test_the_deepest_error_of_the_system_is_the_reason(error, words):
    assert describe_error(error) == words


def test_a_certificate_that_is_not_accepted_says_why():
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "self-signed certificate"
    assert describe_error(error) == "the server certificate could not be verified: self-signed certificate"


@pytest.mark.parametrize(
    ("error", "words", "sent"),
    [
        (aiohttp.ConnectionTimeoutError("secret"), "timed out", False),
        (aiohttp.ServerFingerprintMismatch(b"", b"", "secret", 1), "fingerprint", False),
        (aiohttp.SocketTimeoutError("secret"), "timed out", True),
        (aiohttp.ClientError("secret"), "ClientError", True),
    ],
)
def test_errors_of_aiohttp_that_are_hard_to_provoke(error, words, sent):
    from toolpost.transports.backends.aiohttp import _translate_error  # noqa: PLC0415 - a look inside

    failure = _translate_error(error)
    assert words in failure.message
    assert failure.sent is sent
    assert "secret" not in str(failure)


@pytest.mark.parametrize(
    ("error", "words", "sent"),
    [
        (httpx2.ConnectTimeout("secret"), "timed out", False),
        (httpx2.PoolTimeout("secret"), "timed out", False),
        (httpx2.ProxyError("secret"), "proxy", False),
        (httpx2.InvalidURL("secret"), "URL", False),
        (httpx2.ReadError("secret"), "ReadError", True),
    ],
)
def test_errors_of_httpx2_that_are_hard_to_provoke(error, words, sent):
    from toolpost.transports.backends.httpx2 import _translate_error  # noqa: PLC0415 - a look inside

    failure = _translate_error(error)
    assert words in failure.message
    assert failure.sent is sent
    assert "secret" not in str(failure)


# --------------------------------------------------------------------- proxies


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("login", ["", "user:pass@"])
def test_the_proxy_of_the_environment_is_used(library, login, monkeypatch):
    async def main():
        async with scripted(lambda heard: heard.write(answer(body=b"by proxy"))) as proxy:
            place = proxy.url.removeprefix("http://").removesuffix("/mcp")
            monkeypatch.setenv("http_proxy", f"http://{login}{place}")
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            backend = open_backend(library)
            for _ in range(2):
                async with backend.send("POST", "http://far.example/mcp", {}, b"{}") as response:
                    assert await response.read() == b"by proxy"
            await backend.close()
            assert proxy.heard[0].path == "http://far.example/mcp"
            assert ("proxy-authorization" in proxy.heard[0].headers) is bool(login)

    run(main)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_unavailable_proxy_is_reported(library, monkeypatch):
    async def main():
        async with scripted(lambda heard: heard.write(answer(407))) as proxy:
            monkeypatch.setenv("https_proxy", proxy.url.removeprefix("http://").removesuffix("/mcp"))
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{await dead_port()}")
            for url, words in [("https://far.example", "proxy refused"), ("http://far.example", "refused")]:
                backend = open_backend(library)
                with pytest.raises(RequestFailed, match=words) as failed:
                    async with backend.send("POST", url, {}, b"{}"):
                        pass
                assert not failed.value.sent
                await backend.close()

    run(main)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_host_may_be_exempt_from_the_proxy(library, monkeypatch):
    async def main():
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{await dead_port()}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with scripted(lambda heard: heard.write(answer(body=b"direct"))) as server:
            backend = open_backend(library)
            async with backend.send("POST", server.url, {}, b"{}") as response:
                assert await response.read() == b"direct"
            await backend.close()

    run(main)


# --------------------------------------------------------------------- what a user may give


def test_a_configured_session_is_used_and_not_closed():
    async def main():
        async with (
            scripted(lambda heard: heard.write(answer(404))) as server,
            aiohttp.ClientSession(headers={"X-Mine": "1"}, raise_for_status=True) as session,
            httpx2.AsyncClient(headers={"X-Mine": "2"}, timeout=1) as client,
        ):
            for given in (session, client):
                backend = open_backend(given)
                async with backend.send("POST", server.url, {}, b"{}") as response:
                    assert response.status == 404
                await backend.close()
            assert not session.closed
            assert not client.is_closed
            assert [heard.headers["x-mine"] for heard in server.heard] == ["1", "2"]

    run(main)


def test_a_closed_session_cannot_be_used():
    async def main():
        session, client = aiohttp.ClientSession(), httpx2.AsyncClient()
        await session.close()
        await client.aclose()
        for given in (session, client):
            with pytest.raises(RequestFailed, match="was closed") as failed:
                async with open_backend(given).send("POST", "http://127.0.0.1/mcp", {}, b"{}"):
                    pass
            assert not failed.value.sent

    run(main)


class Mine:
    """A custom backend."""

    closed = False

    def send(self, method, url, headers, body=None):
        raise NotImplementedError  # nothing is sent in this test

    async def close(self):
        self.closed = True


def test_a_backend_is_used_as_it_is():
    mine = Mine()
    assert isinstance(mine, Backend)
    assert open_backend(mine) is mine


def test_a_backend_that_the_user_gave_is_the_users_to_close():
    mine = Mine()
    run(HttpSender(Http("http://127.0.0.1", http=mine)).close)
    assert not mine.closed


def test_a_backend_that_cannot_be_closed_is_harmless(caplog):
    async def main():
        courier = HttpSender(Http("http://127.0.0.1", http=app_without_lifespan))

        async def fail():
            raise RuntimeError("stuck")

        courier._backend.close = fail  # pyright: ignore[reportAttributeAccessIssue] - no other way to fail
        await courier.close()

    run(main)
    assert "failed to close" in caplog.text


@pytest.mark.parametrize("wrong", [1, "requests", Mine, httpx.Client(), httpx2.Client(), httpx.AsyncClient()])
def test_objects_that_cannot_send_requests_are_rejected_with_the_alternatives(wrong):
    with pytest.raises(ConnectFailed, match=r"httpx2\.AsyncClient"):
        open_backend(wrong)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_missing_is_named_with_the_way_to_get_it(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"toolpost.transports.backends.{library}", raising=False)
    with pytest.raises(ConnectFailed, match=f"{library} is not installed.*pip install"):
        open_backend(library)


def test_another_module_that_is_missing_is_not_covered_up(monkeypatch):
    monkeypatch.setitem(sys.modules, "yarl", None)
    monkeypatch.delitem(sys.modules, "toolpost.transports.backends.aiohttp", raising=False)
    with pytest.raises(ModuleNotFoundError, match="yarl"):
        open_backend()


# --------------------------------------------------------------------- an application in this process


async def app_without_lifespan(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    message = await receive()
    await send(
        {"type": "http.response.start", "status": 201, "headers": [(b"X-One", b"1"), (b"x-one", b"2")]}
    )
    await send({"type": "http.response.body", "body": message["body"], "more_body": True})
    await send({"type": "http.response.body"})


def in_process(app, then, url="http://localhost/mcp", **options):
    async def main():
        backend = open_backend(app)
        assert isinstance(backend, AsgiBackend)
        try:
            async with backend.send("POST", url, options.get("headers", {}), b"{}") as response:
                return await then(response)
        finally:
            await backend.close()
            await backend.close()

    return run(main)


def test_an_application_answers_without_a_socket():
    assert in_process(app_without_lifespan, whole) == (201, "1, 2", b"{}")


def test_an_application_gets_the_whole_scope():
    seen = {}

    async def app(scope, receive, send):
        seen.update(scope)
        await app_without_lifespan(scope, receive, send)

    in_process(app, whole, "https://ex.com:8443/a%20b/ü?q=1%202&ü", headers={"x-key": "1"})
    assert (seen["path"], seen["raw_path"]) == ("/a b/ü", b"/a%20b/%C3%BC")
    assert seen["query_string"] == b"q=1%202&%C3%BC"
    assert (seen["scheme"], seen["server"]) == ("https", ("ex.com", 8443))
    assert dict(seen["headers"]) == {b"host": b"ex.com:8443", b"x-key": b"1", b"content-length": b"2"}
    in_process(app, whole, headers={"host": "mine"})
    assert dict(seen["headers"])[b"host"] == b"mine"


def test_an_application_streams_and_waits_while_the_client_does_not_read():
    piece = bytes(60_000)
    sent = 0

    async def app(scope, receive, send):
        nonlocal sent
        if scope["type"] == "lifespan":
            raise NotImplementedError  # as an application does that speaks no lifespan
        await send({"type": "http.response.start", "status": 200})
        for _ in range(10):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b""})

    async def then(response):
        for _ in range(20):
            await asyncio.sleep(0)
        early = sent
        return early, len(await response.read())

    early, size = in_process(app, then)
    assert early < 10
    assert size == 600_000


def test_an_application_learns_that_the_reader_has_stopped():
    heard = []

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            raise NotImplementedError  # as an application does that speaks no lifespan
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        heard.append((await receive())["type"])
        await send({"type": "http.response.body", "body": b"2", "more_body": True})
        raise RuntimeError("nobody is there")

    async def then(response):
        return await anext(response.chunks())

    assert in_process(app, then) == b"1"
    assert heard == ["http.disconnect"]


def test_an_application_that_does_not_listen_is_ended_when_the_backend_is_closed(monkeypatch):
    monkeypatch.setattr("toolpost.transports.backends.asgi.CLOSE_TIMEOUT", 0.01)
    ended = []

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            raise NotImplementedError  # as an application does that speaks no lifespan
        await send({"type": "http.response.start", "status": 200})
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def then(response):
        return response.status

    assert in_process(app, then) == 200
    assert ended


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("raises", [False, True])
def test_an_application_that_fails_takes_only_its_request_along(begun, raises):
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            raise NotImplementedError  # as an application does that speaks no lifespan
        if begun:
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
        if raises:
            raise ZeroDivisionError("secret")

    with pytest.raises(RequestFailed, match="application") as failed:
        in_process(app, whole)
    assert failed.value.sent
    assert ("ZeroDivisionError" in str(failed.value)) is raises
    assert isinstance(failed.value.__cause__, ZeroDivisionError) is raises


def test_an_application_has_one_lifespan_for_all_requests():
    said = []

    async def app(scope, receive, send):
        if scope["type"] == "http":
            said.append(scope["state"])
            await app_without_lifespan(scope, receive, send)
            return
        said.append((await receive())["type"])
        scope["state"]["pool"] = 1
        await send({"type": "lifespan.startup.complete"})
        said.append((await receive())["type"])
        await send({"type": "lifespan.shutdown.failed", "message": "not today"})

    async def main():
        backend = AsgiBackend(app)
        for _ in range(2):
            async with backend.send("GET", "http://localhost", {}) as response:
                await response.read()
        await backend.close()
        with pytest.raises(RequestFailed, match="closed"):
            async with backend.send("GET", "http://localhost", {}):
                pass

    run(main)
    assert said == ["lifespan.startup", {"pool": 1}, {"pool": 1}, "lifespan.shutdown"]


def test_an_application_that_cannot_start_says_so():
    async def app(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})
        await send({"type": "lifespan.startup.failed", "message": "really"})

    with pytest.raises(ConnectFailed, match="no database"):
        in_process(app, whole)


def test_a_lifespan_that_does_not_end_is_cancelled(monkeypatch, caplog):
    monkeypatch.setattr("toolpost.transports.backends.asgi.CLOSE_TIMEOUT", 0.01)

    async def app(scope, receive, send):
        if scope["type"] == "http":
            await app_without_lifespan(scope, receive, send)
            return
        await send({"type": "lifespan.startup.complete"})
        await asyncio.Event().wait()

    in_process(app, whole)
    assert "cancelling it" in caplog.text


def test_a_backend_that_was_never_used_is_closed_too():
    run(AsgiBackend(app_without_lifespan).close)


# --------------------------------------------------------------------- the courier: redirects, refusals


def carried(script, then, *, headers=None, own=None, **options):
    async def main():
        async with scripted(script) as server:
            courier = HttpSender(Http(server.url, headers=own, **options))
            try:
                async with courier.send("POST", headers or {}, b"{}") as response:
                    return await then(response), server
            finally:
                await courier.close()

    return run(main)


def test_the_headers_of_the_address_go_with_every_request_and_ours_count_more():
    _, server = carried(
        lambda heard: heard.write(answer()),
        whole,
        headers={"accept": "ours"},
        own={"Accept": "theirs", "X-Key": "1"},
    )
    headers = server.heard[0].headers
    assert (headers["accept"], headers["x-key"]) == ("ours", "1")
    assert headers["user-agent"].startswith("toolpost/")


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_within_the_origin_is_followed_with_method_and_body(status):
    async def script(heard):
        moved = heard.path == "/mcp"
        await heard.write(answer(status, Location="/mcp/") if moved else answer(body=heard.body))

    got, server = carried(script, whole, own={"X-Key": "1"})
    assert got[2] == b"{}"
    assert [(heard.method, heard.path, heard.headers["x-key"]) for heard in server.heard] == [
        ("POST", "/mcp", "1"),
        ("POST", "/mcp/", "1"),
    ]


@pytest.mark.parametrize(
    ("status", "location", "words"),
    [
        (307, "https://evil.example/mcp?key=secret", "https://evil.example/mcp has a different origin"),
        (308, "http://127.0.0.1:1/", "http://127.0.0.1:1/ has a different origin"),
        (302, "/login?key=secret", "302 Found.*connect to .*/login instead"),
        (303, "http://[", "cannot be parsed"),
    ],
)
def test_other_redirects_are_errors_that_say_where_they_lead(status, location, words):
    with pytest.raises(RequestFailed, match=words) as failed:
        carried(lambda heard: heard.write(answer(status, Location=location)), whole)
    assert failed.value.status == status
    assert "secret" not in str(failed.value)


def test_endless_redirects_are_given_up():
    heards = []

    async def script(heard):
        heards.append(heard)
        await heard.write(answer(307, Location="/mcp"))

    with pytest.raises(RequestFailed, match="more than"):
        carried(script, whole)
    assert len(heards) == MAX_REDIRECTS + 1


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (answer(500, b"out of\r\n  order\x1b", "text/plain"), "500 Internal Server Error: out of order$"),
        (answer(500, b'{"error":"x"}', "application/json; charset=utf-8"), '{"error":"x"}$'),
        (answer(502, b"<html>", "text/html"), "502 Bad Gateway$"),
        (answer(299 + 300, b"", None), "responded with 599$"),
        (answer(503, b"x" * 1000, "text/plain"), f"503 Service Unavailable: x{{{MAX_QUOTE_LENGTH - 1}}}…$"),
        (answer(401, b"who are you", "text/plain"), "401 Unauthorized: who are you.*Authorization"),
        (answer(403), "403 Forbidden.*Authorization"),
        (answer(404), "404 Not Found.*endpoint"),
        (answer(200, b"hi", "text/html"), "content type 'text/html'; expected JSON"),
        (answer(202, b"", None), "202 Accepted and no content type"),
        (b"HTTP/1.1 500 X\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\ncut", "Error: cut$"),
        (b"HTTP/1.1 500 X\r\nContent-Type: text/plain\r\n\r\n" + b"y" * 100_000, "Error: yyy.*…$"),
    ],
)
def test_a_refusal_is_reported_with_its_status_and_the_start_of_its_text(response, words):
    async def script(heard):
        await heard.write(response)
        if b"Content-Length: 9" in response:
            heard.close()

    async def then(response):
        return await build_refusal(response)

    error, _ = carried(script, then)
    with pytest.raises(RequestFailed, match=words):
        raise error
    assert error.status == int(response[9:12])


def test_a_refusal_without_text_is_reported(monkeypatch):
    monkeypatch.setattr("toolpost.transports.http_sender.QUOTE_TIMEOUT", 0.01)

    async def script(heard):
        await heard.write(b"HTTP/1.1 500 X\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\nslow")
        await heard.gone()

    async def then(response):
        return await build_refusal(response)

    assert carried(script, then)[0].message.endswith("Error: slow")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("body", [b"", b"Accepted"])
def test_what_was_accepted_leaves_the_connection_for_the_next(library, body):
    async def main():
        async with scripted(lambda heard: heard.write(answer(202, body))) as server:
            courier = HttpSender(Http(server.url, http=library))
            for _ in range(3):
                async with courier.send("POST", {}, b"{}") as response:
                    await check_accepted(response)
            await courier.close()
            assert server.connections == 1
            await until(lambda: not server.open)

    run(main)


def test_an_error_names_the_server():
    with pytest.raises(RequestFailed) as failed:
        carried(lambda heard: heard.write(answer(302)), whole, name="weather")
    assert str(failed.value).startswith("weather: ")


# --------------------------------------------------------------------- how much is read at a time


def test_a_connection_of_ours_reads_no_more_than_it_should_and_all_of_it():
    large = b"x" * (4 * READ_SIZE + 1)

    async def sizes(response):
        (kept,) = response._response.connection._connector._acquired
        return kept.transport.max_size, await response.read()

    assert exchange("aiohttp", lambda heard: heard.write(answer(200, large)), sizes)[0] == (READ_SIZE, large)
