"""Skills: texts that tell a model how to do something, from files and from a function."""

from datetime import UTC, datetime
from pathlib import Path

from toolpost import Server

server = Server("how-to")
server.skills(Path(__file__).with_name("skills"))


@server.skill
def release_notes() -> str:
    """Write the notes of a release. Use it when the user releases something."""
    return f"Begin with the date, {datetime.now(UTC):%Y-%m-%d}. Write one sentence for each visible change."


if __name__ == "__main__":
    server.run()
