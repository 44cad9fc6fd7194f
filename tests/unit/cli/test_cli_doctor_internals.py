"""`toolpost doctor`: its findings about healthy, odd, broken and unreachable servers."""

import json

from click.testing import CliRunner

from command_group import command_group
from doctor_report import Report, python
from toolpost.protocol.methods import DATES

SCRIPTED = """
import json, sys
answers = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = answers.get(message["method"], {"error": {"code": -32601, "message": "Method not found"}})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def examined(*words, **env):
    """Run the doctor in this process; return its report."""
    ended = CliRunner().invoke(command_group, ["doctor", "--json", *words], env=env, standalone_mode=False)
    if ended.exception is not None:
        raise ended.exception
    assert ended.stderr == ""
    return Report(ended.return_value, json.loads(ended.stdout))


def scripted(**answers):
    """Return a server of the session era with these responses."""
    hello = {
        "protocolVersion": DATES[2],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "scripted", "version": "1"},
    }
    said = {"initialize": {"result": hello}, "ping": {"result": {}}, "tools/list": {"result": {"tools": []}}}
    return python(
        SCRIPTED, json.dumps({**said, **{name.replace("_", "/"): each for name, each in answers.items()}})
    )


def test_a_server_that_starts_slowly_is_not_started_for_each_revision(monkeypatch):
    monkeypatch.setattr("toolpost.cli.doctor.check_session.SLOW_START", -1)
    report = examined(*scripted())
    assert report.says("revisions").startswith(f"{DATES[2]}; did not try others")
