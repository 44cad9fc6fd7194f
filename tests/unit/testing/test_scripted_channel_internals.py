"""`ScriptedChannel` keeps the contract of a channel, and follows its script."""

import doctest

import toolpost.testing.channel


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(toolpost.testing.channel).failed == 0
