"""`InputRequired`: what a handler returns that asks by hand, and wants something back with the answers.

The explicit form of `ctx.elicit` and the like, for those who want to say what comes back and to name the
questions. Owns its shape; how it is asked in each era is told in `recall`.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from toolpost.types.asks import AskParams, CreateMessageParams, ElicitParams
from toolpost.types.base import JSON

__all__ = ["InputRequired", "Question"]

Question: TypeAlias = ElicitParams | CreateMessageParams | AskParams
"""What can be asked: the user, the model, or, by a plain `AskParams()`, which places are open."""

_METHODS: Final[dict[type, str]] = {
    ElicitParams: "elicitation/create",
    CreateMessageParams: "sampling/createMessage",
    AskParams: "roots/list",
}


class InputRequired:
    """Returned by a handler instead of its result: these questions have to be answered first.

    The method is then called again: it finds the answers in `ctx.input_responses`, and the state in
    `ctx.request_state`. In a session the client is asked at once, and the method is called again by the same
    request; a stateless client asks again with the answers, perhaps another worker, and what it carries is
    sealed.

    Args:
        questions: what to ask, by a name for each.
        state: what to bring back: anything that JSON can hold.

    Raises:
        TypeError: one of the questions is none.
        ValueError: there is neither a question nor a state.
    """

    __slots__ = ("questions", "state")

    def __init__(self, questions: Mapping[str, Question] | None = None, state: JSON = None) -> None:
        self.questions = {
            key: (_method(key, question), question) for key, question in (questions or {}).items()
        }
        self.state = state
        if not self.questions and state is None:
            raise ValueError("there is neither a question nor a state: nothing would change the next time")

    def __repr__(self) -> str:
        return f"InputRequired({', '.join(self.questions)})"


def _method(key: str, question: object) -> str:
    method = _METHODS.get(type(question))
    if method is None:
        raise TypeError(
            f"the question {key!r} is a {type(question).__name__}; it may be an ElicitParams, a "
            "CreateMessageParams, or a plain AskParams for the roots"
        )
    return method
