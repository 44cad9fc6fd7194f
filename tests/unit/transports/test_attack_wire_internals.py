"""Smuggled, contradictory and endless requests. `test_advisories` has the sources."""

from attacked_server import Victim, attacked, calls
from hosted import call, modern, run
from toolpost.server.http import exchange


def test_a_body_that_does_not_come_is_given_up(monkeypatch):
    async def main():
        monkeypatch.setattr(exchange, "BODY_CHUNK_TIMEOUT", 0.1)
        server = Victim()
        async with attacked(server) as site:
            wires = [await site.wire() for _ in range(50)]
            headers, _ = modern("tools/call", call("mark", text="slow"))
            for wire in wires:
                await wire.ask("POST", "/mcp", {**headers, "Content-Length": "99"}, b"{", length=False)
            for wire in wires:
                assert (await wire.answer()).status in {400, 408}
                assert await wire.ended()
            assert await calls(site)

    run(main)
