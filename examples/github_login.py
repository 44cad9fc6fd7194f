"""Login with GitHub: users log in with their account, and tools know who they are.

Register an OAuth app at https://github.com/settings/developers, with the callback URL
http://127.0.0.1:8000/oauth/callback, and set its id and secret:

    GITHUB_CLIENT_ID=… GITHUB_CLIENT_SECRET=… python examples/github_login.py
    toolpost call http://127.0.0.1:8000/mcp whoami    in another terminal, opens the browser
"""

import os

from toolpost import Auth, Context, GitHub, Server

ADMINS = {"ann"}


def choose_scopes(user: dict[str, str]) -> list[str]:
    """Return the scopes that a user of GitHub may have here."""
    return ["notes:read", "notes:write"] if user["login"] in ADMINS else ["notes:read"]


provider = GitHub(
    os.environ.get("GITHUB_CLIENT_ID", "missing"),
    os.environ.get("GITHUB_CLIENT_SECRET", "missing"),
    allow=choose_scopes,
)
server = Server(
    "notes",
    version="1.0",
    auth=Auth(provider=provider, scopes=["notes:read"], optional_scopes=["notes:write"]),
)

NOTES: dict[str, list[str]] = {}


@server.tool
async def whoami(ctx: Context) -> str:
    """Return the name of the user."""
    return ctx.principal.claims["login"] if ctx.principal else "somebody at this computer"


@server.tool(scopes=["notes:write"])
async def write_note(text: str, ctx: Context) -> int:
    """Write a note, and return how many the user has."""
    notes = NOTES.setdefault(ctx.principal.subject if ctx.principal else "", [])
    notes.append(text)
    return len(notes)


if __name__ == "__main__":
    server.run(http="127.0.0.1:8000")
