"""Status, headers and code for each request, in one table, and cases outside the table."""

from hosted import (
    call,
    hosted,
    kitchen,
    modern,
    run,
)
from toolpost.server.http import security

ECHO = modern("tools/call", call("echo", text="hi"))


def test_refusals_do_not_fill_the_log(caplog):
    async def main():
        async with hosted(kitchen()) as site:
            wire = await site.wire()
            for number in range(security.MAX_LOGGED_REFUSALS + 5):
                await wire.ask("POST", "/mcp", ECHO[0], ECHO[1], host=f"{number}.example")
                assert (await wire.answer()).status == 403

    run(main)
    assert len(caplog.records) == security.MAX_LOGGED_REFUSALS


def test_the_number_of_remembered_names_is_limited():
    async def main():
        async with hosted(kitchen(), allowed_hosts="*", allowed_origins="*") as site:
            known = site.app._guard._allowed_origins
            assert (await site.post({**ECHO[0], "Origin": "x" * 5000}, ECHO[1])).status == 200
            assert not known
            assert (await site.post(*ECHO)).status == 200
            assert len(known) == 1

    run(main)
