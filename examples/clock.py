"""A clock: hosts show it as a page, and everything else reads its text.

`clock.html` is the page. It has a tool of its own, `tick`, which no model sees.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from toolpost import Server

server = Server("clock")
page = server.app("ui://clock/app.html", Path(__file__).with_name("clock.html"), title="Clock")

Offset = Annotated[int, Meta(ge=-12, le=14)]


@server.tool(app=page)
def time_now(offset: Offset = 0) -> str:
    """Tell the time.

    Args:
        offset: hours from UTC.
    """
    return f"{datetime.now(UTC) + timedelta(hours=offset):%H:%M:%S} UTC{offset:+d}"


@server.tool(app=page.only)
def tick(offset: Offset = 0) -> str:
    """Tell the page the time, to the millisecond."""
    now = datetime.now(UTC) + timedelta(hours=offset)
    return f"{now:%H:%M:%S}.{now.microsecond // 1000:03} UTC{offset:+d}"


if __name__ == "__main__":
    server.run()
