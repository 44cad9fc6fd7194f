"""`toolpost doctor`: walks through what can go wrong with a server, and says what to do.

Owns what is said at the end, and how the command ends. What is looked at is told in `examination`.
"""

import logging
from contextlib import suppress

import click

from toolpost.cli.target import TargetCommand, TargetConnector, add_target_options

__all__ = ["command"]


@click.command("doctor", cls=TargetCommand)
@add_target_options
def command(reach: TargetConnector) -> int:
    """Examine a server: whether it can be reached, what it speaks, what is odd about it.

    Each line is one check. No tool is called, nothing is changed. Ends with 0 if nothing fails, with 1 if
    something does, with 3 if the server cannot be reached, with 4 if it wants a login.
    """
    from toolpost.cli.checkup import DoctorAborted, DoctorReport  # noqa: PLC0415 - help needs none of it
    from toolpost.cli.examination import examine  # noqa: PLC0415 - as above

    logging.getLogger("toolpost").addHandler(logging.NullHandler())  # what there is to say, the checks say
    checkup = DoctorReport(reach.output)
    with suppress(DoctorAborted):
        examine(checkup, reach)
    return checkup.finish(reach.target.label)
