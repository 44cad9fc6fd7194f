"""`toolpost tap`: sits between a host and a server, and shows every message that goes by.

Owns the options and how the command ends. What passes the bytes on is `relay_stdio` for a command and
`relay_http` for a URL.
"""

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from toolpost.cli.exits import UNREACHABLE, Quit
from toolpost.cli.target import Reach, TargetCommand, takes_target

if TYPE_CHECKING:
    from toolpost.cli.teller import Teller
    from toolpost.transports.command import Stdio

__all__ = ["command"]

TELLING: Final = 6
"""How long a value has to be to be masked wherever it stands: shorter ones stand in any text."""


@click.command(
    "tap",
    cls=TargetCommand,
    epilog="Have the host start `toolpost tap -- the real command`, or give it the URL that `toolpost tap "
    "URL` prints.",
)
@takes_target
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
def command(reach: Reach, to: str | None, record: str | None, full: bool, listen: str | None) -> int:
    """Show every message between a host and a server.

    What either side sends is passed on unchanged. The messages are shown on stderr, each on one line: seconds
    since the start, → for the client and ← for the server, id, method, how long the answer took, its size;
    below that, after an exclamation mark, which rule of the protocol it breaks. Secrets are masked.
    """
    from toolpost.cli.teller import open_teller  # noqa: PLC0415 - help needs none of it
    from toolpost.transports.address import Http  # noqa: PLC0415 - as above

    place = reach.place()
    if isinstance(place, Http):
        named = place.headers or {}
    elif listen is not None:
        raise click.UsageError("--listen is for a URL: a command is reached by stdin and stdout")
    else:
        named = {**os.environ, **(place.env or {})}
    with open_teller(
        json=reach.json,
        full=full,
        to=to,
        record=record,
        target=reach.target.label,
        secrets=_secrets(named),
    ) as teller:
        if isinstance(place, Http):
            from toolpost.cli.relay_http import serve  # noqa: PLC0415 - for URLs only

            return serve(place, teller, reach.page, listen)
        code = _relayed(place, teller, named)
    return _ended(code)


def _relayed(stdio: "Stdio", teller: "Teller", env: Mapping[str, str]) -> int:
    """How a server has ended, whose messages were shown meanwhile.

    Raises:
        Quit: it cannot be started.
    """
    from toolpost.cli.ear import Ear  # noqa: PLC0415 - for commands only
    from toolpost.cli.relay_stdio import relay  # noqa: PLC0415 - as above

    ear = Ear(teller)
    try:
        # The whole environment: a host means it for the server.
        code = relay([stdio.command, *stdio.args], ear.listen, ear.start, env=env, cwd=stdio.cwd)
    except OSError as error:
        raise Quit(
            f"{stdio.command} cannot be started: {error.strerror}",
            UNREACHABLE,
            hint="`toolpost doctor` with the same command looks for the reason",
        ) from error
    ear.close()
    teller.note("server", _fate(code))
    teller.end("server", _fate(code))
    return code


def _fitted(tap: click.Command) -> None:
    """Show only the options that say something to a tap, which takes part in nothing."""
    for option in tap.params:
        if isinstance(option, click.Option):
            option.hidden = option.name in {"revision", "timeout", "verbose"}
            if option.name == "json":
                option.help = "Show each message as a JSON object on one line, for programs."


_fitted(command)


def _secrets(values: Mapping[str, str]) -> list[str]:
    """What is handed to the server under the name of a secret."""
    from toolpost.testing.masking import is_secret  # noqa: PLC0415 - as above

    return [value for name, value in values.items() if is_secret(name) and len(value) >= TELLING]


def _fate(code: int) -> str:
    if code >= 0:
        return f"the server has ended, with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"the server was ended by {signal.Signals(-code).name}"
    return f"the server was ended by signal {-code}"


def _ended(code: int) -> int:
    """End as the server has: with its exit code, or by the same signal."""
    if code < 0:
        number = -code
        with contextlib.suppress(OSError, ValueError):  # one that cannot be handled ends us all the same
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return code
