"""The keys of a run in files, made by the operator's own code."""

from datetime import UTC, datetime
from pathlib import Path

from fdl_api import names
from fdl_operator.build import pki

RUN, NAMESPACE = "digits", "team"
HOST = names.coordinator_host(RUN, NAMESPACE)
"""DNS name of the coordinator."""


def make_certificates(folder: Path) -> None:
    """The run's authority and the coordinator's certificate: ca.crt, tls.crt and tls.key in a folder."""
    keys = pki.new_keys(RUN, NAMESPACE, datetime.now(UTC))
    for name, text in (("ca.crt", keys.ca), ("tls.crt", keys.certificate), ("tls.key", keys.key)):
        (folder / name).write_text(text)
