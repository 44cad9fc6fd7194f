"""`uvicorn --workers`: with a store all is well; without one, each process would have its own sessions."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from fleet_site import answer_question, call_pid, open_session
from hosted import Site
from redis_servers import redis_server
from server_processes import PROGRAMS, run

WARNING = "several processes serve"


@asynccontextmanager
async def uvicorn(app: str, workers: int) -> AsyncGenerator[tuple[Site, list[str]]]:
    """Run the program, and yield its address and the lines that it prints until all workers have started."""
    command = ("-m", "uvicorn", app, "--factory", "--port", "0", "--workers", str(workers))
    environment = {**os.environ, "PYTHONPATH": str(PROGRAMS)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stderr=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stderr is not None
    lines: list[str] = []
    ports: list[str] = []
    try:
        while sum("startup complete" in line for line in lines) < workers or not ports:
            lines.append((await process.stderr.readline()).decode())
            assert lines[-1], lines
            ports += re.findall(r"running on http://127\.0\.0\.1:(\d+)", lines[-1])
        yield Site(None, int(ports[0])), lines
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()


@pytest.mark.parametrize(("workers", "warnings"), [(1, 0), (2, 1), (3, 1)])
def test_several_processes_without_a_store_say_at_start_what_clients_miss(workers, warnings):
    async def main():
        async with uvicorn("several_processes:alone", workers) as (_, lines):
            said = [line for line in lines if WARNING in line]
            assert len(said) == warnings, lines
            assert all("2025-11-25" in line and "redis://" in line for line in said)

    run(main)


def test_several_processes_without_sessions_say_nothing():
    async def main():
        async with uvicorn("several_processes:stateless", 2) as (_, lines):
            assert WARNING not in "".join(lines)

    run(main)


def test_several_processes_with_a_store_serve_each_session(tmp_path, monkeypatch):
    async def main():
        async with uvicorn("several_processes:shared", 2) as (site, lines):
            assert WARNING not in "".join(lines)
            session, numbers, served = await open_session(site), count(1), set[str]()
            while len(served) < 2:  # the system chooses which process accepts a connection
                served.add(await call_pid(site, session, next(numbers)))
            for number in range(1000, 1010):
                await answer_question(site, session, number)

    with redis_server(tmp_path) as server:
        monkeypatch.setenv("STORE", server.url)
        run(main)
