"""Five records folded from the rows, and the choice among them."""

import itertools
from types import MappingProxyType

import pytest

from official_schema import Official
from pair import open_pair
from toolpost.errors import (
    LEGACY_ERROR_KINDS,
    HeaderMismatch,
    LocalProtocolError,
    MissingCapability,
    UnsupportedRevision,
)
from toolpost.protocol.methods import DATES, ROWS
from toolpost.protocol.revisions import (
    LATEST,
    LATEST_SESSION,
    OLDEST_HTTP,
    REVISIONS,
    Revision,
    find_newest,
    negotiate,
)

A, B, C, D, E = DATES

FLAGS = [
    # field, its value in each revision, oldest first
    ("era", ["session", "session", "session", "session", "stateless"]),
    ("stateless", [False, False, False, False, True]),
    ("structured", [None, None, "object", "object", "any"]),
    ("many_blocks", [False, False, False, True, True]),
    ("batches", [False, True, False, False, False]),
    ("priming", [False, False, False, True, False]),
    ("ungated", [{"completion/complete"}, set(), set(), set(), set()]),
]


@pytest.fixture(scope="module")
def officials(schemas):
    return {date: Official(date, schema) for date, schema in schemas.items()}


# --------------------------------------------------------------------- records


def test_there_are_five_oldest_first():
    assert tuple(REVISIONS) == DATES == tuple(sorted(DATES))
    assert [revision.date for revision in REVISIONS.values()] == list(DATES)
    assert isinstance(REVISIONS, MappingProxyType)


@pytest.mark.parametrize(("field", "told"), FLAGS)
def test_flags(field, told):
    assert [getattr(revision, field) for revision in REVISIONS.values()] == told


def test_the_named_ones():
    assert LATEST is REVISIONS[E]
    assert LATEST_SESSION is REVISIONS[D]
    assert OLDEST_HTTP is REVISIONS[B]
    assert repr(LATEST) == "<Revision 2026-07-28>"


def test_a_record_is_not_changed_and_is_equal_to_itself_only():
    with pytest.raises(AttributeError):
        LATEST.date = "2027-01-01"  # pyright: ignore[reportAttributeAccessIssue] - the refusal is the test
    assert len(set(REVISIONS.values())) == 5
    with pytest.raises(TypeError):
        assert LATEST < LATEST_SESSION  # pyright: ignore[reportOperatorIssue] - the refusal is the test


@pytest.mark.parametrize("date", DATES)
def test_methods_are_rows_in_their_order(date):
    order = [row.name for row in ROWS]
    revision = REVISIONS[date]
    for rows in (*revision.requests.values(), *revision.notifications.values(), revision.input_requests):
        assert list(rows) == sorted(rows, key=order.index)
        assert all(row.name == name for name, row in rows.items())
    assert all(row.result is not None for rows in revision.requests.values() for row in rows.values())
    assert all(row.result is None for rows in revision.notifications.values() for row in rows.values())


@pytest.mark.requirement("MSG-21", "MRTR-1")
def test_a_stateless_server_asks_only_by_returning():
    assert not LATEST.requests["server"]
    assert set(LATEST.input_requests) == {"roots/list", "sampling/createMessage", "elicitation/create"}
    assert not any(REVISIONS[date].input_requests for date in (A, B, C, D))
    for row in ROWS:
        with pytest.raises(LocalProtocolError):
            open_pair(E).server.request(row.name)


def test_the_rows_of_a_record_cannot_be_changed():
    with pytest.raises(TypeError):
        LATEST.requests["client"]["x"] = ROWS[0]  # pyright: ignore[reportIndexIssue] - the refusal is the test


# --------------------------------------------------------------------- content


def kinds(official: Official, schema) -> set[str]:
    """The kinds of content that a schema allows, whether it names a union or spells it out."""
    schema = official.resolve(schema)
    if "anyOf" in schema:
        return {kind for part in schema["anyOf"] for kind in kinds(official, part)}
    if "items" in schema:
        return kinds(official, schema["items"])
    return {schema["properties"]["type"]["const"]}


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ("CallToolResult", "content"),
        ("PromptMessage", "content"),
        ("SamplingMessage", "sampling_content"),
        ("CreateMessageResult", "sampling_content"),
    ],
)
def test_kinds_of_content_are_those_of_the_schema(officials, date, definition, field):
    official = officials[date]
    schema = official.definitions[definition]["properties"]["content"]
    assert getattr(REVISIONS[date], field) == kinds(official, schema)


@pytest.mark.parametrize("date", DATES)
def test_several_blocks_and_structured_content_as_the_schema_has_them(officials, date):
    definitions = officials[date].definitions
    content = definitions["SamplingMessage"]["properties"]["content"]
    assert REVISIONS[date].many_blocks is any("items" in part for part in content["anyOf"])
    structured = definitions["CallToolResult"]["properties"].get("structuredContent")
    told = None if structured is None else structured.get("type", "any")
    assert REVISIONS[date].structured == told


