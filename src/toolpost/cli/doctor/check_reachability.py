"""Checks before the first message: the program of a command, or the connection to a URL.

Checks files and the server's PATH, or the host name, the port and the certificate. Starts nothing; the next
checks are in `check_http` and `check_session`.
"""

import asyncio
import os
import shutil
import socket
import ssl
import time
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from toolpost.cli.doctor.report import DoctorReport
from toolpost.cli.target import FILE_PATTERN
from toolpost.protocol.urls import is_loopback_host
from toolpost.transports.backends.backend import describe_error
from toolpost.transports.targets import Http, Stdio, display_url

MAX_PROGRAMS: Final = 20_000  # programs on the PATH to compare with a misspelt one
_INSTALL_HINTS: Final = {
    **dict.fromkeys(("node", "npm", "npx"), "install Node.js, which includes it"),
    "bun": "install Bun",
    "bunx": "install Bun, which includes it",
    "deno": "install Deno",
    "uv": "install uv, for example with pip",
    "uvx": "install uv, which includes it, for example with pip",
    "pipx": "install pipx, for example with pip",
    "docker": "install Docker, or start it",
    "podman": "install Podman",
    "python": "on many systems it is called python3",
}
"""Program that starts servers → how to get it."""


def check_command(report: DoctorReport, stdio: Stdio) -> None:
    """Check that a program exists and can be started."""
    if stdio.cwd is not None and not Path(stdio.cwd).is_dir():
        report.stop_unreachable("folder", f"folder not found: {os.fspath(stdio.cwd)}", "correct `cwd`")
    path = stdio.environment().get("PATH", os.defpath)
    named = Path(stdio.cwd or ".", stdio.command).absolute() if os.sep in stdio.command else None
    found = shutil.which(str(named or stdio.command), path=path)
    if found is None:
        text, hint = _explain_missing(stdio.command, named, path)
        report.stop_unreachable("command", text, hint)
    lost = _find_missing_interpreter(Path(found))
    if lost:
        text = f"{found} requires the interpreter {lost}, which does not exist"
        report.stop_unreachable("command", text, "correct its first line, after #!")
    report.ok("command", found)
    if Path(found).stem == "npx" and not {"-y", "--yes"}.intersection(stdio.args):
        report.warn(
            "command",
            f"{stdio.command} asks before it installs a package, and a host cannot answer",
            f"add -y: {stdio.command} -y {' '.join(stdio.args[:1])}…",
        )


def _explain_missing(command: str, named: Path | None, path: str) -> tuple[str, str]:
    if named is not None and named.is_dir():
        return f"{command} is a folder", "name a program in it"
    if named is not None and named.exists():
        if named.suffix == ".py":
            return f"{command} is not executable", f"start a script with Python: -- python3 {command}"
        return f"{command} is not executable", f"if it is a program, try chmod +x {command}"
    if " " in command:
        return f"program not found: {command!r}", "pass the arguments as separate words"
    if command.endswith(".py"):
        return f"program not found: {command}", f"start a script with Python: -- python3 {command}"
    if named is not None:
        return f"file not found: {command}", "correct the path"
    hints = [_INSTALL_HINTS[command]] if command in _INSTALL_HINTS else []
    folders = [Path(folder) for folder in dict.fromkeys(path.split(os.pathsep)) if Path(folder).is_dir()]
    programs = dict.fromkeys(each.name for folder in folders for each in folder.iterdir())
    near = get_close_matches(command, list(islice(programs, MAX_PROGRAMS)), 3, 0.75)
    if near:
        hints.append(f"did you mean {' or '.join(near)}?")
    hints.append("a host started from the desktop has a short PATH: use the full path")
    sentences = (hint if hint.endswith("?") else f"{hint}." for hint in hints)
    return f"program {command} not found on the PATH", " ".join(sentences)


def _find_missing_interpreter(program: Path) -> str:
    """Return the interpreter of a script if it is missing, else an empty string."""
    try:
        with program.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return ""
    words = first[2:].split() if first.startswith(b"#!") else []
    name = os.fsdecode(words[0]) if words else ""
    return "" if not name or Path(name).exists() else name


def check_source(report: DoctorReport, word: str) -> None:
    """Check the syntax of a Python file. Does not search for modules."""
    found = FILE_PATTERN.fullmatch(word)
    if found is None:
        return
    path = Path(found["path"])
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").rstrip()
        text = f"{path}, line {error.lineno}: {error.msg}"
        report.stop_unreachable("file", text, "fix the syntax error", details=[f"  {line}"] if line else [])
    except (OSError, ValueError) as error:
        report.stop_unreachable("file", f"could not read {path}: {error}")
    report.ok("file", f"{path} is valid Python")


# --------------------------------------------------------------------- a URL

