"""`toolpost tap`: a proxy between a host and a server that shows every message.

`stdio_proxy` forwards the bytes of a command, `http_proxy` those of a URL.
"""

import contextlib
import os
import signal
from importlib.util import find_spec
from typing import Final

import click

from toolpost.cli.errors import UNREACHABLE, CommandError, describe_exit
from toolpost.cli.tap.recorder import open_recorder
from toolpost.cli.tap.stdio_proxy import StdioInspection, run_stdio_proxy
from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.testing.masking import is_secret
from toolpost.transports.targets import Http

MIN_SECRET_LENGTH: Final = 6  # characters; shorter secrets could match any text and are not masked


@click.command(
    "tap",
    cls=TargetCommand,
    epilog="Configure the host to start `toolpost tap -- COMMAND`, or to use the URL that `toolpost tap "
    "URL` prints.",
)
@click.option(
    "--to", metavar="FILE", type=click.Path(dir_okay=False), help="Append messages to FILE, not to stderr."
)
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Record the session in FILE for toolpost.testing.replay; if FILE exists, in FILE-1.",
)
@click.option("--full", is_flag=True, help="Show whole messages.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address to listen on, for a URL.  [default: 127.0.0.1:8900, or any port]",
)
def tap_command(
    target: TargetConnector, to: str | None, record: str | None, full: bool, listen: str | None
) -> int:
    """Show every message between a host and a server.

    Forwards all messages unchanged, and shows each on one line of stderr: seconds since the start, → for the
    client and ← for the server, id, method, response time, size. Lines with an exclamation mark show
    protocol violations. Secrets are masked.
    """
    place = target.resolve_target()
    if isinstance(place, Http):
        named = place.headers or {}
    elif listen is not None:
        raise click.UsageError("--listen requires a URL: a command uses stdio")
    else:
        named = {**os.environ, **(place.env or {})}
    secrets = [each for name, each in named.items() if is_secret(name) and len(each) >= MIN_SECRET_LENGTH]
    with open_recorder(
        json=target.output.json, full=full, to=to, record=record, target=target.spec.label, secrets=secrets
    ) as recorder:
        if isinstance(place, Http):
            if find_spec("aiohttp") is None or find_spec("uvicorn") is None:
                hint = "pip install 'toolpost[http]'"
                raise CommandError("tap on a URL requires aiohttp and uvicorn", hint=hint)
            from toolpost.cli.tap.http_proxy import serve_http_proxy  # noqa: PLC0415 - they may not be installed

            return serve_http_proxy(place, recorder, target.output, listen)
        try:  # passes our whole environment: the host set it for the server
            code = run_stdio_proxy(place, StdioInspection(recorder), named)
        except OSError as error:
            hint = "run `toolpost doctor` with the same command to find the cause"
            text = f"could not start {place.command}: {error.strerror}"
            raise CommandError(text, UNREACHABLE, hint=hint) from error
        end = f"the server {'ended' if code >= 0 else 'was killed'} {describe_exit(code)}"
        recorder.show_note("server", end)
        recorder.record_end("server", end)
    if code < 0:  # a signal killed it, and must kill us too
        with contextlib.suppress(OSError, ValueError):  # SIGKILL cannot be handled
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


for _option in tap_command.params:  # tap sends no requests: some options of a target do not apply
    if isinstance(_option, click.Option):
        _option.hidden = _option.name in {"revision", "timeout", "verbose"}
        if _option.name == "json":
            _option.help = "Show each message as a JSON object on one line."
