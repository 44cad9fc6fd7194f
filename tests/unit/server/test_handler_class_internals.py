"""The keywords of servers are those of the options, and so are their defaults."""

import inspect
from typing import Any, get_type_hints

import pytest

from toolpost import Handler, Server
from toolpost.server.options import HTTP, SERVER

HANDLER_ONLY = [
    name
    for name in SERVER.__struct_fields__
    if name not in {"timeout", "page_size", "cache", "debug", "inline_refs", "strict_arguments"}
]
ASGI = [name for name in HTTP.__struct_fields__ if name != "workers"]


@pytest.mark.parametrize(
    ("method", "options", "names", "others"),
    [
        pytest.param(Handler.__init__, SERVER, HANDLER_ONLY, ["self", "name"], id="Handler"),
        pytest.param(Server.__init__, SERVER, [*SERVER.__struct_fields__], ["self", "name"], id="Server"),
        pytest.param(Handler.run, HTTP, [*HTTP.__struct_fields__], ["self", "max_line", "http"], id="run"),
        pytest.param(
            Handler.serve_http, HTTP, [*HTTP.__struct_fields__], ["self", "address"], id="serve_http"
        ),
        pytest.param(Handler.asgi, HTTP, ASGI, ["self"], id="asgi"),
    ],
)
def test_options_are_stated_as_the_methods_take_them(method: Any, options: Any, names: Any, others: Any):
    parameters = inspect.signature(method).parameters
    assert list(parameters) == [*others, *names]
    unknown = [
        "Store",
        "Auth",
        "KeyRing",
        "Cache",
        "CacheableMethod",
        "Endpoint",
        "Context",
        "Outcome",
        "TelemetryOption",
    ]
    local = dict.fromkeys(unknown, str)
    taken, stated = get_type_hints(method, localns=local), get_type_hints(type(options), localns=local)
    for name in names:
        assert parameters[name].default is getattr(options, name), name
        if name != "cache":
            assert taken[name] == stated[name], name
