"""The fixtures that all tests share."""

import json

import hypothesis


def test_there_is_a_schema_for_each_revision(schemas):
    assert list(schemas) == ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
    assert all("$defs" in schema or "definitions" in schema for schema in schemas.values())


def test_examples_are_bytes_of_json_by_type(examples, schemas):
    assert set(examples) <= set(schemas["2026-07-28"]["$defs"])
    assert all(messages and all(map(json.loads, messages.values())) for messages in examples.values())


def test_the_usual_profile_is_the_same_in_every_run():
    steady = hypothesis.settings.get_profile("steady")
    assert (steady.derandomize, steady.deadline, steady.database) == (True, None, None)
