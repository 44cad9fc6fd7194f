"""The API reference: `python dev/reference.py` writes `docs/reference.md`, the index of all public names.

Owns which name belongs to which topic. The sentence beside a name is the first of its docstring. On the site,
each topic has a page with the full docstrings, and with all keywords where docstrings refer to others.
A public name without a topic, or a keyword without a description, is an error.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import toolpost
from toolpost import errors, types

__all__ = ["GROUPS", "NAMES", "PAGE", "docstring", "index", "keyword_table", "page", "slug", "topic_page"]

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "reference.md"

GROUPS: Final = {
    "Servers": "Server Handler TaskOptions Cache KeyRing MemoryStore Channel SignatureError",
    "Context": "Context SyncContext",
    "Media": "Image Audio File",
    "Elicitation": "Ask Accepted Declined Cancelled Titles Header InputRequired",
    "Extensions and proxies": "Extension ForwardedResult ProxyEntry",
    "Composition": "Edit Mount",
    "Clients": (
        "Client SyncClient ClientGroup Stdio Http ToolResult PausedCall TaskHandle TaskState Question Answer "
        "Change Transition safe_icons"
    ),
    "Authorization": (
        "Auth Principal Jwt Introspection "
        "OAuth ClientCredentials WorkloadIdentity EnterpriseManaged FileTokens MemoryTokens"
    ),
    "Errors": (
        "MCPError ToolError RPCError TransportError RequestTimeout AuthError "
        "errors.InvalidParams errors.ResourceNotFound errors.RateLimited errors.UrlElicitationRequired "
        "errors.UserRejected errors.ProtocolError errors.CapabilityNotDeclared errors.ConnectFailed "
        "errors.ChannelClosed errors.RequestFailed"
    ),
    "Types": (
        "types.Tool types.ToolAnnotations types.CallToolResult types.Content types.TextContent "
        "types.ImageContent types.AudioContent types.EmbeddedResource types.ResourceLink "
        "types.ResourceContents types.Annotations types.Icon types.PromptMessage types.PromptReference "
        "types.ResourceReference types.Completion types.ElicitParams types.ElicitResult "
        "types.CreateMessageParams types.CreateMessageResult types.Skill"
    ),
}
"""Topic → names, in reading order; names of a module are qualified."""

NAMES: Final = [name for names in GROUPS.values() for name in names.split()]

RUNNING: Final = (
    "run serve_stdio serve_http asgi serve notify_resource_updated notify_subscribers complete_elicitation"
)
MEMBERS: Final = {
    "Server": (
        "tool add_tool resource prompt skills skill app on_notification broadcast on_broadcast select "
        f"factory add_extension {RUNNING}"
    ),
    "Handler": (
        "list_tools call_tool list_resources list_resource_templates read_resource subscribe unsubscribe "
        "list_prompts get_prompt complete set_log_level init capabilities handle_notification "
        "forward_request add_extension"
    ),
    "Context": (
        "progress debug info warning error log elicit elicit_url url_required sample roots step require "
        "read_resource notify_resource_updated close_stream request notify client principal revision state "
        "lifespan cancelled input_responses request_state"
    ),
    "Channel": "receive send close",
    "Extension": "find_settings require method result listen_filter lifespan",
    "ProxyEntry": "enable disable enabled remove",
    "Mount": "state error problems remove",
    **dict.fromkeys(
        ("OAuth", "ClientCredentials", "WorkloadIdentity", "EnterpriseManaged"),
        "headers on_rejected on_accepted",
    ),
}
"""The public members of classes that have internal ones, too."""

MODULES: Final = {
    "toolpost.errors": "all exceptions",
    "toolpost.types": "all types of the protocol",
    "toolpost.server.middleware": "built-in middleware",
    "toolpost.prompting": "callbacks that ask the user",
    "toolpost.testing": "tools for your tests: [testing](testing.md)",
}

MODULE_PAGES: Final = {"Middleware": "toolpost.server.middleware", "Prompting": "toolpost.prompting"}
"""Topics that are one module each."""

KEYWORDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Servers": {
        "Server(…)": ("Server", ""),
        "Server.run(…)": ("Server", "run"),
        "Server.serve_http(…)": ("Server", "serve_http"),
    },
}
"""Topic → heading → class and method whose own docstrings do not describe all of their keywords."""

DESCRIBED_BY: Final = ("Server", "Handler", "Server.asgi", "Client")
"""Where the descriptions of keywords are, beside the docstring of the function itself."""

DESCRIPTIONS: Final = {
    "address": 'host and port to listen on, such as "0.0.0.0:8000"; port 0 takes a free one.',
    "http": 'host and port for HTTP, such as "127.0.0.1:8000"; without it, serve over stdio.',
    "max_line": "the longest message that is read from stdin, in bytes; a longer one is rejected.",
    "workers": "number of processes that serve over HTTP; `serve_http` supports only 1.",
}
"""Descriptions of keywords whose docstrings describe them in prose."""

_MODULES: Final = {"": toolpost, "errors": errors, "types": types}
_ALIASES: Final = {"Answer": "toolpost.client.callbacks"}

HEAD: Final = """\
# API reference

