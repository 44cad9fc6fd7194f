"""Metrics in the text format of Prometheus, added up over the workers of one server.

Each worker writes its numbers to a file in a folder that all share, in the format of prometheus-client; the
one that is asked reads all files. The files of a dead worker stay, so that no counter goes back.
"""

import asyncio
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize

from toolpost.errors import MCPError
from toolpost.protocol.methods import PROMPTS_GET, TOOLS_CALL
from toolpost.protocol.revisions import Revision
from toolpost.telemetry import conventions as names

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.mmap_dict import MmapedDict, mmap_key
    from prometheus_client.multiprocess import MultiProcessCollector
except ImportError as error:
    raise MCPError("metrics= needs prometheus-client", hint="pip install 'toolpost[metrics]'") from error

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.runtime.dispatch import Outcome

MAX_SERIES: Final = 2000
"""Combinations of labels; further tools and prompts are counted together."""

GAUGE_INTERVAL: Final = 1.0
"""Seconds between two updates of the gauges of a worker."""

_OPERATIONS: Final = "mcp_server_operation_duration_seconds", "Duration of received MCP requests"
_SESSIONS: Final = "mcp_server_session_duration_seconds", "Duration of MCP sessions"
_LABELS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    _OPERATIONS: (
        "mcp_method_name", "gen_ai_tool_name", "gen_ai_prompt_name", "mcp_protocol_version",
        "network_transport", "error_type",
    ),
    _SESSIONS: ("mcp_protocol_version", "error_type"),
}  # fmt: skip
_GAUGES: Final = (
    ("toolpost_requests_in_flight", "Requests that are being served over HTTP"),
    ("toolpost_streams", "Open event streams for notifications"),
    ("toolpost_sessions", "Sessions that the workers remember"),
)


class _Series:
    """A histogram with one combination of labels, in a file."""

    def __init__(self, file: Any, metric: tuple[str, str], labels: Sequence[str]) -> None:
        (name, about), named = metric, dict(zip(_LABELS[metric], labels, strict=True))

        def make_key(suffix: str, **more: str) -> str:
            every = named | more
            return mmap_key(name, f"{name}_{suffix}", [*every], [*every.values()], about)

        bounds = [*(str(float(bound)) for bound in names.BUCKETS), "+Inf"]
        self._file, self._sum_key = file, make_key("sum")
        self._keys = [make_key("bucket", le=bound) for bound in bounds]
        # Another worker may have had the number of this process.
        self._counts = [file.read_value(key)[0] for key in self._keys]
        self._sum = file.read_value(self._sum_key)[0]

    def add(self, seconds: float) -> None:
        """Record a duration."""
        bucket = bisect_left(names.BUCKETS, seconds)
        self._counts[bucket] += 1
        self._sum += seconds
        self._file.write_value(self._keys[bucket], self._counts[bucket], 0.0)
        self._file.write_value(self._sum_key, self._sum, 0.0)


class PrometheusMetrics:
    """The metrics of one server: an observer that counts, and the text with the numbers of all workers."""

    content_type: Final = b"text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
        self._owner = 0
        self._files: dict[str, Any] = {}  # `MmapedDict`, which has no types
        self._series: dict[tuple[str, ...], _Series] = {}

    def prepare(self) -> None:
        """Make the folder, unless there is one: before workers fork, or when the first number is written."""
        if not self._folder:
            self._folder, self._owner = mkdtemp(prefix="toolpost-metrics-"), os.getpid()
            # Worker processes end without finalizers, so only this process removes it.
            finalize(self, rmtree, self._folder, ignore_errors=True)

    def observe_request(self, ctx: "Context") -> "Callable[[Outcome], object]":
        """Observe a request: the observer of a server."""
        incoming, started = ctx.incoming, perf_counter()
        assert incoming is not None, "only requests are observed"

        def finish(outcome: "Outcome") -> None:
            method, revision = incoming.row.name, incoming.peer.revision
            error = "tool_error" if outcome.is_error else ""
            if outcome.error is not None:
                error = names.find_received_failure(outcome.error, revision).kind or ""
            tool = incoming.params.name if method == TOOLS_CALL else ""
            prompt = incoming.params.name if method == PROMPTS_GET else ""
            transport = "tcp" if ctx.client_connection.is_remote else "pipe"
            labels = method, tool, prompt, revision.date, transport, error
            series = self._series.get(labels) or self._bound_labels(ctx, *labels)
            series.add(perf_counter() - started)

        return finish

    def _bound_labels(self, ctx: "Context", method: str, tool: str, prompt: str, *others: str) -> _Series:
        """Return the series of a request. Clients choose names, so only those that exist have one."""
        is_known = len(self._series) < MAX_SERIES and ctx.server.has_entry(method, tool or prompt)
        if (tool or prompt) and not is_known:
            tool, prompt = tool and names.OTHER, prompt and names.OTHER
        if method not in names.KNOWN_METHODS and method not in ctx.server.routes:
            method = names.OTHER
        return self._get_series(_OPERATIONS, (method, tool, prompt, *others))

    def record_session(
        self, seconds: float, revision: Revision, _: names.Network, error: str | None = None
    ) -> None:
        """Record how long a session has lasted."""
        if not revision.stateless:
            self._get_series(_SESSIONS, (revision.date, error or "")).add(seconds)

    def _get_series(self, metric: tuple[str, str], labels: tuple[str, ...]) -> _Series:
        if labels not in self._series:
            self._series[labels] = _Series(self._open("histogram"), metric, labels)
        return self._series[labels]

    def _open(self, kind: str) -> Any:
        """Return the file of this worker for a kind of metric; opened late, as workers fork."""
        if kind not in self._files:
            self.prepare()
            self._files[kind] = MmapedDict(str(Path(self._folder) / f"{kind}_{os.getpid()}.db"))
        return self._files[kind]

    async def keep_reporting(self, read_gauges: Callable[[], Sequence[int]]) -> None:
        """Write the gauges of a worker until cancelled, so that others can add them up; then close all."""
        try:
            while True:
                self._write_gauges(read_gauges())
                await asyncio.sleep(GAUGE_INTERVAL)
        finally:
            self._close()

    def _close(self) -> None:
        self._series.clear()
        while self._files:
            self._files.popitem()[1].close()
        if self._owner == os.getpid():
            rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def _write_gauges(self, values: Sequence[int]) -> None:
        for (name, about), value in zip(_GAUGES, values, strict=True):
            self._open("gauge_livesum").write_value(mmap_key(name, name, [], [], about), value, 0.0)

    def render(self, gauges: Sequence[int]) -> bytes:
        """Return the metrics of all workers as text; the gauges are those of this one."""
        self._write_gauges(gauges)
        for path in Path(self._folder).glob("gauge_live*_*.db"):
            try:
                os.kill(int(path.stem.rpartition("_")[2]), 0)
            except ProcessLookupError:  # a dead worker has no requests
                path.unlink(missing_ok=True)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, self._folder)
        return generate_latest(registry)
