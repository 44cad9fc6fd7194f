"""The limits in docs/reliability.md are those of the code."""

import inspect
import re
from pathlib import Path
from typing import Any

from toolpost import Server, run, threads
from toolpost.auth.server import dpop, introspection, protected_resource
from toolpost.protocol import connection, headers, jsonrpc, line_framing, receive, seal, uri_template
from toolpost.server import context, handler, per_client, rate_limit, requests_to_client, state
from toolpost.server.elicitation import input_required, journal
from toolpost.server.http import exchange, security, serve, sessions, sse_transport, streams, uvicorn, worker
from toolpost.server.options import HTTP, SERVER
from toolpost.server.registry import prompts
from toolpost.server.runtime import change_broadcast, conversation
from toolpost.stores import memory

TEXT = (Path(__file__).parents[3] / "docs" / "reliability.md").read_text(encoding="utf-8")
PAGE = TEXT[TEXT.index("\n## Limits\n") : TEXT.index("\n## Limits of a client\n")]
UNITS = {"MiB": 1024 * 1024, "KiB": 1024, "KiB/s": 1024, "quarter": 0.25}

KNOWN: dict[str, tuple[Any, ...]] = {
    "request body": (HTTP.max_body,),
    "pause between two chunks of a body": (exchange.BODY_CHUNK_TIMEOUT,),
    "minimum rate of a body, after the first 30 s": (exchange.MIN_BODY_RATE,),
    "headers, total": (security.MAX_HEADERS,),
    "time to receive the headers": (uvicorn.HEAD_TIMEOUT,),
    "line on stdin": (line_framing.MAX_LINE,),
    "nesting depth": (jsonrpc.MAX_DEPTH,),
    "digits of an integer": (4300,),  # of msgspec
    "unknown members of an envelope": (jsonrpc.MAX_UNKNOWN_BYTES,),
    "batch": (jsonrpc.MAX_BATCH, jsonrpc.MAX_BATCH_BYTES),
    "answers in one request": (receive.MAX_INPUT_RESPONSES,),
    "session id in a header": (headers.MAX_SESSION_ID,),
    "URI": (uri_template.MAX_URI,),
    "URI template, and its variables": (uri_template.MAX_TEMPLATE, uri_template.MAX_VARIABLES),
    "state carried by a client": (seal.MAX_SEALED,),
    "token, and DPoP proof": (protected_resource.MAX_TOKEN_LENGTH, dpop.MAX_PROOF_LENGTH),
    "calls in flight; of a principal, in all its sessions and without a session": (connection.MAX_IN_FLIGHT,),
    "bytes of calls in flight larger than 64 KiB": (receive.MAX_IN_FLIGHT_BYTES,),
    "notifications being processed": (connection.MAX_IN_FLIGHT,),
    "messages before the handshake completes": (connection.MAX_IN_FLIGHT,),
    "responses not yet read by the peer": (conversation.MAX_UNSENT_BYTES,),
    "queued POSTs of an HTTP+SSE session": (sse_transport.MAX_QUEUED_POSTS,),
    "bytes of queued POSTs of an HTTP+SSE session": (sse_transport.MAX_QUEUED_BYTES,),
    "subscribed resources of a session": (context.MAX_SUBSCRIBED_URIS,),
    "resources in one `subscriptions/listen`": (context.MAX_SUBSCRIBED_URIS,),
    "characters of these URIs, total": (context.MAX_SUBSCRIBED_URI_CHARS,),
    "`subscriptions/listen` streams of a principal": (worker.MAX_SUBSCRIPTIONS,),
    "`subscriptions/listen` streams of an address, without a principal": (connection.MAX_IN_FLIGHT,),
    "readers of the GET stream of a session": (1,),
    "readers that resume the same stream": (1,),
    "client that reads nothing of a response": (uvicorn.STALL_TIMEOUT,),
    "handshake of HTTP+SSE": (HTTP.handshake,),
    "idle session": (HTTP.idle,),
    "idle connection": (serve.KEEP_ALIVE_TIMEOUT,),
    "pending URL elicitations": (requests_to_client.MAX_URL_ELICITATIONS,),
    "questions of one call, and attempts for one answer": (
        input_required.MAX_ROUNDS,
        requests_to_client.MAX_ELICIT_ATTEMPTS,
    ),
    "keys in `ctx.state` of a session, and length of a key": (state.MAX_KEYS, state.MAX_KEY_BYTES),
    "steps and answers of one call": (journal.MAX_JOURNAL_BYTES,),
    "progress notifications of one call, and log messages: at once, and then per second": (
        context.NOTIFICATION_BURST * SERVER.notification_rate,
        SERVER.notification_rate,
    ),
    "concurrent calls": (HTTP.max_calls,),
    "open streams: GET, HTTP+SSE, `subscriptions/listen`": (HTTP.max_streams,),
    "cached sessions": (sessions.MAX_CACHED_SESSIONS,),
    "handshake data in a session id; in the store": (
        sessions.MAX_FACTS_BYTES,
        sessions.MAX_STORED_FACTS_BYTES,
    ),
    "lifetime of a session": (HTTP.session_life / 86400,),
    "remembered ended sessions": (sessions.MAX_ENDED_SESSIONS,),
    "changes kept for disconnected clients": (change_broadcast.MAX_KEPT_CHANGES,),
    "value in `ctx.state`, and its lifetime": (state.MAX_VALUE_BYTES, state.STATE_TTL / 86400),
    "event log of one stream, in memory": (memory.MAX_ENTRIES, memory.MAX_LOG_BYTES),
    "event logs of all streams, in memory": (memory.MAX_TOTAL_BYTES,),
    "records of all sessions and calls, in memory": (memory.MAX_TOTAL_BYTES,),
    "retention of finished streams": (streams.STREAM_RETENTION,),
    "journals in the store": (journal.MAX_STORED_JOURNAL_BYTES,),
    "remembered choices of a `ServerFactory`": (per_client.MAX_REMEMBERED_CLIENTS,),
    "`def` functions at once": (threads.MAX_THREADS,),
    "threads of abandoned calls": (threads.STUCK_THREADS_FACTOR,),
    "entries per page": (SERVER.page_size,),
    "completion values": (prompts.MAX_COMPLETION_VALUES,),
    "rate of one client": (),
    "clients in the rate limiter": (rate_limit.MAX_CLIENTS,),
    "concurrency limit": (),
    "cached tokens": (introspection.MAX_CACHED_TOKENS,),
    "connections waiting to be accepted": (serve.LISTEN_BACKLOG,),
}


def rows() -> dict[str, tuple[str, str]]:
    """Return the limits of the page: name → option and default."""
    found: dict[str, tuple[str, str]] = {}
    for line in PAGE.partition("## Limits")[2].splitlines():
        if line.startswith("| ") and not line.startswith("| limit"):
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
