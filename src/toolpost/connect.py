"""Composition root of clients: `make_connector` makes a connector for any kind of target.

The only module that imports both clients and transports. It imports a transport when a channel is opened, so
that a client of one does not load the others.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
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


SERVER_CLOSE_TIMEOUT: Final = 5.0  # seconds for a server in this process to end before it is cancelled

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
    """A target that makes its own connector, such as those of `toolpost.testing`."""

    def make_connector(self, options: "TargetOptions", /) -> Connector:
        """Return the connector."""
        ...


_TargetDescription: TypeAlias = "Stdio | Http | Sequence[str] | Mapping[str, JSON] | PathLike[str] | str"
Target: TypeAlias = "Channel | InProcessServer | CustomTarget | _TargetDescription"
"""A channel, a server object, a command, an entry of an `mcp.json` or the whole of it, its path, or a URL.

A string is a URL if it starts like one, a path if it ends in `.json`, and else a command line."""

Credentials: TypeAlias = "ClientAuth"
"""The credentials of a client: a token, a function that returns one, or an authorizer such as `OAuth`."""


class TargetOptions(NamedTuple):
    """The options of a target: the server of an `mcp.json`, headers, HTTP backend, credentials."""

    server: str | None = None
    headers: Mapping[str, str] | None = None
    http: object = None
    auth: object = None

    def refuse_http_options(self, name: str) -> None:
        """Raise TypeError if there are options for HTTP, which the target `name` does not use."""
        for option in ("headers", "http", "auth"):
            if getattr(self, option) is not None:
                raise TypeError(f"{option}= requires an HTTP target; {name} is not one")


_NO_OPTIONS: Final = TargetOptions()
_URL_PREFIX: Final = re.compile(r"[A-Za-z]+://")  # `Http` rejects all schemes but http and https


def make_connector(target: object, options: TargetOptions = _NO_OPTIONS) -> Connector:
    """Return the connector of a `Target`; TypeError for others. `auth="oauth"` stands for `OAuth()`."""
    from toolpost.transports.targets import Http, Stdio  # noqa: PLC0415 - see the module's docstring

    if isinstance(target, type):  # it has the methods of a target, but is not an object
        name = target.__name__
        raise TypeError(f"{name} is a class; pass an instance: {name}(…)")
    if isinstance(target, CustomTarget):
        return target.make_connector(options)
    if isinstance(target, Http) or (isinstance(target, str) and _URL_PREFIX.match(target)):
        return _make_http_connector(Http.from_target(target), options)
    if isinstance(target, PathLike) or _is_json_path(target):
        return _make_file_connector(Path(fspath(cast("PathLike[str] | str", target))), options)
    if isinstance(target, Mapping):
        return _make_entry_connector(cast("Mapping[str, JSON]", target), options)
    if isinstance(target, Channel):
        connector = _make_channel_connector(target)
    elif isinstance(target, InProcessServer):
        connector = _make_server_connector(target)
    elif isinstance(target, Stdio | str | Sequence):
        connector = _make_command_connector(cast("Stdio | str | Sequence[str]", target))
    else:
        raise TypeError(f"cannot connect to {type(target).__name__}; pass {_TARGET_FORMS}")
    options.refuse_http_options(connector.name)
    return connector


def _is_json_path(target: object) -> bool:
    """Return whether a string is the path of an `mcp.json`; a command line may end with such a name too."""
    return (
        isinstance(target, str) and target.endswith(".json") and (" " not in target or Path(target).exists())
    )


# --------------------------------------------------------------------- channels and servers


def _make_channel_connector(channel: Channel) -> Connector:
    unused = [channel]

    async def take_channel() -> Channel:
        if not unused:
            raise ConnectFailed("this channel was already used", hint="pass a new one")
        return unused.pop()

    return Connector(type(channel).__name__, take_channel, can_reopen=False)


def _make_server_connector(server: InProcessServer) -> Connector:
    async def open_in_process() -> Channel:
        return InProcessChannel(server)

    return Connector(str(getattr(server, "name", type(server).__name__)), open_in_process)


class InProcessChannel:
    """The channel to a server in this process. It starts and ends the server."""

    def __init__(self, server: InProcessServer) -> None:
        from toolpost.transports.memory import memory_pair  # noqa: PLC0415 - see the module's docstring

        self._channel, other = memory_pair()
        self.send, self.offer = self._channel.send, self._channel.offer
        self.on_message = self._channel.on_message
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

    async def close(self) -> None:
        """Close the channel and wait for the server to end."""
        await self._channel.close()
        await asyncio.wait([self._task], timeout=SERVER_CLOSE_TIMEOUT)
        if not self._task.done():
            logger.warning("the server did not stop when its channel was closed; cancelling it")
            self._task.cancel()
            await asyncio.wait([self._task], timeout=SERVER_CLOSE_TIMEOUT)


# --------------------------------------------------------------------- URLs and commands


def _make_http_connector(address: "Http", options: TargetOptions) -> Connector:
    """Return the connector of an HTTP server, with HTTP+SSE as the fallback."""
    from toolpost.transports.credentials import make_authorizer  # noqa: PLC0415 - see the module's docstring

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

        # If a person may have to log in, the channel is returned before it is open, and reports the wait.
        return await open_sse(address) if address.auth is None else SseChannel(address)

    asks = address.auth is not None
    events = Connector(address.label, open_sse_channel, session=True, may_need_login=asks)
    if address.sse:
        return events
    # A backend of the user may send requests anywhere, so the URL does not identify the server.
    key = address.url if address.http is None or isinstance(address.http, str) else None
    return Connector(address.label, open_http, fallback=events, key=key, may_need_login=asks)


def _make_command_connector(target: "Stdio | str | Sequence[str]") -> Connector:
    from toolpost.transports.targets import Stdio  # noqa: PLC0415 - see the module's docstring

    stdio = Stdio.from_target(target)

    async def start_process() -> Channel:
        from toolpost.transports.stdio_client import open_child  # noqa: PLC0415 - see the module's docstring

        try:
            return await open_child(stdio)
        except ConnectFailed as error:
            if isinstance(target, str) and isinstance(error.__cause__, FileNotFoundError):
                error.hint = f"{error.hint}. A target can also be {_TARGET_FORMS}"
            raise

    return Connector(stdio.label, start_process)


# --------------------------------------------------------------------- mcp.json


def _make_entry_connector(entry: Mapping[str, JSON], options: TargetOptions) -> Connector:
    if mcp_json.has_server_list(entry):
        name, entry = mcp_json.choose_server(entry, options.server)
        with mcp_json.error_context(f"server {name!r}"):
            return make_connector(entry, options._replace(server=None))
    entry = mcp_json.expand_variables(entry)
    from toolpost.transports.targets import Http, Stdio  # noqa: PLC0415 - see the module's docstring

    kind = Http if "url" in entry else Stdio
    return make_connector(kind.from_target(entry), options)


def _make_file_connector(path: Path, options: TargetOptions) -> Connector:
    async def read_config() -> Connector:
        if path.suffix == ".py":
            hint = f"start it with Python: [sys.executable, {str(path)!r}]"
            raise ConnectFailed(f"{path} is a script, not an mcp.json", hint=hint)
        found = await asyncio.to_thread(mcp_json.read_config, path)
        with mcp_json.error_context(str(path)):
            return make_connector(found, options)

    async def open_channel() -> Channel:
        return await (await read_config()).open()

    name = str(path) if options.server is None else f"{path}, {options.server}"
    return Connector(name, open_channel, may_need_login=True, resolve=read_config)
