"""The store of a server: given as a URL or as an object, opened when it is first needed."""

import subprocess
import sys

import pytest

from toolpost import Handler, Server


@pytest.mark.parametrize("kind", [Server, Handler])
@pytest.mark.parametrize("url", ["nope://x", "http://localhost", "memory", ""])
def test_an_unknown_store_is_refused_at_once(kind, url):
    with pytest.raises(ValueError, match="memory://"):
        kind("s", store=url)


def test_a_server_that_needs_no_store_loads_none():
    script = "import sys; from toolpost import Server; Server('s'); print('toolpost.stores' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
