"""`Ask`: dependency injection by asking the user: a parameter with a question gets the answer.

`AskPlan` holds the questions of one function and their order, checked at registration. Questions that do not
depend on each other are asked together, by `requests_to_client`.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, get_args, get_origin

from msgspec import UNSET, Struct, field

from toolpost.errors import CapabilityNotDeclared, ToolError, UserRejected
from toolpost.protocol.methods import TOOLS_CALL
from toolpost.server.elicitation.forms import Accepted, Cancelled, Declined, ElicitationForm
from toolpost.server.runtime.eager_tasks import Unanswered
from toolpost.server.signature import inspection
from toolpost.server.signature.errors import SignatureError, prefix_signature_errors
from toolpost.server.signature.inspection import UNION_TYPES, AnnotationScope, resolve_alias

if TYPE_CHECKING:
    from toolpost.server.context import Context

ResolverRunner: TypeAlias = Callable[[Callable[[Any], Any], "Context", bool], Awaitable[Any]]
"""Calls a function with its kind of context; the flag is whether the function is async."""

_EMPTY: Final = inspect.Parameter.empty


class Ask(Struct, frozen=True):
    """An annotation that asks the user for a parameter: `Annotated[Confirm, Ask("Really delete {path}?")]`.

    Clients do not see such a parameter. The function runs when there is an answer. If the user declines, the
    call fails; to handle this in the function, annotate the parameter as
    `Accepted[T] | Declined | Cancelled`. A parameter with a default gets the default if the client cannot ask
    a user.

    Attributes:
        question: the question, with names of other parameters in braces; or a resolver function. A resolver
            gets the parameters that it names, and the context if it takes one. It returns the value, or
            `Ask("the question")` to ask the user after all. Its parameters may have questions, too. Each
            resolver runs once per run of the function.

    Examples:
        >>> from typing import Annotated
        >>> server = Server("files")
        >>> @server.tool
        ... async def delete(path: str, sure: Annotated[bool, Ask("Really delete {path}?")]) -> str:
        ...     return "gone" if sure else "still there"
        >>> with SyncClient(server, on_elicitation=lambda question: {"value": True}) as mcp:
        ...     mcp.call_tool("delete", {"path": "a.txt"}).text
        'gone'
    """

    question: str | Callable[..., Any]


class AskedParameter(Struct, frozen=True):
    """A parameter with a question: the mark, the type, and the default if there is one."""

    ask: Ask
    kind: Any
    default: Any = UNSET


class _AskNode(Struct, eq=False):
    """One question, or one resolver function."""

    where: str
    question: str | Callable[..., Any]
    form: Any
    answer_types: tuple[type, ...]  # the answer classes that the parameter takes; none if only the data
    inputs: "dict[str, str | _Answer]" = field(default_factory=dict[str, Any])  # arguments, other answers
    context: str | None = None
    is_async: bool = False


class _Answer(Struct):
    """The value of a node; or the default, if the client cannot ask a user."""

    node: _AskNode
    default: Any

    def get(self, found: Mapping[_AskNode, Any]) -> Any:
        value = found[self.node]
        if not isinstance(value, CapabilityNotDeclared):
            return value
        if self.default is UNSET:
            raise value
        return self.default


def parse_asked_parameter(annotation: Any, default: Any) -> AskedParameter | None:
    """Return the question of a parameter, if it has one. Raises SignatureError if it is misplaced."""
    annotation = resolve_alias(annotation)
    kind, *metadata = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    ask = next((mark for mark in metadata if isinstance(mark, Ask)), None)
    others = tuple(mark for mark in metadata if not isinstance(mark, Ask))
    if isinstance(default, Ask) or _contains_ask((kind, *others)):
        raise SignatureError(
            "this Ask has no effect here", hint='write Annotated[T, Ask("...")], with the Ask outermost'
        )
    if ask is None:
        return None
    return AskedParameter(
        ask, Annotated[kind, *others] if others else kind, UNSET if default is _EMPTY else default
    )


def _contains_ask(parts: Iterable[Any]) -> bool:
    """Return whether there is a question somewhere in types, which may be recursive."""
    rest, names = [*parts], list[Any]()
    while rest:
        part = rest.pop()
        if part is Ask or isinstance(part, Ask):
            return True
        rest += get_args(part)
        name = get_origin(part) or part
        if resolve_alias(name) is not name and not any(name is known for known in names):
            names.append(name)  # a type can contain itself only by its name
            rest.append(resolve_alias(name))
    return False


class AskPlan:
    """The questions of one function: `wanted` by parameter, `arguments` are the names of the others."""

    def __init__(
        self,
        wanted: Mapping[str, AskedParameter],
        arguments: Iterable[str],
        is_context: Callable[[Any, bool], bool],
    ) -> None:
        self._asked_parameters = wanted
        self._parameter_names = {*arguments, *wanted}
        self._is_context = is_context
        self._nodes: dict[tuple[str | int, str], _AskNode | None] = {}  # None while one is made
        self._order: list[_AskNode] = []
        self._answers: dict[str, _Answer] = {}
        for name in wanted:
            self._find_input(name)

    def _find_input(self, name: str) -> str | _Answer:
        """Return the source of a parameter: its answer, or its name if it is an argument."""
        if name not in self._parameter_names:
            raise SignatureError(
                f"its Ask uses `{name}`, which is not a parameter",
                hint=f"parameters: {', '.join(sorted(self._parameter_names))}",
            )
        if name not in self._asked_parameters:
            return name
        if name not in self._answers:
            self._answers[name] = self._make_answer(f"parameter `{name}`", self._asked_parameters[name])
        return self._answers[name]

    def _make_answer(self, where: str, wanted: AskedParameter) -> _Answer:
        """Return the answer to a question; the same question has the same node."""
        question = wanted.ask.question
        key = (question if isinstance(question, str) else id(question), repr(wanted.kind))
        with prefix_signature_errors(where):
            node = self._nodes.get(key)
            if node is None and key in self._nodes:
                raise SignatureError("its question depends on its own answer", hint="break the cycle")
            if node is None:
                self._nodes[key] = None
                node = _AskNode(where, question, *_split_answer_types(wanted.kind))
                if callable(question):
                    needed = self._inspect_resolver(node, question)
                else:
                    ElicitationForm(node.form)  # checks it
                    needed = _parse_placeholders(question)
                node.inputs |= {name: self._find_input(name) for name in needed}
                self._nodes[key] = node
                self._order.append(node)
        return _Answer(node, wanted.default)

    def _inspect_resolver(self, node: _AskNode, fn: Callable[..., Any]) -> list[str]:
        """Find the inputs of a resolver; return those that are parameters of the function."""
        scope = AnnotationScope(fn)
        node.is_async = any(map(inspect.iscoroutinefunction, inspection.unwrap_layers(fn)))
        needed: list[str] = []
        for it in inspect.signature(fn).parameters.values():
            if it.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise SignatureError(f"its `{it.name}` cannot be passed by name", hint="remove the `/`")
            if it.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
                continue
            annotation = Any if it.annotation is _EMPTY else scope.evaluate(it.annotation)
            inner = parse_asked_parameter(annotation, it.default)
            if self._is_context(annotation, node.is_async):
                node.context = it.name
            elif inner is not None:
                node.inputs[it.name] = self._make_answer(f"its `{it.name}`", inner)
            elif it.name in self._parameter_names or it.default is _EMPTY:
                needed.append(it.name)
        return needed

    async def collect_answers(
        self, arguments: Mapping[str, Any], context: "Context", run: ResolverRunner
    ) -> dict[str, Any]:
        """Return the answers by parameter. Raises Unanswered, ToolError or UserRejected."""
        found: dict[_AskNode, Any] = {}
        missing = False
        for node in self._order:
            try:
                given = {
                    name: arguments[source] if isinstance(source, str) else source.get(found)
                    for name, source in node.inputs.items()
                }
            except KeyError:
                continue  # one of its inputs has no answer yet
            try:
                found[node] = await _resolve_node(node, given, context, run)
            except Unanswered:
                missing = True
        if missing:
            raise Unanswered("the questions of the parameters have no answers yet")
        return {name: answer.get(found) for name, answer in self._answers.items()}


async def _resolve_node(
    node: _AskNode, given: dict[str, Any], context: "Context", run: ResolverRunner
) -> Any:
    """Return the value of a resolver, or the answer of the user."""
    question: Any = node.question
    if callable(question):
        wants = node.context
        value = await run(
            lambda context: question(**given, **({} if wants is None else {wants: context})),
            context,
            node.is_async,
        )
        if not isinstance(value, Ask):
            return value
        if callable(value.question):
            raise TypeError(f"{node.where}: an Ask that a function returns must have a string")
        message = value.question
    else:
        message = question.format_map(given)
    try:
        answer = await context.elicit(message, node.form)
    except CapabilityNotDeclared as error:
        return error  # a parameter with a default needs no answer
    if isinstance(answer, node.answer_types):
        return answer
    if isinstance(answer, Accepted):
        return answer.data
    text = f"The user {'declined' if isinstance(answer, Declined) else 'did not answer'}: {message}"
    raise ToolError(text) if context.method == TOOLS_CALL else UserRejected(text)


def _split_answer_types(kind: Any) -> tuple[Any, tuple[type, ...]]:
    """Return the type of the form, and the answer classes that the parameter takes."""
    parts = get_args(kind) if get_origin(kind) in UNION_TYPES else (kind,)
    answers = (Accepted, Declined, Cancelled)
    takes = tuple(origin for part in parts if (origin := get_origin(part) or part) in answers)
    if not takes:
        return kind, ()
    forms = [get_args(part)[0] for part in parts if get_origin(part) is Accepted]
    if len(forms) != 1 or len(takes) != len(parts):
        raise SignatureError(
            f"{inspection.describe_type(kind)} does not name the type of the answer",
            hint="write Accepted[T] | Declined | Cancelled",
        )
    return forms[0], takes


def _parse_placeholders(text: str) -> list[str]:
    """Return the parameters in the placeholders of a question, without attributes and items."""
    try:
        gaps = [gap for _, gap, _, _ in Formatter().parse(text) if gap is not None]
    except ValueError as error:
        raise SignatureError(f"the question {text!r} is not a valid format string: {error}") from error
    names = [gap.partition(".")[0].partition("[")[0] for gap in gaps]
    for name in names:
        if not name.isidentifier():
            raise SignatureError(f"the question {text!r} has a placeholder without a parameter name")
    return names