These names are public. Names without a prefix come from `toolpost`; `errors.…` and `types.…` come from
its modules of the same name. Everything that is not listed here may change without notice.
`import toolpost` is fast: each name is loaded when it is first used.
"""


# --------------------------------------------------------------------- docstrings


def home(name: str) -> str:
    """Return the module that defines a public name."""
    module = getattr(_value(name), "__module__", "")
    if not module.startswith("toolpost."):  # an alias of a type has no module of its own
        module = _ALIASES[name]
    return module


def _value(name: str) -> Any:
    module, _, word = name.rpartition(".")
    return getattr(_MODULES[module], word)


def _source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


def summary(name: str) -> str:
    """Return the first sentence of a name's docstring."""
    return " ".join(docstring(name).split("\n\n")[0].split())


def docstring(name: str) -> str:
    """Return the docstring of a public name; for an alias, the string below it in the source."""
    value = _value(name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    word = name.rpartition(".")[2]
    _, _, below = _source(home(name)).partition(f"\n{word}: ")
    _, _, text = below.partition('"""')
    return inspect.cleandoc(text.partition('"""')[0])


# --------------------------------------------------------------------- the index


def page() -> str:
    """Return the index, as `docs/reference.md` has it.

    Raises:
        ValueError: a public name has no topic, or a topic has a name that is not public.
    """
    promised = set(toolpost.__all__) - {"__version__"}
    odd = sorted({name for name in NAMES if "." not in name} ^ promised)
    if odd:
        raise ValueError(f"dev/reference.py, GROUPS: these names are missing or not public: {', '.join(odd)}")
    return _index(lambda _, name: f"../src/{home(name).replace('.', '/')}.py")


def index() -> str:
    """Return the index, as the site has it: its names lead to the pages of the topics."""
    return _index(lambda topic, name: f"{slug(topic)}.md#toolpost.{name}")


def slug(topic: str) -> str:
    """Return the file name of a topic's page on the site, without its ending."""
    return f"reference-{topic.lower().replace(' ', '-')}"


def _index(link: Callable[[str, str], str]) -> str:
    return HEAD + "".join(_parts(link))


def _parts(link: Callable[[str, str], str]) -> Iterator[str]:
    for topic, names in GROUPS.items():
        yield f"\n## {topic}\n\n| name | description |\n|---|---|\n"
        for name in names.split():
            yield f"| [`{name}`]({link(topic, name)}) | {summary(name).replace('|', chr(92) + '|')} |\n"
    yield "\n## Modules\n\n| module | contents |\n|---|---|\n"
    yield from (f"| `{module}` | {text} |\n" for module, text in MODULES.items())


# --------------------------------------------------------------------- the pages of the site


def topic_page(topic: str) -> str:
    """Return the page of a topic: tables of keywords, then what mkdocstrings makes of each name."""
    parts = [f"# {topic}"]
    if topic in MODULE_PAGES:
        parts.append(
            f"::: {MODULE_PAGES[topic]}\n    options: {{show_root_heading: false, filters: ['!^_']}}"
        )
    else:
        for heading, (cls, method) in KEYWORDS.get(topic, {}).items():
            parts += [f"## All keywords of `{heading}`", keyword_table(cls, method)]
        parts += [_directive(f"toolpost.{name}") for name in GROUPS[topic].split()]
    return "\n\n".join(parts) + "\n"


def _directive(name: str) -> str:
    """Return the directive by which mkdocstrings inserts the documentation of a name."""
    members = MEMBERS.get(name.removeprefix("toolpost."), "").split()
    return f"::: {name}" + (f"\n    options:\n      members: {members}" if members else "")


def keyword_table(cls: str, method: str) -> str:
    """Return a table of the keywords of a class or method: type and default, description.

    Raises:
        ValueError: a keyword is described nowhere.
    """
    function = inspect.unwrap(getattr(_value(cls), method or "__init__"))
    described: dict[str, str] = dict(DESCRIPTIONS)
    for place in (*DESCRIBED_BY, f"{cls}.{method}" if method else cls):
        owner, _, name = place.partition(".")
        # A client's words about a keyword are not a server's, and the reverse.
        if (owner == "Client") == (cls == "Client"):
            described |= _described(getattr(_value(owner), name) if name else _value(owner))
    kinds = _annotations(function)
    rows = ["| keyword | type and default | description |", "|---|---|---|"]
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if name not in described:
            raise ValueError(f"dev/reference.py: {cls}.{method or '__init__'} has {name}=, described nowhere")
        default = "" if parameter.default is parameter.empty else f" = `{parameter.default!r}`"
        rows.append(f"| `{name}` | `{kinds[name]}`{default} | {described[name]} |")
    return "\n".join(rows)


def _described(value: Any) -> dict[str, str]:
    """Return the descriptions in the section `Args:` of a docstring, by name."""
    text = inspect.cleandoc(value.__doc__ or "")
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    if section is None:
        return {}
    entries = re.findall(r"^(\w+): (.*?)(?=^\S|\Z)", textwrap.dedent(section[1]), re.DOTALL | re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}


def _annotations(function: Any) -> dict[str, str]:
    """Return the annotations of a function's parameters, as they are written."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef), function
    arguments = tree.args
    return {
        each.arg: ast.unparse(each.annotation).strip("'")
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if each.annotation is not None
    }


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
