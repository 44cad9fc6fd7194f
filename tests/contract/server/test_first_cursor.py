"""Some clients send an empty cursor for the first page."""

from toolpost import Server, SyncClient
from toolpost.types import ListToolsResult


def test_an_empty_cursor_is_the_first_page():
    server = Server("shop", page_size=1)

    @server.tool
    def price() -> int:
        """Return the price."""
        return 1

    for revision in ("2026-07-28", "2025-11-25"):
        with SyncClient(server, revision=revision) as mcp:
            page = mcp.request("tools/list", {"cursor": ""})
            assert isinstance(page, ListToolsResult)
            assert [tool.name for tool in page.tools] == ["price"]
