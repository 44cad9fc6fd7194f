"""The table of bounds in the documentation says what the code does."""

import inspect
import re
from pathlib import Path
from typing import Any

from toolpost import Server, run, threads, web
from toolpost.auth import admission, proof, verifier
from toolpost.protocol import connection, framing, headers, inbox, jsonrpc, seal, uri
from toolpost.server import (
    asking,
    catalogue,
    complete,
    context,
    delivery,
    factory,
    handler,
    measure,
    middleware,
    recall,
    states,
)
from toolpost.server.web import Web
from toolpost.stores import memory
from toolpost.transports import (
    exchange,
    gate,
    heads,
    http_kept,
    http_load,
    http_room,
    http_session,
)
from toolpost.transports.http_server import Settings

TEXT = (Path(__file__).parents[3] / "docs" / "reliability.md").read_text(encoding="utf-8")
PAGE = TEXT[TEXT.index("\n## Bounds\n") : TEXT.index("\n## Bounds of a client\n")]
UNITS = {"MiB": 1024 * 1024, "KiB": 1024, "KiB/s": 1024, "quarter": 0.25}
SETTINGS = Settings()

KNOWN: dict[str, tuple[Any, ...]] = {
    "body": (SETTINGS.max_body,),
    "pause between two pieces of a body": (exchange.SLOW,),
    "rate of a body, behind the first 30 s": (exchange.FLOOR,),
    "headers, together": (gate.MAX_HEADERS,),
    "time for the headers": (heads.HEAD,),
    "line on stdin": (framing.MAX_LINE,),
    "nesting": (jsonrpc.MAX_DEPTH,),
    "digits of a whole number": (4300,),  # of msgspec
    "members of an envelope that nobody knows": (jsonrpc.MAX_UNKNOWN,),
    "batch": (jsonrpc.MAX_BATCH, jsonrpc.MAX_BATCH_BYTES),
    "answers that a request brings back": (inbox.MAX_ANSWERS,),
    "session id in a header": (headers.MAX_SESSION_ID,),
    "URI": (uri.MAX_URI,),
    "URI template, and its variables": (uri.MAX_TEMPLATE, uri.MAX_VARIABLES),
    "state that a client carries": (seal.MAX_SEALED,),
    "token, and DPoP proof": (admission.MAX_TOKEN, proof.MAX_PROOF),
    "calls in flight; of a principal, in all its sessions and outside": (connection.MAX_IN_FLIGHT,),
    "bytes of calls in flight that are larger than 64 KiB": (inbox.MAX_HELD,),
    "notices being served": (connection.MAX_IN_FLIGHT,),
    "messages before the handshake is answered": (connection.MAX_IN_FLIGHT,),
    "answers that the peer has not taken": (delivery.MAX_UNSENT,),
    "posts that wait for a conversation": (http_session.WAITING,),
    "bytes of posts that wait for a conversation": (http_session.WAITING_SIZE,),
    "unread on the stream of HTTP+SSE": (http_session.UNREAD,),
    "resources that a session watches": (context.MAX_WATCHED,),
    "resources that a subscription names": (context.MAX_WATCHED,),
    "characters of their URIs, together": (context.MAX_WATCHED_SIZE,),
    "subscriptions (`subscriptions/listen`) of a principal": (http_load.LISTENS,),
    "subscriptions of an address where nobody is known": (connection.MAX_IN_FLIGHT,),
    "readers of a general stream": (1,),
    "readers that have come back to a stream": (1,),
    "a client that takes nothing of a response": (heads.STALLED,),
    "handshake": (SETTINGS.limits.handshake,),
    "a session that nobody uses": (SETTINGS.limits.idle,),
    "a connection without a request": (web.KEEP_ALIVE,),
    "URLs that a user was sent to": (asking.MAX_VISITS,),
    "questions of one call, and tries for one answer": (recall.MAX_ROUNDS, asking.MAX_TRIES),
    "steps and answers of one call": (states.MAX_JOURNAL,),
    "notices of progress of one call, and log lines; and how many more in a second": (
        measure.BURST,
        measure.RATE,
    ),
    "calls in flight": (SETTINGS.max_calls,),
    "streams for news: GET, HTTP+SSE, `subscriptions/listen`": (SETTINGS.max_streams,),
    "sessions": (SETTINGS.limits.most,),
    "sessions of one principal": (1 / http_room.SHARE,),
    "log of one stream, in memory": (memory.ENTRIES, memory.SIZE),
    "logs of all streams, in memory": (memory.TOTAL,),
    "streams that are over": (http_kept.ROOM, http_session.KEPT),
    "bytes of posts that wait, of all sessions": (http_load.MAX_WAITING,),
    "journals in the store": (states.MAX_HELD,),
    "principals whose `ctx.state` is kept without a session": (handler.MAX_STATES,),
    "choices of a `ServerFactory`": (factory.MAX_KNOWN,),
    "functions in threads": (threads.THREADS,),
    "threads in calls that were given up": (threads.STUCK,),
    "entries of a page": (catalogue.PAGE_SIZE,),
    "completions": (complete.MAX_VALUES,),
    "rate of one client": (),
    "clients whose rate is known": (middleware.MAX_CLIENTS,),
    "calls at once": (),
    "tokens that are remembered": (verifier.MAX_KNOWN,),
    "connections that wait to be accepted": (web.BACKLOG,),
}


def rows() -> dict[str, tuple[str, str]]:
    """What → option and default."""
    found: dict[str, tuple[str, str]] = {}
    for line in PAGE.partition("## Bounds")[2].splitlines():
        if line.startswith("| ") and not line.startswith("| what"):
            what, option, default, past = line.strip("| ").split(" | ")
            assert past, line
            assert what not in found, line
            found[what] = option, default
    return found


def numbers(default: str) -> tuple[float, ...]:
    found: list[float] = []
    for part in default.replace("a quarter", "1 quarter").split(", "):
        number, _, unit = part.partition(" ") if not re.match(r"\d+ \d{3}$", part) else (part, "", "")
        if number != "off":
            found.append(float(number.replace(" ", "")) * UNITS.get(unit, 1))
    return tuple(found)


def test_each_default_is_that_of_the_code():
    said = {what: numbers(default) for what, (_, default) in rows().items()}
    assert said == KNOWN


def test_each_option_is_one():
    taken = {
        "": {*Web.__annotations__, *inspect.signature(run.run_stdio).parameters},
        "Server": {*inspect.signature(Server).parameters, *inspect.signature(handler.Handler).parameters},
        "MemoryStore": {*inspect.signature(memory.MemoryStore).parameters},
    }
    for option, _ in rows().values():
        for name, arguments in re.findall(r"`(\w*?)\(?((?:\w+=(?:, )?)+)\)?`", option):
            assert {each.strip("= ") for each in arguments.split(",")} <= taken[name], option
