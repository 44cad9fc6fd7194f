"""The explicit form of a server, with everything overridden."""

import inspect
from typing import Any, get_type_hints

from toolpost import Handler
from toolpost.server.options import ServerOptions


def test_options_are_stated_as_the_constructor_takes_them():
    """Those who hand them on have them from there, so that editors can show them."""
    keywords = {
        name: parameter
        for name, parameter in inspect.signature(Handler.__init__).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert list(keywords) == list(ServerOptions.__annotations__)
    local: dict[str, Any] = {"Store": object, "Auth": object, "KeyRing": object}
    taken = get_type_hints(Handler.__init__, localns=local)
    stated = get_type_hints(ServerOptions, localns=local)
    assert {name: taken[name] for name in keywords} == stated
