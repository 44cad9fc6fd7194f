"""What is seen on stderr while a request runs: a bar for its progress, and lines that do not disturb it.

Owns the bar, which is there on a terminal only, and gives way to questions. What is in progress is not known.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolpost.cli.about import finite, progress_text
from toolpost.cli.page import Page, harmless, is_plain

if TYPE_CHECKING:
    from rich.progress import Progress

    from toolpost.types.notices import ProgressParams

__all__ = ["Meter"]


class Meter:
    """The progress of one request.

    Args:
        page: where lines go to.
        lines: whether to write lines where there is no bar.
    """

    def __init__(self, page: Page, *, lines: bool = False) -> None:
        self._page = page
        self._lines = lines
        self._bar: Progress | None = None
        self._task: Any = None

    async def progress(self, told: "ProgressParams") -> None:
        """Show how far it has come. A callback for `progress=`."""
        text = harmless(progress_text(told))
        if is_plain(sys.stderr):
            if self._lines:
                self._page.note(f"progress: {text}")
            return
        total = None if told.total is None else finite(told.total)
        if self._bar is None:
            self._bar = self._made()
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(
            self._task, completed=finite(told.progress), total=total, description=text, refresh=True
        )

    def _made(self) -> "Progress":
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - slow

        columns = (
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        return Progress(*columns, console=self._page.error_console, transient=True)

    def note(self, text: str, *, style: str | None = None) -> None:
        """Print a line on stderr, above the bar."""
        if self._bar is None:
            self._page.note(text, style=style)
            return
        from rich.text import Text  # noqa: PLC0415 - there is a bar already

        self._bar.console.print(Text(harmless(text), style=style or ""))

    @contextmanager
    def aside(self) -> Generator[None]:
        """The bar gives way while somebody is asked."""
        bar = self._bar
        if bar is not None:
            bar.stop()
        try:
            yield
        finally:
            if bar is not None:
                bar.start()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
