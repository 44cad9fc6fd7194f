"""The fixtures of the cases for every revision and transport."""

from case_fixtures import *  # noqa: F403 - pytest looks for fixtures here
