"""Sends the same requests to our kitchen server and to those of two peers, and judges the differences.

Runs the servers and the sessions. `make conformance` calls it; run it with
`PYTHONPATH=interop python conformance/differential.py [--draft]`. `--draft` prints entries for new
differences.
"""

import asyncio
import itertools
import json
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import Final

from answers import Answer, normal
from differences import TABLE, differing, drafted, entries, judge
from environments import HERE, HOME, NODE, Broken, prepare, python_of
from hosts import Host, NotStarted, listening
from probe import REVISIONS, Probe, Table, as_object
from probes import probes
from raw import Reply, exchange

__all__ = ["collect", "fill"]

PEERS: Final = {
    "mcp-2.3.0": [
        str(python_of("mcp-2.3.0")),
        "-W",
        "ignore",
        str(HERE / "peers" / "server_mcp2.py"),
        "http",
    ],
    "server-2.4.0": [str(NODE), str(HOME / "server-2.4.0" / "server_v2.mjs"), "http"],
}

SILENT: Final = normal(Reply(), None)
"""Who hangs."""

OURS: Final = [sys.executable, str(HERE / "kitchen.py"), "--http"]


def fill(body: bytes, first: Reply) -> bytes:
    """Fill `{key}` and `{state}` from the first round into a body; omit the state if there is none."""
    results = [as_object(as_object(message).get("result")) for message in first.messages]
    result = results[-1] if results else {}
    key = next(iter(as_object(result.get("inputRequests"))), "{key}")
    message = json.loads(body)
    params = as_object(message["params"])
    if isinstance(params.get("inputResponses"), dict):
        given = as_object(params["inputResponses"])
        params["inputResponses"] = {key if name == "{key}" else name: one for name, one in given.items()}
    if params.get("requestState") == "{state}":
        del params["requestState"]
        params |= {name: value for name, value in result.items() if name == "requestState"}
    return json.dumps(message).encode()


class Visit:
    """Sends the requests of one revision to one server.

    Args:
        port: its port.
        revision: our revision.
    """

    def __init__(self, port: int, revision: str) -> None:
        self._port = port
        self._table = Table(revision)
        self._shared = ""

    async def all(self) -> dict[tuple[str, str], Answer]:
        """Return the responses by name and revision."""
        if not self._table.stateless:
            self._shared = await self._open()
        return {(one.name, one.revision): await self._request(one) for one in probes(self._table.revision)}

    async def _request(self, probe: Probe) -> Answer:
        session = self._shared
        if probe.session in {"own", "half"}:
            session = await self._open(whole=probe.session == "own")
        body = probe.body
        if probe.first is not None and body is not None:
            first = await exchange(self._port, probe.first.wire(self._port, session, probe.first.body))
            body = fill(body, first)
        reply = await exchange(self._port, probe.wire(self._port, session, body), until=probe.until)
        return normal(reply, body)

    async def _open(self, *, whole: bool = True) -> str:
        """Open a session, completely or half, and return its id."""
        opening = Table(self._table.revision)
        opening.add("initialize", opening.opening(), session="none")
        opening.add("initialized", {"jsonrpc": "2.0", "method": "notifications/initialized"})
        first, second = opening
        reply = await exchange(self._port, first.wire(self._port, "", first.body))
        session = reply.headers.get("mcp-session-id", "")
        if not session:
            raise NotStarted(f"the server does not open a session: {reply}")
        if whole:
            await exchange(self._port, second.wire(self._port, session, second.body))
        return session


async def collect(port: int) -> dict[tuple[str, str], Answer]:
    """Return all responses of a server on loopback, by name and revision of the request."""
    visits = await asyncio.gather(*(Visit(port, revision).all() for revision in REVISIONS))
    return dict(itertools.chain.from_iterable(visit.items() for visit in visits))


async def main(*, draft: bool) -> int:
    """Run the comparison and return the exit code."""
    for why in (await prepare(list(PEERS))).values():
        raise Broken(why)
    hosts = {peer: Host() for peer in ("ours", *PEERS)}
    async with AsyncExitStack() as stack:
        for peer, host in hosts.items():
            await stack.enter_async_context(listening(PEERS.get(peer, OURS), host))
        answers = dict(
            zip(hosts, await asyncio.gather(*(collect(host.port) for host in hosts.values())), strict=True)
        )
    ours = answers.pop("ours")
    found = differing(ours, answers)
    revisions: defaultdict[str, list[str]] = defaultdict(list)
    for name, revision in ours:
        revisions[name].append(revision)
    known = entries(TABLE.read_text(encoding="utf-8"), revisions)
    if draft:
        covered = {one for entry in known for one in entry.differences}
        print(drafted(found - covered, revisions))
        return 0
    counts, faults = judge(found, known)
    faults += [f"no response from us: {key[0]} @ {key[1]}" for key, one in ours.items() if one == SILENT]
    if complaint := hosts["ours"].complaint:
        faults.append(f"our server: {complaint}")
    print("\n".join(faults))
    print(f"{len(revisions)} requests, {len(ours)} with their revisions, to {len(PEERS)} peers and to us")
    print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    print(f"differential: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(draft="--draft" in sys.argv[1:])))
    except (Broken, NotStarted, ValueError) as error:
        sys.exit(f"differential: {error}")
