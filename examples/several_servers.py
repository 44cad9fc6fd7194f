"""Several servers: one client for all of them, and one that is missing costs the others nothing.

    python examples/several_servers.py

The servers are those of an `mcp.json`; `ClientGroup("mcp.json")` reads them from a file.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from toolpost import ClientGroup, ToolError

HERE = Path(__file__).parent


def started(example: str) -> dict[str, Any]:
    """An entry of an `mcp.json`."""
    return {"command": sys.executable, "args": [str(HERE / example)]}


SERVERS = {
    "weather": started("weather.py"),
    "notes": started("notes.py"),
    "bank": {"command": "no-such-bank"},
}


async def main() -> None:
    async with ClientGroup(SERVERS) as group:
        for name, state in group.states.items():
            print(f"{name}:", group.failures.get(name, state))
        print("tools:", ", ".join(tool.name for tool in await group.list_tools()))

        warmest = (await group.call_tool("warmest")).text
        days = await group.call_tool("forecast", {"city": warmest, "days": 2})
        told = ", ".join(f"{day['sky']} {day['high']}°" for day in days.data["days"])
        noted = await group.call_tool("write_note", {"name": "trip", "text": f"{warmest}: {told}"})

        # One server by its name, for all that is not a tool.
        note = await group["notes"].read_resource(noted.text)
        print(f"{noted.text} says {note.contents[0].text}")

        try:
            await group.call_tool("forecast", {"city": "Atlantis"})
        except ToolError as error:
            print("refused:", error)


if __name__ == "__main__":
    asyncio.run(main())
