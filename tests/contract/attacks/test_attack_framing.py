"""HTTP requests with bytes outside headers and body: trailers, chunk extensions, offers to upgrade."""

import pytest

from attacked_server import Victim, attacked, calls
from hosted import call, modern, run
from raw_http import Wire, wired

HEADERS, BODY = modern("tools/call", call("mark", text="outer"))
HEADER_LINES = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()).encode()
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
INNER_HEADERS, INNER_BODY = modern("tools/call", call("mark", text="inner"))
INNER = (
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    + "".join(f"{name}: {value}\r\n" for name, value in INNER_HEADERS.items()).encode()
    + b"Content-Length: %d\r\n\r\n%b" % (len(INNER_BODY), INNER_BODY)
)
PART = 64 * 1024
MANY = 1024


def head(path: bytes = b"/mcp", more: bytes = b"Transfer-Encoding: chunked\r\n") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b%b\r\n" % (path, HEADER_LINES, more)


async def flood(wire: Wire, more: bytes) -> None:
    for _ in range(MANY):
        await wire.send(more)


ENDLESS = {
    "many trailers": (CHUNK + b"0\r\n", b"X: y\r\n" * (PART // 6)),
    "one trailer": (CHUNK + b"0\r\nX: ", b"a" * PART),
    "one trailer name": (CHUNK + b"0\r\n", b"a" * PART),
    "one chunk extension": (b"1;a=", b"a" * PART),
    "many chunk extensions": (b"", b'1;a="%b"\r\n \r\n' % (b"a" * PART)),
}


@pytest.mark.parametrize("name", list(ENDLESS))
@pytest.mark.parametrize("path", [b"/mcp", b"/nowhere"])
def test_bytes_outside_the_body_have_a_limit(name, path):
    start, more = ENDLESS[name]

    async def main():
        server = Victim()
        async with attacked(server) as site:
            async with wired(site.port) as wire:
                await wire.send(head(path) + start)
                with pytest.raises(ConnectionError):
                    await flood(wire, more)
            assert server.marks == []
            assert await calls(site)

    run(main)


def test_a_body_in_small_chunks_has_the_limit_of_a_body():
    headers, body = modern("tools/call", call("mark", text="x" * 100_000))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    async def main():
        server = Victim()
        async with attacked(server) as site, wired(site.port) as wire:
            start = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n" + lines
            await wire.send(start + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
            assert (await wire.answer()).status == 200
            assert server.marks == ["x" * 100_000]

    run(main)


def test_a_trailer_is_not_a_header():
    missing = head().replace(b"Mcp-Name: mark\r\n", b"")

    async def main():
        server = Victim()
        async with attacked(server) as site, wired(site.port) as wire:
            await wire.send(missing + CHUNK + b"0\r\nMcp-Name: mark\r\n\r\n")
            assert (await wire.answer()).status == 400
            assert server.marks == []

    run(main)


OFFER = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize("line", [b"\r", b"\r\n", b"\r\nUpgr", b"\r\nUpgrade"])
def test_an_offer_to_upgrade_in_two_parts_closes_the_connection(line):
    """A parser that accepts the upgrade would read the body as the start of another request."""
    whole = head(more=OFFER + b"Content-Length: %d\r\n" % len(INNER)) + INNER
    at = whole.index(b"\r\nUpgrade:") + len(line)

    async def main():
        server = Victim()
        async with attacked(server) as site:
            async with wired(site.port) as wire:
                await wire.send(whole[:at])
                await calls(site, text="between")  # so that the server reads the parts one by one
                await wire.send(whole[at:])
                answer = await wire.answer()
                assert (answer.status, answer.headers["connection"]) == (400, "close")
                assert "Upgrade" in answer.text
                assert await wire.ended()
            assert server.marks == ["between"]

    run(main)


@pytest.mark.parametrize("length", [len(BODY), len(BODY) - 1])
def test_an_offer_to_upgrade_behind_another_request_closes_the_connection(length):
    first = head(more=b"Content-Length: %d\r\n" % len(BODY)) + BODY
    second = head(more=OFFER + b"Content-Length: %d\r\n" % len(INNER)) + INNER

    async def main():
        server = Victim()
        async with attacked(server) as site:
            async with wired(site.port) as wire:
                await wire.send(first[:length])
                await calls(site, text="between")
                await wire.send(first[length:] + second)
                await wire.half_close()
                text = await wire.reader.read()
                assert b"HTTP/1.1 200" not in text
            assert "inner" not in server.marks
            assert await calls(site)

    run(main)
