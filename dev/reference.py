"""The page of all public names, from their docstrings: `python dev/reference.py` writes `docs/reference.md`.

Owns which name stands under which heading; the sentence beside a name is the first of its docstring. A name
that `toolpost` promises and no heading has is an error. On the site, each name stands there in full.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import toolpost
from toolpost import errors, types

__all__ = ["NAMES", "PAGE", "docstring", "in_full", "page"]

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "reference.md"

GROUPS: Final = {
    "Servers": "Server Handler Context SyncContext Cache KeyRing Channel SignatureError",
    "What functions return": "Image Audio File",
    "Asking": "Ask Accepted Declined Cancelled Titles Header InputRequired",
    "Clients": (
        "Client SyncClient ClientGroup Stdio Http ToolResult PausedCall Question Answer Change Transition"
    ),
    "Authorization": (
        "Auth Principal Jwt Introspection "
        "OAuth ClientCredentials WorkloadIdentity EnterpriseManaged FileTokens MemoryTokens"
    ),
    "Icons": "safe_icons",
    "Errors": (
        "MCPError ToolError RPCError TransportError RequestTimeout AuthError "
        "errors.InvalidParams errors.ResourceNotFound errors.RateLimited errors.UrlElicitationRequired "
        "errors.UserRejected errors.ProtocolError errors.CapabilityNotDeclared errors.ConnectFailed "
        "errors.ChannelClosed errors.RequestFailed"
    ),
    "Vocabulary": (
        "types.Tool types.ToolAnnotations types.CallToolResult types.Content types.TextContent "
        "types.ImageContent types.AudioContent types.EmbeddedResource types.ResourceLink "
        "types.ResourceContents types.Annotations types.Icon types.PromptMessage types.PromptReference "
        "types.ResourceReference types.Completion types.ElicitParams types.ElicitResult "
        "types.CreateMessageParams types.CreateMessageResult"
    ),
}
"""Heading → names, in the order in which a reader would want them; those of a module with its name."""

NAMES: Final = [name for names in GROUPS.values() for name in names.split()]

RUNNING: Final = "run serve_stdio serve_http asgi serve notify_resource_updated complete_elicitation"
MEMBERS: Final = {
    "Server": f"tool add_tool resource prompt on_notification select factory {RUNNING}",
    "Handler": (
        "list_tools call_tool list_resources list_resource_templates read_resource subscribe unsubscribe "
        f"list_prompts get_prompt complete set_log_level init handle_notification {RUNNING}"
    ),
    "Context": (
        "progress debug info warning error log elicit elicit_url url_required sample roots step require "
        "read_resource notify_resource_updated close_stream request notify client principal revision state "
        "lifespan cancelled input_responses request_state"
    ),
    "Channel": "receive send close",
}
"""What users of a name need, where it has more: the rest is for other parts of toolpost."""

MODULES: Final = {
    "toolpost.errors": "all that can go wrong",
    "toolpost.types": "the whole vocabulary of the protocol",
    "toolpost.server.middleware": "what is shipped to put around requests",
    "toolpost.prompting": "callbacks that ask the user",
    "toolpost.testing": "for tests of yours: [testing](testing.md)",
}

SHOWN_ABOVE: Final = {"toolpost.errors", "toolpost.types", "toolpost.testing"}
"""Modules whose most important names stand on this page already, or on one of their own."""

_MODULES: Final = {"": toolpost, "errors": errors, "types": types}
_ALIASES: Final = {"Answer": "toolpost.client.callbacks"}

HEAD: Final = """\
# Reference

What is public: the names below, which come from `toolpost`, and five modules; what stands here as
`errors.…` and `types.…` comes from two of them. Everything else may change without notice.
Names are loaded when they are first used; `import toolpost` costs next to nothing.
"""


def home(name: str) -> str:
    """The module that a public name lives in."""
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
    """The first sentence of a name's docstring."""
    return " ".join(docstring(name).split("\n\n")[0].split())


def docstring(name: str) -> str:
    """What a public name says of itself; of an alias, the text below it in the source."""
    value = _value(name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    word = name.rpartition(".")[2]
    _, _, below = _source(home(name)).partition(f"\n{word}: ")
    _, _, text = below.partition('"""')
    return inspect.cleandoc(text.partition('"""')[0])


def page() -> str:
    """The whole page.

    Raises:
        ValueError: a name that is promised stands under no heading, or one that is not under some.
    """
    promised = set(toolpost.__all__) - {"__version__"}
    odd = sorted({name for name in NAMES if "." not in name} ^ promised)
    if odd:
        raise ValueError(
            f"dev/reference.py, GROUPS: promised and not there, or the reverse: {', '.join(odd)}"
        )
    return HEAD + "".join(_parts())


def _parts() -> Iterator[str]:
    for heading, names in GROUPS.items():
        yield f"\n## {heading}\n\n| name | what it is |\n|---|---|\n"
        for name in names.split():
            path = f"../src/{home(name).replace('.', '/')}.py"
            yield f"| [`{name}`]({path}) | {summary(name).replace('|', chr(92) + '|')} |\n"
    yield "\n## Modules\n\n| module | what is in it |\n|---|---|\n"
    yield from (f"| `{module}` | {text} |\n" for module, text in MODULES.items())


def in_full(text: str) -> str:
    """The page as the site has it: below each table, what its names say of themselves."""
    return "".join(_full(part) for part in re.split(r"(?m)^(?=## )", text))


def _full(part: str) -> str:
    heading = part.partition("\n")[0].removeprefix("## ")
    names = [f"toolpost.{name}" for name in GROUPS.get(heading, "").split()]
    if heading == "Modules":
        names = [module for module in MODULES if module not in SHOWN_ABOVE]
    return "\n\n".join([part.rstrip(), *(_directive(name) for name in names)]) + "\n\n"


def _directive(name: str) -> str:
    """What mkdocstrings makes into the documentation of a name."""
    members = MEMBERS.get(name.removeprefix("toolpost."), "").split()
    return f"::: {name}" + (f"\n    options:\n      members: {members}" if members else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
