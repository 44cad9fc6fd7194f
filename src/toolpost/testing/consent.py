"""The page on which a user allows a client what it asks for, in the authorization server for tests.

Owns the HTML and nothing else. Everything that comes from a client is escaped.
"""

from collections.abc import Iterable
from html import escape
from typing import Final
from urllib.parse import urlsplit

__all__ = ["HTML_HEADERS", "render_consent_page", "render_error_page"]

HTML_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)

_PAGE_TEMPLATE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<h1>{title}</h1><p><strong>For tests only.</strong> Anybody can log in as anybody.</p>{body}</html>"""


def render_consent_page(
    ticket: str, action: str, *, client: str, redirect: str, scopes: Iterable[str], user: str
) -> bytes:
    """The question, with a form that answers it."""
    asked = "".join(f"<li>{escape(scope)}</li>" for scope in scopes) or "<li>nothing in particular</li>"
    body = f"""<p><em id="client">{escape(client)}</em> asks for access. You will be sent to
<em id="host">{escape(urlsplit(redirect).netloc)}</em>.</p><ul id="scopes">{asked}</ul>
<form method="post" action="{escape(action)}"><input type="hidden" name="ticket" value="{escape(ticket)}">
<label>Log in as <input name="user" value="{escape(user)}"></label>
<button name="answer" value="allow">Allow</button><button name="answer" value="deny">Deny</button></form>"""
    return _PAGE_TEMPLATE.format(title="Allow access?", body=body).encode()


def render_error_page(text: str) -> bytes:
    """What is said to a user who cannot be sent back."""
    return _PAGE_TEMPLATE.format(title="This cannot be allowed", body=f"<p>{escape(text)}</p>").encode()
