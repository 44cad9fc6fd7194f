"""Multiple servers: one client for all of them. A server that cannot be reached does not affect the others.

    python examples/several_servers.py

The configuration has the format of an `mcp.json`; `ClientGroup("mcp.json")` reads it from a file.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from toolpost import ClientGroup, ToolError

HERE = Path(__file__).parent


def example_entry(example: str) -> dict[str, Any]:
    """Return the `mcp.json` entry that starts an example."""
    return {"command": sys.executable, "args": [str(HERE / example)]}


SERVERS = {
    "weather": example_entry("weather.py"),
    "notes": example_entry("notes.py"),
    "bank": {"command": "no-such-bank"},
}


async def main() -> None:
    async with ClientGroup(SERVERS) as group:
        for name, state in group.states.items():
            print(f"{name}:", group.failures.get(name, state))
        print("tools:", ", ".join(tool.name for tool in await group.list_tools()))

        warmest = (await group.call_tool("warmest")).text
        days = await group.call_tool("forecast", {"city": warmest, "days": 2})
        outlook = ", ".join(f"{day['sky']} {day['high']}°" for day in days.data["days"])
        written = await group.call_tool("write_note", {"name": "trip", "text": f"{warmest}: {outlook}"})

        # Select one server by name for anything other than tools.
        note = await group["notes"].read_resource(written.text)
        print(f"{written.text} says {note.contents[0].text}")

        try:
            await group.call_tool("forecast", {"city": "Atlantis"})
        except ToolError as error:
            print("refused:", error)


if __name__ == "__main__":
    asyncio.run(main())
