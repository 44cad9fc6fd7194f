"""A `SyncClient` in a process that was forked: an error in the child, and nothing in the parent."""

import subprocess
import sys

PROGRAM = """
import os, sys
from toolpost import MCPError, Server, SyncClient

server = Server("echo")

@server.tool
def echo(text: str) -> str:
    return text

def use(client):
    for act in (client.ping, client.connect, client.list_tools):
        try:
            act()
        except MCPError as error:
            print(error, flush=True)
    client.close()
    with SyncClient(server) as other:
        print(other.call_tool("echo", {"text": "another client"}).text, flush=True)

with SyncClient(server) as client:
    if not (child := os.fork()):
        use(client)
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    print(client.call_tool("echo", {"text": "the parent goes on"}).text)
"""
REFUSED = "a SyncClient cannot be used after a fork; make one in each process"


def test_a_client_that_was_forked_raises_and_does_not_hang():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [REFUSED] * 3 + ["another client", "the parent goes on"]
