"""Opens a page for the user to log in, in their browser and never through a shell (SEC-14, SEC-15).

Owns how that is done if nobody says otherwise. Which page it is, and what comes of it, is not known here.
"""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from toolpost.auth.guard import parse_http_url
from toolpost.errors import AuthError, AuthorizationRequired
from toolpost.threads import ThreadPool

__all__ = ["OpenUrl", "open_in_browser", "show_to_user"]

OpenUrl: TypeAlias = Callable[[str], "str | Awaitable[str | None] | None"]
"""Shows a page to the user. Returns where they were sent back to, or the code they were shown; None if they
will be sent to where the client listens. Sync or async; a sync one runs in a thread."""

NO_BROWSER_HINT: Final = (
    "give OAuth an open_url= that shows the page elsewhere, and returns the address that the user is sent "
    "back to; a program that acts for itself takes ClientCredentials"
)
"""What to do where there is no browser."""


def open_in_browser(url: str) -> None:
    """Open a page in the user's browser; where there is none, say on the terminal what to open.

    Raises:
        AuthorizationRequired: there is neither.
        AuthError: it is no http or https URL.
    """
    import webbrowser  # noqa: PLC0415 - looks for browsers; few need it

    parse_http_url(url, "the page to log in")
    # It starts programs with a list of arguments, and a URL of these characters is one argument everywhere.
    if webbrowser.open(url, new=1):
        return
    if not (sys.stderr and sys.stderr.isatty()):  # nobody would read it, but all would wait
        raise AuthorizationRequired(
            "there is no browser to log in with, and no terminal", hint=NO_BROWSER_HINT
        )
    page = f"Open this page in a browser on this machine to log in:\n{url}\nWithout one: {NO_BROWSER_HINT}"
    print(page, file=sys.stderr, flush=True)  # noqa: T201 - there is no other way


async def show_to_user(open_url: OpenUrl, url: str) -> str | None:
    """What comes of showing a page to the user: where they were sent back to, if that is told.

    Raises:
        AuthorizationRequired: the page could not be shown.
    """
    threads = ThreadPool(1)
    try:
        if inspect.iscoroutinefunction(open_url):
            said: Any = await open_url(url)
        else:
            said = await threads.run_in_thread(lambda: open_url(url))
            if inspect.isawaitable(said):
                said = await said
    except (AuthError, asyncio.CancelledError):
        raise
    except Exception as error:
        raise AuthorizationRequired(
            f"the page to log in could not be opened: {type(error).__name__}", hint="see open_url="
        ) from error
    finally:
        threads.close()
    if said is not None and not isinstance(said, str):
        raise AuthorizationRequired(
            f"open_url returned a {type(said).__name__}",
            hint="return the address that the user was sent back to, or None if their browser comes here",
        )
    return said
