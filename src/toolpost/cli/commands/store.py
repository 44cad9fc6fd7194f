"""A store on Redis or Valkey: its workers, for `toolpost fleet`, and its checks, for `toolpost doctor redis://…`.

Only reads. `docs/scaling.md` explains the findings to users.
"""

import asyncio
import time
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

import click

from toolpost.cli.doctor.report import DoctorReport
from toolpost.cli.errors import UNREACHABLE, CommandError, translate_errors, usage_error
from toolpost.cli.output import JSON_HELP, CommandOutput

OLDEST: Final = {"Redis": (6, 2), "Valkey": (7, 2)}
SAFE_POLICIES: Final = frozenset({"noeviction", "volatile-ttl"})
PINGS: Final = 20
SLOW: Final = 0.01  # seconds for a round trip; above that, calls that need the store take noticeably longer
MAX_CLOCK_DIFFERENCE: Final = 30.0  # seconds


async def check_store(report: DoctorReport, url: str) -> None:
    """Check the server at a URL. Raises DoctorAborted if it cannot be reached."""
    from toolpost.stores.redis_commands import RedisAddress, close_client  # noqa: PLC0415 - optional

    try:
        address = RedisAddress(url)
    except ValueError as error:
        report.stop("url", str(error))
    client = address.connect(address.timeout)
    try:
        await _check_server(report, client, is_cluster=address.is_cluster)
    except Exception as error:  # noqa: BLE001 - whatever redis-py raises
        text = f"{type(error).__name__}: {error}"
        report.stop_unreachable("answer", text, "check host, port, password and firewall")
    finally:
        await close_client(client)


async def _check_server(report: DoctorReport, client: Any, *, is_cluster: bool) -> None:
    node: dict[str, Any] = {}
    if is_cluster:
        await client.initialize()
        node["target_nodes"] = client.get_random_primary_node()
    delays: list[float] = []
    for _ in range(PINGS):
        began = time.perf_counter()
        await client.ping(**node)
        delays.append(time.perf_counter() - began)
    delay = median(delays)
    info: dict[str, Any] = await client.info(**node)
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "0.0"))
    oldest = OLDEST[name]
    if tuple(map(int, version.split(".")[:2])) < oldest:
        report.fail("version", f"{name} {version} is too old", f"use {'.'.join(map(str, oldest))} or newer")
    else:
        report.ok("version", f"{name} {version}")
    if delay > SLOW:
        report.warn("latency", f"a round trip takes {delay * 1000:.1f} ms", "place it near the workers")
    else:
        report.ok("latency", f"{delay * 1000:.1f} ms")
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") and policy not in SAFE_POLICIES:
        hint = "set maxmemory-policy to noeviction or volatile-ttl"
        report.fail("memory", f"maxmemory-policy {policy} deletes keys that are in use", hint)
    else:
        report.ok("memory", f"maxmemory-policy {policy}")
    if info.get("aof_enabled"):
        report.ok("durability", "the append-only file is on")
    else:
        hint = "set appendonly to yes, unless you can lose this data; with Server(keys=…), sessions survive"
        report.warn("durability", "a restart may lose ended sessions, subscriptions and ctx.state", hint)
    seconds, _ = await client.time(**node)
    if abs(seconds - time.time()) > MAX_CLOCK_DIFFERENCE:
        report.warn("clock", f"its clock differs by {seconds - time.time():.0f} s", "synchronize both clocks")
    await client.eval("return 1", 1, "tp:")
    report.ok("scripts", "allowed")


# --------------------------------------------------------------------- fleet


@click.command("fleet")
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def fleet_command(*, url: str, as_json: bool) -> None:
    """List the workers that share a store: of all servers, or of those with the URL's ?prefix=.

    Shows where each one runs, since when, with which version, and how many messages wait for it.
    """
    output = CommandOutput(json=as_json)
    with translate_errors():
        from toolpost.stores.redis_worker import list_workers  # noqa: PLC0415 - optional
    try:
        workers: list[dict[str, Any]] = asyncio.run(list_workers(url))
    except ValueError as error:
        raise usage_error(str(error), "use the URL of a store, such as redis://127.0.0.1:6379/0") from None
    except Exception as error:
        raise CommandError(f"the store cannot be reached: {error}", UNREACHABLE) from error
    for worker in workers:
        worker["since"] = datetime.fromtimestamp(worker["since"], UTC).isoformat(" ", "seconds")
    if workers or as_json:
        output.print_value(sorted(workers, key=lambda worker: worker["since"]))
    else:
        output.print_note("No worker is connected.")
