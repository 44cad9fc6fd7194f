"""The pages of the login: consent, and errors that must not be sent to a client.

The consent page asks before every login, because the provider would not: it knows only this server, not the
client behind it. The page has no script and loads nothing. Its form carries the whole request, sealed for the
browser that got it, so nothing is stored before the user has agreed, and no other site can send the form.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import urlsplit

import msgspec

from toolpost.auth.provider.clients import LoginClient
from toolpost.auth.provider.records import LOGIN_LIFETIME, PendingLogin
from toolpost.errors import InvalidSeal
from toolpost.protocol.seal import KeyRing
from toolpost.protocol.urls import is_loopback_host

COOKIE_LIFETIME: Final = 86400  # seconds; a page that is open for longer has expired anyway
MAX_COOKIE: Final = 64  # characters

_FORM_AUDIENCE: Final = "consent"

# There is no form-action: Chromium applies it to every redirect after the form, and so to the client's.
PAGE_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # no-referrer would hide the origin of the form, too
)

_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{title}</title><h1>{title}</h1>{body}</html>"""


class Browser:
    """The cookie that recognizes a browser; `issuer` is the URL of the server."""

    def __init__(self, issuer: str) -> None:
        self._is_secure = issuer.startswith("https://")
        # Browsers accept this prefix from this very host only, so that no sibling domain can set the cookie.
        self._name = "__Host-toolpost-login" if self._is_secure else "toolpost-login"

    def read(self, headers: Mapping[str, str]) -> str:
        """Return the value of the cookie; empty if there is none."""
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._name)
        except CookieError:
            return ""
        return morsel.value if morsel is not None and 32 <= len(morsel.value) <= MAX_COOKIE else ""

    def make(self) -> str:
        """Return a new value."""
        return secrets.token_urlsafe(32)

    def build_header(self, value: str) -> tuple[bytes, bytes]:
        """Return the header that sets the cookie. Lax: the provider redirects to us from another site."""
        secure = "; Secure" if self._is_secure else ""
        text = f"{self._name}={value}; Path=/; Max-Age={COOKIE_LIFETIME}; HttpOnly; SameSite=Lax{secure}"
        return b"set-cookie", text.encode()


def seal_request(keys: KeyRing, issuer: str, login: PendingLogin, cookie: str) -> str:
    """Return the request for a login as the form carries it, valid in one browser."""
    expires = int(time.time()) + LOGIN_LIFETIME
    packed = msgspec.msgpack.encode(login)
    return keys.seal(packed, audience=_FORM_AUDIENCE, binding=[issuer, cookie], expires=expires)


def open_request(keys: KeyRing, issuer: str, sealed: str, cookie: str) -> PendingLogin | None:
    """Return the request in a form; None if the form is forged, expired, or from another browser."""
    if not cookie:
        return None
    try:
        packed = keys.open(sealed, audience=_FORM_AUDIENCE, binding=[issuer, cookie], now=int(time.time()))
        return msgspec.msgpack.decode(packed, type=PendingLogin)
    except (InvalidSeal, msgspec.MsgspecError):
        return None


def render_consent(
    client: LoginClient, redirect: str, scopes: Sequence[str], *, server: str, provider: str, sealed: str
) -> bytes:
    """Return the consent page."""
    host = describe_target(redirect)
    origin = (
        f'Its metadata is published by <em id="publisher">{escape(client.host)}</em>.'
        if client.host
        else "It has chosen this name itself."
    )
    local = (
        " This is a program on this computer. Continue only if you have just started to log in there."
        if is_loopback_host(urlsplit(redirect).hostname)
        else " Continue only if you have just started to log in there, and know this site or app."
    )
    listed = "".join(f"<li>{escape(scope)}</li>" for scope in scopes) or "<li>no scopes</li>"
    body = f"""
<p><em id="client">{escape(client.name or client.id)}</em> asks for access to
<em id="server">{escape(server)}</em> in your name. {origin}</p>
<p>It gets the result at <em id="host">{escape(host)}</em>.{local}</p>
<p>It asks for:</p><ul id="scopes">{listed}</ul>
<form method="post"><input type="hidden" name="request" value="{escape(sealed)}">
<button name="answer" value="allow">Continue to {escape(provider)}</button>
<button name="answer" value="deny">Deny</button></form>"""
    return _PAGE.format(title="Allow access?", body=body).encode()


def render_error(text: str, link: str | None = None) -> bytes:
    """Return an error page; `link` reports the error to the client, if the user wants to."""
    body = f'<p id="error">{escape(text)}</p>'
    if link is not None:
        body += f'<p><a href="{escape(link)}">Return to {escape(describe_target(link))}</a></p>'
    return _PAGE.format(title="Access cannot be granted", body=body).encode()


def describe_target(redirect: str) -> str:
    """Return where a redirect leads, for people: a host, or an app by its scheme."""
    parts = urlsplit(redirect)
    return parts.netloc if parts.scheme in {"http", "https"} else f"the app that opens {parts.scheme}: links"
