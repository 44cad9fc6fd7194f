"""What a test needs to talk to a server or a client without a process or a socket.

`ScriptedChannel` lets the test be the peer, message by message; `pair` joins two ends in memory.
`AuthorizationServer` issues tokens, and `Mint` makes them without a word: neither is for production.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from toolpost.testing.channel import ScriptedChannel
from toolpost.transports.memory import pair

if TYPE_CHECKING:
    from toolpost.testing.authorization import AuthorizationServer as AuthorizationServer
    from toolpost.testing.minting import Mint as Mint

__all__ = ["AuthorizationServer", "Mint", "ScriptedChannel", "pair"]

_LATER: Final = {"AuthorizationServer": "authorization", "Mint": "minting"}
"""What is loaded on first use: most tests need no tokens, nor what signs them."""

if not TYPE_CHECKING:  # a checker that knows of it would take any name for good

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'toolpost.testing' has no attribute {name!r}")
        return getattr(import_module(f"toolpost.testing.{_LATER[name]}"), name)
