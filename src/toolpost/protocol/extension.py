"""`Extension`: methods, result types and listen filters behind one capability.

The same object is given to both sides: a server serves its methods, a client accepts its results. A request
is refused unless the peer has declared the extension.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

from toolpost.errors import ClientCapabilityNotDeclared
from toolpost.protocol.eras import explain_invalid_meta_key
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.local_peer import Capabilities
from toolpost.protocol.methods import DATES, ROWS, Row, Span
from toolpost.types.base import JSON, Result, Struct, WireStruct
from toolpost.types.notifications import NotificationParams

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
LifespanT = TypeVar("LifespanT", bound="Lifespan")
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""Gets the server; returns an async context manager around the time in which it serves."""
ListenMatch: TypeAlias = Callable[[Any, Any], bool]
"""Gets the accepted value of a filter and the parameters of a notification; returns whether they match."""


class ListenFilter(Struct, frozen=True):
    """A member that an extension adds to the filter of `subscriptions/listen`."""

    member: str
    read: JSONReader[Any]
    accept: Callable[..., Any]
    notification: str
    matches: ListenMatch
    fill: Callable[..., Any] | None = None


class Extension:
    """An extension of the protocol.

    Args:
        name: its identifier, such as "com.example/notes" (VER-4).
        settings: the settings that this side declares.
        since: the first protocol revision in which it is declared; all later ones have it, too.
        for_all_clients: whether its methods also serve clients that do not declare it.

    Raises:
        ValueError: the name is not a valid identifier, or there is no such revision.

    Examples:
        >>> notes = Extension("com.example/notes")
        >>> class Note(Params):
        ...     id: str
        >>> class NoteText(Result):
        ...     text: str
        >>> @notes.method("notes/read", Note, NoteText, named="id")
        ... async def read_note(ctx, params):
        ...     return NoteText(text=f"note {params.id}")
        >>> with SyncClient(Server("desk", extensions=[notes]), extensions=[notes]) as mcp:
        ...     mcp.request("notes/read", {"id": "7"}).text
        'note 7'
    """

    def __init__(
        self,
        name: str,
        *,
        settings: Mapping[str, JSON] | None = None,
        since: str = DATES[-1],
        for_all_clients: bool = False,
    ) -> None:
        wrong = explain_invalid_meta_key(name, extension=True)
        if wrong:
            raise ValueError(wrong)
        if since not in DATES:
            raise ValueError(f"since: unknown revision {since!r} (expected one of: {', '.join(DATES)})")
        self.name = name
        self.settings = dict(settings or {})
        self.span = Span(since, DATES[-1])
        self.for_all_clients = for_all_clients
        self.rows: dict[str, Row] = {}
        """Its methods and notifications."""
        self.routes: dict[str, Callable[..., Any]] = {}
        """The functions that serve its methods."""
        self.results: dict[tuple[str, str], type[Result]] = {}
        """Its results, by method and `resultType`."""
        self.resolvers: dict[type[Result], Callable[..., Any]] = {}
        """The functions of a client that turn its results into ordinary ones."""
        self.listen_filters: list[ListenFilter] = []
        self.lifespans: list[Lifespan] = []

    def __repr__(self) -> str:
        return f"<Extension {self.name}>"

    def find_settings(self, capabilities: Capabilities | None) -> Mapping[str, JSON] | None:
        """Return what the peer declares about the extension; None if it does not declare it."""
        return ((capabilities and capabilities.extensions) or {}).get(self.name)

    def require(self, capabilities: Capabilities | None) -> Mapping[str, JSON]:
        """Return what the client declares about the extension. Raises MissingCapability if it does not."""
        settings = self.find_settings(capabilities)
        if settings is None:
            raise make_missing_extension_error(self.name)
        return settings

    def method(
        self,
        name: str,
        params: type[WireStruct],
        result: type[Result],
        *,
        named: str | None = None,
        repeatable: bool = False,
    ) -> Callable[[FunctionT], FunctionT]:
        """Add a method that clients call; the function that serves it gets a context and the parameters.

        Args:
            name: the method, such as "notes/read".
            params: the type of its parameters.
            result: the type of its result; a `CacheableResult` carries cache hints.
            named: the parameter that HTTP mirrors in the header `Mcp-Name`.
            repeatable: whether a client may send it again after a failure.
        """
        if named is not None and named not in params.__struct_fields__:
            raise ValueError(f"{name}: {params.__name__} has no field {named!r} (named=)")
        row = Row(name, params, result, client=self.span, named=named, repeatable=repeatable)
        self._add_row(row)

        def register(fn: FunctionT) -> FunctionT:
            self.routes[name] = fn
            return fn

        return register

    def result(self, method: str, result_type: str, kind: type[Result]) -> Callable[[FunctionT], FunctionT]:
        """Add a `resultType` to a method; the function turns it into an ordinary result, on a client.

        The function gets the client and the result. A server sends the result only to clients that declare
        the extension, from middleware for example.
        """
        self.results[method, result_type] = kind

        def register(fn: FunctionT) -> FunctionT:
            self.resolvers[kind] = fn
            return fn

        return register

    def listen_filter(
        self,
        member: str,
        kind: type[Any],
        notification: str,
        params: type[NotificationParams],
        matches: ListenMatch,
        *,
        fill: Callable[..., Any] | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Add a member to the filter of `subscriptions/listen`, and the notification that it asks for.

        The function gets a context and the value of the member, and returns the part of it that is accepted;
        None rejects all of it. `server.notify_subscribers` sends the notification to those whose accepted
        value `matches` its parameters. `fill`, an async function, gets the context and the parameters when
        they are sent, and returns the parameters for this client, or None to send nothing.
        """
        self._add_row(Row(notification, params, server=self.span, listened=True))

        def register(fn: FunctionT) -> FunctionT:
            self.listen_filters.append(
                ListenFilter(member, JSONReader(kind), fn, notification, matches, fill)
            )
            return fn

        return register

    def lifespan(self, fn: LifespanT) -> LifespanT:
        """Run an async context manager while a server with the extension serves: `async def run(server)`.

        It is entered after the lifespan of the server, and left before it.
        """
        self.lifespans.append(fn)
        return fn

    def _add_row(self, row: Row) -> None:
        if row.name in self.rows:
            raise ValueError(f"{row.name} is already registered in {self.name}")
        spans = [
            span for each in ROWS if each.name == row.name for span in (each.client, each.server) if span
        ]
        if any(date in span and date in self.span for span in spans for date in DATES):
            raise ValueError(f"{row.name} is a protocol method, which {self.name} cannot replace")
        row.extension, row.for_all_clients = self.name, self.for_all_clients
        self.rows[row.name] = row


def make_missing_extension_error(name: str) -> ClientCapabilityNotDeclared:
    """Return the error for a request whose client did not declare an extension (VER-5)."""
    return ClientCapabilityNotDeclared(
        f"extensions.{name}",
        f"Missing capability: the client must declare the extension {name}",
        {"requiredCapabilities": {"extensions": {name: {}}}},
    )
