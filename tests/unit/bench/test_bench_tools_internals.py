"""The small tools of the bench: rejected arguments, output and exit codes."""

from bench import profile


def test_waiting_functions_and_addresses_are_left_out():
    assert profile._title("~", 0, "<method 'poll' of 'select.epoll' objects>") == profile.WAITS
    assert profile._title("~", 0, "<method 'acquire' of '_thread.lock' objects>") == profile.WAITS
    new = "<built-in method __new__ of type object"
    assert profile._title("~", 0, f"{new} at 0x7fd3c7e5ea00>") == f"{new}>"
