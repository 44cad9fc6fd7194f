"""Login cases: a peer's client with our protected server, and our client with a peer's.

Both use tokens of the authorization server for tests.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp

from cases import Outcome
from environments import HERE, HOME, NODE, ROOT, python_of
from hosts import Host, NotStarted, listening
from toolpost import Client, OAuth
from toolpost.auth.client.storage import MemoryTokens
from toolpost.protocol.methods import DATES
from toolpost.testing import AuthorizationServer

__all__ = ["NODE_PEER", "PEER", "log_in", "logged_in"]

PEER: Final = "mcp-2.3.0"
NODE_PEER: Final = "client-2.4.0"
COMMANDS: Final = {
    PEER: [str(python_of(PEER)), str(HERE / "peers" / "login_mcp2.py")],
    NODE_PEER: [str(NODE), str(HOME / NODE_PEER / "login_v2.mjs")],
}
PATIENCE: Final = 60.0

WANTED: Final = {
    "first": ("logs in, and speaks for its user", "alice: read"),
    "cooked": ("gets a token that allows more when it needs one", "egg is ready"),
    "second": ("keeps what it was allowed before", "alice: read write"),
    "pages": ("shows two pages to the user, and no more", 2),
}


async def logged_in(peer: str, mode: str, revision: str, login: str = "issuer") -> AsyncIterator[Outcome]:
    """Run their client, with its own OAuth, against our server; `login` is who logs its users in."""
    ours = Host()
    shown = f"{mode}, {login}"
    found: dict[str, Any] = {}
    try:
        async with listening([sys.executable, str(HERE / "guarded_kitchen.py"), login], ours):
            process = await asyncio.create_subprocess_exec(
                *COMMANDS[peer],
                mode,
                f"http://127.0.0.1:{ours.port}/mcp",
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(PATIENCE):
                    output, complaint = await process.communicate()
            except TimeoutError:
                process.kill()
                output, complaint = b"", b"it timed out"
            why = complaint.decode(errors="replace")[-400:].replace("\n", " ")
            found = json.loads(output) if output else {}
    except NotStarted as error:
        yield Outcome(peer, "our server", "http", shown, "our server starts", str(error))
        return
    yield Outcome(peer, "our server", "http", shown, "speaks", _differs(found.get("revision", why), revision))
    for name, (what, wanted) in WANTED.items():
        yield Outcome(peer, "our server", "http", shown, what, _differs(found.get(name, "nothing"), wanted))
    yield Outcome(peer, "our server", "http", shown, "our server ends in order", ours.complaint)


def _differs(found: object, wanted: object) -> str:
    return "" if found == wanted else f"{found!r} instead of {wanted!r}"


async def log_in(revision: str | None) -> AsyncIterator[Outcome]:
    """Run our client, with OAuth, against their server."""
    shown = revision or "unpinned"
    # With a path: they append a slash to an issuer without one, which makes it another issuer.
    async with AuthorizationServer.serve("/login", clients={"peer": "s3cret"}) as login:
        theirs = Host()
        command = [
            str(python_of(PEER)),
            "-W",
            "ignore",
            str(HERE / "peers" / "guarded_mcp2.py"),
            login.issuer,
        ]
        try:
            async with listening(command, theirs):
                why = await _used(f"http://127.0.0.1:{theirs.port}/mcp", revision)
        except NotStarted as error:
            why = str(error)
        if not why:
            why = _differs(login.request_counts["authorize"], 1)
    yield Outcome(PEER, "our client", "http", shown, "logs in, and speaks for its user", why)


async def _used(url: str, revision: str | None) -> str:
    """Return the failure of our client with their server."""
    auth = OAuth(open_url=_visit, storage=MemoryTokens())
    try:
        async with asyncio.timeout(PATIENCE), Client(url, auth=auth, revision=revision) as mcp:
            found = (await mcp.call_tool("whoami")).text
            return _differs((found, mcp.revision), ("alice: read", revision or DATES[-1]))
    except Exception as error:  # noqa: BLE001 - any exception is the outcome
        return f"{type(error).__name__}: {error}"


async def _visit(url: str) -> str:
    """Act as a browser: return the URL of the redirect."""
    async with aiohttp.ClientSession() as browser, browser.get(url, allow_redirects=False) as answer:
        return answer.headers["location"]
