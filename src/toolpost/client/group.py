"""`ClientGroup`: several servers as one, with one namespace of tools.

Owns a client for each server, the names of their tools here, and the retries for servers that cannot be
reached. Reconnecting is left to each client.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from msgspec.structs import replace

from toolpost.client import mcp_json
from toolpost.client.client import Client
from toolpost.client.connection.reconnect import MAX_BACKOFF, Backoff
from toolpost.client.connection.status import State
from toolpost.client.options import ProgressCallback
from toolpost.client.tools import ToolResult
from toolpost.errors import (
    AuthError,
    AuthorizationRequired,
    ConnectFailed,
    InsufficientScope,
    LocalProtocolError,
    MCPError,
    TokenRejected,
)
from toolpost.types.base import JSON
from toolpost.types.tools import Tool

if TYPE_CHECKING:
    from toolpost.connect import Target


MAX_TOOL_NAMES: Final = 10_000
"""How many names are kept, of tools that are there and that were: beyond that only of those that are."""

T = TypeVar("T")

_COMMON_ERRORS: Final = (AuthorizationRequired, TokenRejected, InsufficientScope, AuthError)
"""What all servers may say alike, the most telling first."""

logger: Final = logging.getLogger("toolpost.client")


class ClientGroup(Mapping[str, Client]):
    """The clients of several servers, by name; a server that is not there leaves the others alone.

    Use it as `async with ClientGroup("mcp.json") as group:`. All servers are started at the same time. One
    that cannot be reached is tried again and again in the background, and its tools are there once it is.

    A tool keeps its own name if no other server has one of that name; those that share a name are called
    `server_tool`. A name that was given once stays, whichever servers come and go.

    Args:
        servers: the path of an `mcp.json`, what is in one, or a mapping of names to targets or clients.
            A file is read when the group connects.
        client_factory: makes the client of a target: `functools.partial(Client, on_log=print)` passes
            options to each of them.

    Examples:
        >>> import asyncio
        >>> north, south = Server("north"), Server("south")
        >>> @south.tool
        ... def swim() -> str:
        ...     return "splash"
        >>> async def main():
        ...     async with ClientGroup({"north": north, "south": south}) as group:
        ...         return (await group.call_tool("swim")).text
        >>> asyncio.run(main())
        'splash'
    """

    def __init__(
        self,
        servers: "PathLike[str] | str | Mapping[str, Target | Client]",
        *,
        client_factory: "Callable[[Target], Client]" = Client,
    ) -> None:
        self._client_factory = client_factory
        self._path = None if isinstance(servers, Mapping) else servers
        self._clients: dict[str, Client] = {}
        self._failures: dict[str, Exception] = {}
        if isinstance(servers, Mapping):
            self._add_clients(
                mcp_json.list_servers(servers) if mcp_json.has_server_list(servers) else servers
            )
        self._names: dict[tuple[str, str], str] = {}
        self._tools_by_name: dict[str, tuple[str, str]] = {}
        self._shared_names: set[str] = set()
        self._reconnect_tasks: set[asyncio.Task[None]] = set()

    # ----------------------------------------------------------------- the clients

    def _add_clients(self, targets: "Mapping[str, Target | Client]") -> None:
        for name, target in targets.items():
            if isinstance(target, Mapping) and target.get("disabled") is True:
                continue  # as other programs write it
            try:
                self._clients[name] = target if isinstance(target, Client) else self._client_factory(target)
            except MCPError as error:
                where = f"server {name!r}" if self._path is None else f"{self._path}, server {name!r}"
                error.peer = where if error.peer is None else f"{where}, {error.peer}"
                logger.warning("left out: %s", error)
                self._failures[name] = error
            except (TypeError, ValueError) as error:
                error.add_note(f"server {name!r}")
                raise

    def __getitem__(self, name: str) -> Client:
        return self._clients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        states = ", ".join(f"{name}: {state}" for name, state in self.states.items())
        return f"<ClientGroup of {states}>"

    @property
    def states(self) -> dict[str, State]:
        """Where each connection stands."""
        return {name: client.state for name, client in self._clients.items()}

    @property
    def failures(self) -> dict[str, Exception]:
        """Why servers could not be reached or could not list their tools, the last time that was tried."""
        return dict(self._failures)

    # ----------------------------------------------------------------- the connections

    async def connect(self) -> Self:
        """Connect to all servers at once; the group itself.

        Raises:
            ConnectFailed: not one of them can be reached, or the file describes none.
            AuthError: all of them are there, and not one of them lets us in.
        """
        if self._path is not None:
            self._add_clients(await asyncio.to_thread(mcp_json.read_servers, self._path))
            self._path = None
        async with asyncio.TaskGroup() as tries:
            for name in self._clients:
                tries.create_task(self._try_connect(name))
        if self._failures and not any(client.connected for client in self._clients.values()):
            await self.close()
            each = "; ".join(f"{name}: {error}" for name, error in self._failures.items())
            failures = [*self._failures.values()]
            for kind in _COMMON_ERRORS:
                if all(isinstance(error, kind) for error in failures):
                    raise kind(f"no server lets us in: {each}")
            raise ConnectFailed(f"no server can be reached: {each}")
        kept = {keeper.get_name() for keeper in self._reconnect_tasks}
        for name in self._clients.keys() - kept:
            keeper = asyncio.get_running_loop().create_task(self._keep_connected(name), name=name)
            self._reconnect_tasks.add(keeper)
            keeper.add_done_callback(self._reconnect_tasks.discard)
        return self

    async def close(self) -> None:
        """Leave all servers. Closing twice is fine."""
        keepers = [*self._reconnect_tasks]
        for keeper in keepers:
            keeper.cancel()
        if keepers:
            await asyncio.wait(keepers)
        closing = (client.close() for client in self._clients.values())
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if error is not None:
                raise error

    async def __aenter__(self) -> Self:
        try:
            return await self.connect()
        except BaseException:  # also when the caller no longer waits: some may have connected
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _try_connect(self, name: str) -> None:
        try:
            await self._clients[name].connect()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one server, the others are well
            again = str(self._failures.get(name)) == str(error)
            logger.log(
                logging.DEBUG if again else logging.WARNING, "server %r cannot be reached: %s", name, error
            )
            self._failures[name] = error
        else:
            self._failures.pop(name, None)

    async def _keep_connected(self, name: str) -> None:
        """Reconnect a server however long it was away, unless its client was closed by the user."""
        client, backoff, loop = self._clients[name], Backoff(), asyncio.get_running_loop()
        while not client.connected and client.state == "closed":  # it never was there
            await asyncio.sleep(backoff.next_delay(loop.time()))
            await self._try_connect(name)
        events = client.events()
        while client.state != "closed":
            try:
                # It tries a few times by itself, and then waits for somebody to ask.
                async with asyncio.timeout(None if client.connected else MAX_BACKOFF):
                    event = await anext(events, None)
            except TimeoutError:
                await self._try_connect(name)
                continue
            if event is None:
                return
            if event.state == "backoff" and event.cause is not None:
                self._failures[name] = event.cause
            elif event.state == "ready":
                self._failures.pop(name, None)

    # ----------------------------------------------------------------- the tools

    async def list_tools(self, *, timeout: float | None = None) -> list[Tool]:
        """The tools of all servers that are there, under the names that `call_tool` takes.

        A server that is lost at the moment or fails is left out; `states` and `failures` say why.

        Args:
            timeout: seconds to wait for each page of each server.
        """
        names = [name for name, client in self._clients.items() if client.connected]
        lists = await asyncio.gather(*(self._list_server_tools(name, timeout) for name in names))
        found = {(name, tool.name): tool for name, tools in zip(names, lists, strict=True) for tool in tools}
        self._assign_names(list(found))
        return [replace(tool, name=self._names[home]) for home, tool in found.items()]

    async def _list_server_tools(self, name: str, timeout: float | None) -> list[Tool]:
        try:
            tools = await self._clients[name].list_tools(timeout=timeout)
        except MCPError as error:
            logger.warning("server %r cannot list its tools: %s", name, error)
            self._failures[name] = error
            return []
        self._failures.pop(name, None)
        return tools

    def _assign_names(self, found: list[tuple[str, str]]) -> None:
        """Give a name to each new tool."""
        if len(self._names) > MAX_TOOL_NAMES:
            kept = set(found)
            self._names = {home: name for home, name in self._names.items() if home in kept}
            self._tools_by_name = {name: home for home, name in self._names.items()}
        new = [home for home in found if home not in self._names]
        wanted = Counter(tool for _, tool in new)
        for server, tool in new:
            name = tool
            if name in self._tools_by_name or wanted[tool] > 1 or tool in self._shared_names:
                self._shared_names.add(tool)
                name, joint = f"{server}_{tool}", "_"
                while name in self._tools_by_name or name in wanted:
                    joint += "_"
                    name = f"{server}{joint}{tool}"
            self._names[server, tool] = name
            self._tools_by_name[name] = server, tool

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[T],
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        raise_on_error: bool = True,
        retry: bool | None = None,
    ) -> ToolResult[T]: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        raise_on_error: bool = True,
        retry: bool | None = None,
    ) -> ToolResult[JSON]: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[Any] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        raise_on_error: bool = True,
        retry: bool | None = None,
    ) -> ToolResult[Any]:
        """What a tool says, whichever server has it. For more options call it on its client: `group["name"]`.

        Args:
            name: the tool, as `list_tools` calls it.
            arguments: what to call it with.
            result_type: what to make of its data.
            timeout: seconds to wait, instead of the client's.
            progress: hears how far the tool has come.
            raise_on_error: whether a tool that says that it failed is an exception.
            retry: whether it may be sent once more although the server may have got it.

        Raises:
            LocalProtocolError: no server has a tool of this name.
            MCPError: as `Client.call_tool` does.
        """
        if name not in self._tools_by_name:
            await self.list_tools(timeout=timeout)
        home = self._tools_by_name.get(name)
        if home is None:
            raise LocalProtocolError(f"no server has a tool {name!r}", hint=self._suggest(name))
        server, tool = home
        return await self._clients[server].call_tool(
            tool,
            arguments,
            result_type=result_type,
            timeout=timeout,
            progress=progress,
            raise_on_error=raise_on_error,
            retry=retry,
        )

    def _suggest(self, name: str) -> str | None:
        """Return a hint for an unknown tool name."""
        meant = [known for known, (_, tool) in self._tools_by_name.items() if tool == name]
        if meant:
            return f"several servers have one: {', '.join(meant)}"
        away = [server for server, state in self.states.items() if state != "ready"]
        return f"not there at the moment: {', '.join(away)}" if away else None
