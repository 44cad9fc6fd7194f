"""What a server asks its authorization server: documents, fetched within bounds.

The issuer is the operator's own choice, so it may be anywhere; but what it says is held to account: https
outside of loopback, no redirects, a bounded size and time, JSON, and metadata that name the issuer itself.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec

from toolpost.auth.client.discovery import list_server_metadata_urls
from toolpost.errors import ConnectFailed, MCPError, RequestFailed
from toolpost.transports.backends.backend import open_backend

MAX_ISSUER_DOCUMENT_BYTES: Final = 256 * 1024
"""Bytes of a document: key sets have a few KiB, and metadata of the largest providers about ten."""

ISSUER_TIMEOUT: Final = 10.0
"""Seconds for one document: a client waits for its answer meanwhile."""

MAX_QUOTED_LENGTH: Final = 200
"""Letters of what a document says that go into an error."""

_LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def check_url(url: Any, what: str, such: str = "https://login.example.com") -> str:
    """The URL, if it may be asked: https, or http on this machine, and no credentials in it.

    Args:
        url: what was given.
        what: how it is called.
        such: one as it could be.

    Raises:
        ValueError: it may not; the text says what was wrong, and does not repeat credentials.
    """
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{what} is no URL such as {such}") from None
    if not host or not url.isascii() or any(letter <= " " or letter in '"<>\\^`{|}' for letter in url):
        shown = "" if isinstance(url, str) and "@" in url else f", but {url!r:.{MAX_QUOTED_LENGTH}}"
        raise ValueError(f"{what} is no URL such as {such}{shown}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{what} has a user name or a password in it")
    if parts.fragment or "#" in url:
        raise ValueError(f"{what} has a fragment in it, which such a URL cannot have")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK_HOSTS):
        raise ValueError(f"{what} has to be an https URL; http is for this machine alone")
    return url


def check_issuer(url: Any) -> str:
    """The issuer, if it can be one (RFC 8414 §2).

    Raises:
        ValueError: it cannot; the text says why.
    """
    issuer = check_url(url, "issuer")
    if "?" in issuer:
        raise ValueError("issuer has a query in it, which such a URL cannot have (RFC 8414)")
    if "/.well-known/" in issuer:
        raise ValueError(f"issuer is {issuer!r}, where its metadata are; give what they call `issuer`")
    return issuer


def check_duration(given: Any, name: str, most: float) -> float:
    """A number of seconds that was given.

    Raises:
        ValueError: it is none, or too large.
    """
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= most:
        raise ValueError(f"{name} is {given!r}; give seconds, a number from 0 to {most:g}")
    return float(given)


def check_backend(given: object) -> object:
    """What carries HTTP, if it can; whether a library is installed is seen when it is needed.

    Raises:
        ValueError: it cannot; the text says what could.
    """
    if given not in (None, "aiohttp", "httpx2"):  # whose sessions need a loop
        try:
            open_backend(given)
        except ConnectFailed as error:
            raise ValueError(str(error)) from None
    return given


def describe_wrong_issuer(named: Any, due: str) -> str:
    """What the log says of a token by another issuer."""
    return f"another issuer has issued it: its iss is {named!r:.{MAX_QUOTED_LENGTH}}, where {due!r} is due"


async def fetch_json(
    engine: object,
    method: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, dict[str, Any]]:
    """The status of an answer, and the JSON object in it, empty where it is none.

    Args:
        engine: what carries HTTP, as `Http(http=…)` takes it.
        method: of HTTP.
        url: where to.
        headers: what goes along.
        body: what is sent.

    Raises:
        MCPError: nobody answers, or with too much, or in too long a time. It names the URL and no header.
    """
    backend = open_backend(engine)
    try:
        async with asyncio.timeout(ISSUER_TIMEOUT):
            sent = {"accept": "application/json", **(headers or {})}
            async with backend.send(method, url, sent, body) as response:
                return response.status, _decode_object_or_empty(
                    await response.read(MAX_ISSUER_DOCUMENT_BYTES)
                )
    except TimeoutError:
        raise RequestFailed(f"{url} did not answer within {ISSUER_TIMEOUT:g} s") from None
    except RequestFailed as error:
        raise RequestFailed(error.message if url in str(error) else f"{url}: {error}") from None
    finally:
        await backend.close()


def _decode_object_or_empty(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


async def fetch_issuer_metadata(engine: object, issuer: str) -> dict[str, Any]:
    """The metadata of an authorization server, from the first of the well-known places that has them.

    Raises:
        MCPError: there are none, or they are those of another issuer.
    """
    for url in list_server_metadata_urls(issuer):
        status, found = await fetch_json(engine, "GET", url)
        if status == 200 and found:
            if found.get("issuer") != issuer:  # by simple string comparison (RFC 8414 §3.3)
                named = repr(found.get("issuer"))[:MAX_QUOTED_LENGTH]
                raise MCPError(
                    f"the metadata at {url} name another issuer: {named}, where issuer= is {issuer!r}",
                    hint="write issuer= letter by letter as they do, a slash at the end included",
                )
            return found
    raise MCPError(f"{issuer} publishes no metadata where RFC 8414 or OpenID Connect say")
