"""The exception tree: the text of each error, its code, and whether a retry is safe."""

import pytest

from toolpost import errors
from toolpost.errors import (
    CODES,
    LEGACY_ERROR_KINDS,
    ClientCapabilityNotDeclared,
    RateLimited,
    ResourceNotFound,
    RPCError,
    make_rpc_error,
)

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


# --------------------------------------------------------------------- codes


def test_codes():
    assert {kind.__name__: code for code, kind in CODES.items()} == CODE_OF
    assert all(kind.code == code for code, kind in CODES.items())


def test_every_class_of_an_answer_has_its_own_code():
    kinds = [
        kind
        for kind in ALL
        if issubclass(kind, RPCError) and kind not in {RPCError, ClientCapabilityNotDeclared}
    ]
    assert sorted(kind.code for kind in kinds) == sorted(CODES)
    assert len({kind.kind for kind in kinds}) == len(kinds)


@pytest.mark.requirement("ERR-1", "ERR-2", "ERR-8")
def test_no_class_has_an_old_code():
    """Our own codes are outside the ranges that JSON-RPC and MCP reserve."""
    old = range(-32019, -31999)
    assert [code for code in CODES if code in old] == [ResourceNotFound.code]
    assert not LEGACY_ERROR_KINDS.keys() & CODES.keys()
    assert RateLimited.code not in range(-32768, -31999)


@pytest.mark.requirement("ERR-7", "RES-7")
@pytest.mark.parametrize(("code", "kind"), CODES.items())
@pytest.mark.parametrize("session", [True, False])
def test_a_known_code_becomes_its_class(code, kind, session):
    error = make_rpc_error(code, "m", [1], session=session, peer="p")
    assert type(error) is kind
    assert (error.code, error.message, error.data, error.peer) == (code, "m", [1], "p")
    assert error.kind == kind.kind


@pytest.mark.requirement("ERR-3")
@pytest.mark.parametrize("code", range(-32019, -31999))
def test_old_codes_mean_something_only_in_a_session(code):
    if code == ResourceNotFound.code:
        return
    stateless = make_rpc_error(code, "m", session=False)
    assert (type(stateless), stateless.code, stateless.kind) == (RPCError, code, "error")
    session = make_rpc_error(code, "m", session=True)
    assert (type(session), session.code) == (RPCError, code)
    assert session.kind == LEGACY_ERROR_KINDS.get(code, "error")


@pytest.mark.parametrize("code", [0, 1, -2, -32050, -32768, 404, 2**53])
@pytest.mark.parametrize("session", [True, False])
def test_an_unknown_code_is_kept(code, session):
    error = make_rpc_error(code, "m", {"a": None}, session=session)
    assert (type(error), error.code, error.kind, error.data) == (RPCError, code, "error", {"a": None})
    assert error.peer is None
