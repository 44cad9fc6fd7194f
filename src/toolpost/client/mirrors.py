"""The parameters of tools that HTTP repeats in headers, as far as the tools have been listed.

Owns what is known of each tool, and the judgement that a tool with a wrong annotation is none (HDR-13). How a
header is written is told in `toolpost.protocol.headers`, and a channel does it.
"""

from collections.abc import Callable, Iterable, Mapping

from toolpost.errors import RemoteProtocolError
from toolpost.protocol.headers import find_annotations
from toolpost.types.tools import Tool

__all__ = ["HeaderParameterCache"]


class HeaderParameterCache:
    """What is known about the annotated parameters of a server's tools."""

    def __init__(self) -> None:
        self._by_tool: dict[str, Mapping[str, tuple[str, ...]]] = {}

    def find(self, name: str) -> Mapping[str, tuple[str, ...]] | None:
        """The annotated parameters of a tool: header → path; None if the tool was never listed."""
        return self._by_tool.get(name)

    def learn(self, tools: Iterable[Tool], report: Callable[[RemoteProtocolError], None]) -> list[Tool]:
        """Remember what tools say; those that can be called. `report` hears of each that cannot (HDR-14)."""
        usable: list[Tool] = []
        for tool in tools:
            try:
                self._by_tool[tool.name] = find_annotations(tool.input_schema)
            except ValueError as error:
                self._by_tool.pop(tool.name, None)
                report(RemoteProtocolError(f"tools/list: tool {tool.name!r} cannot be called: {error}"))
            else:
                usable.append(tool)
        return usable

    def keep_only(self, names: set[str]) -> None:
        """These are all the tools that there are now; what is known of others is forgotten."""
        for name in self._by_tool.keys() - names:
            del self._by_tool[name]

    def clear(self) -> None:
        """Know nothing: it may be another server."""
        self._by_tool.clear()
