"""What `toolpost doctor` reports, read from its JSON."""

import sys
from pathlib import Path

__all__ = ["EXAMPLES", "Report", "python"]

EXAMPLES = Path(__file__).parents[2] / "examples"


class Report:
    """What a doctor has said.

    Attributes:
        code: how it ended.
        checks: by name; of several with one name the one that is worst.
    """

    def __init__(self, code, told):
        self.code = code
        self.checks = {each["name"]: each for each in sorted(told["checks"], key=_is_failure)}

    def verdicts(self):
        return {name: check["verdict"] for name, check in self.checks.items()}

    def says(self, name):
        check = self.checks[name]
        return "\n".join([check["text"], *check.get("details", []), check.get("hint", "")])


def _is_failure(check):
    return check["verdict"] == "fail"


def python(source, *args):
    return ["--", sys.executable, "-c", source, *args]
