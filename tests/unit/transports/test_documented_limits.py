"""The table of bounds in the documentation says what the code does."""

import inspect
import re
from pathlib import Path
from typing import Any

from toolpost import Server, run, threads
from toolpost.auth.server import admission, dpop, introspection
from toolpost.protocol import connection, framing, headers, jsonrpc, receive, seal, uri_template
from toolpost.server import client_requests, context, handler, middleware, per_client, state
from toolpost.server.elicitation import journal, request_state
from toolpost.server.http import capacity, request, security, serve, sessions, sse, streams, uvicorn
from toolpost.server.options import HTTP, SERVER
from toolpost.server.registry import prompts
from toolpost.server.runtime import change_broadcast, delivery
from toolpost.stores import memory

TEXT = (Path(__file__).parents[3] / "docs" / "reliability.md").read_text(encoding="utf-8")
PAGE = TEXT[TEXT.index("\n## Bounds\n") : TEXT.index("\n## Bounds of a client\n")]
UNITS = {"MiB": 1024 * 1024, "KiB": 1024, "KiB/s": 1024, "quarter": 0.25}

KNOWN: dict[str, tuple[Any, ...]] = {
    "body": (HTTP.max_body,),
    "pause between two pieces of a body": (request.BODY_CHUNK_TIMEOUT,),
    "rate of a body, behind the first 30 s": (request.MIN_BODY_RATE,),
    "headers, together": (security.MAX_HEADERS,),
    "time for the headers": (uvicorn.HEAD_TIMEOUT,),
    "line on stdin": (framing.MAX_LINE,),
    "nesting": (jsonrpc.MAX_DEPTH,),
    "digits of a whole number": (4300,),  # of msgspec
    "members of an envelope that nobody knows": (jsonrpc.MAX_UNKNOWN_BYTES,),
    "batch": (jsonrpc.MAX_BATCH, jsonrpc.MAX_BATCH_BYTES),
    "answers that a request brings back": (receive.MAX_INPUT_RESPONSES,),
    "session id in a header": (headers.MAX_SESSION_ID,),
    "URI": (uri_template.MAX_URI,),
    "URI template, and its variables": (uri_template.MAX_TEMPLATE, uri_template.MAX_VARIABLES),
    "state that a client carries": (seal.MAX_SEALED,),
    "token, and DPoP proof": (admission.MAX_TOKEN_LENGTH, dpop.MAX_PROOF_LENGTH),
    "calls in flight; of a principal, in all its sessions and outside": (connection.MAX_IN_FLIGHT,),
    "bytes of calls in flight that are larger than 64 KiB": (receive.MAX_IN_FLIGHT_BYTES,),
    "notices being served": (connection.MAX_IN_FLIGHT,),
    "messages before the handshake is answered": (connection.MAX_IN_FLIGHT,),
    "answers that the peer has not taken": (delivery.MAX_UNSENT_BYTES,),
    "posts that wait for a conversation over HTTP+SSE": (sse.MAX_QUEUED_POSTS,),
    "bytes of posts that wait for a conversation over HTTP+SSE": (sse.MAX_QUEUED_BYTES,),
    "resources that a session watches": (context.MAX_SUBSCRIBED_URIS,),
    "resources that a subscription names": (context.MAX_SUBSCRIBED_URIS,),
    "characters of their URIs, together": (context.MAX_SUBSCRIBED_URI_CHARS,),
    "subscriptions (`subscriptions/listen`) of a principal": (capacity.MAX_SUBSCRIPTIONS,),
    "subscriptions of an address where nobody is known": (connection.MAX_IN_FLIGHT,),
    "readers of a general stream": (1,),
    "readers that have come back to a stream": (1,),
    "a client that takes nothing of a response": (uvicorn.STALL_TIMEOUT,),
    "handshake": (HTTP.handshake,),
    "a session that nobody uses": (HTTP.idle,),
    "a connection without a request": (serve.KEEP_ALIVE_TIMEOUT,),
    "URLs that a user was sent to": (client_requests.MAX_URL_ELICITATIONS,),
    "questions of one call, and tries for one answer": (
        journal.MAX_ROUNDS,
        client_requests.MAX_ELICIT_ATTEMPTS,
    ),
    "steps and answers of one call": (request_state.MAX_JOURNAL_BYTES,),
    "progress notifications of one call, and log lines; and how many more in a second": (
        context.NOTIFICATION_BURST,
        context.NOTIFICATION_RATE,
    ),
    "calls in flight": (HTTP.max_calls,),
    "streams for news: GET, HTTP+SSE, `subscriptions/listen`": (HTTP.max_streams,),
    "sessions that a worker caches": (sessions.MAX_CACHED_SESSIONS,),
    "facts of a handshake in a session id; in the store": (
        sessions.MAX_FACTS_BYTES,
        sessions.MAX_STORED_FACTS_BYTES,
    ),
    "how long a session may be used": (HTTP.session_life / 86400,),
    "ended sessions that a worker remembers": (sessions.MAX_ENDED_SESSIONS,),
    "changes that are kept for clients that were away": (change_broadcast.MAX_KEPT_CHANGES,),
    "a value of `ctx.state`, and how long it is kept": (state.MAX_VALUE_BYTES, state.STATE_TTL / 86400),
    "log of one stream, in memory": (memory.MAX_ENTRIES, memory.MAX_LOG_BYTES),
    "logs of all streams, in memory": (memory.MAX_TOTAL_BYTES,),
    "streams that are over": (streams.STREAM_RETENTION,),
    "journals in the store": (request_state.MAX_STORED_JOURNAL_BYTES,),
    "choices of a `ServerFactory`": (per_client.MAX_REMEMBERED_CLIENTS,),
    "functions in threads": (threads.MAX_THREADS,),
    "threads in calls that were given up": (threads.STUCK_THREADS_FACTOR,),
    "entries of a page": (SERVER.page_size,),
    "completions": (prompts.MAX_COMPLETION_VALUES,),
    "rate of one client": (),
    "clients whose rate is known": (middleware.MAX_CLIENTS,),
    "calls at once": (),
    "tokens that are remembered": (introspection.MAX_CACHED_TOKENS,),
    "connections that wait to be accepted": (serve.LISTEN_BACKLOG,),
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
        "": {*HTTP.__struct_fields__, *inspect.signature(run.run_stdio).parameters},
        "Server": {*inspect.signature(Server).parameters, *inspect.signature(handler.Handler).parameters},
        "MemoryStore": {*inspect.signature(memory.MemoryStore).parameters},
    }
    for option, _ in rows().values():
        for name, arguments in re.findall(r"`(\w*?)\(?((?:\w+=(?:, )?)+)\)?`", option):
            assert {each.strip("= ") for each in arguments.split(",")} <= taken[name], option
