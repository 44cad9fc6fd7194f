"""One request of the differential test: its name, its bytes, and the request before it.

Builds valid requests of each revision; a probe defines its deviations. `probes` lists all probes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

__all__ = ["ID", "NAMED", "REVISIONS", "SESSIONS", "STATELESS", "Probe", "Table", "as_object"]

SESSIONS: Final = ("2025-03-26", "2025-06-18", "2025-11-25")
STATELESS: Final = "2026-07-28"
REVISIONS: Final = (*SESSIONS, STATELESS)

PREFIX: Final = "io.modelcontextprotocol/"
ID: Final = 7
"""The id of all requests whose id is not the topic."""

CLIENT: Final = {"name": "probe", "version": "1"}
CAPABILITIES: Final[dict[str, Any]] = {"elicitation": {}, "sampling": {}, "roots": {}}

NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The requests with a parameter that `Mcp-Name` repeats."""

Session = Literal["shared", "own", "half", "none"]
Headers = Mapping[str, str | tuple[str, ...] | None]


@dataclass(frozen=True)
class Probe:
    """A request.

    Args:
        name: its deviation; the same in each revision.
        revision: the revision of its client.
        verb: the HTTP method.
        headers: all headers except Host and the length; `{session}` stands for the session id.
        body: the body.
        session: "shared" with all that do not harm it, its "own", "half" opened: no `initialized` was sent,
            or "none".
        until: how much of an event stream to read; see `raw.exchange`.
        first: what is sent before; its result asks for input: `{key}` and `{state}` in the body come from it.
        host: the Host header; None for the correct one.
    """

    name: str
    revision: str
    verb: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    session: Session = "shared"
    until: str = "answer"
    first: "Probe | None" = None
    host: str | None = None

    def wire(self, port: int, session: str, body: bytes | None) -> bytes:
        """Return the bytes of the request."""
        lines = [
            f"{self.verb} /mcp HTTP/1.1",
            f"Host: {self.host or f'127.0.0.1:{port}'}",
            "Connection: close",
        ]
        lines += [f"{name}: {value.replace('{session}', session)}" for name, value in self.headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class Table:
    """The probes of one revision.

    Args:
        revision: the revision of their client.
    """

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self.stateless = revision == STATELESS
        self.probes: dict[str, Probe] = {}

    def __iter__(self) -> Iterator[Probe]:
        return iter(self.probes.values())

    def meta(self, **changed: Any) -> dict[str, Any]:
        """Return the `_meta` of a valid request; None omits a member."""
        proper = {"protocolVersion": self.revision, "clientCapabilities": CAPABILITIES, "clientInfo": CLIENT}
        wanted = proper | changed if self.stateless else changed
        return {f"{PREFIX}{name}": value for name, value in wanted.items() if value is not None}

    def request(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Build a request. Its parameters get the `_meta` of the revision, unless they have one."""
        if self.stateless:
            params = {"_meta": self.meta(), **(params or {})}
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": ID, "method": method, **more}
        return message if params is None else message | {"params": params}

    def opening(self, **changed: Any) -> dict[str, Any]:
        """Build the request that opens a session."""
        params = {"protocolVersion": self.revision, "capabilities": CAPABILITIES, "clientInfo": CLIENT}
        return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params | changed}

    def add(
        self,
        name: str,
        body: Any = None,
        *,
        like: dict[str, Any] | None = None,
        headers: Headers | None = None,
        verb: str = "POST",
        session: Session = "shared",
        until: str = "answer",
        first: str | None = None,
        host: str | None = None,
    ) -> None:
        """Add a request.

        Args:
            name: its deviation.
            body: bytes as they are, a message as JSON, or None for no body.
            like: the message that its headers are about, if the body is not one.
            headers: changes to the headers of a valid client; None omits one.
            verb: see `Probe`, as for all others.
            session: the session to use.
            until: how much to read.
            first: the name of the probe that goes before it.
            host: the Host header.
        """
        assert name not in self.probes, name
        about = like or as_object(body)
        wanted = {**self._proper(about, verb, session), **(headers or {})}
        pairs = [
            (header, one)
            for header, value in wanted.items()
            if value is not None
            for one in (value if isinstance(value, tuple) else (value,))
        ]
        raw = body if body is None or isinstance(body, bytes) else _encoded(body)
        before = self.probes[first] if first else None
        where: Session = "none" if self.stateless else session
        self.probes[name] = Probe(name, self.revision, verb, tuple(pairs), raw, where, until, before, host)

    def _proper(self, message: dict[str, Any], verb: str, session: Session) -> dict[str, str]:
        """Return the headers of a valid client."""
        both = "application/json, text/event-stream"
        headers: dict[str, str] = {"Accept": "text/event-stream" if verb == "GET" else both}
        if verb == "POST":
            headers["Content-Type"] = "application/json"
        if self.stateless:
            headers["MCP-Protocol-Version"] = self.revision
            method, params = message.get("method"), message.get("params")
            if isinstance(method, str):
                headers["Mcp-Method"] = method
            named = as_object(params).get(NAMED.get(str(method), ""))
            if isinstance(named, str):
                headers["Mcp-Name"] = named
        elif session != "none":
            headers["Mcp-Session-Id"] = "{session}"
            if self.revision != SESSIONS[0]:  # the header came later
                headers["MCP-Protocol-Version"] = self.revision
        return headers


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _encoded(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
