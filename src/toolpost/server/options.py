"""The keywords that every kind of server takes, stated once for those who hand them on.

What each means is told in `Handler`, whose constructor has them one by one.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from toolpost.protocol.methods import Row
from toolpost.server.dispatch import Middleware
from toolpost.types.base import Icon

if TYPE_CHECKING:
    from toolpost.stores.promise import Store

__all__ = ["Lifespan", "Options"]

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What a server does before it serves and after: an async context manager, given the server."""


class Options(TypedDict, total=False):
    """The keywords of a `Handler`."""

    version: str
    title: str | None
    description: str | None
    instructions: str | None
    icons: list[Icon] | None
    website_url: str | None
    lifespan: Lifespan | None
    middleware: Iterable[Middleware]
    revisions: Iterable[str]
    limit: int
    threads: int
    extra: Iterable[Row]
    store: "Store | str"
