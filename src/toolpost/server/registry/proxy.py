"""`ProxyEntry`: a tool, resource or prompt that another server or an API serves.

`Registry.replace` registers the entries of one owner as one change. The function of an entry forwards the
request.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from toolpost.principal import parse_scopes
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import MEMBERS_READER, InvalidJSONValue
from toolpost.protocol.uri_template import UriTemplate
from toolpost.server.registry.registry import Cache, Registry, RegistryEntry
from toolpost.types.base import Raw, WireStruct
from toolpost.types.prompts import CompleteResult, Completion


class ProxyEntry(RegistryEntry[..., Any]):
    """An entry that something else serves: another server, or an API.

    Args:
        name: the name of a tool or prompt, the URI of a resource, or a URI template.
        item: its list item, as a struct of `toolpost.types` or as the bytes that another server sent.
        serve: gets a context and the parameters of `tools/call`, `resources/read` or `prompts/get`, and
            returns the result, such as that of `client.forward`.
        scopes: the scopes that the token of a request needs.

    Raises:
        ValueError: the bytes are not a JSON object, which would make the whole list invalid.

    Examples:
        >>> async def add(ctx, params):
        ...     return CallToolResult(content=[TextContent("3")])
        >>> server = Server("gateway")
        >>> server.tools.replace("calculator", [ProxyEntry("add", Tool("add", {"type": "object"}), add)])
    """

    header_parameters: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    cache: Cache | None = None
    has_completers: bool = False

    def __init__(
        self,
        name: str,
        item: WireStruct | bytes,
        serve: Callable[..., Awaitable[Any]],
        *,
        scopes: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.item = _check_object(item) if isinstance(item, bytes) else item
        self.fn = self.serve = serve
        self.scopes = parse_scopes(scopes)

    def attach(self, owner: object, registry: Registry[Any]) -> None:
        """Make it an entry of a registry, replaced together with those of the same owner."""
        self.owner, self._registry = owner, registry

    async def serve_completion(self, context: Any, params: Any) -> Any:  # noqa: ARG002 - a prompt has them
        """Return no completions: only the other server has any."""
        return CompleteResult(completion=Completion(values=[]))

    async def set_subscription(self, uri: str, context: Any, *, is_active: bool) -> None:
        """Watch a resource for a client, or stop that; nothing to do here."""

    def to_list_item(self, structured: str | None) -> Any:  # noqa: ARG002 - as it came
        """Return the list item."""
        return self.item

    @cached_property
    def match(self) -> Callable[[str], Mapping[str, Any] | None]:
        """Returns the variables of a URI; None if the template does not match it."""
        return UriTemplate(self.name).match

    def is_same_as(self, other: object) -> bool:
        """Return whether another entry shows clients the same."""
        if not isinstance(other, ProxyEntry) or jsonrpc.encode(self.item) != jsonrpc.encode(other.item):
            return False
        return (self.name, self.enabled, self.scopes) == (other.name, other.enabled, other.scopes)


def _check_object(item: bytes) -> Raw:
    try:
        MEMBERS_READER(Raw(item))
    except InvalidJSONValue as error:
        raise ValueError(f"the list item of an entry is not a JSON object: {error}") from error
    return Raw(item)
