"""After each test of a transport nothing may be left behind."""

import gc
import threading

import pytest
from leftovers import children, descriptors, eventually


@pytest.fixture(autouse=True)
def nothing_left():
    """No descriptor, no child process and no thread outlives its test."""
    gc.collect()
    before = (descriptors(), children(), threading.active_count())
    yield
    gc.collect()
    eventually(lambda: children() <= before[1], "child processes were left behind")
    eventually(lambda: threading.active_count() <= before[2], "threads were left behind")
    after = descriptors()
    assert after.keys() <= before[0].keys(), {fd: after[fd] for fd in after.keys() - before[0].keys()}
