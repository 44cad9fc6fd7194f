"""`toolpost doctor redis://…` and `toolpost fleet redis://…`: against real servers."""

import asyncio
import json
import os

import pytest
from click.testing import CliRunner

from command_group import command_group
from fleet_site import three_workers
from redis_servers import PROGRAMS, redis_cluster, redis_server, sentinel_group
from server_processes import run


def told(*words: str, code: int = 0) -> dict[str, dict[str, str]]:
    """Return the checks of a doctor by name."""
    ended = CliRunner().invoke(command_group, ["doctor", "--json", *words], standalone_mode=False)
    assert ended.return_value == code, ended.output
    return {check["name"]: check for check in json.loads(ended.stdout)["checks"]}


@pytest.fixture(params=[*PROGRAMS, "sentinel", "cluster"])
def url(request, tmp_path):
    if request.param == "cluster":
        with redis_cluster(tmp_path) as cluster:
            yield cluster.url
    elif request.param == "sentinel":
        with sentinel_group(tmp_path) as group:
            yield group.url
    else:
        with redis_server(tmp_path, request.param) as server:
            yield server.url


def test_a_good_server_is_told_to_be_good(url):
    checks = told(url)
    assert {name for name, check in checks.items() if check["verdict"] != "ok"} == {"durability"}
    assert set(checks) == {"version", "latency", "memory", "durability", "scripts"}
    assert checks["version"]["text"].startswith(("Redis ", "Valkey "))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_that_drops_keys_in_use_is_not_good(tmp_path, program):
    options = ("--maxmemory", "10mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes")
    with redis_server(tmp_path, program, *options) as server:
        checks = told(server.url, code=1)
    assert checks["memory"]["verdict"] == "fail"
    assert "noeviction" in checks["memory"]["hint"]
    assert checks["durability"]["verdict"] == "ok"


def test_a_server_that_cannot_be_reached(tmp_path):
    with redis_server(tmp_path) as server:
        server.run("config", "set", "requirepass", "right")
        checks = told(f"redis://:secret@127.0.0.1:{server.port}", code=3)
        assert checks["answer"]["verdict"] == "fail"
        assert "secret" not in str(checks)
        url = server.url
    assert told(url, code=3)["answer"]["verdict"] == "fail"
    assert told("redis+sentinel://localhost", code=1)["url"]["verdict"] == "fail"


def fleet(*words: str) -> list[dict[str, object]]:
    ended = CliRunner().invoke(command_group, ["fleet", "--json", *words], standalone_mode=False)
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def test_the_workers_of_a_fleet(url):
    async def main():
        async with three_workers(url) as site:
            for worker in site.workers:
                await worker.holdings()  # it has joined
            workers = await asyncio.to_thread(fleet, url)
            assert {worker["pid"] for worker in workers} == {worker.pid for worker in site.workers}
            assert {worker["server"] for worker in workers} == {"victim"}
            assert {worker["host"] for worker in workers} == {os.uname().nodename}
            assert {worker["messages"] for worker in workers} == {0}
            same = await asyncio.to_thread(fleet, f"{url}?prefix=tp:victim:")
            assert {worker["worker"] for worker in same} == {worker["worker"] for worker in workers}
            assert await asyncio.to_thread(fleet, f"{url}?prefix=tp:other:") == []
            shown = await asyncio.to_thread(CliRunner().invoke, command_group, ["fleet", url])
            assert all(str(worker.pid) in shown.stdout for worker in site.workers)

    run(main)


def test_no_fleet(tmp_path):
    with redis_server(tmp_path) as server:
        ended = CliRunner().invoke(command_group, ["fleet", server.url])
        assert (ended.stdout, ended.stderr) == ("", "No worker is connected.\n")
        url = server.url
    for words, text in (
        (url, "cannot be reached"),
        ("redis+sentinel://localhost", "expected redis+sentinel"),
    ):
        ended = CliRunner().invoke(command_group, ["fleet", words])
        assert ended.exit_code != 0
        assert text in str(ended.exception) + ended.output
