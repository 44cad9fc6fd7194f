"""Apps of a server: the page, the links of tools, visibility, and what old and new hosts see."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from toolpost import Client, ClientGroup, Context, Extension, Server, SyncClient
from toolpost.types import APP_MIME_TYPE, APPS_EXTENSION, Tool

STATELESS, SESSION, OLDEST = "2026-07-28", "2025-11-25", "2024-11-05"
HTML = "<!doctype html><p>Clock"
URI = "ui://clock/app.html"

Visit = Callable[[Client], Awaitable[None]]
HOST = Extension(APPS_EXTENSION, settings={"mimeTypes": [APP_MIME_TYPE]}, since=SESSION)


def visit(server: Server, see: Visit, revision: str = STATELESS, **options: Any) -> None:
    async def main() -> None:
        async with Client(server, revision=revision, **options) as client:
            await see(client)

    asyncio.run(main())


@pytest.mark.parametrize("revision", [STATELESS, SESSION, OLDEST])
def test_a_page_is_a_resource_with_its_settings_in_every_revision(revision: str):
    server = Server("clock")
    server.app(
        URI,
        HTML,
        title="Clock",
        csp={"connect": ["https://api.example.com"], "base_uri": ["https://example.com"]},
        permissions=["clipboard_write"],
        domain="clock.example.com",
        prefers_border=False,
    )
    ui = {
        "csp": {"connectDomains": ["https://api.example.com"], "baseUriDomains": ["https://example.com"]},
        "permissions": {"clipboardWrite": {}},
        "domain": "clock.example.com",
        "prefersBorder": False,
    }

    async def see(client: Client) -> None:
        declared = client.capabilities.extensions
        assert declared == ({APPS_EXTENSION: {}} if revision == STATELESS else None)
        [resource] = await client.list_resources()
        assert (resource.uri, resource.name, resource.mime_type) == (URI, "app.html", APP_MIME_TYPE)
        assert resource.meta == {"ui": ui}
        [contents] = (await client.read_resource(URI)).contents
        assert (contents.uri, contents.text, contents.mime_type) == (URI, HTML, APP_MIME_TYPE)
        assert contents.meta == {"ui": ui}

    visit(server, see, revision)


@pytest.mark.parametrize("debug", [False, True])
def test_a_file_is_read_once_or_for_each_request_while_one_develops(tmp_path: Path, debug: bool):
    page = tmp_path / "clock.html"
    page.write_text(HTML, encoding="utf-8")
    server = Server("clock", debug=debug)
    server.app(URI, page, name="face")
    page.write_text("<p>Uhr ü", encoding="utf-8")

    async def see(client: Client) -> None:
        [contents] = (await client.read_resource(URI)).contents
        assert contents.text == ("<p>Uhr ü" if debug else HTML)
        assert contents.meta is None
        assert (await client.list_resources())[0].name == "face"

    visit(server, see)


def make_clock() -> Server:
    server = Server("clock")
    page = server.app(URI, HTML)
    assert repr(page) == f"<App {URI}>"

    @server.tool(app=page, meta={"com.example/x": 1})
    async def time_now(ctx: Context) -> str:
        """Tell the time."""
        return "seen" if ctx.client.shows_apps else "read"

    @server.tool(app=page.only)
    def tick() -> str:
        return "12:00"

    @server.tool
    def plain() -> str:
        return "plain"

    return server


def test_a_tool_names_its_page_for_new_and_old_hosts():
    async def see(client: Client) -> None:
        time_now, tick, plain = await client.list_tools()
        assert time_now.meta == {"com.example/x": 1, "ui": {"resourceUri": URI}, "ui/resourceUri": URI}
        assert tick.meta == {"ui": {"resourceUri": URI, "visibility": ["app"]}, "ui/resourceUri": URI}
        assert plain.meta is None

    visit(make_clock(), see)


@pytest.mark.parametrize("revision", [STATELESS, SESSION])
def test_a_tool_knows_whether_its_page_is_shown_and_returns_text_anyway(revision: str):
    async def seen(client: Client) -> None:
        assert (await client.call_tool("time_now")).text == "seen"

    async def read(client: Client) -> None:
        assert (await client.call_tool("time_now")).text == "read"

    visit(make_clock(), seen, revision, extensions=[HOST])
    visit(make_clock(), read, revision)
    for settings in ({}, {"mimeTypes": ["text/html"]}, {"mimeTypes": 7}):
        other = Extension(APPS_EXTENSION, settings=settings, since=SESSION)
        visit(make_clock(), read, revision, extensions=[other])


def test_a_model_sees_no_tool_that_only_the_page_may_call():
    async def main() -> None:
        server = make_clock()

        @server.tool(meta={"ui": {"visibility": ["model"]}})
        def hidden() -> str:
            return ""

        async with Client(server) as client, ClientGroup({"one": server}) as group:
            for one in (client, group):
                assert [tool.name for tool in await one.list_tools()] == [
                    "time_now",
                    "tick",
                    "plain",
                    "hidden",
                ]
                for_model = [tool.name for tool in await one.list_tools(for_model=True)]
                assert for_model == ["time_now", "plain", "hidden"]

    asyncio.run(main())
    with SyncClient(make_clock()) as sync:
        assert len(sync.list_tools(for_model=True)) == 2


@pytest.mark.parametrize("ui", [7, {}, {"visibility": "app"}, {"visibility": None}])
def test_a_tool_with_odd_metadata_is_for_models(ui: Any):
    server = Server("odd")
    server.add_tool(Tool("odd", {"type": "object"}, meta={"ui": ui}), lambda arguments: None)

    async def see(client: Client) -> None:
        assert [tool.name for tool in await client.list_tools(for_model=True)] == ["odd"]

    visit(server, see)


def test_a_tool_may_come_before_its_page():
    server = Server("clock")

    @server.tool(app=URI)
    def time_now() -> str:
        return "12:00"

    server.app(URI, HTML)

    async def see(client: Client) -> None:
        assert (await client.call_tool("time_now")).text == "12:00"

    visit(server, see)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"app": "ui://clock/other.html"},
            "tool 'time_now' shows 'ui://clock/other.html', which this server",
        ),
        ({"app": URI, "meta": {"ui": {"visibility": ["user"]}}}, "visibility must be .*, not .'user'."),
        ({"app": URI, "meta": {"ui": {"visibility": []}}}, "visibility must be"),
    ],
)
def test_a_wrong_link_is_an_error_when_the_server_starts(options: dict[str, Any], message: str):
    server = Server("clock")
    server.app(URI, HTML)

    @server.tool(**options)
    def time_now() -> str:
        return "12:00"

    async def start() -> None:
        async with server.asgi().lifespan():
            pass

    with pytest.raises(ValueError, match=message):
        asyncio.run(start())


def test_a_tool_without_a_result_is_warned_about(caplog: pytest.LogCaptureFixture):
    server = Server("clock")

    @server.tool(app=server.app(URI, HTML))
    def show_clock() -> None:
        pass

    async def see(client: Client) -> None:
        await client.call_tool("show_clock")

    with caplog.at_level(logging.WARNING):
        visit(server, see)
    assert "show_clock has an app but no result" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("https://x/app.html", HTML), {}, ValueError, "must start with ui://"),
        ((URI, "clock.html"), {}, ValueError, r"is not HTML; for a file, pass Path\('clock.html'\)"),
        ((URI, Path("missing.html")), {}, FileNotFoundError, "missing"),
        (
            (URI, HTML),
            {"csp": {"connects": []}},
            TypeError,
            "csp: unknown key 'connects'; did you mean connect",
        ),
        ((URI, HTML), {"csp": {"connect": "https://x"}}, TypeError, "csp: Expected `array"),
        ((URI, HTML), {"csp": {"connect": ["https://x; script-src *"]}}, ValueError, "is not an origin"),
        ((URI, HTML), {"csp": {"connect": ["*"]}}, ValueError, "is not an origin"),
        ((URI, HTML), {"permissions": ["camara"]}, TypeError, "permissions: unknown key 'camara'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        Server("clock").app(*arguments, **options)


def test_a_uri_can_be_used_once():
    server = Server("clock")
    server.app(URI, HTML)
    with pytest.raises(ValueError, match="already registered"):
        server.app(URI, HTML)
