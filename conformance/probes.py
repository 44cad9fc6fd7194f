"""All requests of the differential test, for one revision or for all."""

from probe import REVISIONS, Probe, Table
from probes_envelopes import envelopes
from probes_eras import eras
from probes_http import http
from probes_methods import methods

__all__ = ["all_probes", "probes"]


def probes(revision: str) -> list[Probe]:
    """Return all requests of a revision."""
    table = Table(revision)
    for part in (methods, eras, envelopes, http):
        part(table)
    return list(table)


def all_probes() -> list[Probe]:
    """Return all requests."""
    return [probe for revision in REVISIONS for probe in probes(revision)]
