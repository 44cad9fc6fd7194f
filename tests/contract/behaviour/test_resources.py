"""Resources and templates: lists, reading, missing resources."""

import pytest

from features import record
from toolpost import RPCError
from toolpost.errors import InternalError, InvalidParams, RequestFailed


@pytest.mark.requirement("RES-1", "RES-2", "PAGE-1", "PAGE-3")
async def test_resources_are_declared_and_listed_page_by_page(link):
    client = await link("library")
    assert client.capabilities.resources is not None
    pages = [[item.uri for item in page.resources] async for page in client.list_resources_pages()]
    assert pages == [
        ["config://app", "text://hello"],
        ["bytes://two", "parts://several"],
        ["broken://always", "refused://always"],
    ]
    first = (await client.list_resources())[0]
    assert (first.name, first.title, first.description) == ("config", "Settings", "How it is set up.")
    assert first.size == 7
    assert first.icons is not None
    templates = await client.list_resource_templates()
    assert [template.uri_template for template in templates] == [
        "users://{id}/profile",
        "files://docs/{+path}",
        "images://{name}",
    ]


@pytest.mark.requirement("RES-13")
@pytest.mark.parametrize(
    ("uri", "text", "blob", "mime_type"),
    [
        ("config://app", '{"a":1}', None, "application/json"),
        ("text://hello", "# hello", None, "text/markdown"),
        ("bytes://two", None, "AAE=", "application/octet-stream"),
        ("users://7/profile", 'user 7 {"a":1}', None, "text/plain"),
        ("files://docs/a/b", "document a/b", None, "text/plain"),
        ("images://x", None, "iVBORw0KGgo=", "image/png"),
    ],
)
async def test_resources_are_read(link, uri, text, blob, mime_type):
    client = await link("library")
    [contents] = (await client.read_resource(uri)).contents
    assert (contents.uri, contents.text, contents.blob, contents.mime_type) == (uri, text, blob, mime_type)


async def test_a_resource_may_have_parts(link):
    client = await link("library")
    parts = (await client.read_resource("parts://several")).contents
    assert [part.text for part in parts] == ["one", ""]


@pytest.mark.requirement("RES-4", "RES-5", "RES-7", "RES-8", "RES-11", "RES-14")
@pytest.mark.parametrize(
    "uri", ["nope://x", "users://x/profile", "files://docs/../secret", "files://docs/a/../../b", "", "no uri"]
)
async def test_a_missing_resource_has_the_code_of_the_era(link, revision, uri):
    client = await link("library")
    with pytest.raises(RPCError) as caught:
        await client.read_resource(uri)
    assert caught.value.code == (-32602 if record(revision).stateless else -32002)


@pytest.mark.requirement("RES-5", "RES-6")
async def test_an_exception_of_a_function_is_an_internal_error(link):
    client = await link("library")
    with pytest.raises(InternalError) as caught:
        await client.read_resource("broken://always")
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidParams, match="not today"):
        await client.read_resource("refused://always")


@pytest.mark.requirement("PAGE-2", "PAGE-4", "PAGE-7")
@pytest.mark.parametrize("method", ["resources/list", "resources/templates/list", "prompts/list"])
@pytest.mark.parametrize("cursor", ["1", "AAAA", "x" * 10_000, "é"])
async def test_a_foreign_cursor_is_rejected(link, method, cursor):
    client = await link("library")
    with pytest.raises(InvalidParams, match="cursor"):
        await client.request(method, {"cursor": cursor})


@pytest.mark.parametrize(
    "method", ["tools/list", "resources/list", "resources/templates/list", "prompts/list"]
)
async def test_an_empty_cursor_is_the_first_page(link, method):
    """Some clients send it, so it is not an invalid cursor."""
    client = await link("asking" if method == "tools/list" else "library")
    first, page = [await client.request(method, params) for params in ({}, {"cursor": ""})]
    assert page == first


@pytest.mark.requirement("PAGE-2", "PAGE-4")
async def test_a_cursor_belongs_to_its_list(link):
    client = await link("library")
    page = await client.request("resources/list")
    cursor = page.next_cursor
    assert (await client.request("resources/list", {"cursor": cursor})).resources[0].uri == "bytes://two"
    with pytest.raises(InvalidParams, match="cursor"):
        await client.request("prompts/list", {"cursor": cursor})


async def test_a_uri_of_the_wrong_type_is_rejected(link, revision, transport):
    client = await link("library")
    mirrors = transport in {"http", "asgi"} and record(revision).stateless  # no header can repeat a number
    with pytest.raises(RequestFailed if mirrors else InvalidParams):
        await client.request("resources/read", {"uri": 1})
