"""What an HTTP server says to the first question: whether an MCP endpoint is there, and lets us in.

One question, as a client of the newest revision asks it; the answer tells about paths, names, redirects and
logins. Whether the server can do more than answer it is looked at where somebody talks to it.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from toolpost.cli.check_login import check_login
from toolpost.cli.checkup import Checkup
from toolpost.cli.exits import UNREACHABLE
from toolpost.errors import MCPError, MethodNotFound, RequestFailed
from toolpost.protocol.connection import Connection
from toolpost.protocol.jsonrpc import Reader, Request, Unfit, decode, shorten
from toolpost.protocol.party import Party
from toolpost.protocol.route import mirrored
from toolpost.transports.address import Http, shown
from toolpost.transports.http_backend import Backend
from toolpost.transports.refusal import EVENTS, JSON, phrase
from toolpost.types.lifecycle import ClientCapabilities, Implementation
from toolpost.version import __version__

__all__ = ["check_http"]

MAX_QUOTED: Final = 8 * 1024
"""How much of a refusal is read."""

_ELSEWHERE: Final = ("/mcp", "/mcp/", "/sse", "/")
"""Where servers have their endpoints."""

_NOT_HERE: Final = frozenset({404, 405})

_HINTS: Final = {
    403: "does the server know the name in the URL? it may check Host, as against rebound names: tell it its "
    "public URL, or call it by a name that it knows",
    407: "the proxy wants a login",
    406: "something between here and the server takes the Accept header away",
    415: "something between here and the server changes the Content-Type",
    421: "the server does not know the name in the URL (Host): tell it its public URL, or its allowed hosts",
    429: "it was asked too often: wait, and try again",
    502: "a proxy answers, and the server behind it does not: is that running?",
    503: "the server is there, but does not serve now",
    504: "a proxy answers, and the server behind it takes too long",
}


class _Error(Struct):
    code: int
    message: str


class _Said(Struct):
    error: _Error


_SAID: Final = Reader(_Said)


class _Answer(NamedTuple):
    """What came back, as far as it is read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def speaks(self) -> bool:
        """Whether it is an answer that only an MCP server gives."""
        if 200 <= self.status < 300:
            return self.kind in {JSON, EVENTS}
        try:
            code = _SAID(self.body).error.code
        except Unfit:
            return False
        # Some servers explain in JSON-RPC that nothing is at this path.
        return code == MethodNotFound.code or self.status not in _NOT_HERE

    def quoted(self) -> str:
        """The beginning of what it says, where that is for people."""
        try:
            return shorten(_SAID(self.body).error.message, 200)
        except Unfit:
            pass
        if self.kind not in {"text/plain", JSON}:
            return ""
        return shorten(" ".join(self.body.decode("utf-8", "replace").split()), 200)


async def check_http(checkup: Checkup, place: Http, backend: Backend, timeout: float | None) -> None:
    """Ask the first question.

    Raises:
        Stopped: nobody is there who could be asked a second one.
    """
    try:
        answer = await _ask(backend, place, place.url, timeout)
    except TimeoutError:
        checkup.stop(
            "http",
            f"no answer within {timeout:g} s",
            "is a proxy in between that holds answers back? --timeout SECONDS waits longer",
            code=UNREACHABLE,
        )
    except RequestFailed as error:
        hint = "the server may want https://" if urlsplit(place.url).scheme == "http" else ""
        checkup.stop("http", error.message, error.hint or hint, code=UNREACHABLE)
    status = answer.status
    if status == 401:
        await check_login(checkup, place, backend, answer.headers)
    elif 300 <= status < 400:
        there = urljoin(place.url, answer.headers.get("location", ""))
        if there == place.url:
            checkup.stop("http", f"{phrase(status)}: it leads back to itself", "correct that on the server")
        checkup.stop("http", f"{phrase(status)}: it leads to {shown(there)}", f"use {shown(there)} instead")
    elif answer.speaks:
        checkup.ok("http", f"an MCP server answers, with {phrase(status)} and {answer.kind}")
    elif status in _NOT_HERE or 200 <= status < 300:
        await _look_around(checkup, place, backend, answer, timeout)
    else:
        _refused(checkup, answer)


def _refused(checkup: Checkup, answer: _Answer) -> None:
    said = answer.quoted()
    text = phrase(answer.status) + (f": {said}" if said else "")
    if answer.status in _HINTS:
        checkup.stop("http", text, _HINTS[answer.status])
    if "HTTPS port" in answer.body.decode("latin-1"):
        checkup.stop("http", text, "write https:// instead of http://")
    checkup.warn("http", f"{text}, to the question of a newer client; older ones may be served")


async def _look_around(
    checkup: Checkup, place: Http, backend: Backend, answer: _Answer, timeout: float | None
) -> None:
    """Look for the endpoint where it might be: as an older server has it here, or elsewhere.

    Raises:
        Stopped: it is not here.
    """
    if await _streams(backend, place, timeout):
        checkup.ok(
            "http", f"{phrase(answer.status)} to a POST, and a stream to a GET: HTTP+SSE, the older way"
        )
        return
    found: list[str] = []
    own = urlsplit(place.url)
    for path in dict.fromkeys((own.path.rstrip("/"), f"{own.path.rstrip('/')}/", *_ELSEWHERE)):
        url = own._replace(path=path).geturl()
        if path == own.path:
            continue
        try:
            other = await _ask(backend, place, url, timeout)
        except (RequestFailed, TimeoutError):
            continue
        if other.speaks or other.status == 401:
            found.append(shown(url))
    said = answer.quoted() or answer.kind
    checkup.stop(
        "http",
        f"no MCP endpoint is here: {phrase(answer.status)}" + (f", {said}" if said else ""),
        f"there is one at {found[0]}" if found else "is the path right? most servers have it at /mcp",
    )


async def _ask(backend: Backend, place: Http, url: str, timeout: float | None) -> _Answer:
    """What comes back to the question who the server is.

    Raises:
        RequestFailed: nothing does.
        TimeoutError: nothing does in time.
    """
    party = Party(Implementation(name="toolpost-doctor", version=__version__), ClientCapabilities())
    data = Connection(party).request("server/discover").data
    message = decode(data)
    assert isinstance(message, Request), "it was made as one"
    headers = {
        "accept": f"{JSON}, {EVENTS}",
        "content-type": JSON,
        "user-agent": f"toolpost/{__version__}",
        **mirrored(message),
        **(place.headers or {}),
    }
    async with asyncio.timeout(timeout), backend.send("POST", url, headers, data) as response:
        body = b""
        received = {name.lower(): value for name, value in response.headers.items()}
        # A stream may stay open for ever; what kind of answer it is, is known.
        if received.get("content-type", "").partition(";")[0].strip().lower() != EVENTS:
            async for chunk in response.chunks():
                body += chunk
                if len(body) > MAX_QUOTED:
                    break
        return _Answer(response.status, received, body)


async def _streams(backend: Backend, place: Http, timeout: float | None) -> bool:
    """Whether a GET is answered with a stream of events."""
    headers = {"accept": EVENTS, **(place.headers or {})}
    try:
        async with asyncio.timeout(timeout), backend.send("GET", place.url, headers) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            return response.status == 200 and kind == EVENTS
    except (MCPError, TimeoutError):
        return False
