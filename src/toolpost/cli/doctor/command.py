"""`toolpost doctor`: runs the checks in order and prints one line for each.

It stops where nothing more can be learned. The checks are in the other modules of this folder.
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
from toolpost.cli.doctor.capture import Capture, CapturedProcess, CapturingBackend
from toolpost.cli.doctor.check_http import check_http
from toolpost.cli.doctor.check_network import check_url
from toolpost.cli.doctor.check_process import check_command, check_source
from toolpost.cli.doctor.check_session import STDERR_HINT, check_messages, check_revisions, check_session
from toolpost.cli.doctor.report import DoctorAborted, DoctorReport
from toolpost.cli.errors import describe_exit
from toolpost.cli.target import DEFAULT_TIMEOUT, TargetCommand, TargetConnector
from toolpost.client.client import Client
from toolpost.client.mcp_json import OAUTH
from toolpost.errors import MCPError
from toolpost.transports.targets import Http, Stdio


@click.command("doctor", cls=TargetCommand)
def command(reach: TargetConnector) -> int:
    """Examine a server: whether it can be reached, what it speaks, what is odd about it.

    Each line is one check. No tool is called, nothing is changed. Ends with 0 if nothing fails, with 1 if
    something does, with 3 if the server cannot be reached, with 4 if it wants a login.
    """
    logging.getLogger("toolpost").addHandler(logging.NullHandler())  # the checks report it
    checkup = DoctorReport(reach.output)
    with suppress(DoctorAborted):
        examine(checkup, reach)
    return checkup.finish(reach.target.label)


ANSWER_TIMEOUT: Final = 15.0  # seconds for an answer without `--timeout`: a person waits here
STREAM_START_TIMEOUT: Final = 3.0  # seconds until a stream begins that nobody holds back


def examine(checkup: DoctorReport, reach: TargetConnector) -> None:
    """Run all checks; `DoctorAborted` ends them early."""
    place = reach.resolve_target()
    if isinstance(place, Http):
        asyncio.run(_check_http_target(checkup, reach, place))
        return
    if reach.target.kind == "file":
        check_source(checkup, reach.target.words[-1])
    else:
        check_command(checkup, place)
    asyncio.run(_check_process(checkup, reach, place))


def _get_timeout(reach: TargetConnector) -> float | None:
    return ANSWER_TIMEOUT if reach.timeout == DEFAULT_TIMEOUT else reach.timeout


def _create_client(reach: TargetConnector, target: Any, revision: str | None = None) -> Client:
    timeout = _get_timeout(reach)
    return Client(
        target,
        revision=revision or reach.revision,
        timeout=timeout,
        connect_timeout=timeout,
        retries=0,
        cache=False,
        name="toolpost-doctor",
    )


async def _check_process(checkup: DoctorReport, reach: TargetConnector, stdio: Stdio) -> None:
    notes = Capture()
    process = CapturedProcess(stdio, notes)
    began = time.monotonic()
    client = _create_client(reach, process.target)
    try:
        await client.connect()
    except MCPError as error:
        await client.close()
        _report_connect_failure(checkup, process, notes, error)
    try:
        took = time.monotonic() - began
        _report_connected(checkup, client, took)
        await check_session(checkup, client)
        if reach.revision is None:
            create = partial(_create_client, reach, process.target)
            await check_revisions(checkup, create, client, took)
    finally:
        await client.close()
    check_messages(checkup, notes, process=True)


def _report_connected(checkup: DoctorReport, client: Client, took: float) -> None:
    info = client.server_info
    name = "a server without a name" if info is None else f"{info.name} {info.version}"
    checkup.ok("answer", f"{name}, in {client.revision} ({client.era} era), after {1000 * took:.0f} ms")


def _report_connect_failure(
    checkup: DoctorReport, process: CapturedProcess, notes: Capture, error: MCPError
) -> NoReturn:
    """Report why a process did not connect, and raise `DoctorAborted`."""
    if not process.has_started:
        checkup.stop_unreachable("start", error.message, error.hint or "")
    words = list(process.stderr_tail)
    junk = list(dict.fromkeys(seen.body.decode("utf-8", "replace")[:100] for seen in notes.junk))[:5]
    if junk:
        checkup.fail("stdout", "what it writes there is no message", STDERR_HINT, details=junk)
    if process.returncode is not None:
        said = "its last lines on stderr:" if words else "it said nothing on stderr"
        text = f"it ended {describe_exit(process.returncode)}, before it answered; {said}"
        checkup.stop_unreachable("start", text, _suggest_fix(process.returncode, words), details=words)
    text = f"it runs, but {error.message.splitlines()[0]}" + ("\nits last lines on stderr:" if words else "")
    hint = "does it read stdin? is it a server at all? --timeout SECONDS waits longer"
    checkup.stop_unreachable("answer", text, hint, details=words)


def _suggest_fix(code: int, words: list[str]) -> str:
    if any(word.startswith("Hint:") for word in words):
        return ""  # it was one of ours, and has said what to do
    last = words[-1] if words else ""
    if last.startswith(("ModuleNotFoundError", "ImportError")):
        return (
            "install it for the Python that starts the server: a host may take another than your shell does"
        )
    if code == 0:
        return "does the script call server.run()? does it end when stdin is no terminal?"
    return "start it by hand to see more"


async def _check_http_target(checkup: DoctorReport, reach: TargetConnector, place: Http) -> None:
    if place.auth == OAUTH:  # nobody is sent to a browser by an examination
        place = replace(place, auth=None)
    await check_url(checkup, place)
    async with use_backend(place.http) as plain:
        await check_http(checkup, place, plain, _get_timeout(reach))
    notes = Capture()
    backend = CapturingBackend(place.http, notes)
    place = replace(place, http=backend)
    began = time.monotonic()
    try:
        async with _create_client(reach, place) as client:
            took = time.monotonic() - began
            _report_connected(checkup, client, took)
            await check_session(checkup, client)
            await _check_streams(checkup, client, notes)
            if reach.revision is None:
                await check_revisions(checkup, partial(_create_client, reach, place), client, took)
    except MCPError as error:
        checkup.stop("answer", error.message, error.hint or "the server's own log may say why")
    finally:
        await backend.finish()
    check_messages(checkup, notes, process=False)


async def _check_streams(checkup: DoctorReport, client: Client, notes: Capture) -> None:
    """Check whether an event stream begins at once, or is held back on the way."""
    if client.era == "stateless":
        began = time.monotonic()
        try:
            async with client.listen(timeout=STREAM_START_TIMEOUT):
                pass
        except MCPError as error:
            if time.monotonic() - began < STREAM_START_TIMEOUT:
                checkup.warn("stream", f"there is none: {error.message}")
                return
    streams = [each for each in notes.exchanges if each.is_stream]
    held = [each for each in streams if each.head_delay is None or each.head_delay > STREAM_START_TIMEOUT]
    names = {name for each in streams for name in each.headers}
    odd = [name for name in ("content-length", "content-encoding") if name in names]
    if held:
        hint = "a proxy may hold it back: switch its buffering off for this path"
        checkup.warn("stream", f"a stream did not begin within {STREAM_START_TIMEOUT:g} s", hint)
    elif odd:
        checkup.warn("stream", f"a stream has a {odd[0]} header: somebody on the way collects or packs it")
    elif streams:
        checkup.ok("stream", f"{len(streams)} began at once")
