import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.cli.commands.bench import DurationHistogram, LoadGenerator, draw_bar, format_duration


def test_a_rate_that_cannot_be_kept_to_takes_no_longer():
    async def ask():
        await asyncio.sleep(0)

    load = LoadGenerator(0.05, 1, 1e12)
    asyncio.run(load.run(ask))
    assert load.durations.count > 0


# --------------------------------------------------------------------- the arithmetic


@given(st.lists(st.floats(0, 1000), min_size=1))
def test_a_quantile_is_near_the_true_one(seconds):
    durations = DurationHistogram()
    for each in seconds:
        durations.add(each)
    for part in (0.01, 0.5, 0.9, 0.99, 1.0):
        true = sorted(seconds)[math.ceil(part * len(seconds)) - 1]
        assert durations.quantile(part) == pytest.approx(true, rel=0.006, abs=2e-9)
    assert durations.maximum == pytest.approx(max(seconds), abs=1e-9)
    assert durations.mean == pytest.approx(sum(seconds) / len(seconds), abs=1e-9)


@given(st.lists(st.floats(0, 1000)), st.integers(2, 12))
def test_every_duration_is_in_one_bin(seconds, rows):
    durations = DurationHistogram()
    for each in seconds:
        durations.add(each)
    bins = durations.bins(rows)
    assert sum(count for _, count in bins) == len(seconds)
    assert len(bins) <= rows
    assert [end for end, _ in bins] == sorted(end for end, _ in bins)


def test_durations_that_hardly_differ_are_one_row():
    durations = DurationHistogram()
    for number in range(20):
        durations.add(1.2 + number / 10_000)
    assert [count for _, count in durations.bins(10)] == [20]


def test_nothing_has_no_quantile():
    assert (DurationHistogram().quantile(0.5), DurationHistogram().mean, DurationHistogram().bins(5)) == (
        0,
        0,
        [],
    )


@pytest.mark.parametrize(
    ("part", "blocks", "wanted"),
    [
        (1, True, "████"),
        (0.5, True, "██"),
        (0.4, True, "█▋"),
        (0.001, True, "▏"),
        (0, True, ""),
        (0.5, False, "##"),
        (0.001, False, "#"),
        (0, False, ""),
    ],
)
def test_a_bar_is_as_long_as_its_part(part, blocks, wanted):
    assert draw_bar(part, 4, blocks=blocks) == wanted


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (12.345, "12.3 s"),
        (1, "1.00 s"),
        (0.1234, "123 ms"),
        (0.0012, "1.20 ms"),
        (0.00012, "120 us"),
        (0, "0 us"),
    ],
)
def test_a_duration_has_three_digits(seconds, wanted):
    assert format_duration(seconds) == wanted
