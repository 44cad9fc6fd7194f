"""The way to a target: a client of the server that the words of a command line name.

Owns what the options about the way come to, whether there is a person to ask, and that a person can log in.
How words become a target is told in `target`.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from toolpost.cli.exits import USAGE, CommandError, translate_errors
from toolpost.cli.page import CommandOutput

if TYPE_CHECKING:
    from toolpost.cli.target import TargetSpec
    from toolpost.client.client import Client
    from toolpost.transports.address import Http
    from toolpost.transports.command import Stdio

__all__ = ["DEFAULT_TIMEOUT", "TargetConnector"]

T = TypeVar("T")

DEFAULT_TIMEOUT: Final = 60.0
"""Seconds to wait for an answer, unless `--timeout` says something else."""

CONNECT_TIMEOUT: Final = 30.0
"""Seconds for a server to start and to agree, likewise."""


@dataclass
class TargetConnector:
    """A target, and what the options say about the way there.

    Args:
        target: the server.
        output: where to write to.
        revision: the revision to speak; None finds out.
        headers: what to send with each HTTP request.
        env: variables for a server that is started.
        timeout: seconds to wait, None for ever.
        verbose: whether to show what a server that is started says on stderr.
        hidden_line_count: how many lines it has said there that were not shown.
    """

    target: "TargetSpec"
    output: CommandOutput
    revision: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    timeout: float | None = DEFAULT_TIMEOUT
    verbose: bool = False
    hidden_line_count: int = 0

    @property
    def json(self) -> bool:
        """Whether stdout is for programs."""
        return self.output.json

    @property
    def is_interactive(self) -> bool:
        """Whether there is a person to ask."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison] - it may be closed

    def resolve_target(self) -> "Http | Stdio":
        """Where the server is, or how it is started, with all that the options say.

        Raises:
            CommandError: the options do not fit the target, or the `mcp.json` cannot be used.
        """
        with translate_errors():
            return (
                self._build_stdio()
                if self.target.kind in {"command", "file"}
                else self._resolve_url_or_name()
            )

    def create_client(self, **options: Any) -> "Client":
        """A client of the server, not yet opened. Takes the options of `Client`.

        Raises:
            CommandError: the options do not fit the target, or the `mcp.json` cannot be used.
        """
        from toolpost.client.client import Client  # noqa: PLC0415 - most of what there is to load

        settings: dict[str, Any] = {
            "revision": self.revision,
            "timeout": self.timeout,
            "max_timeout": None,  # a person who has seen enough presses Ctrl-C
            "connect_timeout": CONNECT_TIMEOUT if self.timeout == DEFAULT_TIMEOUT else self.timeout,
            "name": "toolpost-cli",
        }
        place = self.resolve_target()
        if self.is_interactive and _is_unauthenticated(place):
            settings["auth"] = "oauth"  # a person can log in, if the server wants that
        with translate_errors():
            return Client(place, **(settings | options))

    def run(self, work: "Callable[[Client], Awaitable[T]]", **options: Any) -> T:
        """What comes of some work with the server, which is connected to for it and left afterwards.

        Raises:
            CommandError: the server cannot be reached, or it answers with an error.
        """
        import asyncio  # noqa: PLC0415 - 25 ms that help does not need

        client = self.create_client(**options)

        async def connect_and_work() -> T:
            async with client:
                return await work(client)

        with translate_errors(self.target.label):
            return asyncio.run(connect_and_work())

    # ----------------------------------------------------------------- the way there

    def _build_stdio(self) -> "Stdio":
        from toolpost.transports.command import Stdio  # noqa: PLC0415 - for commands only

        command, *args = self.target.words
        return self._prepare_stdio(Stdio(command, args, name=self.target.label))

    def _prepare_stdio(self, stdio: "Stdio") -> "Stdio":
        from msgspec.structs import replace  # noqa: PLC0415 - for commands only

        if self.headers:
            raise CommandError(
                "--header is for a server with a URL", USAGE, hint="a command gets --env NAME=VALUE"
            )
        return replace(stdio, env={**(stdio.env or {}), **self.env}, stderr=self._show_stderr_line)

    def _show_stderr_line(self, line: str) -> None:
        if self.verbose:
            self.output.print_note(f"{self.target.label} | {line}", style="dim")
        else:
            self.hidden_line_count += 1

    def _resolve_url_or_name(self) -> "Http | Stdio":
        from toolpost.client import config  # noqa: PLC0415 - for names and URLs only

        if self.target.kind == "url":
            return self._build_http({"url": self.target.words[0]})
        name, file = self.target.words
        with config.error_context(f"{file}, server {name!r}"):
            entry = config.expand_variables(
                config.choose_server({"servers": config.read_servers(file)}, name)[1]
            )
            if "url" in entry:
                return self._build_http(entry)
            from toolpost.transports.command import Stdio  # noqa: PLC0415 - as above

            return self._prepare_stdio(Stdio.from_target(entry))

    def _build_http(self, entry: "Mapping[str, Any]") -> "Http":
        if self.env:
            raise CommandError(
                "--env is for a server that is started", USAGE, hint="one with a URL gets --header NAME:VALUE"
            )
        from toolpost.transports.address import Http  # noqa: PLC0415 - for URLs only

        given = cast("dict[str, str]", entry.get("headers") or {})
        headers = {key.lower(): value for key, value in given.items()} | self.headers
        return Http.from_target({**entry, "headers": headers})


def _is_unauthenticated(place: "Http | Stdio") -> bool:
    """Whether it is reached over HTTP, and nothing is said about who we are."""
    from toolpost.transports.address import Http  # noqa: PLC0415 - there is a client to be made

    return isinstance(place, Http) and place.auth is None and "authorization" not in (place.headers or {})