@pytest.mark.parametrize("date", DATES)
def test_capabilities_that_a_revision_lacks_are_not_asked_for(officials, date):
    """A method is usable without its capability only where the capability does not exist."""
    members = officials[date].definitions["ServerCapabilities"]["properties"]
    assert ("completion/complete" in REVISIONS[date].ungated) is ("completions" not in members)


# --------------------------------------------------------------------- codes


@pytest.mark.requirement("ERR-6")
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-32002, [-32002, -32002, -32002, -32002, -32602]),
        (-32042, [-32603, -32603, -32603, -32042, -32603]),
    ],
)
def test_codes_that_only_some_revisions_have(code, told):
    assert [revision.translate_code(code) for revision in REVISIONS.values()] == told


@pytest.mark.parametrize("date", DATES)
def test_codes_that_every_revision_has(date):
    for code in (-32700, -32600, -32601, -32602, -32603, -1, 0, 1, 7, 40_000, -32100, -40_000):
        assert REVISIONS[date].translate_code(code) == code


@pytest.mark.requirement("ERR-5")
def test_the_codes_of_the_stateless_era(officials):
    """Each is defined by its own schema, and reaches a stateless peer as it is."""
    codes = {
        definition["properties"]["error"]["allOf"][1]["properties"]["code"]["const"]: name
        for name, definition in officials[E].definitions.items()
        if "allOf" in definition.get("properties", {}).get("error", {})
    }
    assert codes == {
        HeaderMismatch.code: "HeaderMismatchError",
        MissingCapability.code: "MissingRequiredClientCapabilityError",
        UnsupportedRevision.code: "UnsupportedProtocolVersionError",
    }
    assert [LATEST.translate_code(code) for code in codes] == list(codes)


@pytest.mark.requirement("ERR-4")
@pytest.mark.parametrize("date", DATES)
def test_an_undefined_reserved_code_is_never_sent(date):
    told = {code: REVISIONS[date].translate_code(code) for code in range(-32099, -32019)}
    kept = {-32020, -32021, -32022} | ({-32042} if date == D else set())
    assert told == {code: code if code in kept else -32603 for code in told}


@pytest.mark.requirement("ERR-2")
@pytest.mark.parametrize("date", DATES)
def test_an_old_code_is_never_sent(date):
    """They may arrive in the session era; a gateway must not forward the code."""
    assert [
        code for code in LEGACY_ERROR_KINDS if REVISIONS[date].translate_code(code) in LEGACY_ERROR_KINDS
    ] == []


# --------------------------------------------------------------------- the choice

NEGOTIATED = [
    # offered, supported, agreed upon
    (A, DATES, A),
    (B, DATES, B),
    (C, DATES, C),
    (D, DATES, D),
    (D, (A, B, C), C),
    (A, (C, B), C),
    (B, (A, D, E), D),
    (C, (C,), C),
    ("2099-01-01", DATES, D),
    ("1900-01-01", DATES, D),
    ("2025-04-01", (A, B), B),
    ("", (A,), A),
    (E, DATES, D),
    (E, (E, A, B), B),
    ("draft", (B, E), B),
    (E, (E,), None),
    (D, (E,), None),
    ("2099-01-01", (E,), None),
    (A, (), None),
    ("2099-01-01", ("2099-01-01",), None),
    (A, ("2099-01-01", B), B),
]


@pytest.mark.requirement("LIFE-9", "LIFE-10", "LIFE-11")
@pytest.mark.parametrize(("offered", "supported", "agreed"), NEGOTIATED)
def test_negotiation(offered, supported, agreed):
    assert dated(negotiate(offered, supported)) == agreed
    assert dated(negotiate(offered, iter(supported))) == agreed


def dated(revision: Revision | None) -> str | None:
    return revision and revision.date


@pytest.mark.requirement("LIFE-9", "LIFE-10", "LIFE-11")
def test_negotiation_by_the_rules():
    """Echo a supported revision, otherwise the latest of the session era: for every set and every offer."""
    for size in range(len(DATES) + 1):
        for supported in itertools.permutations(DATES, size):
            session = [date for date in (A, B, C, D) if date in supported]
            for offered in (*DATES, "2000-01-01"):
                expected = offered if offered in session else max(session, default=None)
                assert dated(negotiate(offered, supported)) == expected


def test_all_revisions_are_supported_by_default():
    assert negotiate("unknown") is LATEST_SESSION


NEWEST = [
    (DATES, {}, E),
    (DATES, {"era": "session"}, D),
    (DATES, {"era": "stateless"}, E),
    (DATES, {"among": (A, B)}, B),
    (DATES, {"era": "stateless", "among": (A, B)}, None),
    ([C, "2099-01-01", A], {}, C),
    (["2099-01-01"], {}, None),
    (["2099-01-01"], {"among": ["2099-01-01"]}, None),
    ([], {}, None),
    (DATES, {"among": ()}, None),
    (DATES, {"era": "medieval"}, None),
]


@pytest.mark.parametrize(("dates", "options", "found"), NEWEST)
def test_the_newest_of_both_lists(dates, options, found):
    assert dated(find_newest(dates, **options)) == found
    assert dated(find_newest(reversed(dates), **options)) == found
