"""The table of what is fuzzed. A target is a module here with `target` and the words that its format knows.

`target(data)` takes any bytes and returns; whatever it raises is a defect. A target is imported when it is
asked for, so that who measures coverage can prepare the import.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple

__all__ = ["TARGETS", "Target", "load"]

TARGETS: Final = {
    "bind": "arguments of a call: bound, or refused in words",
    "challenge": "WWW-Authenticate: never raises, what was read can be written and read again",
    "compact": "three parts of a JWS: taken apart, or malformed",
    "connection": "a conversation in each revision and role: one event a message, one end a request",
    "framing": "lines: the same however the stream is cut",
    "headers": "values, Accept, annotations: there and back, only the documented refusals",
    "jsonrpc": "envelopes and batches: JSON to everybody, the depth, there and back",
    "seal": "sealed strings: nothing opens that was not sealed for it",
    "sse": "event streams: the same however they are cut, and as the standard says",
    "uri": "templates: what matches is safe and expands to what matches",
}
"""What is fuzzed, and what is asserted of it."""


class Target(NamedTuple):
    """One thing to fuzz."""

    name: str
    run: Callable[[bytes], None]
    tokens: tuple[bytes, ...]


def load(name: str) -> Target:
    """A target, imported."""
    module = import_module(f"fuzz.targets.{name}")
    return Target(name, module.target, module.TOKENS)
