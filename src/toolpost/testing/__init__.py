"""What a test needs to talk to a server or a client without a process or a socket.

`ScriptedChannel` lets the test be the peer, message by message; `pair` joins two ends in memory.
"""

from toolpost.testing.channel import ScriptedChannel
from toolpost.transports.memory import pair

__all__ = ["ScriptedChannel", "pair"]
