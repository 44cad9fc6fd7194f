"""`toolpost doctor`: runs the checks in order and prints one line for each.

Stops if no further check is possible. The checks are in the other modules of this folder.
"""

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

import click
from msgspec.structs import replace

from toolpost.auth.fetch import use_backend
from toolpost.cli.doctor.check_http import check_http
from toolpost.cli.doctor.check_reachability import check_command, check_source, check_url
from toolpost.cli.doctor.check_session import (
    STDERR_HINT,
    Capture,
    CapturedChannel,
    check_messages,
    check_revisions,
    check_session,
)
from toolpost.cli.doctor.report import DoctorAborted, DoctorReport
from toolpost.cli.errors import describe_exit
from toolpost.cli.target import DEFAULT_TIMEOUT, TargetCommand, TargetConnector
from toolpost.client.client import Client
from toolpost.client.mcp_json import OAUTH
from toolpost.errors import MCPError
from toolpost.testing.channel import WrappedTarget
from toolpost.transports.targets import Http, Stdio

ANSWER_TIMEOUT: Final = 15.0  # seconds for a response without `--timeout`: a user is waiting
STREAM_START_TIMEOUT: Final = 3.0  # seconds until a stream begins, unless a proxy buffers it


@click.command("doctor", cls=TargetCommand)
def doctor_command(target: TargetConnector) -> int:
    """Diagnose a server: connection, protocol revisions, tools and schemas.

    Prints one line per check. Calls no tool and changes nothing. The exit code is 0 if all checks pass, 1 if
    one fails, 3 if the server cannot be reached, and 4 if it requires a login.
    """
    logging.getLogger("toolpost").addHandler(logging.NullHandler())  # the checks report it
    report, place = DoctorReport(target.output), target.resolve_target()
    with suppress(DoctorAborted):
        if isinstance(place, Http):
            asyncio.run(_check_http_target(report, target, place))
        else:
            if target.spec.kind == "file":
                check_source(report, target.spec.words[-1])
            else:
                check_command(report, place)
            asyncio.run(_check_process(report, target, place))
    return report.finish(target.spec.label)


def _get_timeout(target: TargetConnector) -> float | None:
    return ANSWER_TIMEOUT if target.timeout == DEFAULT_TIMEOUT else target.timeout


def _create_client(target: TargetConnector, endpoint: Any, revision: str | None = None) -> Client:
    timeout = _get_timeout(target)
    return Client(
        endpoint,
        revision=revision or target.revision,
        timeout=timeout,
        connect_timeout=timeout,
        retries=0,
        cache=False,
        name="toolpost-doctor",
    )


async def _check_process(report: DoctorReport, target: TargetConnector, stdio: Stdio) -> None:
    capture = Capture()
    endpoint = WrappedTarget(stdio, partial(CapturedChannel, capture=capture))
    try:
        await _check_conversation(report, target, endpoint, capture)
    except MCPError as error:
        _report_connect_failure(report, capture, error)
    check_messages(report, capture, process=True)


async def _check_conversation(
    report: DoctorReport, target: TargetConnector, endpoint: Any, capture: Capture
) -> None:
    """Connect and run the checks of a session. Raises `MCPError` if the server does not respond."""
    began = time.monotonic()
    async with _create_client(target, endpoint) as client:
        took = time.monotonic() - began
        info = client.server_info
        name = "unnamed server" if info is None else f"{info.name} {info.version}"
        report.ok("answer", f"{name}, revision {client.revision} ({client.era}), after {1000 * took:.0f} ms")
        await check_session(report, client)
        if isinstance(endpoint, Http):
            await _check_streams(report, client, capture)
        if target.revision is None:
            await check_revisions(report, partial(_create_client, target, endpoint), client, took)


def _report_connect_failure(report: DoctorReport, capture: Capture, error: MCPError) -> NoReturn:
    """Report why a process did not connect, and raise `DoctorAborted`."""
    if not capture.has_started:
        report.stop_unreachable("start", error.message, error.hint or "")
    words = list(capture.stderr_tail)
    junk = list(dict.fromkeys(seen.body.decode("utf-8", "replace")[:100] for seen in capture.junk))[:5]
    if junk:
        report.fail("stdout", "output that is not an MCP message:", STDERR_HINT, details=junk)
    if capture.returncode is not None:
        last = "last lines on stderr:" if words else "no output on stderr"
        text = f"the process ended {describe_exit(capture.returncode)} before it responded; {last}"
        report.stop_unreachable("start", text, _suggest_fix(capture.returncode, words), details=words)
    text = error.message.splitlines()[0] + ("\nlast lines on stderr:" if words else "")
    hint = "is it an MCP server that reads stdin? use --timeout SECONDS to wait longer"
    report.stop_unreachable("answer", text, hint, details=words)


def _suggest_fix(code: int, words: list[str]) -> str:
    if any(word.startswith("Hint:") for word in words):
        return ""  # the server uses toolpost and has printed a hint
    last = words[-1] if words else ""
    if last.startswith(("ModuleNotFoundError", "ImportError")):
        return "install it for the Python that starts the server: a host may use another one than your shell"
    if code == 0:
        return "does the script call server.run()? does it exit if stdin is not a terminal?"
    return "run the command yourself to see more"


async def _check_http_target(report: DoctorReport, target: TargetConnector, place: Http) -> None:
    if place.auth == OAUTH:  # a check must not open a browser
        place = replace(place, auth=None)
    await check_url(report, place)
    capture = Capture()
    async with use_backend(place.http) as capture.backend:
        await check_http(report, place, capture.backend, _get_timeout(target))
        endpoint = replace(place, http=capture)
        try:
            await _check_conversation(report, target, endpoint, capture)
        except MCPError as error:
            report.stop("answer", error.message, error.hint or "see the server log")
    check_messages(report, capture, process=False)


async def _check_streams(report: DoctorReport, client: Client, capture: Capture) -> None:
    if client.era == "stateless":
        began = time.monotonic()
        try:
            async with client.listen(timeout=STREAM_START_TIMEOUT):
                pass
        except MCPError as error:
            if time.monotonic() - began < STREAM_START_TIMEOUT:
                report.warn("stream", f"no event stream: {error.message}")
                return
    streams = [each for each in capture.exchanges if each.is_stream]
    held = [each for each in streams if each.head_delay is None or each.head_delay > STREAM_START_TIMEOUT]
    names = ("content-length", "content-encoding")
    odd = [name for name in names if any(name in each.headers for each in streams)]
    if held:
        hint = "a proxy may buffer it: turn off buffering for this path"
        report.warn("stream", f"an event stream did not start within {STREAM_START_TIMEOUT:g} s", hint)
    elif odd:
        report.warn("stream", f"an event stream has a {odd[0]} header: a proxy buffers or compresses it")
    elif streams:
        report.ok("stream", f"{len(streams)} started immediately")
