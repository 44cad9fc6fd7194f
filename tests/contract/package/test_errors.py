"""The exception tree: the text of each error, its code, and whether a retry is safe."""

import copy
import inspect
import pickle
import re

import pytest

from toolpost import errors
from toolpost.errors import (
    CapabilityNotDeclared,
    ClientCapabilityNotDeclared,
    ConnectFailed,
    InternalError,
    InvalidParams,
    InvalidSeal,
    LocalProtocolError,
    MCPError,
    ParseError,
    RemoteProtocolError,
    RequestTimeout,
    RPCError,
    TransportError,
    UrlElicitationRequired,
)

TREE = {
    # class → class above it
    "RPCError": "MCPError",
    "ParseError": "RPCError",
    "InvalidRequest": "RPCError",
    "MethodNotFound": "RPCError",
    "InvalidParams": "RPCError",
    "InternalError": "RPCError",
    "ResourceNotFound": "RPCError",
    "HeaderMismatch": "RPCError",
    "MissingCapability": "RPCError",
    "UnsupportedRevision": "RPCError",
    "UrlElicitationRequired": "RPCError",
    "UserRejected": "RPCError",
    "RateLimited": "RPCError",
    "MissingScopes": "RPCError",
    "ToolError": "MCPError",
    "ProtocolError": "MCPError",
    "LocalProtocolError": "ProtocolError",
    "CapabilityNotDeclared": "LocalProtocolError",
    "ClientCapabilityNotDeclared": "MissingCapability",
    "RemoteProtocolError": "ProtocolError",
    "TransportError": "MCPError",
    "ConnectFailed": "TransportError",
    "ChannelClosed": "TransportError",
    "SessionLost": "ChannelClosed",
    "RequestFailed": "TransportError",
    "RequestTimeout": "TransportError",
    "AuthError": "MCPError",
    "AuthorizationRequired": "AuthError",
    "AuthorizationDenied": "AuthError",
    "TokenRejected": "AuthError",
    "InsufficientScope": "AuthError",
    "InvalidSeal": "MCPError",
    "StoreUnavailable": "MCPError",
}

CODE_OF = {
    "ParseError": -32700,
    "InvalidRequest": -32600,
    "MethodNotFound": -32601,
    "InvalidParams": -32602,
    "InternalError": -32603,
    "ResourceNotFound": -32002,
    "HeaderMismatch": -32020,
    "MissingCapability": -32021,
    "UnsupportedRevision": -32022,
    "UrlElicitationRequired": -32042,
    "UserRejected": -1,
    "RateLimited": 429,
    "MissingScopes": 403,
}

ALL = [getattr(errors, name) for name in errors.__all__]


def make(kind: type[MCPError]) -> MCPError:
    """One error of a class, with the arguments that it needs."""
    return kind("tools", "it failed") if issubclass(kind, CapabilityNotDeclared) else kind("it failed")  # pyright: ignore[reportCallIssue] - narrowed by hand


# --------------------------------------------------------------------- the tree


def test_the_tree():
    drawn = {kind.__name__: kind.__bases__[0].__name__ for kind in ALL if kind is not MCPError}
    assert drawn == TREE
    assert MCPError.__bases__ == (Exception,)
    assert {*TREE, "MCPError"} == set(errors.__all__)


def test_the_docstring_draws_the_tree():
    drawn = inspect.getdoc(errors) or ""
    assert [name for name in errors.__all__ if not re.search(rf"\b{name}\b", drawn)] == []


def test_a_timeout_is_one_for_python_too():
    assert issubclass(RequestTimeout, TimeoutError)
    with pytest.raises(TimeoutError, match="too slow"):
        raise RequestTimeout("too slow")


@pytest.mark.requirement("ERR-9")
def test_errors_of_the_peer_are_distinguished_from_our_own():
    """Only an error response is an `RPCError`; an error on our side or in transit never is."""
    ours = [kind for kind in ALL if not issubclass(kind, RPCError)]
    assert {kind.__name__ for kind in ours} == {"MCPError"} | set(TREE) - {
        "RPCError",
        "ClientCapabilityNotDeclared",
    } - set(CODE_OF)
    assert not any(hasattr(kind, "code") for kind in ours)


# --------------------------------------------------------------------- how an error reads


@pytest.mark.parametrize("kind", ALL)
def test_every_error_reads_well(kind):
    error = make(kind)
    assert isinstance(error, MCPError)
    assert error.message == ("the sealed value is not valid here" if kind is InvalidSeal else "it failed")
    assert str(error) == error.message
    assert (error.hint, error.peer) == (None, None)


@pytest.mark.parametrize(
    ("hint", "peer", "text"),
    [
        (None, None, "it failed"),
        ("mend it", None, "it failed (mend it)"),
        (None, "files 1.0", "files 1.0: it failed"),
        ("mend it", "files 1.0", "files 1.0: it failed (mend it)"),
        ("", "", "it failed"),
    ],
)
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not InvalidSeal])
def test_hint_and_peer_are_part_of_the_message(kind, hint, peer, text):
    arguments = ("tools", "it failed") if issubclass(kind, CapabilityNotDeclared) else ("it failed",)
    error = kind(*arguments, hint=hint, peer=peer)
    assert str(error) == text
    assert error.message == "it failed"
    assert (error.hint, error.peer) == (hint, peer)


