"""`toolpost tap`: sits between a host and a server, and shows every message that passes.

The bytes are passed on by `stdio_proxy` for a command, and by `http_proxy` for a URL.
"""

import contextlib
import os
import signal
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

import click

from toolpost.cli.errors import UNREACHABLE, CommandError, describe_exit
from toolpost.cli.tap.recorder import TapRecorder, open_recorder
from toolpost.cli.tap.stdio_proxy import InspectionThread, run_stdio_proxy
from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.testing.masking import is_secret
from toolpost.transports.targets import Http, Stdio

MIN_SECRET_LENGTH: Final = 6  # of a value that is masked everywhere: shorter ones stand in any text


@click.command(
    "tap",
    cls=TargetCommand,
    epilog="Have the host start `toolpost tap -- the real command`, or give it the URL that `toolpost tap "
    "URL` prints.",
)
@click.option(
    "--to", metavar="FILE", type=click.Path(dir_okay=False), help="Add the messages to FILE, not to stderr."
)
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Keep the conversation in FILE, for toolpost.testing.replay; FILE-1 if there is one.",
)
@click.option("--full", is_flag=True, help="Show the whole messages.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where to listen, for a URL.  [default: 127.0.0.1:8900, or any port]",
)
def command(
    reach: TargetConnector, to: str | None, record: str | None, full: bool, listen: str | None
) -> int:
    """Show every message between a host and a server.

    What either side sends is passed on unchanged. The messages are shown on stderr, each on one line: seconds
    since the start, → for the client and ← for the server, id, method, how long the answer took, its size;
    below that, after an exclamation mark, which rule of the protocol it breaks. Secrets are masked.
    """
    place = reach.resolve_target()
    if isinstance(place, Http):
        named = place.headers or {}
    elif listen is not None:
        raise click.UsageError("--listen is for a URL: a command is reached by stdin and stdout")
    else:
        named = {**os.environ, **(place.env or {})}
    secrets = [each for name, each in named.items() if is_secret(name) and len(each) >= MIN_SECRET_LENGTH]
    with open_recorder(
        json=reach.output.json, full=full, to=to, record=record, target=reach.target.label, secrets=secrets
    ) as recorder:
        if isinstance(place, Http):
            if find_spec("aiohttp") is None or find_spec("uvicorn") is None:
                hint = "pip install 'toolpost[http]'"
                raise CommandError("a tap on a URL needs aiohttp and uvicorn", hint=hint)
            from toolpost.cli.tap.http_proxy import serve_http_proxy  # noqa: PLC0415 - they may not be installed

            return serve_http_proxy(place, recorder, reach.output, listen)
        code = _proxy_process(place, recorder, named)
    return _exit_like_server(code)


def _proxy_process(stdio: Stdio, recorder: TapRecorder, env: Mapping[str, str]) -> int:
    """Run a server, show its messages, and return its exit code."""
    thread = InspectionThread(recorder)
    command = [stdio.command, *stdio.args]
    try:  # with the whole environment: a host means it for the server
        code = run_stdio_proxy(command, thread, env, stdio.cwd)
    except OSError as error:
        hint = "`toolpost doctor` with the same command looks for the reason"
        text = f"{stdio.command} cannot be started: {error.strerror}"
        raise CommandError(text, UNREACHABLE, hint=hint) from error
    thread.close()
    end = f"the server {'has ended,' if code >= 0 else 'was ended'} {describe_exit(code)}"
    recorder.show_note("server", end)
    recorder.record_end("server", end)
    return code


for _option in command.params:  # a tap only watches, so that some options of a target say nothing to it
    if isinstance(_option, click.Option):
        _option.hidden = _option.name in {"revision", "timeout", "verbose"}
        if _option.name == "json":
            _option.help = "Show each message as a JSON object on one line, for programs."


def _exit_like_server(code: int) -> int:
    """End as the server has: with its exit code, or by the same signal."""
    if code < 0:
        number = -code
        with contextlib.suppress(OSError, ValueError):  # one that cannot be handled ends us all the same
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return code
