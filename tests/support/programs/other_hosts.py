"""The same server on another ASGI server, which is named by the first argument."""

import asyncio
import signal
import socket
import sys
from typing import Any

from toolpost import Context, Server

server = Server("hosts")


def say(word: object) -> None:
    """Notify the test."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


@server.tool
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool
async def steps(ctx: Context) -> str:
    """Say something first."""
    await ctx.progress(1)
    await ctx.progress(2)
    return "done"


@server.tool
async def wait() -> str:
    """Report the start, and the cancellation."""
    say("begun")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        say("cancelled")
        raise
    return "never"


async def on_hypercorn(stop: asyncio.Event) -> None:
    """Serve on hypercorn."""
    from hypercorn.asyncio import serve  # noqa: PLC0415 - one of two
    from hypercorn.config import Config  # noqa: PLC0415 - one of two

    listening = socket.create_server(("127.0.0.1", 0))
    say(listening.getsockname()[1])
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.graceful_timeout = 1
    app: Any = server.asgi()
    told: Any = stop.wait
    await serve(app, config, shutdown_trigger=told)


async def on_granian(stop: asyncio.Event) -> None:
    """Serve on granian, which binds the socket."""
    from granian.constants import Interfaces  # noqa: PLC0415 - one of two
    from granian.server.embed import Server as Granian  # noqa: PLC0415 - one of two

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host = Granian(server.asgi(), port=port, interface=Interfaces.ASGI, log_enabled=False)
    serving = asyncio.create_task(host.serve())
    say(port)
    await stop.wait()
    host.stop()
    await serving


async def main() -> None:
    """Serve until asked to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await {"hypercorn": on_hypercorn, "granian": on_granian}[sys.argv[1]](stop)


asyncio.run(main())
