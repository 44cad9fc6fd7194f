"""`make_mount`: checks the arguments of `Server.mount`, and makes the mount of a target.

Loads only what the kind of the target needs.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from toolpost.gateway.edit import Edit
from toolpost.gateway.mount import Mount, MountOptions, parse_selection
from toolpost.gateway.names import HASH_LENGTH
from toolpost.server.mounting import MountingServer
from toolpost.server.options import check_counts, parse_middleware


def make_mount(
    host: MountingServer,
    target: Any,
    *,
    name: str | None,
    only: Any,
    hide: Any,
    tools: Any,
    around: Iterable[Any],
    max_name: int,
    **remote: Any,
) -> Mount:
    """Mount a target in a server. Raises TypeError or ValueError."""
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users err
        raise TypeError(f"name must be a string, not {name!r}")
    check_counts(max_name=max_name)
    if max_name <= 2 * HASH_LENGTH:
        raise ValueError(f"max_name must be more than {2 * HASH_LENGTH}, not {max_name}")
    options = MountOptions(
        name=name or None,
        only=parse_selection("only", only),
        hide=parse_selection("hide", hide),
        tools=_check_edits(tools),
        around=tuple(parse_middleware(around)),
        max_name=max_name,
    )
    if isinstance(target, MountingServer):
        from toolpost.gateway.local import LocalMount  # noqa: PLC0415 - the other kind is not needed

        changed = [key for key, value in remote.items() if value != _DEFAULTS[key]]
        if changed:
            raise TypeError(f"{changed[0]}= has no effect for a server in this process")
        mount: Mount = LocalMount(host, target, options)
    else:
        from toolpost.gateway.remote import RemoteMount  # noqa: PLC0415 - as above
        from toolpost.gateway.upstream import UpstreamOptions  # noqa: PLC0415 - as above

        remote["forward"] = tuple(remote["forward"])
        if remote["forward"]:
            raise ValueError("forward: headers of clients cannot be sent on yet; use headers= or auth=")
        upstream = UpstreamOptions(**remote)
        if getattr(upstream.auth, "is_per_caller", False):
            from toolpost.gateway.callers import CallerMount  # noqa: PLC0415 - as above

            mount = CallerMount(host, target, options, upstream)
        else:
            mount = RemoteMount(host, target, options, upstream)
    host.mounts.append(mount)
    host.__dict__.pop("local_peer", None)  # its capabilities may have changed
    host.open_later(mount)
    return mount


_DEFAULTS = {
    "start": "eager", "idle": None, "grace": 60.0, "share": None, "timeout": 300.0, "headers": None,
    "http": None, "auth": None, "forward": (),
}  # fmt: skip


def _check_edits(tools: Any) -> Mapping[str, Edit]:
    if tools is None:
        return {}
    if not isinstance(tools, Mapping):
        raise TypeError(f"tools must map names of tools to Edit(…), not {type(tools).__name__}")
    given = cast("Mapping[str, Any]", tools)
    for name, edit in given.items():
        if not isinstance(edit, Edit):
            raise TypeError(f"tools[{name!r}] must be an Edit, not {edit!r}")
    return dict(given)
