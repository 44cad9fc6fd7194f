"""`toolpost run`: serves the server in a file or a module, over stdio or HTTP.

`loader` finds the server, and `reload` exchanges its code while it serves.
"""

import os
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import click

from toolpost.cli.errors import OK, UNREACHABLE, USAGE, CommandError, translate_errors, usage_error
from toolpost.cli.output import CommandOutput

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

THREAD_EXIT_TIMEOUT: Final = 5.0  # seconds that threads of the file get to end once nobody is served any more
_PLURAL_OPTIONS: Final = {"allowed_host": "allowed_hosts", "allowed_origin": "allowed_origins"}


@click.command("run")
@click.argument("server", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--http", metavar="HOST:PORT", help="Serve over HTTP, there; port 0 takes one that is free.")
@click.option("--path", metavar="PATH", help="Where clients come, over HTTP; /mcp unless you say so.")
@click.option(
    "--workers", metavar="N", type=click.IntRange(min=1), help="Serve over HTTP with so many processes."
)
@click.option("--reload", is_flag=True, help="Load the code anew when it changes; clients stay connected.")
@click.option("--stateless", is_flag=True, help="Serve old clients over HTTP without sessions.")
@click.option("--json-only", is_flag=True, help="Answer over HTTP with JSON, never with an event stream.")
@click.option("--public-url", metavar="URL", help="Where clients reach the server, if not on this machine.")
@click.option("--allowed-host", metavar="HOST", multiple=True, help="Answer under this name, too; * for all.")
@click.option("--allowed-origin", metavar="URL", multiple=True, help="Let pages from there call; * for all.")
@click.option("--cors", is_flag=True, help="Tell browsers what is allowed.")
@click.option("--health", metavar="PATH", help="Tell there whether the server lives, such as /health.")
def command(server: str, arguments: tuple[str, ...], http: str | None, reload: bool, **options: Any) -> None:
    """Serve the server in a file or a module, until it is told to stop.

    SERVER is a Python file (weather.py), with the name of a server or of a function that makes one, if there
    are several (weather.py:server), or a module (package.module:server). It is served over stdin and stdout,
    as hosts start it, unless you say --http. ARGUMENTS are for the file: it finds them in sys.argv.
    """
    web = {_PLURAL_OPTIONS.get(name, name): value for name, value in options.items() if value}
    _check_options(http, web, reload=reload)
    from toolpost.cli.run.loader import ServerSource  # noqa: PLC0415 - it knows servers, which take a while to load

    page, source = CommandOutput(), ServerSource(server, fresh=reload)
    sys.argv = [str(source.path or source.label), *arguments]
    with _redirect_stdio() if http is None else nullcontext():
        found = source.load()
    if reload:
        from toolpost.cli.run.reload import Reloader  # noqa: PLC0415 - few servers are

        try:
            found = Reloader(source, found, page.print_note).server
        except TypeError as error:
            raise usage_error(f"--reload: {error}") from None
    if web.get("workers", 1) > 1:
        web |= _choose_worker_options(found, web, page)
    if http is None and sys.stdin.isatty():
        page.print_note(
            f"{found.info.name} serves MCP over stdin and stdout, as programs want it; Ctrl-C ends it. "
            f"To try it: toolpost list {server}. For clients elsewhere: --http 127.0.0.1:8000"
        )
    _serve(found, http, web, source.label)
    _exit_after_timeout(source.label, page)


def _check_options(http: str | None, web: Mapping[str, Any], *, reload: bool) -> None:
    if http is None and web:
        names = {told: name for name, told in _PLURAL_OPTIONS.items()}
        used = [f"--{names.get(name, name).replace('_', '-')}" for name in web]
        raise click.UsageError(f"without --http nobody needs {', '.join(used)}")
    if http is None and (sys.__stdin__ is None or sys.__stdout__ is None):
        hint = "let an MCP client start it, or say --http 127.0.0.1:8000"
        raise CommandError("this process has no stdin or no stdout to serve over", UNREACHABLE, hint=hint)
    if reload and web.get("workers", 1) > 1:
        raise click.UsageError("--reload and --workers exclude each other: one process loads the code anew")


def _choose_worker_options(found: "Handler", web: Mapping[str, Any], page: CommandOutput) -> dict[str, Any]:
    """Options for several processes, so that each of them can answer every client."""
    from toolpost.server.http.serve import is_single_process  # noqa: PLC0415 - only who serves over HTTP needs it

    if web.get("stateless") or not found.local_peer.has_sessions or not is_single_process(found):
        return {}
    page.print_note(
        f"{web['workers']} workers have no store to share sessions in (see Server(store=…)): older clients "
        "are served without sessions, as with --stateless, and cannot be asked anything."
    )
    return {"stateless": True}


def _serve(found: "Handler", http: str | None, web: Mapping[str, Any], label: str) -> None:
    """Serve until a signal comes. Errors of the user's own code show its own lines."""
    try:
        with translate_errors():
            found.run(http=http, **web)
    except CommandError:
        raise
    except Exception as error:
        from toolpost.cli.run.loader import format_user_traceback, is_internal_error  # noqa: PLC0415 - mostly not needed

        if not is_internal_error(error):
            text = f"{label} cannot be served:\n{format_user_traceback(error)}"
            raise CommandError(text, UNREACHABLE) from error
        code = USAGE if isinstance(error, ValueError | TypeError) else UNREACHABLE
        raise CommandError(str(getattr(error, "strerror", None) or error), code) from error


def _exit_after_timeout(label: str, page: CommandOutput) -> None:
    """End this process after a while, if threads of the user's code would keep it alive."""
    left = [each.name for each in threading.enumerate() if not each.daemon]
    left.remove(threading.main_thread().name)

    def wait_and_exit() -> None:
        threading.Event().wait(THREAD_EXIT_TIMEOUT)
        page.print_note(f"{label} is not served any more, but a thread of it does not end: {', '.join(left)}")
        os._exit(OK)

    if left:
        threading.Thread(target=wait_and_exit, daemon=True).start()


@contextmanager
def _redirect_stdio() -> Generator[None]:
    """While the code is loaded, send prints to stderr, and read nothing from stdin."""
    sys.stdout.flush()
    ours = [os.dup(number) for number in (0, 1)]
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing if sys.__stderr__ is None else 2, 1)
    os.close(nothing)
    try:
        yield
    finally:
        sys.stdout.flush()
        for number, our in enumerate(ours):
            os.dup2(our, number)
            os.close(our)
