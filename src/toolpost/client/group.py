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
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from toolpost.client import mcp_json
from toolpost.client.client import Client
from toolpost.client.connection.reconnect import MAX_BACKOFF, Backoff
from toolpost.client.connection.status import State
from toolpost.client.options import ProgressCallback
from toolpost.client.tools import R, ToolResult, is_for_model
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

MAX_TOOL_NAMES: Final = 10_000  # beyond that, names of tools that no longer exist are dropped
# Errors that all servers may raise alike, the most specific first.
_COMMON_ERRORS: Final = (AuthorizationRequired, TokenRejected, InsufficientScope, AuthError)

logger: Final = logging.getLogger("toolpost.client")


class ClientGroup(Mapping[str, Client]):
    """The clients of several servers, by name; a server that cannot be reached does not affect the others.

    Use it as `async with ClientGroup("mcp.json") as group:`. All servers are started at the same time. One
    that cannot be reached is retried in the background, and its tools appear once it is connected.

    A tool keeps its name unless another server has a tool of that name; then both are called `server_tool`.
    Names do not change when servers come and go.

    Args:
        servers: the path of an `mcp.json`, the content of one, or a mapping of names to targets or clients.
            A file is read when the group connects.
        client_factory: creates the client for a target; `functools.partial(Client, on_log=print)` passes
            options to each client.

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
                logger.warning("skipped: %.1000s", error)
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
        return f"<ClientGroup: {states}>"

    @property
    def states(self) -> dict[str, State]:
        """The state of each connection."""
        return {name: client.state for name, client in self._clients.items()}

    @property
    def failures(self) -> dict[str, Exception]:
        """The last error of each server that could not be reached or could not list its tools."""
        return dict(self._failures)

    # ----------------------------------------------------------------- the connections

    async def connect(self) -> Self:
        """Connect to all servers at once; return the group.

        Raises:
            ConnectFailed: none of them can be reached, or the file describes none.
            AuthError: all of them reject the credentials.
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
                    raise kind(f"all servers rejected the credentials: {each}")
            raise ConnectFailed(f"could not connect to any server: {each}")
        kept = {task.get_name() for task in self._reconnect_tasks}
        for name in self._clients.keys() - kept:
            task = asyncio.get_running_loop().create_task(self._keep_connected(name), name=name)
            self._reconnect_tasks.add(task)
            task.add_done_callback(self._reconnect_tasks.discard)
        return self

    async def close(self) -> None:
        """Close all connections. Closing twice is fine."""
        tasks = [*self._reconnect_tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        closing = (client.close() for client in self._clients.values())
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if error is not None:
                raise error

    async def __aenter__(self) -> Self:
        try:
            return await self.connect()
        except BaseException:  # also a cancellation: some may have connected
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _try_connect(self, name: str) -> None:
        try:
            await self._clients[name].connect()
        except Exception as error:  # noqa: BLE001 - an error of one server must not affect the others
            again = str(self._failures.get(name)) == str(error)
            logger.log(
                logging.DEBUG if again else logging.WARNING,
                "could not connect to server %r: %.1000s",
                name,
                error,
            )
            self._failures[name] = error
        else:
            self._failures.pop(name, None)

    async def _keep_connected(self, name: str) -> None:
        """Reconnect a server however long it was away, unless its client was closed by the user."""
        client, backoff, loop = self._clients[name], Backoff(), asyncio.get_running_loop()
        while not client.connected and client.state == "closed":  # it never connected
            await asyncio.sleep(backoff.next_delay(loop.time()))
            await self._try_connect(name)
        events = client.events()
        while client.state != "closed":
            try:
                # A client reconnects a few times in the background, and then only on demand.
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

    async def list_tools(self, *, for_model: bool = False, timeout: float | None = None) -> list[Tool]:
        """Return the tools of all connected servers, under the names that `call_tool` takes.

        A server that is not connected or fails is left out; `states` and `failures` have the reason.

        Args:
            for_model: whether to leave out the tools that only the page of an app may call.
            timeout: seconds to wait for each page of each server.
        """
        names = [name for name, client in self._clients.items() if client.connected]
        lists = await asyncio.gather(*(self._list_server_tools(name, timeout) for name in names))
        found = {(name, tool.name): tool for name, tools in zip(names, lists, strict=True) for tool in tools}
        self._assign_names(list(found))
        return [
            replace(tool, name=self._names[home])
            for home, tool in found.items()
            if not for_model or is_for_model(tool)
        ]

    async def _list_server_tools(self, name: str, timeout: float | None) -> list[Tool]:
        try:
            tools = await self._clients[name].list_tools(timeout=timeout)
        except MCPError as error:
            logger.warning("could not list the tools of server %r: %.1000s", name, error)
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

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[R] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        raise_on_error: bool = True,
        retry: bool | None = None,
    ) -> ToolResult[R]:
        """Call a tool of any server. For more options call it on its client: `group["name"]`.

        Args:
            name: the name of the tool, as in `list_tools`.
            arguments: its arguments.
            result_type: the type of its data.
            timeout: seconds to wait, instead of the client's.
            progress: receives the progress of the call.
            raise_on_error: whether to raise `ToolError` if the tool reports a failure.
            retry: whether to resend it even if the server may have received it.

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
            return f"several servers have it: {', '.join(meant)}"
        away = [server for server, state in self.states.items() if state != "ready"]
        return f"not connected: {', '.join(away)}" if away else None
