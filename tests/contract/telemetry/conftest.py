"""Fixtures of tests with OpenTelemetry."""

import pytest

from recorded_telemetry import Recorded


@pytest.fixture
def seen():
    """What an SDK has recorded in this test."""
    return Recorded()
