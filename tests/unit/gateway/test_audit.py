"""Calls are recorded in a file: who called what, and how it ended, but no secrets."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from toolpost import Client, Server, ToolError
from toolpost.errors import InternalError, InvalidParams
from toolpost.gateway import audit as audit_module
from toolpost.gateway.audit import Audit, mask_secrets
from toolpost.gateway.policy import Policy, Rule
from toolpost.principal import Principal
from toolpost.transports.memory import memory_pair
from waiting import until


def shop(audit: Audit, *more: Any) -> Server:
    server = Server("shop", middleware=[audit, *more], lifespan=audit.lifespan)

    @server.tool
    def order(item: str, password: str = "") -> str:
        if item == "car":
            raise ToolError("no cars, by order of eyJhbGciOi.eyJzdWIiOi.c2ln")
        return f"ordered {item}"

    @server.resource("shop://hours")
    def hours() -> str:
        return "9 to 5"

    return server


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def visit(server: Server, *calls: dict[str, Any], revision: str | None = None) -> None:
    async with Client(server, revision=revision) as client:
        for arguments in calls:
            await client.call_tool("order", arguments, raise_on_error=False)


def test_a_line_says_who_called_what_and_how_it_ended(tmp_path):
    path = tmp_path / "calls.jsonl"
    audit = Audit(path)
    server = shop(audit, Policy([Rule(tools="*"), Rule(resources="*")], on_decision=lambda *_: None))

    async def main() -> None:
        async with server.hold_lifespan():
            ours, theirs = memory_pair()
            serving = asyncio.create_task(server.serve(theirs, principal=Principal("ann", client="app")))
            async with Client(ours, revision="2025-11-25") as client:
                trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
                await client.call_tool("order", {"item": "pen"}, meta=trace)
                await client.call_tool("order", {"item": "car"}, raise_on_error=False)
                with pytest.raises(InvalidParams):
                    await client.call_tool("sell", {})
                await client.read_resource("shop://hours")
                await client.list_tools()
            await serving

    asyncio.run(main())
    found = lines(path)
    assert [(each["name"], each["outcome"], each.get("error")) for each in found] == [
        ("order", "ok", None),
        ("order", "tool_error", None),
        ("sell", "error", "invalid params"),
        ("shop://hours", "ok", None),
    ]
    first = found[0]
    assert (first["principal"], first["client"], first["revision"]) == ("ann", "app", "2025-11-25")
    assert first["trace"] == "0af7651916cd43dd8448eb211c80319c"
    assert len(first["digest"]) == 32
    assert first["digest"] != found[1]["digest"]
    assert first["ms"] >= 0
    assert "eyJ" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_arguments_are_recorded_without_secrets(tmp_path):
    path = tmp_path / "calls.jsonl"
    audit = Audit(path, arguments=True)
    asyncio.run(visit(shop(audit), {"item": "Bearer abc.def", "password": "hunter2"}))
    (line,) = lines(path)
    assert line["arguments"] == {"item": "***", "password": "***"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (
            {"api_key": "x", "deep": [{"clientSecret": ["a", 1]}]},
            {"api_key": "***", "deep": [{"clientSecret": "***"}]},
        ),
        ({"text": "see eyJhbGciOi.eyJzdWIi.c2ln now"}, {"text": "see *** now"}),
        ({"token": {"value": "x"}, "n": 1, "ok": True}, {"token": "***", "n": 1, "ok": True}),
        ("plain", "plain"),
    ],
)
def test_secrets_are_masked_by_name_and_by_looks(value, shown):
    assert mask_secrets(value) == shown


def test_rules_are_noted(tmp_path):
    path = tmp_path / "calls.jsonl"
    audit = Audit(path)
    policy = Policy(
        [Rule(tools="*")],
        on_decision=lambda context, number, then: audit.note(context, rule=number, then=then),
    )
    asyncio.run(visit(shop(audit, policy), {"item": "pen"}))
    (line,) = lines(path)
    assert (line["rule"], line["then"]) == (1, "allow")


def test_lines_that_cannot_be_written_are_counted(tmp_path, caplog):
    audit = Audit(tmp_path / "missing" / "calls.jsonl")
    with caplog.at_level(logging.WARNING, "toolpost.gateway"):
        asyncio.run(visit(shop(audit), {"item": "pen"}, {"item": "cup"}))
    assert audit.lost == 2
    assert caplog.text.count("cannot be written") == 1


def test_a_full_queue_drops_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_module, "MAX_WAITING", 0)
    audit = Audit(tmp_path / "calls.jsonl")
    asyncio.run(visit(shop(audit), {"item": "pen"}))
    assert audit.lost == 1


def test_required_lines_are_written_or_the_call_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "later"
    audit = Audit(folder / "calls.jsonl", required=True)
    monkeypatch.setattr(audit_module, "RETRY_DELAY", 0.01)
    server = shop(audit)

    async def main() -> None:
        async with Client(server) as client:
            await client.call_tool("order", {"item": "pen"})
            await until(lambda: audit._is_failing)
            with pytest.raises(InternalError, match="cannot be recorded"):
                await client.call_tool("order", {"item": "cup"})
            folder.mkdir()
            await until(lambda: not audit._is_failing)
            await client.call_tool("order", {"item": "hat"})

    asyncio.run(main())
    assert len(lines(audit.path)) == 2
    assert audit.lost == 0


def test_the_file_may_be_rotated(tmp_path):
    path = tmp_path / "calls.jsonl"
    audit = Audit(path)
    server = shop(audit)

    async def main() -> None:
        async with Client(server) as client:
            await client.call_tool("order", {"item": "pen"})
            await until(lambda: path.exists() and path.stat().st_size > 0)
            path.rename(tmp_path / "old.jsonl")
            await client.call_tool("order", {"item": "cup"})

    asyncio.run(main())
    assert len(lines(path)) == len(lines(tmp_path / "old.jsonl")) == 1
