"""Apps: HTML pages that a host shows for a tool, as `ui://` resources, and the `_meta` that links them.

The extension consists of metadata, so it works in every revision; hosts do the rest.
"""

import logging
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import field, to_builtins

from toolpost.protocol.extension import Extension
from toolpost.server.options import parse_hints
from toolpost.types.base import JSON, Meta, WireStruct
from toolpost.types.content import ResourceContents
from toolpost.types.skills import APP_MIME_TYPE, APPS_EXTENSION

if TYPE_CHECKING:
    from toolpost.server.server import Server

logger: Final = logging.getLogger("toolpost.server")

SCHEME: Final = "ui://"
FLAT_KEY: Final = "ui/resourceUri"
"""The key in `_meta` that old hosts read."""

_AUDIENCES: Final[tuple[JSON, ...]] = (None, ["model"], ["app"], ["model", "app"], ["app", "model"])
_SEPARATORS: Final = frozenset(" \t\r\n;,'\"")
"""Of the parts of a content security policy."""


class Csp(WireStruct, kw_only=True):
    """The origins that a page may use, by purpose."""

    connect: list[str] | None = field(name="connectDomains", default=None)
    resource: list[str] | None = field(name="resourceDomains", default=None)
    frame: list[str] | None = field(name="frameDomains", default=None)
    base_uri: list[str] | None = field(name="baseUriDomains", default=None)


class Permissions(WireStruct, kw_only=True):
    """What a page may use."""

    camera: dict[str, JSON] | None = None
    microphone: dict[str, JSON] | None = None
    geolocation: dict[str, JSON] | None = None
    clipboard_write: dict[str, JSON] | None = None


class App:
    """A page that hosts show for a tool: `@server.tool(app=page)`.

    `page.only` is the same page, for a tool that only the page may call and a model does not see.
    """

    def __init__(self, uri: str, *, is_only: bool = False) -> None:
        self.uri = uri
        self.is_only = is_only

    def __repr__(self) -> str:
        return f"<App {self.uri}>"

    @property
    def only(self) -> "App":
        """The page, for a tool that a model does not see."""
        return App(self.uri, is_only=True)


class ServerApps:
    """The apps of one server, and the extension that declares them."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        extension = Extension(APPS_EXTENSION, for_all_clients=True)
        extension.lifespan(self._check_tools)
        server.add_extension(extension)

    def link(self, app: App | str, meta: Meta) -> Meta:
        """Return the `_meta` of a tool with an app."""
        app = App(app) if isinstance(app, str) else app
        ui = {"resourceUri": app.uri, **({"visibility": ["app"]} if app.is_only else {})}
        return {**meta, "ui": {**ui, **meta.get("ui", {})}, FLAT_KEY: app.uri}

    def add_page(
        self,
        uri: str,
        page: "str | os.PathLike[str]",
        about: dict[str, Any],
        *,
        csp: Mapping[Any, list[str]],
        permissions: Iterable[str],
        ui: Meta,
        is_fresh: bool,
    ) -> App:
        """Serve a page; `is_fresh` reads its file for each request."""
        if not uri.startswith(SCHEME):
            raise ValueError(f"{uri!r} is not the URI of an app: it must start with {SCHEME}")
        if isinstance(page, str) and "<" not in page:
            raise ValueError(f"{page!r} is not HTML; for a file, pass Path({page!r})")
        policy = to_builtins(parse_hints(Csp, "csp", csp))
        granted = to_builtins(parse_hints(Permissions, "permissions", {each: {} for each in permissions}))
        for origin in [each for origins in policy.values() for each in origins]:
            if "://" not in origin or not _SEPARATORS.isdisjoint(origin):
                raise ValueError(f"csp: {origin!r} is not an origin, such as https://api.example.com")
        members = {"csp": policy or None, "permissions": granted or None, **ui}
        shown = {key: value for key, value in members.items() if value is not None}
        meta: Meta | None = {"ui": shown} if shown else None

        def read() -> str:
            return page if isinstance(page, str) else Path(page).read_text(encoding="utf-8")

        text = read()

        def serve() -> ResourceContents:
            return ResourceContents(
                uri, text=read() if is_fresh else text, mime_type=APP_MIME_TYPE, meta=meta
            )

        async def serve_at_once() -> ResourceContents:
            return serve()

        about["name"] = about["name"] or uri.rpartition("/")[2] or uri
        register = self._server.resource(uri, mime_type=APP_MIME_TYPE, meta=meta, **about)
        register(serve if is_fresh else serve_at_once)
        return App(uri)

    @asynccontextmanager
    async def _check_tools(self, _server: object) -> AsyncGenerator[None]:
        """Check the links of all tools: they may be made before the pages."""
        for tool in self._server.tools:
            meta: Meta = getattr(tool.to_list_item(None), "meta", None) or {}
            ui: Meta = meta.get("ui") or {}
            uri, audience = ui.get("resourceUri"), ui.get("visibility")
            if audience not in _AUDIENCES:
                wanted = 'a list of "model" and "app"'
                raise ValueError(f"tool {tool.name!r}: visibility must be {wanted}, not {audience!r}")
            if uri is not None and uri not in self._server.resources:
                raise ValueError(
                    f"tool {tool.name!r} shows {uri!r}, which this server does not have; use server.app(…)"
                )
            if uri is not None and getattr(tool.fn, "__annotations__", {}).get("return", "") in {
                None,
                "None",
            }:
                logger.warning(
                    "tool %s has an app but no result; models and other hosts see nothing", tool.name
                )
        yield