STEP_TIMEOUT: Final = 10.0  # seconds for each step
EXPIRY_WARNING_DAYS: Final = 14  # warn if a certificate expires within this many days
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_TRUST_HINT: Final = "use a certificate of a public CA, or set SSL_CERT_FILE to the certificate of your CA"
_NAME_HINT: Final = "use that name in the URL, or get a certificate for this name"
_CERTIFICATE_ERRORS: Final = (
    ("certificate has expired", "expired", "renew it on the server"),
    ("not yet valid", "not valid yet", "check the clock of this machine"),
    ("self-signed certificate in certificate chain", "unknown issuer", _TRUST_HINT),
    ("self-signed certificate", "self-signed", _TRUST_HINT),
    ("unable to get local issuer certificate", "unknown issuer", _TRUST_HINT),
    ("mismatch", "issued for another name", _NAME_HINT),
    ("not valid for", "issued for another name", _NAME_HINT),
)
"""Part of an OpenSSL message → its meaning, and a hint."""


async def check_url(report: DoctorReport, place: Http) -> None:
    """Check the connection to the host and its certificate."""
    parts = urlsplit(place.url)
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
    if parts.path in {"", "/"}:
        hint = "most servers use /mcp, older ones /sse"
        report.warn("url", f"{display_url(place.url)} has no path", hint)
    elif parts.scheme == "http" and not is_loopback_host(host):
        report.warn("url", "http is not encrypted", "use https if the server supports it")
    else:
        report.ok("url", display_url(place.url))
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(f"{host}:{port}"):
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        report.ok("proxy", f"using {display_url(proxy)} from the environment")
        return
    addresses = await _resolve_host(report, host, port)
    address = await _connect(report, addresses, host, port)
    if parts.scheme == "https":
        await _check_tls(report, address, host)


async def _resolve_host(report: DoctorReport, host: str, port: int) -> list[Any]:
    began = time.monotonic()
    try:
        async with asyncio.timeout(STEP_TIMEOUT):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        report.stop_unreachable("dns", f"resolving {host} took more than {STEP_TIMEOUT:g} s")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a valid host name"
        hint = "check the spelling and the network connection"
        report.stop_unreachable("dns", f"could not resolve {host}: {why}", hint)
    addresses = [str(entry[4][0]) for entry in found]
    if addresses != [host]:
        report.ok("dns", f"{host} resolves to {', '.join(dict.fromkeys(addresses))}{_format_elapsed(began)}")
    return found


async def _connect(report: DoctorReport, addresses: list[Any], host: str, port: int) -> tuple[str, int]:
    """Return the first address that accepts connections."""
    failures: list[str] = []
    for entry in addresses:
        address: str = entry[4][0]
        began = time.monotonic()
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                _, writer = await asyncio.open_connection(address, port)
        except (OSError, TimeoutError) as error:
            failures.append(f"{address}: {describe_error(error)}")
            continue
        writer.close()
        if failures:
            text = f"{address} accepts connections on port {port}, but not {', '.join(failures)}"
            report.warn("tcp", text, f"clients try all addresses; use {address} in the URL to connect faster")
        else:
            report.ok("tcp", f"port {port} is open{_format_elapsed(began)}")
        return address, port
    if not all("refused" in failure for failure in failures):
        text, hint = f"could not reach port {port}", "check firewalls, and whether the host requires a VPN"
    else:
        text, hint = f"nothing is listening on port {port}", "check the port"
    if is_loopback_host(host):
        hint = "is the server running on this port?"
    return report.stop_unreachable("tcp", text, hint, details=failures)


def _format_elapsed(began: float) -> str:
    return f", after {1000 * (time.monotonic() - began):.0f} ms"


async def _check_tls(report: DoctorReport, address: tuple[str, int], host: str) -> None:
    context = ssl.create_default_context()
    try:
        async with asyncio.timeout(STEP_TIMEOUT):
            _, writer = await asyncio.open_connection(*address, ssl=context, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        problem, hint = error.verify_message or str(error), ""
        for part, meaning, advice in _CERTIFICATE_ERRORS:
            if part in problem:
                problem, hint = f"{meaning} ({problem})", advice
                break
        report.stop_unreachable("tls", f"invalid certificate: {problem}", hint)
    except ssl.SSLError as error:
        if "WRONG_VERSION_NUMBER" in str(error) or "HTTP_REQUEST" in str(error):
            hint = "the server may use plain http: try http:// instead of https://"
            report.stop_unreachable("tls", "the server does not speak TLS", hint)
        report.stop_unreachable("tls", f"TLS failed: {error.reason}")
    except (OSError, TimeoutError) as error:
        report.stop_unreachable("tls", f"TLS handshake failed: {describe_error(error)}")
    secured = cast("ssl.SSLObject", writer.get_extra_info("ssl_object"))
    certificate = secured.getpeercert() or {}
    version = secured.version()
    writer.transport.abort()  # a TLS shutdown would wait for the server
    until = cast("dict[str, Any]", certificate).get("notAfter")
    days = None if until is None else int((ssl.cert_time_to_seconds(until) - time.time()) // 86_400)
    if days is not None and days < EXPIRY_WARNING_DAYS:
        report.warn("tls", f"{version}, but the certificate expires in {days} day(s)", "renew it")
    else:
        lasting = "" if days is None else f" for {days} days"
        report.ok("tls", f"{version}, the certificate is valid{lasting}")
