"""Changes while a server runs, and which clients are notified."""

import pytest

from connected_clients import until
from features import needs, record
from toolpost import MCPError, RPCError
from toolpost.errors import InvalidParams

CHANGED = {
    "tool": "notifications/tools/list_changed",
    "resource": "notifications/resources/list_changed",
    "template": "notifications/resources/list_changed",
    "prompt": "notifications/prompts/list_changed",
}


async def listed(client, what) -> list:
    """Return the list that contains the entry of a handle."""
    lists = {
        "tool": client.list_tools,
        "resource": client.list_resources,
        "template": client.list_resource_templates,
        "prompt": client.list_prompts,
    }
    return await lists[what]()


async def use(client, what) -> object:
    """Call, read or get the entry of a handle."""
    uses = {
        "tool": lambda: client.call_tool("other"),
        "resource": lambda: client.read_resource("state://now"),
        "template": lambda: client.read_resource("rows://1"),
        "prompt": lambda: client.get_prompt("ask"),
    }
    return await uses[what]()


@pytest.mark.requirement("TOOL-2", "TOOL-4", "RES-2", "RES-3", "PRM-2", "PRM-3")
@pytest.mark.parametrize("what", CHANGED)
async def test_handles_change_the_entries_and_clients_are_notified(link, what):
    client = await link.attended("shifting")

    async def change(how) -> None:
        link.desk.notices.clear()
        await client.call_tool("change", {"how": how, "what": what})
        await until(lambda: link.desk.notices)
        assert [method for method, _ in link.desk.notices] == [CHANGED[what]]

    before = await listed(client, what)
    await change("update")
    after = await listed(client, what)
    assert len(before) == len(after)
    assert [item for item in after if item.title == "New" and item.description == "Changed."]
    await use(client, what)
    await change("disable")
    assert len(await listed(client, what)) == len(before) - 1
    with pytest.raises(RPCError):
        await use(client, what)
    await change("enable")
    assert await listed(client, what) == after
    await use(client, what)
    await change("remove")
    assert len(await listed(client, what)) == len(before) - 1
    with pytest.raises(RPCError):
        await use(client, what)


@pytest.mark.requirement("TOOL-4")
async def test_many_changes_cause_few_notifications(link):
    client = await link.attended("shifting")
    before = len(await client.list_tools())
    await client.call_tool("grow", {"count": 100})
    await until(lambda: link.desk.notices)
    assert len(await client.list_tools()) == before + 100
    assert len(link.desk.notices) < 50
    assert (await client.call_tool("grown_99")).text == "grown"


@pytest.mark.requirement("RES-15")
@pytest.mark.parametrize("tool", ["touch", "touch_sync"])
async def test_subscribers_are_notified_when_a_resource_changes(link, tool):
    client = await link.attended("shifting")
    await client.call_tool(tool, {"uri": "rows://9"})
    await client.subscribe("state://now")
    await client.subscribe("rows://7")
    await client.call_tool(tool, {"uri": "rows://8"})
    await client.call_tool(tool, {"uri": "rows://7"})
    await until(lambda: link.desk.notices)
    [(method, params)] = link.desk.notices
    assert (method, params.uri) == ("notifications/resources/updated", "rows://7")
    await client.unsubscribe("rows://7")
    await client.call_tool(tool, {"uri": "rows://7"})
    await client.call_tool(tool, {"uri": "state://now"})
    await until(lambda: len(link.desk.notices) > 1)
    assert [params.uri for _, params in link.desk.notices] == ["rows://7", "state://now"]


async def test_a_missing_resource_cannot_be_watched(link, revision):
    client = await link.attended("shifting")
    with pytest.raises(MCPError) as caught:
        await client.subscribe("nope://x")
    if not record(revision).stateless:
        assert isinstance(caught.value, RPCError)
        assert caught.value.code == -32002


@needs("sessions")
async def test_methods_of_the_other_era_do_not_exist(link):
    client = await link("kitchen")
    with pytest.raises(MCPError):
        await client.request("subscriptions/listen", {"notifications": {}})
    with pytest.raises(InvalidParams):
        await client.request("tools/list", {"cursor": 7})
