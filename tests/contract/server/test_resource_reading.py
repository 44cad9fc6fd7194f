"""Resources and templates: the lists, and the contents."""

import asyncio
from typing import Any

import pytest

from toolpost import Client, File, Server
from toolpost.errors import InternalError, ResourceNotFound
from toolpost.types import EmbeddedResource, Icon, ResourceContents

SAFE = [Icon("https://example.com/a.png")]
UNSAFE = [Icon("file:///etc/passwd")]
URI = "a:b"


def text(words: str, mime_type: str = "text/plain", uri: str = URI) -> ResourceContents:
    return ResourceContents(uri, text=words, mime_type=mime_type)


# --------------------------------------------------------------------- served


def made() -> Server:
    server = Server("s")

    @server.resource("config://app", mime_type="text/x-conf", icons=SAFE)
    def config() -> str:
        """The settings."""
        return "a = 1"

    @server.resource("users://{id}/profile")
    async def profile(id: int, verbose: bool = False) -> dict[str, Any]:  # noqa: A002 - the template's word
        return {"id": id, "verbose": verbose}

    @server.resource("broken://x")
    def broken() -> object:
        return object()

    return server


async def read(server: Server, uri: str) -> list[ResourceContents]:
    async with Client(server, revision="2025-11-25") as client:
        return list((await client.read_resource(uri)).contents)


def test_a_resource_and_a_template_are_read():
    server = made()
    assert asyncio.run(read(server, "config://app")) == [text("a = 1", "text/x-conf", "config://app")]
    uri = "users://7/profile"
    assert asyncio.run(read(server, uri)) == [text('{"id":7,"verbose":false}', "application/json", uri)]


@pytest.mark.requirement("RES-5")
@pytest.mark.parametrize("uri", ["users://ann/profile", "users://7", "none://x"])
def test_an_invalid_template_variable_is_not_found(uri):
    with pytest.raises(ResourceNotFound, match="Resource not found") as refused:
        asyncio.run(read(made(), uri))
    assert refused.value.data == {"uri": uri}


def test_contents_that_cannot_be_sent_are_an_error_of_the_server():
    with pytest.raises(InternalError):
        asyncio.run(read(made(), "broken://x"))


def test_listed_fields_can_be_updated():
    server = made()
    [config, _] = server.resources
    [profile] = server.templates
    config.update(title="Settings", size=5)
    profile.update(description="Who it is", icons=SAFE)

    async def main() -> None:
        async with Client(server) as client:
            shown = (await client.list_resources())[0]
            assert (shown.title, shown.size, shown.description) == ("Settings", 5, "The settings.")
            [template] = await client.list_resource_templates()
            assert (template.description, template.icons) == ("Who it is", SAFE)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["uri", "uri_template", "colour"])
def test_unknown_fields_cannot_be_updated(name):
    server = made()
    for handle in (*server.resources, *server.templates):
        with pytest.raises(TypeError, match=f"has no field '{name}' that can be changed"):
            handle.update(**{name: "x"})


def test_an_icon_that_clients_would_refuse_is_refused():
    server = made()
    for uri in ("one://x", "many://{x}"):
        with pytest.raises(ValueError, match="'file:///etc/passwd' is not safe"):
            server.resource(uri, name="f", icons=UNSAFE)(_of)
    for handle in (*server.resources, *server.templates):
        with pytest.raises(ValueError, match="file:///etc/passwd"):
            handle.update(title="new", icons=UNSAFE)
    assert (len(server.resources), len(server.templates)) == (2, 1)
    assert all(handle.resource.title is None for handle in server.resources)


def _of(x: str = "") -> str:
    return x


def test_a_resource_has_no_argument_to_complete():
    [config, _] = made().resources
    with pytest.raises(ValueError, match=r"unknown argument 'x' \(expected: none\)"):
        config.complete("x")


@pytest.mark.parametrize("source", ["bytes", "path"])
def test_a_file_is_the_same_in_a_resource_as_in_a_tool(source, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("ä,b".encode())
    server = Server("s")

    def table() -> File:
        return File(path) if source == "path" else File(path.read_bytes(), name="a.csv")

    server.tool(table)
    server.resource("table://x")(table)
    server.resource("table://plain", mime_type="text/plain")(table)
    server.resource("table://bytes", mime_type="application/x-table")(table)

    async def main() -> None:
        [found] = await read(server, "table://x")
        assert found == text("ä,b", "text/csv", "table://x")
        assert await read(server, "table://plain") == [text("ä,b", uri="table://plain")]
        [blob] = await read(server, "table://bytes")
        assert (blob.text, blob.blob) == (None, "w6QsYg==")
        async with Client(server) as client:
            [block] = (await client.call_tool("table")).content
        assert block == EmbeddedResource(resource=text("ä,b", "text/csv", "file:///a.csv"))

    asyncio.run(main())
