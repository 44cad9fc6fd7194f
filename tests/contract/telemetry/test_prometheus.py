"""Metrics in the text format of Prometheus, read with the parser of prometheus-client."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raw_http import wired
from running_server import Running, run, running
from toolpost import Client, MCPError, Server, ToolError

DURATION = "mcp_server_operation_duration_seconds"

SHOP = """
import os
from toolpost import Server, ToolError

server = Server("shop")

@server.tool
def price(item: str) -> float:
    return 2.5

@server.tool
def fail() -> str:
    raise ToolError("no")

@server.tool
def process() -> int:
    return os.getpid()
"""


class Scrape:
    """The numbers of one answer."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}

    def counts(self, name: str = DURATION, label: str = "gen_ai_tool_name") -> dict[Any, float]:
        """Return the number of observations of a histogram, by a label and the error."""
        found: dict[Any, float] = {}
        for sample in self.families[name].samples:
            if sample.name == f"{name}_count":
                key = sample.labels[label], sample.labels["error_type"]
                found[key] = found.get(key, 0) + sample.value
        return found

    def gauge(self, name: str) -> float:
        (sample,) = self.families[name].samples
        return sample.value


async def scrape(port: int) -> Scrape:
    async with wired(port) as wire:
        await wire.ask("GET", "/metrics", {})
        answer = await wire.answer()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return Scrape(answer.body.decode())


@pytest.fixture
def shop(tmp_path: Path) -> str:
    path = tmp_path / "shop.py"
    path.write_text(SHOP)
    return str(path)


@asynccontextmanager
async def measured(shop: str, *words: str) -> AsyncGenerator[Running]:
    """Run the server with metrics. It ends in order, so that it can remove its files."""
    async with running(shop, "--metrics", "/metrics", *words) as server:
        yield server
        await scrape(port_of(server.url))
        assert await server.end() == 0


def port_of(url: str) -> int:
    found = re.search(r":(\d+)/", url)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_calls_are_counted_by_tool_and_outcome(shop: str, revision: str):
    async def main() -> None:
        async with measured(shop) as server:
            async with Client(server.url, revision=revision) as client:
                for _ in range(3):
                    await client.call_tool("price", {"item": "pen"})
                await client.call_tool("fail", raise_on_error=False)
                for name in ("nope", "nope again"):
                    with pytest.raises(MCPError):
                        await client.call_tool(name)
                during = await scrape(port_of(server.url))
            found = await scrape(port_of(server.url))
            expected = {("price", ""): 3, ("fail", "tool_error"): 1, ("_OTHER", ""): 2, ("", ""): 1}
            assert found.counts() == expected
            assert {method for method, _ in found.counts(label="mcp_method_name")} >= {"tools/call"}
            labels = {
                (each.labels["mcp_protocol_version"], each.labels["network_transport"])
                for each in found.families[DURATION].samples
            }
            assert labels == {(revision, "tcp")}
            is_session = revision == "2025-11-25"
            assert during.gauge("toolpost_sessions") == is_session
            assert during.gauge("toolpost_requests_in_flight") == 0
            if is_session:
                ended = found.counts("mcp_server_session_duration_seconds", "mcp_protocol_version")
                assert ended == {(revision, ""): 1}

    run(main)


def test_buckets_are_those_of_the_conventions_and_add_up(shop: str):
    async def main() -> None:
        async with measured(shop) as server, Client(server.url) as client:
            await client.call_tool("price", {"item": "pen"})
            found = await scrape(port_of(server.url))
            samples = [
                each
                for each in found.families[DURATION].samples
                if each.labels["gen_ai_tool_name"] == "price"
            ]
            buckets = {float(each.labels["le"]): each.value for each in samples if "le" in each.labels}
            assert list(buckets) == [
                0.01,
                0.02,
                0.05,
                0.1,
                0.2,
                0.5,
                1,
                2,
                5,
                10,
                30,
                60,
                120,
                300,
                float("inf"),
            ]
            assert list(buckets.values()) == sorted(buckets.values())
            assert buckets[float("inf")] == 1

    run(main)


def test_two_workers_add_up_also_after_one_of_them_has_died(shop: str):
    async def main() -> None:
        async with measured(shop, "--workers", "2", "--stateless") as server:
            port, called, processes = port_of(server.url), 0, set[int]()
            while len(processes) < 2 or called < 10:  # each connection is of one worker
                async with Client(server.url) as client:
                    processes.add((await client.call_tool("process")).data)
                    called += 1
            for _ in range(4):  # whichever worker answers
                assert (await scrape(port)).counts()["process", ""] == called
            os.kill(processes.pop(), signal.SIGKILL)
            await server.hears("starting a new one")
            found = await scrape(port)
            assert found.counts()["process", ""] == called
            assert found.gauge("toolpost_requests_in_flight") == 0

    run(main)


def test_the_folder_of_the_workers_ends_with_the_server(shop: str, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    async def main() -> None:
        async with measured(shop, "--workers", "2", "--stateless") as server:
            await scrape(port_of(server.url))  # the folder exists before a worker starts
            folders.append(os.listdir(tmp_path))  # noqa: PTH208 - may block for a moment

    folders: list[list[str]] = []
    run(main)
    assert any(name.startswith("toolpost-metrics-") for name in folders[0])
    assert not list(tmp_path.glob("toolpost-metrics-*"))


def test_a_folder_of_yours_is_shared_with_other_processes(monkeypatch: Any, tmp_path: Path):
    """As of an ASGI server that starts the processes itself."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    server = Server("shop")

    @server.tool
    def fail() -> str:
        raise ToolError("no")

    app = server.asgi(metrics="/metrics")

    async def main() -> str:
        async with app.lifespan(), Client("http://127.0.0.1:8000/mcp", http=app) as client:
            await client.call_tool("fail", raise_on_error=False)
            sent: list[Any] = []

            async def send(event: Any) -> None:
                sent.append(event)

            scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
            receive: Any = asyncio.Event().wait
            await app(scope, receive, send)
            return sent[1]["body"].decode()

    assert Scrape(asyncio.run(main())).counts()["fail", "tool_error"] == 1
    assert list(tmp_path.glob("histogram_*.db"))


def test_metrics_need_no_token_and_accept_any_host(shop: str):
    async def main() -> None:
        async with measured(shop) as server, wired(port_of(server.url)) as wire:
            await wire.ask("GET", "/metrics", {"host": "10.0.0.7"})
            assert (await wire.answer()).status == 200

    run(main)


def test_without_the_option_there_are_no_metrics(shop: str):
    async def main() -> None:
        async with running(shop) as server, wired(port_of(server.url)) as wire:
            await wire.ask("GET", "/metrics", {})
            assert (await wire.answer()).status == 404

    run(main)