@pytest.mark.parametrize("kind", ALL)
def test_an_error_survives_being_copied_and_sent_to_another_process(kind):
    """A worker, a pool or a test runner hands errors over by pickling them."""
    error = make(kind)
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_why_a_seal_broke_is_not_in_the_text():
    error = InvalidSeal("wrong key")
    assert error.reason == "wrong key"
    assert "wrong key" not in str(error)
    assert "wrong key" not in repr(error)


def test_an_undeclared_capability():
    assert CapabilityNotDeclared("tools.list_changed", "m").capability == "tools.list_changed"


def test_an_undeclared_capability_of_a_stateless_client_has_one_class_on_both_sides():
    error = ClientCapabilityNotDeclared(
        "elicitation.url", "m", {"requiredCapabilities": {"elicitation": {"url": {}}}}
    )
    assert isinstance(error, CapabilityNotDeclared)
    assert (error.capability, error.code, error.data) == (
        "elicitation.url",
        -32021,
        {"requiredCapabilities": {"elicitation": {"url": {}}}},
    )


@pytest.mark.parametrize(
    ("data", "elicitations"),
    [
        (None, []),
        ([], []),
        ({}, []),
        ({"elicitations": None}, []),
        ({"elicitations": [5, {}, {"url": "https://a"}, {"url": 5, "message": "m"}]}, []),
        (
            {"elicitations": [{"url": "https://a", "message": "m", "elicitationId": "1", "x": 5}, None]},
            [{"url": "https://a", "message": "m", "elicitationId": "1"}],
        ),
    ],
)
def test_where_a_user_has_to_go_first(data, elicitations):
    assert UrlElicitationRequired("m", data).elicitations == elicitations


def test_violations_of_the_peer():
    answer = ParseError("no JSON")
    error = RemoteProtocolError("it was no JSON", answer=answer, id=5, reply=True, hint="h", peer="p")
    assert (error.answer, error.id, error.reply) == (answer, 5, True)
    bare = RemoteProtocolError("m")
    assert (bare.answer, bare.id, bare.reply) == (None, None, False)


def test_a_custom_error_response():
    error = RPCError("m", {"a": 1}, code=7, kind="lucky", hint="h", peer="p", retry_safe=True)
    assert (error.code, error.kind, error.data, error.retry_safe) == (7, "lucky", {"a": 1}, True)
    assert repr(error) == "RPCError('m', code=7, data={'a': 1})"
    plain = RPCError("m")
    assert (plain.code, plain.kind, plain.data) == (-32603, "error", None)
    assert InvalidParams("m", code=5).code == 5
    assert InvalidParams.code == -32602
    assert repr(InvalidParams("m")) == "InvalidParams('m', code=-32602, data=None)"


# --------------------------------------------------------------------- may it be tried again?

SAFE = {
    "AuthorizationRequired",
    "ConnectFailed",
    "InsufficientScope",
    "LocalProtocolError",
    "CapabilityNotDeclared",
    "RateLimited",
    "TokenRejected",
    "ClientCapabilityNotDeclared",
}


@pytest.mark.parametrize("kind", ALL)
def test_errors_that_are_safe_to_retry(kind):
    """Only requests that certainly did not run: they were never sent, or rejected unprocessed."""
    assert make(kind).retry_safe is (kind.__name__ in SAFE)


@pytest.mark.parametrize("kind", [MCPError, RPCError, InternalError, TransportError])
@pytest.mark.parametrize("safe", [True, False])
def test_an_explicit_retry_safe_overrides_the_default(kind, safe):
    error = kind("m", retry_safe=safe)
    assert error.retry_safe is safe
    assert kind.retry_safe is False


SENT = [
    # class, sent, retry_safe, what the error says of both
    (TransportError, None, None, (True, False)),
    (TransportError, True, None, (True, False)),
    (TransportError, False, None, (False, True)),
    (TransportError, True, True, (True, True)),
    (TransportError, False, False, (False, False)),
    (TransportError, None, True, (True, True)),
    (ConnectFailed, None, None, (False, True)),
    (ConnectFailed, True, None, (True, False)),
    (ConnectFailed, None, False, (False, False)),
    (RequestTimeout, None, None, (True, False)),
    (RequestTimeout, False, None, (False, True)),
]


@pytest.mark.parametrize(("kind", "sent", "safe", "told"), SENT)
def test_an_unsent_request_is_safe_to_retry(kind, sent, safe, told):
    error = kind("m", sent=sent, retry_safe=safe)
    assert (error.sent, error.retry_safe) == told


def test_an_error_before_sending_is_safe_to_retry():
    assert LocalProtocolError("m").retry_safe
