"""The `Backend` protocol: sends HTTP requests, and returns responses as they arrive.

Also chooses the library that implements it, and describes errors below HTTP. TLS, proxies and client
certificates are left to the library. Knows nothing of MCP.
"""

import socket
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any, Final, Protocol, runtime_checkable

from toolpost.errors import ConnectFailed, RequestFailed

CONNECT_TIMEOUT: Final = 30.0
"""Seconds to get a connection. There is no other time-out here: a stream may be quiet for hours, and callers
have time-outs of their own."""

KEEP_ALIVE_TIMEOUT: Final = 4.0
"""Seconds that an idle connection is kept. Many servers close theirs after 5 seconds, and a request that is
sent at that moment is lost."""

MAX_RESPONSE_BODY: Final = 64 * 1024 * 1024
"""The largest body that is read at once, in bytes after decompression."""

MAX_CAUSES: Final = 16
"""How many exceptions of a chain of causes are checked."""


class Response(Protocol):
    """A response. It is read once, inside of the context that returned it.

    Attributes:
        status: the HTTP status.
        headers: the headers, by their names in lower case.
    """

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """Return the decompressed body, in pieces as they arrive; RequestFailed if it was cut off."""
        ...

    async def read(self, limit: int = MAX_RESPONSE_BODY) -> bytes:
        """Return the whole body; RequestFailed if it was cut off, or is larger after decompression."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                raise RequestFailed(
                    f"the answer has more than {limit} bytes, which is the limit here",
                    status=self.status,
                    hint="raise it where the server is described: `Http(…, max_answer=…)`",
                )
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@runtime_checkable
class Backend(Protocol):
    """Sends HTTP requests. Any number of them may be in flight at once. Users may implement it."""

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[Response]:
        """Send a request; entering the context waits for the status and headers of the response.

        Redirects are handed back and not followed. Whoever leaves the context before the body has ended
        closes the connection, and that tells the server.

        Raises:
            RequestFailed: there is no response. `sent` is False where there was not even a connection.
        """
        ...

    async def close(self) -> None:
        """Close every connection. Closing twice is fine."""


@runtime_checkable
class HeaderPreparing(Protocol):
    """A backend that can prepare headers which are sent often."""

    def prepare_headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the same headers in a form that is faster to send."""
        ...


# --------------------------------------------------------------------- choosing a library

_ADAPTERS: Final = {
    "aiohttp": ("AiohttpBackend", "pip install 'toolpost[http]'"),
    "httpx2": ("Httpx2Backend", "pip install httpx2"),
}
"""Library → our adapter in the module of its name, and how to install the library."""

_CLIENT_CLASSES: Final = (("aiohttp", "ClientSession"), ("httpx2", "AsyncClient"))
"""What a user may have configured: a class of a library."""

_ACCEPTED_FORMS: Final = (
    '"aiohttp", "httpx2", an aiohttp.ClientSession, an httpx2.AsyncClient, an ASGI application, or a Backend'
)


def open_backend(engine: object = None) -> Backend:
    """Return the backend for the `http` of an `Http`; None means aiohttp.

    Closing it closes what was made here, but nothing that the user gave.

    Raises:
        ConnectFailed: the library is not installed, or this cannot send requests.
    """
    if engine is None or isinstance(engine, str):
        return _load_adapter(engine or "aiohttp")()
    for library, kind in _CLIENT_CLASSES:
        # A user who has such an object has imported the library.
        found = getattr(sys.modules.get(library), kind, None)
        if found is not None and isinstance(engine, found):
            return _load_adapter(library)(engine)
    if not isinstance(engine, type):
        if isinstance(engine, Backend) and not hasattr(engine, "build_request"):  # httpx: one that blocks
            return engine
        if callable(engine):
            from toolpost.transports.backends.asgi import AsgiBackend  # noqa: PLC0415 - few need it

            return AsgiBackend(engine)
    what = f"the class {engine.__name__}" if isinstance(engine, type) else f"a {type(engine).__name__}"
    raise ConnectFailed(f"http={what} carries no requests", hint=f"give {_ACCEPTED_FORMS}")


def _load_adapter(library: str) -> Any:
    if library not in _ADAPTERS:
        raise ConnectFailed(
            f"http={library!r} is no HTTP library that we know", hint=f"give {_ACCEPTED_FORMS}"
        )
    name, how = _ADAPTERS[library]
    try:
        return getattr(import_module(f"toolpost.transports.backends.{library}"), name)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise ConnectFailed(f"a URL needs {library}, which is not installed", hint=how) from error


# --------------------------------------------------------------------- errors

_ERROR_TEXTS: Final[tuple[tuple[type[OSError] | tuple[type[OSError], ...], str], ...]] = (
    (ssl.SSLCertVerificationError, "the certificate of the server is not accepted: {0.verify_message}"),
    (ssl.SSLError, "TLS failed: {0.reason}"),
    (socket.gaierror, "the name of the host cannot be resolved"),
    (ConnectionRefusedError, "the connection was refused"),
    ((ConnectionResetError, BrokenPipeError), "the connection was reset"),
    (TimeoutError, "it took too long"),
)


def describe_error(error: BaseException) -> str:
    """Describe what went wrong below HTTP. Repeats no URL and no header."""
    deepest = _find_os_error(error)
    if deepest is None:
        return type(error).__name__
    for kind, words in _ERROR_TEXTS:
        if isinstance(deepest, kind):
            return words.format(deepest)
    return deepest.strerror or type(deepest).__name__


def _find_os_error(error: BaseException) -> OSError | None:
    """Return the deepest error of the operating system in a chain of causes."""
    deepest = None
    link: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if isinstance(link, OSError):
            deepest = link
        if link is None:
            break
        link = link.__cause__ or link.__context__
    return deepest
