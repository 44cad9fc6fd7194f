"""Connects a client to its target: one factory for each kind of target; the first that fits is used.

The only module that imports both clients and transports. A transport is imported when a channel is opened, so
that a client of one does not load the others.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from msgspec.structs import replace

from toolpost.channel import Channel
from toolpost.client import mcp_json
from toolpost.client.connection.negotiate import Connector
from toolpost.client.options import check_mapping
from toolpost.errors import ChannelClosed, ConnectFailed
from toolpost.types.base import JSON

if TYPE_CHECKING:
    from toolpost.transports.credentials import ClientAuth
    from toolpost.transports.targets import Http, Stdio


SERVER_CLOSE_TIMEOUT: Final = 5.0  # seconds that a server in this process has to end before it is cancelled

_TARGET_FORMS: Final = (
    "a command as a list, a Stdio, a server object, the path of an mcp.json or an entry of one, "
    "a URL, an Http, or a Channel"
)

logger: Final = logging.getLogger("toolpost.client")


@runtime_checkable
class InProcessServer(Protocol):
    """A server in this process."""

    async def serve(self, channel: Channel, /) -> None:
        """Serve one channel until it closes."""
        ...


@runtime_checkable
class CustomTarget(Protocol):
    """A target that makes its own connector, as those of `toolpost.testing` do."""

    def make_connector(self, options: "TargetOptions", /) -> Connector:
        """Return the connector."""
        ...


_TargetDescription: TypeAlias = "Stdio | Http | Sequence[str] | Mapping[str, JSON] | PathLike[str] | str"
Target: TypeAlias = "Channel | InProcessServer | CustomTarget | _TargetDescription"
"""A channel, a server object, a command, an entry of an `mcp.json` or the whole of it, its path, or a URL.

A string is a URL if it starts like one, a path if it ends in `.json`, and else a command line."""

Credentials: TypeAlias = "ClientAuth"
"""Who a client is, over HTTP: a token, a function that gives one, or an authorizer such as `OAuth`."""


class TargetOptions(NamedTuple):
    """The options of a target: the server of an `mcp.json`, headers, HTTP backend, credentials."""

    server: str | None = None
    headers: Mapping[str, str] | None = None
    http: object = None
    auth: object = None


def make_connector(
    target: Target,
    server: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    http: object = None,
    auth: object = None,
) -> Connector:
    """Return the connector of a target. `auth="oauth"` stands for `OAuth()`."""
    return _find_connector(target, TargetOptions(server, headers, http, auth))


def _find_connector(target: object, options: TargetOptions) -> Connector:
    for make, is_http in CONNECTOR_FACTORIES.items():
        connector = make(target, options)
        if connector is None:
            continue
        for name in ("headers", "http", "auth"):
            if not is_http and getattr(options, name) is not None:
                raise TypeError(
                    f"{name}= is for a target that is reached over HTTP; {connector.name} is none"
                )
        return connector
    raise TypeError(f"a {type(target).__name__} is nothing to connect to: give {_TARGET_FORMS}")


# --------------------------------------------------------------------- channels and servers


def _reject_class(target: object, _options: TargetOptions) -> None:
    if isinstance(target, type):  # it has the methods, but there is no object to call them on
        name = target.__name__
        raise TypeError(f"{name} is a class: make one of it and give that, as in {name}(…)")


def _make_channel_connector(target: object, _options: TargetOptions) -> Connector | None:
    if not isinstance(target, Channel):
        return None
    unused = [target]

    async def take_channel() -> Channel:
        if not unused:
            raise ConnectFailed("this channel was used before", hint="give the client a new one")
        return unused.pop()

    return Connector(type(target).__name__, take_channel, can_reopen=False)


def _make_custom_connector(target: object, options: TargetOptions) -> Connector | None:
    return target.make_connector(options) if isinstance(target, CustomTarget) else None


def _make_server_connector(target: object, _options: TargetOptions) -> Connector | None:
    if not isinstance(target, InProcessServer):
        return None

    async def open_in_process() -> Channel:
        return InProcessChannel(target)

    return Connector(str(getattr(target, "name", type(target).__name__)), open_in_process)


class InProcessChannel:
    """The channel to a server in this process, which it starts and ends."""

    def __init__(self, server: InProcessServer) -> None:
        from toolpost.transports.memory import memory_pair  # noqa: PLC0415 - see the module's docstring

        self._channel, other = memory_pair()
        self.send_request, self.on_message = self._channel.send_request, self._channel.on_message
        self._failure: Exception | None = None
        self._task = asyncio.get_running_loop().create_task(self._serve(server, other))

    async def _serve(self, server: InProcessServer, channel: Channel) -> None:
        try:
            await server.serve(channel)
        except Exception as error:
            logger.exception("the server failed")
            self._failure = error
        finally:
            await channel.close()

    async def receive(self) -> bytes:
        """Return the next message of the server."""
        try:
            return await self._channel.receive()
        except ChannelClosed:
            if self._failure is None:
                raise
            raise ChannelClosed(f"the server failed: {self._failure!r}") from self._failure

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Send one message to the server."""
        await self._channel.send(data, related)

    async def close(self) -> None:
        """Close the channel and wait for the server to end."""
        await self._channel.close()
        await asyncio.wait([self._task], timeout=SERVER_CLOSE_TIMEOUT)
        if not self._task.done():
            logger.warning("the server did not end when its channel was closed, and is cancelled")
            self._task.cancel()
            await asyncio.wait([self._task], timeout=SERVER_CLOSE_TIMEOUT)


