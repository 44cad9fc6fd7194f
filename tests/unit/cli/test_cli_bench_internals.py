import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.cli.commands.bench import (
    LoadGenerator,
    count_bins,
    draw_bar,
    format_duration,
    summarize_durations,
)


def test_a_rate_that_cannot_be_kept_to_takes_no_longer():
    async def ask():
        await asyncio.sleep(0)

    load = LoadGenerator(0.05, 1, 1e12)
    asyncio.run(load.run(ask))
    assert len(load.durations) > 0


# --------------------------------------------------------------------- the arithmetic


@given(st.lists(st.floats(0, 1000), min_size=1))
def test_quantiles_are_between_the_extremes(seconds):
    latency = summarize_durations(seconds)
    rising = [min(seconds), latency["p50"], latency["p90"], latency["p99"], max(seconds)]
    assert sorted(rising) == pytest.approx(rising)
    assert latency["max"] == max(seconds)
    assert latency["mean"] == pytest.approx(sum(seconds) / len(seconds))


def test_quantiles_of_a_hundred_steps():
    latency = summarize_durations([number / 100 for number in range(101)])
    assert latency == pytest.approx({"mean": 0.5, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1})


@given(st.lists(st.floats(0, 1000)), st.integers(2, 12))
def test_every_duration_is_in_one_bin(seconds, rows):
    bins = count_bins(seconds, rows)
    assert sum(count for _, count in bins) == len(seconds)
    assert len(bins) <= rows
    assert [end for end, _ in bins] == sorted(end for end, _ in bins)


def test_durations_that_hardly_differ_are_one_row():
    assert [count for _, count in count_bins([1.2 + number / 10_000 for number in range(20)])] == [20]


def test_nothing_has_no_quantile():
    assert set(summarize_durations([]).values()) == {0}
    assert count_bins([]) == []


@pytest.mark.parametrize(
    ("part", "blocks", "wanted"),
    [
        (1, True, "████"),
        (0.5, True, "██"),
        (0.4, True, "██"),
        (0.001, True, "█"),
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
