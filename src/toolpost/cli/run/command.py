"""`toolpost run`: serves the server in a file or a module, over stdio or HTTP.

`loader` finds the server, and `reload` replaces its code while it serves.
"""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import click

from toolpost.cli.errors import OK, UNREACHABLE, USAGE, CommandError, translate_errors, usage_error
from toolpost.cli.output import CommandOutput

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

THREAD_EXIT_TIMEOUT: Final = 5.0  # seconds for threads of the file to end after serving


@click.command("run")
@click.argument("server", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--http", metavar="HOST:PORT", help="Serve over HTTP at this address; port 0 picks a free port."
)
@click.option("--path", metavar="PATH", help="Path of the HTTP endpoint (default: /mcp).")
@click.option("--workers", metavar="N", type=click.IntRange(min=1), help="Number of HTTP server processes.")
@click.option("--reload", is_flag=True, help="Reload the code when it changes; clients stay connected.")
@click.option("--stateless", is_flag=True, help="Serve older clients over HTTP without sessions.")
@click.option("--json-only", is_flag=True, help="Respond over HTTP with JSON, never with an event stream.")
@click.option("--public-url", metavar="URL", help="URL of the server as clients see it.")
@click.option("--allowed-host", metavar="HOST", multiple=True, help="Accept this host name too; * for all.")
@click.option("--allowed-origin", metavar="URL", multiple=True, help="Accept this origin; * for all.")
@click.option("--cors", is_flag=True, help="Send CORS headers.")
@click.option("--health", metavar="PATH", help="Path for health checks, for example /health.")
@click.option("--metrics", metavar="PATH", help="Path of metrics for Prometheus, for example /metrics.")
def run_command(
    server: str, arguments: tuple[str, ...], http: str | None, reload: bool, **options: Any
) -> None:
    """Run the server in a file or a module until it is stopped.

    SERVER is a Python file (weather.py) or a module. If it has several servers, add the name of one, or of a
    function that returns one (weather.py:server, package.module:server). The server uses stdio, as hosts
    expect, unless you pass --http. The file gets ARGUMENTS in sys.argv.
    """
    options |= {name: options.pop(name.removesuffix("s")) for name in ("allowed_hosts", "allowed_origins")}
    web = {name: value for name, value in options.items() if value}
    _check_options(http, web, reload=reload)
    from toolpost.cli.run.loader import ServerSource  # noqa: PLC0415 - imports the server package, which is slow

    output, source = CommandOutput(), ServerSource(server, fresh=reload)
    sys.argv = [str(source.path or source.label), *arguments]
    with ExitStack() as stack:
        if http is None:  # while the code loads, stdout goes to stderr and stdin is empty
            from toolpost.transports.stdio_server import StdioRedirect  # noqa: PLC0415 - as above

            stack.callback(StdioRedirect().undo)
        found = source.load()
    if reload:
        from toolpost.cli.run.reload import Reloader  # noqa: PLC0415 - rarely needed

        try:
            found = Reloader(source, found, output.print_note).server
        except TypeError as error:
            raise usage_error(f"--reload: {error}") from None
    if http is None and sys.stdin.isatty():
        output.print_note(
            f"{found.info.name} is serving MCP over stdio. Press Ctrl-C to stop. "
            f"To try it: toolpost list {server}. To serve over HTTP: --http 127.0.0.1:8000"
        )
    _serve(found, http, web, source.label)
    _exit_after_timeout(source.label, output)


def _check_options(http: str | None, web: Mapping[str, Any], *, reload: bool) -> None:
    if http is None and web:
        used = [each.opts[0] for each in run_command.params if {each.name, f"{each.name}s"} & web.keys()]
        raise click.UsageError(f"{', '.join(used)} requires --http")
    if http is None and (sys.__stdin__ is None or sys.__stdout__ is None):
        hint = "let an MCP client start it, or use --http 127.0.0.1:8000"
        raise CommandError("cannot serve over stdio: stdin or stdout is closed", UNREACHABLE, hint=hint)
    if reload and web.get("workers", 1) > 1:
        raise click.UsageError("--reload and --workers cannot be combined")


def _serve(found: "Handler", http: str | None, web: Mapping[str, Any], label: str) -> None:
    """Serve until a signal arrives. Errors in the user's code show its lines."""
    try:
        with translate_errors():
            found.run(http=http, **web)
    except CommandError:
        raise
    except Exception as error:
        from toolpost.cli.run.loader import format_user_traceback, is_internal_error  # noqa: PLC0415 - rarely needed

        if not is_internal_error(error):
            text = f"could not serve {label}:\n{format_user_traceback(error)}"
            raise CommandError(text, UNREACHABLE) from error
        code = USAGE if isinstance(error, ValueError | TypeError) else UNREACHABLE
        raise CommandError(str(getattr(error, "strerror", None) or error), code) from error


def _exit_after_timeout(label: str, output: CommandOutput) -> None:
    """Exit after a timeout if threads of the user's code keep the process alive."""
    left = [each.name for each in threading.enumerate() if not each.daemon]
    left.remove(threading.main_thread().name)

    def wait_and_exit() -> None:
        threading.Event().wait(THREAD_EXIT_TIMEOUT)
        output.print_note(f"{label} has stopped, but these threads are still running: {', '.join(left)}")
        os._exit(OK)

    if left:
        threading.Thread(target=wait_and_exit, daemon=True).start()
