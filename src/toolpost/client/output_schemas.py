"""The output schemas of a server's tools, and the validation of results against them.

Validation needs jsonschema-rs, which the extra `toolpost[schema]` installs; without it results pass and are
counted. A schema is compiled when its tool is first called. Dialects: 2020-12 by default, and
4, 6, 7 and 2019-09 by `$schema`.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from toolpost.client.connection.status import Stats
from toolpost.errors import RemoteProtocolError
from toolpost.protocol.jsonrpc import shorten
from toolpost.schema_validator import SchemaMismatch, make_validator
from toolpost.types.base import JSON, UNSET
from toolpost.types.tools import CallToolResult, Tool

ResultCheck: TypeAlias = Callable[[CallToolResult], None]
"""Raises `RemoteProtocolError` if a result does not fit its schema."""

MAX_ERROR_TEXT: Final = 500  # characters of a validator's message: it quotes the value, which may be large

_HINT: Final = "pass validate=False to skip validation"

logger: Final = logging.getLogger("toolpost.client")


class OutputSchemas:
    """The output schemas of the tools that have been listed."""

    def __init__(self, stats: Stats, *, strict: bool = False) -> None:
        self._stats = stats
        self._strict = strict
        self.schemas: dict[str, dict[str, JSON]] = {}  # the schemas by the names of the tools
        self._checks: dict[str, ResultCheck] = {}
        self._is_outdated = False

    def learn(self, tools: Iterable[Tool]) -> None:
        """Remember the schemas of tools."""
        for tool in tools:
            self._checks.pop(tool.name, None)
            if tool.output_schema is None:
                self.schemas.pop(tool.name, None)
            else:
                self.schemas[tool.name] = tool.output_schema

    def keep_only(self, names: set[str]) -> None:
        """Forget all tools but these, which are all that the server has now."""
        self._is_outdated = False
        for name in self.schemas.keys() - names:
            del self.schemas[name]
            self._checks.pop(name, None)

    def mark_outdated(self) -> None:
        """Stop checking until the tools are listed again: they may have changed."""
        self._is_outdated = True

    def clear(self) -> None:
        """Forget everything: it may be another server."""
        self._is_outdated = False
        self.schemas.clear()
        self._checks.clear()

    def is_wrapped(self, name: str) -> bool:
        """Return whether a tool wraps its value in an object, as FastMCP and the official SDK do.

        FastMCP marks such schemas. The official SDK names them after the function: `addOutput`.
        """
        schema = self.schemas.get(name) or {}
        title, properties = str(schema.get("title")), schema.get("properties")
        is_named = (
            title.endswith("Output") and not title[0].isupper() and schema.get("required") == ["result"]
        )
        is_official = is_named and isinstance(properties, dict) and [*properties] == ["result"]
        return is_official or schema.get("x-fastmcp-wrap-result") is True

    def get_check(self, name: str) -> ResultCheck | None:
        """Return the check of a tool's results; None if no schema of it is known.

        A schema that cannot be used checks nothing (JSCH-3, JSCH-10); `strict` raises `RemoteProtocolError`.
        """
        schema = self.schemas.get(name)
        if schema is None:
            return None
        if self._is_outdated:
            return self._count_unchecked
        check = self._checks.get(name)
        if check is None:
            check = self._checks[name] = self._compile(name, schema)
        return check

    def _compile(self, name: str, schema: dict[str, JSON]) -> ResultCheck:
        try:
            validator = make_validator(schema)
        except ValueError as error:
            why = f"tool {name!r} has an output schema that cannot be used: {_shorten_message(error)}"
            if self._strict:
                hint = "nothing was sent; pass validate=False to call it without validation"
                raise RemoteProtocolError(why, hint=hint) from error
            logger.warning("results are not validated: %.1000s", why)
            return self._count_unchecked
        if validator is None:
            logger.info(
                "results are not validated: jsonschema-rs is not installed (pip install 'toolpost[schema]')"
            )

        def check(result: CallToolResult) -> None:
            if result.is_error:
                return
            if result.structured_content is UNSET:
                raise RemoteProtocolError(
                    f"tool {name!r} declares an output schema but returned no structured content", hint=_HINT
                )
            if validator is None:
                self._count_unchecked(result)
                return
            try:
                if not validator.validate(result.structured_content):
                    self._count_unchecked(result)
            except SchemaMismatch as error:
                path = "".join(f"[{step!r}]" for step in error.instance_path)
                raise RemoteProtocolError(
                    f"tool {name!r} returned structured content{path} that violates its output schema: "
                    f"{_shorten_message(error)}",
                    hint=_HINT,
                ) from error

        return check

    def _count_unchecked(self, result: CallToolResult) -> None:  # noqa: ARG002 - takes the place of a check
        self._stats.unchecked += 1


def _shorten_message(error: ValueError) -> str:
    return shorten(str(getattr(error, "message", error)), MAX_ERROR_TEXT)
