"""Names for parametrised tests: the same in every process, as pytest-xdist wants them: no addresses."""

import re
from typing import Any

__all__ = ["tell"]


def tell(it: Any, most: int = 60) -> str:
    """What a value is called in the name of a test."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(it) if isinstance(it, str | type) else repr(it))[:most]
