"""`toolpost.testing`: the scripted channel keeps the promise of a channel and does what the script says."""

import doctest

import toolpost.testing.channel


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(toolpost.testing.channel).failed == 0
