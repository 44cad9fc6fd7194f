"""The official example messages: each is decoded by its type and encoded to the same JSON."""

import json

import pytest

from schema_definitions import HOMES, ROW, round_trip, text
from toolpost import errors, types
from toolpost.errors import RPCError, make_rpc_error
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import JSONReader, JSONRPCErrorResponse
from toolpost.protocol.methods import Row
from toolpost.types import Raw

# An ask travels inside a result and has no id (MRTR-4); this example of one has an id that its schema lacks.
STRAY = {("ListRootsRequest", "list-roots-request"): {"id"}}


def each(examples):
    for kind, files in examples.items():
        for name, data in files.items():
            value = json.loads(data)
            yield (
                kind,
                {member: value[member] for member in value if member not in STRAY.get((kind, name), ())},
            )


def test_there_are_examples(examples):
    """So that the tests below do not pass on an empty folder."""
    assert len(list(each(examples))) >= 129
    assert examples.keys() <= HOMES.keys()


def test_every_example_is_written_as_it_was_read(examples):
    changed = {kind: value for kind, value in each(examples) if text(round_trip(kind, value)) != text(value)}
    assert changed == {}


def test_whole_messages_are_read_by_their_row(examples):
    """Not only the envelope: params and result become the structs of the method."""
    for kind, value in each(examples):
        row = HOMES[kind]
        if isinstance(row, Row) and "params" in value:
            assert isinstance(row.read_params(json.dumps(value["params"]).encode()), row.params)
        if isinstance(row, Row) and "result" in value:
            result = row.read_result(Raw(json.dumps(value["result"]).encode()), value["result"]["resultType"])
            assert isinstance(result, (row.result or (), types.InputRequiredResult))


def test_asks_and_answers_inside_messages_are_read_by_their_row(examples):
    """Raw members of a result or a retry are decoded when the method is known."""
    [asks] = [json.loads(data) for data in examples["InputRequests"].values()]
    [answers] = [json.loads(data) for data in examples["InputResponses"].values()]
    for key, ask in asks.items():
        row = ROW[ask["method"]]
        params = row.read_params(json.dumps(ask["params"]).encode())
        answer = row.read_result(Raw(json.dumps(answers[key]).encode()), "complete")
        assert text(json.loads(jsonrpc.encode(params))) == text(ask["params"])
        assert text(json.loads(jsonrpc.encode(answer))) == text(answers[key])


def test_meta_of_requests_is_understood(examples):
    read = JSONReader(types.RequestMeta)
    metas = [
        value["params"]["_meta"]
        for kind, value in each(examples)
        if kind in {"CallToolRequest", "DiscoverRequest"}
    ]
    for value in metas:
        meta = read(json.dumps(value).encode())
        assert meta.protocol_version == "2026-07-28"
        assert meta.client_info == types.Implementation(name="ExampleClient", version="1.0.0")
        assert meta.client_capabilities == types.ClientCapabilities()
    assert len(metas) == 2


ERRORS = [
    # kind of example, class, members of its data
    ("HeaderMismatchError", errors.HeaderMismatch, None),
    ("InternalError", errors.InternalError, None),
    ("InvalidParamsError", errors.InvalidParams, None),
    ("MethodNotFoundError", errors.MethodNotFound, {"reason"}),
    ("MissingRequiredClientCapabilityError", errors.MissingCapability, {"requiredCapabilities"}),
    ("ParseError", errors.ParseError, None),
    ("UnsupportedProtocolVersionError", errors.UnsupportedRevision, {"supported", "requested"}),
]


@pytest.mark.parametrize(("kind", "error", "members"), ERRORS)
@pytest.mark.parametrize("session", [True, False])
def test_errors_become_their_class(examples, kind, error, members, session):
    for data in examples[kind].values():
        value = json.loads(data)
        if "error" in value:
            message = jsonrpc.decode(data)
            assert isinstance(message, JSONRPCErrorResponse)
            raised = make_rpc_error(message.code, message.message, message.data, session=session)
            assert message.id == value["id"]
            value = value["error"]
        else:
            raised = make_rpc_error(**value, session=session)
        assert type(raised) is error
        assert (raised.code, raised.message) == (value["code"], value["message"])
        assert raised.data == value.get("data")
        assert members is None or raised.data.keys() == members


def test_every_error_example_is_in_the_table(examples):
    kinds = {kind for kind in examples if isinstance(HOMES[kind], type) and issubclass(HOMES[kind], RPCError)}
    assert kinds == {kind for kind, _, _ in ERRORS}
