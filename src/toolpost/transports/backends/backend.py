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
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from toolpost.errors import ConnectFailed, RequestFailed

# Seconds to get a connection: the only timeout here, because a stream may be quiet for hours.
CONNECT_TIMEOUT: Final = 30.0
# Seconds that an idle connection is kept. Many servers close theirs after 5 seconds, and a request that is
# sent at that moment is lost.
KEEP_ALIVE_TIMEOUT: Final = 4.0
MAX_RESPONSE_BODY: Final = 64 * 1024 * 1024  # the largest body that is read at once, after decompression
MAX_CAUSES: Final = 16  # how many exceptions of a chain of causes are checked


class Response(Protocol):
    """A response. It is read once, inside of the context that returned it."""

    status: int
    headers: Mapping[str, str]  # by their names in lower case

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
                    f"the response exceeds the limit of {limit} bytes",
                    status=self.status,
                    hint="raise the limit: `Http(…, max_answer=…)`",
                )
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class IteratedResponse(Response, Protocol):
    """A response that is also the iterator over its body."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Return this object."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes: ...


@runtime_checkable
class Backend(Protocol):
    """Sends HTTP requests. Any number of them may be in flight at once. Users may implement it."""

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[Response]:
        """Send a request; entering the context waits for the status and headers of the response.

        Redirects are returned and not followed. Leaving the context before the body has ended closes the
        connection, so that the server notices.

        Raises:
            RequestFailed: there is no response. `sent` is False where there was not even a connection.
        """
        ...

    async def close(self) -> None:
        """Close every connection. Closing twice is fine."""


# --------------------------------------------------------------------- choosing a library

_ADAPTERS: Final = {
    "aiohttp": ("AiohttpBackend", "ClientSession", "pip install 'toolpost[http]'"),
    "httpx2": ("Httpx2Backend", "AsyncClient", "pip install httpx2"),
}
"""Library → our adapter in the module of its name, what a user may have configured, how to install it."""

_ACCEPTED_FORMS: Final = (
    '"aiohttp", "httpx2", an aiohttp.ClientSession, an httpx2.AsyncClient, an ASGI application, or a Backend'
)


def open_backend(engine: object = None) -> Backend:
    """Return the backend for the `http` of an `Http`; None means aiohttp.

    Closing it closes the session that was made here, but not one of the user. Raises ConnectFailed if the
    library is not installed, or this cannot send requests.
    """
    if engine is None or isinstance(engine, str):
        return _load_adapter(engine or "aiohttp")()
    for library, (_, kind, _) in _ADAPTERS.items():
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
    shown = f"the class {engine.__name__}" if isinstance(engine, type) else f"a {type(engine).__name__}"
    raise ConnectFailed(f"http={shown} cannot send requests", hint=f"pass {_ACCEPTED_FORMS}")


def _load_adapter(library: str) -> Any:
    if library not in _ADAPTERS:
        raise ConnectFailed(f"http={library!r} is not a known HTTP library", hint=f"pass {_ACCEPTED_FORMS}")
    name, _, how = _ADAPTERS[library]
    try:
        return getattr(import_module(f"toolpost.transports.backends.{library}"), name)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise ConnectFailed(f"{library} is not installed, but a URL requires it", hint=how) from error


# --------------------------------------------------------------------- errors

ErrorTexts: TypeAlias = tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...]
"""Classes of errors, and the text for each; `{0}` in it is the error."""

_ERROR_TEXTS: Final[ErrorTexts] = (
    (ssl.SSLCertVerificationError, "the server certificate could not be verified: {0.verify_message}"),
    (ssl.SSLError, "TLS failed: {0.reason}"),
    (socket.gaierror, "the host name could not be resolved"),
    (ConnectionRefusedError, "the connection was refused"),
    ((ConnectionResetError, BrokenPipeError), "the connection was reset"),
    (TimeoutError, "the connection timed out"),
)


def describe_error(error: Exception, texts: ErrorTexts = ()) -> str:
    """Describe what went wrong, with the texts of a library, or below HTTP. Repeats no URL and no header."""
    for kind, text in texts:
        if isinstance(error, kind):
            return text.format(error)
    # The deepest error of the operating system in the chain of causes says most.
    deepest: OSError | None = None
    link: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if isinstance(link, OSError):
            deepest = link
        if link is None:
            break
        link = link.__cause__ or link.__context__
    if deepest is None:
        return type(error).__name__
    for kind, text in _ERROR_TEXTS:
        if isinstance(deepest, kind):
            return text.format(deepest)
    return deepest.strerror or type(deepest).__name__
