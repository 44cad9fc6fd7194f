"""Names for parametrised tests, without addresses: pytest-xdist needs the same in every process."""

import re
from typing import Any

__all__ = ["tell"]


def tell(it: Any, most: int = 60) -> str:
    """Return the name of a value in the name of a test."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(it) if isinstance(it, str | type) else repr(it))[:most]
