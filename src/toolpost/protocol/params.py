"""The parameters of a message of ours as they go out: told for the peer's revision, with `_meta`.

What an author or another conversation put into `_meta` stays, except what the protocol itself says there: a
progress token or a name tag of somebody else's would be taken for ours.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, Final

from toolpost.errors import LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.lowering import downgrade_value
from toolpost.protocol.revisions import Revision
from toolpost.types.base import JSON, UNSET, Meta, Raw, WireStruct
from toolpost.types.lifecycle import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION

__all__ = ["drop_sender_meta", "is_task_request", "prepare_params"]

_SENDER_META_KEYS: Final = frozenset({"progressToken", PROTOCOL_VERSION, CLIENT_CAPABILITIES, CLIENT_INFO})
"""The keys of `_meta` by which a request says who sends it and how to report on it."""

_NULL: Final = Raw(b"null")
_MEMBERS_READER: Final = JSONReader(dict[str, Raw])


def drop_sender_meta(meta: Mapping[str, JSON], revision: Revision) -> Meta:
    """A `_meta` without what only the sender of a request may say in it."""
    # A stateless request says itself what it wants to hear; in a session that is said once for all.
    said = _SENDER_META_KEYS if revision.stateless else _SENDER_META_KEYS | {LOG_LEVEL}
    return {key: value for key, value in meta.items() if key not in said}


def prepare_params(
    params: WireStruct | Mapping[str, JSON] | None, meta: Meta | None, revision: Revision
) -> Any:
    """The parameters, told so that the peer can read them; `meta` stands over what they have in `_meta`.

    Raises:
        LocalProtocolError: they cannot be said, or their `_meta` is no object.
    """
    if not isinstance(params, WireStruct):
        if not isinstance(params, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance] - authors err
            raise LocalProtocolError(f"parameters are an object, not {type(params).__name__}")
        if meta is None and (params is None or "_meta" not in params):
            return UNSET if params is None else params
        plain = params or {}
        return {**plain, "_meta": _merge_meta(plain.get("_meta"), meta, revision)}
    params = downgrade_value(params, revision)
    if "meta" not in params.__struct_fields__:
        return params if meta is None else {**_MEMBERS_READER(jsonrpc.encode(params)), "_meta": meta}
    own: Any = getattr(params, "meta", None) or None  # UNSET is false
    if own is not None or meta is not None:
        params = copy(params)
        # The encoder takes a dict where the struct, which is also read, has raw bytes.
        setattr(params, "meta", _merge_meta(own, meta, revision))  # noqa: B010 - see above
    return params


def _merge_meta(own: Any, meta: Meta | None, revision: Revision) -> Meta:
    """The `_meta` that parameters brought, and ours over it."""
    if own is None or own == _NULL:
        return meta or {}
    try:
        return {
            **drop_sender_meta(_MEMBERS_READER(own) if isinstance(own, Raw) else own, revision),
            **(meta or {}),
        }
    except (InvalidJSONValue, AttributeError) as error:
        raise LocalProtocolError("a request cannot carry a _meta that is no object") from error


def is_task_request(params: WireStruct | Mapping[str, JSON] | None, revision: Revision) -> bool:
    """Whether a request wants to be run as a task, in the revision that has them (TASK-4)."""
    if not revision.tasks:
        return False
    wish = params.get("task") if isinstance(params, Mapping) else getattr(params, "task", None)
    return wish is not None
