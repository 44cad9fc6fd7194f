"""Fixtures of tests with OpenTelemetry."""

import pytest

from recorded_telemetry import recorded


@pytest.fixture
def seen():
    """What an SDK has recorded in this test."""
    with recorded() as found:
        yield found
