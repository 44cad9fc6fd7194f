"""Checks of the way to a URL: its form, the host name, the port, the certificate.

From the outside in; `http` goes on from there.
"""

import asyncio
import socket
import ssl
import time
from typing import Any, Final, NoReturn, cast
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from toolpost.auth.urls import is_loopback_host
from toolpost.cli.doctor.report import DoctorReport
from toolpost.transports.backends.backend import describe_error
from toolpost.transports.targets import Http, display_url

STEP_TIMEOUT: Final = 10.0  # seconds for each step
EXPIRY_WARNING_DAYS: Final = 14  # days before the end of a certificate from which on somebody should know
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_CERTIFICATE_ERRORS: Final = (
    ("certificate has expired", "it has expired", "renew it, on the server"),
    ("not yet valid", "it is not valid yet", "is the clock of this machine right?"),
    ("self-signed certificate in certificate chain", "who signed it is not known here", ""),
    ("self-signed certificate", "it is signed by itself", ""),
    ("unable to get local issuer certificate", "who signed it is not known here", ""),
    ("mismatch", "it is for another name", "use the name that it is for, or get one for this name"),
    ("not valid for", "it is for another name", "use the name that it is for, or get one for this name"),
)
"""What OpenSSL says → what it means, and what to do."""
_TRUST_HINT: Final = (
    "let it be signed by somebody whom everybody knows, or set SSL_CERT_FILE to who signed it"
)


async def check_url(checkup: DoctorReport, place: Http) -> None:
    """Look whether something listens there, and who."""
    parts = urlsplit(place.url)
    _check_format(checkup, place.url, parts)
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
    proxy = _find_proxy(parts.scheme, host, port)
    if proxy is not None:
        checkup.ok("proxy", f"the environment leads there through {display_url(proxy)}")
        return
    addresses = await _resolve_host(checkup, host, port)
    address = await _connect(checkup, addresses, host, port)
    if parts.scheme == "https":
        await _check_tls(checkup, address, host)


def _check_format(checkup: DoctorReport, url: str, parts: SplitResult) -> None:
    if parts.path in {"", "/"}:
        hint = "most servers have their endpoint at /mcp, older ones at /sse"
        checkup.warn("url", f"{display_url(url)} has no path", hint)
    elif parts.scheme == "http" and not is_loopback_host(parts.hostname):
        checkup.warn("url", "http is read by everybody on the way", "use https, if the server has it")
    else:
        checkup.ok("url", display_url(url))


def _find_proxy(scheme: str, host: str, port: int) -> str | None:
    proxies = getproxies_environment()
    named = proxies.get(scheme) or proxies.get("all")
    if not named or proxy_bypass(f"{host}:{port}"):
        return None
    return named if "://" in named else f"http://{named}"


async def _resolve_host(checkup: DoctorReport, host: str, port: int) -> list[Any]:
    began = time.monotonic()
    try:
        async with asyncio.timeout(STEP_TIMEOUT):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        checkup.stop_unreachable("dns", f"looking for {host} took more than {STEP_TIMEOUT:g} s")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        hint = "is it spelled right? is there a network?"
        checkup.stop_unreachable("dns", f"nobody knows {host}: {why}", hint)
    addresses = [str(entry[4][0]) for entry in found]
    if addresses != [host]:
        checkup.ok("dns", f"{host} is {', '.join(dict.fromkeys(addresses))}{_format_elapsed(began)}")
    return found


async def _connect(checkup: DoctorReport, addresses: list[Any], host: str, port: int) -> tuple[str, int]:
    """The first address at which somebody listens."""
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
            text = f"{address} listens at port {port}, but not {', '.join(failures)}"
            checkup.warn("tcp", text, f"clients try both; to be quicker, name {address} in the URL")
        else:
            checkup.ok("tcp", f"something listens at port {port}{_format_elapsed(began)}")
        return address, port
    return _report_unreachable(checkup, failures, host, port)


def _report_unreachable(checkup: DoctorReport, failures: list[str], host: str, port: int) -> NoReturn:
    if not all("refused" in failure for failure in failures):
        text, hint = f"there is no way to port {port}", "is a firewall in between? does it need a VPN?"
    else:
        text, hint = f"nothing listens at port {port}", "is the port right?"
    if is_loopback_host(host):
        hint = "is the server running, and at this port?"
    checkup.stop_unreachable("tcp", text, hint, details=failures)


def _format_elapsed(began: float) -> str:
    return f", after {1000 * (time.monotonic() - began):.0f} ms"


async def _check_tls(checkup: DoctorReport, address: tuple[str, int], host: str) -> None:
    context = ssl.create_default_context()
    try:
        async with asyncio.timeout(STEP_TIMEOUT):
            _, writer = await asyncio.open_connection(*address, ssl=context, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        what, hint = _explain_certificate_error(error)
        checkup.stop_unreachable("tls", f"the certificate is not accepted: {what}", hint)
    except ssl.SSLError as error:
        if "WRONG_VERSION_NUMBER" in str(error) or "HTTP_REQUEST" in str(error):
            hint = "it may speak plain http: write http:// instead of https://"
            checkup.stop_unreachable("tls", "the server does not speak TLS", hint)
        checkup.stop_unreachable("tls", f"TLS failed: {error.reason}")
    except (OSError, TimeoutError) as error:
        checkup.stop_unreachable("tls", f"the handshake failed: {describe_error(error)}")
    secured = cast("ssl.SSLObject", writer.get_extra_info("ssl_object"))
    certificate = secured.getpeercert() or {}
    version = secured.version()
    writer.transport.abort()  # a polite end would wait for the server's
    until = cast("dict[str, Any]", certificate).get("notAfter")
    days = None if until is None else int((ssl.cert_time_to_seconds(until) - time.time()) // 86_400)
    if days is not None and days < EXPIRY_WARNING_DAYS:
        checkup.warn("tls", f"{version}, but the certificate expires in {days} day(s)", "renew it")
    else:
        lasting = "" if days is None else f" for {days} days"
        checkup.ok("tls", f"{version}, the certificate is good{lasting}")


def _explain_certificate_error(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    said = error.verify_message or str(error)
    for part, meaning, hint in _CERTIFICATE_ERRORS:
        if part in said:
            return f"{meaning} ({said})", hint or _TRUST_HINT
    return said, ""
