"""`toolpost doctor`: what it says of servers that are well, odd, broken, or not there at all."""

import datetime as dt
import json
import os
import shlex
import signal
import ssl
import subprocess
import sys
from ipaddress import IPv4Address

import pexpect
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from doctor_report import EXAMPLES, Report, python
from http_sites import Reply, odd_site
from revision_dates import DATES

DOCTOR = [sys.executable, "-m", "toolpost", "doctor"]
PATIENCE = 40


def doctored(*words, **env):
    """How a doctor in a process of its own has ended, and what it has said."""
    return subprocess.run(
        [*DOCTOR, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **env},
    )


def test_what_is_said_to_a_person_is_said_line_by_line():
    ended = doctored("--", sys.executable, str(EXAMPLES / "hello.py"))
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert lines[0] == f"ok    command      {sys.executable}"
    assert lines[-1].endswith("works, with 1 warning.")
    assert "\x1b" not in ended.stdout


def test_a_terminal_has_marks_and_colours():
    words = [*DOCTOR, "--revision", DATES[3], "--", sys.executable, str(EXAMPLES / "hello.py")]
    told, code = pexpect.run(
        shlex.join(words),
        withexitstatus=True,
        timeout=PATIENCE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        encoding="utf-8",
    )
    assert code == 0
    assert "✓" in told
    assert "\x1b[" in told


def test_it_can_be_interrupted():
    words = [*DOCTOR, "-v", *python("import sys; sys.stderr.write('ready\\n'); sys.stdin.read()")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("ready\n")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said.strip()) == (130, "")


# --------------------------------------------------------------------- certificates


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """Makes a certificate: for whom, until how many days from now; where it is, and what serves with it."""
    folder = tmp_path_factory.mktemp("certificates")
    now = dt.datetime.now(dt.UTC)

    def make(name, days):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
        own = x509.IPAddress(IPv4Address("127.0.0.1")) if name is None else x509.DNSName(name)
        certificate = (
            x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=100))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([own]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        path = folder / f"{name}{days}.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return str(path), context

    return make


@pytest.mark.parametrize(
    ("name", "days", "trusted", "verdict", "says"),
    [
        (None, 90, True, "ok", "the certificate is good for 89 days"),
        (None, 3, True, "warn", "the certificate expires in 2 day(s)"),
        (None, 90, False, "fail", "it is signed by itself"),
        (None, -3, True, "fail", "it has expired"),
        ("elsewhere.example", 90, True, "fail", "it is for another name"),
    ],
)
def test_a_certificate_is_told_in_words(certified, name, days, trusted, verdict, says):
    path, context = certified(name, days)
    with odd_site(lambda _: Reply(404, b"", None), context) as origin:
        ended = doctored("--json", f"{origin}/mcp", **({"SSL_CERT_FILE": path} if trusted else {}))
    report = Report(ended.returncode, json.loads(ended.stdout))
    assert report.verdicts()["tls"] == verdict
    assert says in report.says("tls")
    assert report.code == (3 if verdict == "fail" else 1)
