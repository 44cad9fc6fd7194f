"""`ExtensionMethods`: the methods of a server that need an extension of the protocol.

Each extension is loaded, and declared to clients, when the first of its methods is called.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

from toolpost.errors import explain_keywords
from toolpost.server import options

if TYPE_CHECKING:
    from toolpost.server.extensions.apps import App, ServerApps
    from toolpost.server.extensions.skills import RegisteredSkill, ServerSkills
    from toolpost.server.server import Server

P = ParamSpec("P")
R = TypeVar("R")


class ExtensionMethods:
    """The half of a `Server` that needs extensions."""

    _debug: bool

    @cached_property
    def _apps(self) -> "ServerApps":
        from toolpost.server.extensions.apps import ServerApps  # noqa: PLC0415 - start-up time

        return ServerApps(cast("Server", self))

    @cached_property
    def _skills(self) -> "ServerSkills":
        from toolpost.server.extensions.skills import ServerSkills  # noqa: PLC0415 - start-up time

        return ServerSkills(cast("Server", self))

    @explain_keywords
    def app(
        self,
        uri: str,
        page: "str | os.PathLike[str]",
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        csp: Mapping[Literal["connect", "resource", "frame", "base_uri"], list[str]] | None = None,
        permissions: Iterable[Literal["camera", "microphone", "geolocation", "clipboard_write"]] = (),
        domain: str | None = None,
        prefers_border: bool | None = None,
    ) -> "App":
        """Offer an HTML page that hosts show for a tool: `@server.tool(app=…)`.

        Args:
            uri: its URI, such as "ui://clock/app.html".
            page: the HTML, or the path of a file. With `debug=True` the file is read for each request.
            name: a name for the list of resources; the last part of the URI by default.
            title: the name to display.
            description: a description for people.
            csp: the origins that the page may use, such as `{"connect": ["https://api.example.com"]}`.
            permissions: what the page may use: "camera", "microphone", "geolocation", "clipboard_write".
            domain: an origin of its own for the page, in the form that the host documents.
            prefers_border: whether the host should draw a border.

        Raises:
            TypeError: an argument has an unknown key.
            ValueError: the URI is taken or does not start with `ui://`, or there is no HTML or no origin.
            OSError: the file cannot be read.

        Examples:
            >>> server = Server("clock")
            >>> page = server.app("ui://clock/app.html", "<!doctype html><p id=now>")
            >>> @server.tool(app=page)
            ... def now() -> str:
            ...     return "12:00"
        """
        about = {"name": name, "title": title, "description": description}
        ui = {"domain": domain, "prefersBorder": prefers_border}
        return self._apps.add_page(
            uri, page, about, csp=csp or {}, permissions=permissions, ui=ui, is_fresh=self._debug
        )

    @explain_keywords
    def skills(self, folder: "str | os.PathLike[str]", *, watch: float | None = 2.0) -> None:
        """Offer the skills in a folder: each folder in it, at any depth, that has a file `SKILL.md`.

        Args:
            folder: the folder.
            watch: seconds between two checks for changes while the server runs. None looks for changes only
                when a client asks for skills.

        Raises:
            ValueError: there is no skill, or one is not valid; the message has its path.
            MCPError: PyYAML is not installed.
        """
        options.check_timeouts(watch=watch)
        self._skills.add_folder(folder, watch)

    @overload
    def skill(self, fn: Callable[P, R], /) -> "RegisteredSkill[P, R]": ...

    @overload
    def skill(
        self, fn: None = None, /, *, name: str | None = None, description: str | None = None
    ) -> "Callable[[Callable[P, R]], RegisteredSkill[P, R]]": ...

    @explain_keywords
    def skill(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
    ) -> Any:
        """Offer a skill that a function makes: it returns the Markdown below the front matter.

        Args:
            fn: the function; it takes nothing but a context.
            name: the name of the skill; that of the function, with hyphens, by default.
            description: when to use the skill, for the model; that of the docstring by default.

        Raises:
            TypeError: the function takes arguments.
            ValueError: the name is taken, or it or the description is not valid.

        Examples:
            >>> server = Server("desk")
            >>> @server.skill
            ... def greeting() -> str:
            ...     '''How to greet a visitor.'''
            ...     return "Say hello, and offer a chair."
        """

        def register(fn: Callable[..., Any]) -> "RegisteredSkill[..., Any]":
            return self._skills.add_function(fn, name, description)

        return register if fn is None else register(fn)
