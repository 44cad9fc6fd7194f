"""`TaskOptions`: whether calls of a tool become tasks, when, and how long they are kept.

The argument `task=` of a tool, checked when the tool is registered.
"""

from typing import Any, Final

from toolpost.server import options
from toolpost.types.base import Struct

MAX_TTL: Final = 30 * 86400.0
"""Seconds for which a finished task is kept at most."""


class TaskOptions(Struct, frozen=True, kw_only=True):
    """How calls of a tool become tasks: `@server.tool(task=TaskOptions(after=0))`.

    Attributes:
        required: whether clients without tasks are refused. By default they wait for the result.
        after: seconds until a call becomes a task (2026-07-28); a call that ends earlier is answered with its
            result. None: only by `ctx.background()`. Clients of 2025-11-25 decide themselves, with each call.
        ttl: seconds for which the task is kept after its last change.
        poll: seconds that clients should wait between two polls of the task.
        attempts: how many times the function may start if workers die while they run it. The default is once.
            Steps (`ctx.step`) that have ended do not run again.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range.

    Examples:
        >>> options = TaskOptions(after=0, attempts=3)
    """

    required: bool = False
    after: float | None = 1.0
    ttl: float = 3600.0
    poll: float = 1.0
    attempts: int = 1

    def __post_init__(self) -> None:
        options.check_counts(attempts=self.attempts)
        options.check_durations(ttl=self.ttl, poll=self.poll)
        after: Any = self.after
        if after is not None and (isinstance(after, bool) or not isinstance(after, int | float)):
            raise TypeError(f"after must be a number of seconds or None, not {after!r}")
        if after is not None and not 0 <= after < options.MAX_DURATION:
            raise ValueError(f"after must be 0 or more seconds, not {after!r}")
        if self.ttl > MAX_TTL:
            raise ValueError(f"ttl must be at most {MAX_TTL:.0f} seconds, not {self.ttl!r}")


def parse_task_option(given: Any) -> TaskOptions | None:
    """Return the options that `task=` stands for: True, False, None or a `TaskOptions`."""
    if given is True:
        return TaskOptions()
    if given is None or given is False:
        return None
    if isinstance(given, TaskOptions):
        return given
    raise TypeError(f"task must be True, False or a TaskOptions, not {given!r}")
