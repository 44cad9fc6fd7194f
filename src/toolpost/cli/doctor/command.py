"""`toolpost doctor`: examines a server, and says what to do about what is wrong.

The checks are loaded when it runs: `examination` has their order.
"""

import logging
from contextlib import suppress

import click

from toolpost.cli.target import TargetCommand, TargetConnector, add_target_options


@click.command("doctor", cls=TargetCommand)
@add_target_options
def command(reach: TargetConnector) -> int:
    """Examine a server: whether it can be reached, what it speaks, what is odd about it.

    Each line is one check. No tool is called, nothing is changed. Ends with 0 if nothing fails, with 1 if
    something does, with 3 if the server cannot be reached, with 4 if it wants a login.
    """
    from toolpost.cli.doctor.examination import examine  # noqa: PLC0415 - help needs none of it
    from toolpost.cli.doctor.report import DoctorAborted, DoctorReport  # noqa: PLC0415 - as above

    logging.getLogger("toolpost").addHandler(logging.NullHandler())  # the checks report it
    checkup = DoctorReport(reach.output)
    with suppress(DoctorAborted):
        examine(checkup, reach)
    return checkup.finish(reach.target.label)