# --------------------------------------------------------------------- URLs and commands


def _make_url_connector(target: object, options: TargetOptions) -> Connector | None:
    """Return the connector of an HTTP server: one URL for everything, and HTTP+SSE as its fallback."""
    from toolpost.transports.targets import Http  # noqa: PLC0415 - see the module's docstring

    looks_so = isinstance(target, str) and target.lower().startswith(("http://", "https://"))
    if not looks_so and not isinstance(target, Http):
        return None
    from toolpost.transports.credentials import make_authorizer  # noqa: PLC0415 - see the module's docstring

    address = Http.from_target(cast("Http | str", target))
    if options.headers is not None:
        ours = {name.lower(): value for name, value in check_mapping("headers", options.headers).items()}
        address = replace(address, headers={**(address.headers or {}), **ours})
    if options.http is not None:
        address = replace(address, http=options.http)
    auth = address.auth if options.auth is None else options.auth
    if auth == mcp_json.OAUTH:
        from toolpost.auth.client.oauth import OAuth  # noqa: PLC0415 - see the module's docstring

        auth = OAuth()
    address = replace(address, auth=make_authorizer(auth))

    async def open_http() -> Channel:
        from toolpost.transports.http_client import HttpChannel  # noqa: PLC0415 - see the module's docstring

        return HttpChannel(address)

    async def open_sse_channel() -> Channel:
        from toolpost.transports.sse_client import SseChannel, open_sse  # noqa: PLC0415 - as above

        # A person may have to log in first; how long that takes is reported to the owner of the channel.
        return await open_sse(address) if address.auth is None else SseChannel(address)

    asks = address.auth is not None
    events = Connector(address.label, open_sse_channel, session=True, may_need_login=asks)
    if address.sse:
        return events
    # A backend of the user may lead anywhere, so that the URL says little.
    key = address.url if address.http is None or isinstance(address.http, str) else None
    return Connector(address.label, open_http, fallback=events, key=key, may_need_login=asks)


def _make_command_connector(target: object, _options: TargetOptions) -> Connector | None:
    from toolpost.transports.targets import Stdio  # noqa: PLC0415 - see the module's docstring

    if not isinstance(target, Stdio | str | Sequence):
        return None
    stdio = Stdio.from_target(cast("Stdio | str | Sequence[str]", target))

    async def start_process() -> Channel:
        from toolpost.transports.stdio_client import open_child  # noqa: PLC0415 - see the module's docstring

        try:
            return await open_child(stdio)
        except ConnectFailed as error:
            if isinstance(target, str) and isinstance(error.__cause__, FileNotFoundError):
                error.hint = f"{error.hint}; a string is a command line; other targets are {_TARGET_FORMS}"
            raise

    return Connector(stdio.label, start_process)


# --------------------------------------------------------------------- mcp.json


def _make_entry_connector(target: object, options: TargetOptions) -> Connector | None:
    if not isinstance(target, Mapping):
        return None
    entry = cast("Mapping[str, JSON]", target)
    if mcp_json.has_server_list(entry):
        name, entry = mcp_json.choose_server(entry, options.server)
        with mcp_json.error_context(f"server {name!r}"):
            return _find_connector(entry, options._replace(server=None))
    entry = mcp_json.expand_variables(entry)
    from toolpost.transports.targets import Http, Stdio  # noqa: PLC0415 - see the module's docstring

    kind = Http if "url" in entry else Stdio
    return _find_connector(kind.from_target(entry), options)


def _make_file_connector(target: object, options: TargetOptions) -> Connector | None:
    if not isinstance(target, PathLike):
        if not isinstance(target, str) or not target.endswith(".json"):
            return None
        if " " in target and not Path(target).exists():
            return None  # a command line may end with the name of a file as well
    path = Path(fspath(cast("PathLike[str] | str", target)))

    async def read_config() -> Connector:
        if path.suffix == ".py":
            hint = f"start it with Python: [sys.executable, {str(path)!r}]"
            raise ConnectFailed(f"{path} is a script, and a path is that of an mcp.json", hint=hint)
        found = mcp_json.parse_config(path, await asyncio.to_thread(path.read_bytes))
        with mcp_json.error_context(str(path)):
            return _find_connector(found, options)

    async def open_channel() -> Channel:
        return await (await read_config()).open()

    name = str(path) if options.server is None else f"{path}, {options.server}"
    return Connector(name, open_channel, may_need_login=True, resolve=read_config)


CONNECTOR_FACTORIES: Final[dict[Callable[[object, TargetOptions], Connector | None], bool]] = {
    _reject_class: False,
    _make_custom_connector: True,
    _make_channel_connector: False,
    _make_server_connector: False,
    _make_url_connector: True,
    _make_file_connector: True,
    _make_entry_connector: True,
    _make_command_connector: False,
}
"""The kinds of targets, in the order in which they are tried, and whether HTTP may be behind each."""
