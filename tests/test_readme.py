"""The code on the first page runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_server_and_the_client_of_the_first_page(tmp_path: Path):
    server, client = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "kitchen.py").write_text(server)
    (tmp_path / "client.py").write_text(client)
    ran = subprocess.run(
        [sys.executable, "client.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("{'dish': 'soup', 'portions': 2}\n", "", 0)
