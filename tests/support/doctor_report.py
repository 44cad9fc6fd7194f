"""The JSON report of `toolpost doctor`."""

import sys
from pathlib import Path

__all__ = ["EXAMPLES", "Report", "python"]

EXAMPLES = Path(__file__).parents[2] / "examples"


class Report:
    """The report of `toolpost doctor`.

    Attributes:
        code: the exit code.
        checks: by name; of several with the same name, the worst.
    """

    def __init__(self, code, report):
        self.code = code
        self.checks = {each["name"]: each for each in sorted(report["checks"], key=_is_failure)}

    def verdicts(self):
        return {name: check["verdict"] for name, check in self.checks.items()}

    def says(self, name):
        check = self.checks[name]
        return "\n".join([check["text"], *check.get("details", []), check.get("hint", "")])


def _is_failure(check):
    return check["verdict"] == "fail"


def python(source, *args):
    return ["--", sys.executable, "-c", source, *args]
