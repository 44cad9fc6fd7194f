"""From what a person may write to what a server is answered: a text, the fields of a form, a list of places.

Owns the forms that an answer may have, and what is wrong with others. Who gave it, a callback or a caller, is
only a name here.
"""

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TypeAlias, cast
from urllib.parse import unquote

from toolpost.client.fields import fill_defaults, find_form_error
from toolpost.errors import LocalProtocolError, UserRejected
from toolpost.types.asks import CreateMessageResult, ElicitParams, ElicitResult, Root
from toolpost.types.base import JSON
from toolpost.types.content import Blocks, Content, TextContent

__all__ = [
    "ElicitationAnswer",
    "RootLike",
    "SamplingAnswer",
    "make_elicit_result",
    "make_roots",
    "make_sampling_result",
]

SamplingAnswer: TypeAlias = CreateMessageResult | Content | list[Content] | str | None
"""What a model said; None means that the user does not want it asked."""

ElicitationAnswer: TypeAlias = ElicitResult | Mapping[str, JSON] | bool | None
"""What a user answered: the fields of the form or True to accept, None or False to decline."""

RootLike: TypeAlias = Root | str | PathLike[str]
"""A root: as such, as a file:// URI, or as a path."""


def make_sampling_result(said: object, who: str) -> CreateMessageResult:
    """What a model said.

    Args:
        said: as a person may write it.
        who: whose word it is, for errors.

    Raises:
        UserRejected: the user does not want the model asked.
        TypeError: it is nothing that a model can say.
    """
    if said is None:
        raise UserRejected("User rejected sampling request")
    if isinstance(said, CreateMessageResult):
        return said
    content = TextContent(said) if isinstance(said, str) else said
    blocks = cast("list[object]", content) if isinstance(content, list) else [content]
    if not all(isinstance(block, Content) for block in blocks):
        raise TypeError(
            f"{who}: a {type(said).__name__} is no answer; it may be a text, a content block or a list of "
            "them, a CreateMessageResult, or None to refuse"
        )
    return CreateMessageResult(role="assistant", content=cast("Blocks", content), model="unknown")


def make_elicit_result(params: ElicitParams, answered: object, who: str) -> ElicitResult:
    """What a user answered, held against the form (ELIC-42).

    Args:
        params: what they were asked.
        answered: as a person may write it.
        who: whose word it is, for errors.

    Raises:
        TypeError: it is nothing that a user can answer.
        LocalProtocolError: the form does not allow it.
    """
    if answered is None or answered is False:
        return ElicitResult(action="decline")
    if answered is True:
        answered = {}
    if isinstance(answered, Mapping):
        fields = cast("Mapping[str, JSON]", answered)
        answered = ElicitResult(action="accept", content={**fields})
    if not isinstance(answered, ElicitResult):
        raise TypeError(
            f"{who}: a {type(answered).__name__} is no answer; it may be a dict with the fields of the form "
            "or True to accept, None or False to decline, or an ElicitResult"
        )
    content = None
    if answered.action == "accept" and params.mode != "url":
        given = answered.content or {}
        wrong = find_form_error(params.requested_schema, given)
        if wrong:
            raise LocalProtocolError(f"{who}: the form does not allow this answer: {wrong}", retry_safe=False)
        content = fill_defaults(params.requested_schema, given)
    return ElicitResult(action=answered.action, content=content, meta=answered.meta)


def make_roots(places: Iterable[RootLike]) -> list[Root]:
    """The roots for what a person may write. A path is made absolute, which asks the file system.

    Raises:
        TypeError: it is no list.
        ValueError: one is a URI of another scheme than file (ROOT-3).
    """
    if isinstance(places, str | PathLike | Root):
        raise TypeError("on_roots is a list of roots, or a function that returns one")
    return [_make_root(place) for place in places]


def _make_root(place: RootLike) -> Root:
    if isinstance(place, Root):
        root = place
    elif isinstance(place, str) and "://" in place:
        root = Root(uri=place)
    else:
        path = Path(place).absolute()
        root = Root(uri=path.as_uri(), name=path.name or None)
    if not root.uri.startswith("file://"):
        raise ValueError(f"a root is a file:// URI, not {root.uri!r}")
    if ".." in unquote(root.uri).split("/"):
        raise ValueError(f"a root says where it is, without '..': {root.uri!r}")  # ROOT-5
    return root
