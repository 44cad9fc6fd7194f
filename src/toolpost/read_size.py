"""How much of a connection is read at a time: 64 KiB, where asyncio would ask for four times as much.

With glibc, memory of 128 KiB and more is mapped anew for each read and given back after it, however little
has come: that took a sixth of the time of a client's call over HTTP. Other loops read in ways of their own.
"""

from typing import Any, Final

READ_SIZE: Final = 64 * 1024


def limit_read_size(transport: Any) -> None:
    """Have a connection read no more than that at a time, if it can be told."""
    if getattr(transport, "max_size", 0) > READ_SIZE:
        transport.max_size = READ_SIZE
