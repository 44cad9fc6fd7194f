"""A server without toolpost, of the session era: it logs as soon as a client connects, and offers nothing."""

import json
import os
import signal
import sys
from typing import Any

LISTS: dict[str, Any] = {} if "silent" in sys.argv else {"tools": {"listChanged": True}}


def say(message: dict[str, Any]) -> None:
    """Send a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def notice(method: str, **params: Any) -> None:
    """Send a log message."""
    say({"method": method, "params": params})


sys.stderr.write("the talker starts\n")
sys.stderr.flush()
for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "talker", "version": "1"}
        say(
            {
                "id": number,
                "result": {
                    "protocolVersion": version,
                    "capabilities": {"logging": {}, **LISTS},
                    "serverInfo": info,
                },
            }
        )
    elif method == "notifications/initialized":
        notice("notifications/message", level="warning", logger="oven", data={"hot": True})
        notice("notifications/message", level="info", data=os.getpid() if "stay" in sys.argv else "tick")
    elif number is not None and method in {"ping", "logging/setLevel"}:
        say({"id": number, "result": {}})
    elif number is not None:
        say({"id": number, "error": {"code": -32601, "message": f"no {method}"}})
while "stay" in sys.argv:  # some servers do not detect a disconnect
    signal.pause()
