"""Outgoing parameters and their `_meta`, for both roles."""

import json

import pytest
from conversation import CLIENT_PARTY, SERVER_CAN, SERVER_INFO, every_revision, one, parse, talk, without

from toolpost.errors import CapabilityNotDeclared, LocalProtocolError
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import drop_sender_meta, prepare_params
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import DATES, Row
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, REVISIONS
from toolpost.types import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    UNSET,
    CallToolParams,
    PaginatedRequestParams,
    Raw,
    Result,
    TaskMetadata,
)
from toolpost.types.base import WireStruct

OWNED = {
    "progressToken": 77,
    PROTOCOL_VERSION: DATES[0],
    CLIENT_INFO: {"name": "mallory", "version": "6"},
    CLIENT_CAPABILITIES: {"sampling": {}},
}
KEPT = {"com.example/trace": "t"}


@pytest.mark.requirement("PROG-2")
@every_revision
@pytest.mark.parametrize("progress", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {"meta": {**OWNED, **KEPT}},
        {"params": {"_meta": {**OWNED, **KEPT}}},
        {"params": PaginatedRequestParams(meta=Raw(json.dumps({**OWNED, **KEPT}).encode()))},
    ],
    ids=["meta", "plain parameters", "typed parameters"],
)
def test_callers_cannot_set_the_identity_or_the_progress_token_in_meta(revision, given, progress):
    conversation = talk(revision)
    first = conversation.client.request("tools/list", progress=True)
    conversation.server.receive(first.data)
    outgoing = conversation.client.request("tools/list", **given, progress=progress)
    meta = parse(outgoing.data)["params"]["_meta"]
    assert meta["com.example/trace"] == "t"
    assert meta.get("progressToken") == (outgoing.id if progress else None)
    said = {key: meta.get(key) for key in (PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES)}
    assert said == {
        key: parse(first.data).get("params", {}).get("_meta", {}).get(key) if revision.stateless else None
        for key in said
    }
    assert one(conversation.server.receive(outgoing.data), InboundRequest).peer.revision is revision


def test_a_level_of_logging_belongs_to_stateless_requests():
    meta = {LOG_LEVEL: "debug", **KEPT}
    assert drop_sender_meta(meta, LATEST) == meta
    assert drop_sender_meta(meta, LATEST_SESSION) == KEPT


@pytest.mark.parametrize(
    "params", [None, {"a": 1}, PaginatedRequestParams(cursor="c"), PaginatedRequestParams()]
)
def test_parameters_without_meta_are_not_touched(params):
    for date in DATES:
        assert prepare_params(params, None, REVISIONS[date]) is (UNSET if params is None else params)


class Own(WireStruct):
    """Parameters of an author who did not consider `_meta`."""

    some_thing: int = 0


@every_revision
def test_parameters_without_a_place_for_meta_get_one_where_it_is_needed(revision):
    client = Connection(CLIENT_PARTY, revision=revision) if revision.stateless else talk(revision).client
    sent = parse(client.request(Row("own/thing", Own, Result), Own(5)).data)["params"]
    assert sent.pop("_meta", None) is None if not revision.stateless else sent.pop("_meta")
    assert sent == {"someThing": 5}


def test_meta_that_is_not_an_object_cannot_be_encoded():
    for own in (5, [1], [], 0, Raw(b"5"), Raw(b"[]")):
        with pytest.raises(LocalProtocolError, match="_meta of a request must be an object"):
            prepare_params({"_meta": own}, {"a": 1}, LATEST)


@pytest.mark.parametrize("params", [{"_meta": None}, PaginatedRequestParams(meta=Raw(b"null"))])
def test_meta_that_is_null_is_none(params):
    for date in DATES:
        sent = talk(REVISIONS[date]).client.request("tools/list", params)
        assert parse(sent.data)["params"]["_meta"] is not None


@every_revision
@pytest.mark.parametrize("params", [[1], 5, "x"])
def test_parameters_are_an_object(revision, params):
    client = talk(revision).client
    with pytest.raises(LocalProtocolError, match="parameters must be an object"):
        client.request("tools/list", params)


@pytest.mark.requirement("TASK-4")
def test_a_task_is_not_asked_of_a_server_that_runs_none():
    party = LocalPeer(SERVER_INFO, without(SERVER_CAN, "tasks"))
    client = talk(LATEST_SESSION, server=party).client
    with pytest.raises(CapabilityNotDeclared) as caught:
        client.request("tools/call", CallToolParams(name="x", task=TaskMetadata()))
    assert caught.value.capability == "tasks.requests.tools.call"
