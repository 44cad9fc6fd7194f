"""The program behind `make run`: its errors, and its end."""

import asyncio
import re
import signal
import socket
import subprocess
import sys

import pytest
from example_sessions import ROOT

SHOWCASE = [sys.executable, "-W", "error", str(ROOT / "dev" / "showcase.py")]


def test_a_port_that_is_taken_is_explained():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run(
            [*SHOWCASE, "--port", str(port)], capture_output=True, text=True, timeout=50, check=False
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert done.stderr.endswith(
        f"If another program uses the port, choose another: make run PORT={port + 1}\n"
    )


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_an_invalid_port_is_refused(port):
    done = subprocess.run(
        [*SHOWCASE, f"--port={port}"], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "error:" in done.stderr


@pytest.mark.parametrize("line", ["cities:", "The same", "Press Ctrl-C to stop."])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_whenever_it_comes(line, number):
    async def main() -> tuple[int | None, bytes]:
        process = await asyncio.create_subprocess_exec(
            *SHOWCASE, "--port", "0", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(50):
            async for told in process.stdout:
                if told.decode().startswith(line):
                    break
            process.send_signal(number)
            _, complaint = await process.communicate()
        return process.returncode, complaint

    code, complaint = asyncio.run(main())
    assert code == 0
    assert complaint == b""


def test_the_readme_shows_the_actual_output():
    async def main() -> str:
        process = await asyncio.create_subprocess_exec(
            *SHOWCASE, "--port", "0", stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        told: list[str] = []
        async with asyncio.timeout(50):
            async for line in process.stdout:
                told.append(line.decode())
                if told[-1].startswith("Press Ctrl-C"):
                    break
            process.send_signal(signal.SIGINT)
            await process.communicate()
        return "".join(told)

    told = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", asyncio.run(main()))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```\n(weather .*?)```", readme, re.DOTALL)
    assert shown is not None
    # The path of the command depends on where Python was started from.
    assert told.startswith(re.sub(r"   \S+ run examples.*\n$", "", shown[1]))
