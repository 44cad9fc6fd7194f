"""`toolpost doctor`: its findings about healthy, odd, broken and unreachable servers."""

import datetime as dt
import json
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
from ipaddress import IPv4Address

import pexpect
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from command_group import command_group
from doctor_report import EXAMPLES, Report, python
from http_sites import Reply, odd_site, our_site
from revision_dates import DATES

DOCTOR = [sys.executable, "-m", "toolpost", "doctor"]
PATIENCE = 40


def doctored(*words, **env):
    """Run the doctor in a separate process; return its exit code and its output."""
    return subprocess.run(
        [*DOCTOR, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **env},
    )


def test_messages_for_a_person_are_printed_line_by_line():
    ended = doctored("--", sys.executable, str(EXAMPLES / "hello.py"))
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert lines[0] == f"ok    command      {sys.executable}"
    assert lines[-1].endswith(": 1 warning.")
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
    """Return a function that creates a certificate for a name and a number of days."""
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
        (None, 90, True, "ok", "the certificate is valid for 89 days"),
        (None, 3, True, "warn", "the certificate expires in 2 day(s)"),
        (None, 90, False, "fail", "self-signed ("),
        (None, -3, True, "fail", "expired ("),
        ("elsewhere.example", 90, True, "fail", "issued for another name"),
    ],
)
def test_a_certificate_is_explained(certified, name, days, trusted, verdict, says):
    path, context = certified(name, days)
    with odd_site(lambda _: Reply(404, b"", None), context) as origin:
        ended = doctored("--json", f"{origin}/mcp", **({"SSL_CERT_FILE": path} if trusted else {}))
    report = Report(ended.returncode, json.loads(ended.stdout))
    assert report.verdicts()["tls"] == verdict
    assert says in report.says("tls")
    assert report.code == (3 if verdict == "fail" else 1)


SCRIPTED = """
import json, sys
answers = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = answers.get(message["method"], {"error": {"code": -32601, "message": "Method not found"}})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def examined(*words, **env):
    """Run the doctor in this process; return its report."""
    ended = CliRunner().invoke(command_group, ["doctor", "--json", *words], env=env, standalone_mode=False)
    if ended.exception is not None:
        raise ended.exception
    assert ended.stderr == ""
    return Report(ended.return_value, json.loads(ended.stdout))


def scripted(**answers):
    """Return a server of the session era with these responses."""
    hello = {
        "protocolVersion": DATES[2],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "scripted", "version": "1"},
    }
    said = {"initialize": {"result": hello}, "ping": {"result": {}}, "tools/list": {"result": {"tools": []}}}
    return python(
        SCRIPTED, json.dumps({**said, **{name.replace("_", "/"): each for name, each in answers.items()}})
    )


# --------------------------------------------------------------------- a command


def test_a_toolpost_file_has_no_failures():
    report = examined(str(EXAMPLES / "notes.py"))
    assert report.code == 0
    assert set(report.verdicts().values()) <= {"ok", "warn"}
    names = "file answer capabilities tools resources templates prompts ping revisions stdout messages"
    assert [*report.checks] == names.split()
    assert report.says("revisions").strip() == ", ".join(DATES)
    assert "revision 2026-07-28 (stateless)" in report.says("answer")


def test_a_revision_can_be_named():
    report = examined("--revision", DATES[1], "--", sys.executable, str(EXAMPLES / "hello.py"))
    assert f"revision {DATES[1]} (session)" in report.says("answer")
    assert "revisions" not in report.checks


@pytest.mark.parametrize(
    ("words", "path", "says"),
    [
        (["pythonn3"], None, "? a host started from the desktop"),
        (["npx", "-y", "server"], "empty", "install Node.js"),
        (["uvx", "server"], "empty", "install uv"),
        (["./plain.py"], None, "./plain.py is not executable\nstart a script with Python"),
        (["./plain.txt"], None, "./plain.txt is not executable\nif it is a program, try chmod +x"),
        (["./nothing"], None, "file not found: ./nothing"),
        (["./empty"], None, "./empty is a folder"),
        (["two words"], None, "pass the arguments as separate words"),
        (["gone.py"], None, "start a script with Python"),
        (["./lost"], None, "requires the interpreter /no/such/interpreter, which does not exist"),
    ],
)
def test_a_program_that_cannot_be_started_is_reported(tmp_path, monkeypatch, words, path, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("plain.py", "plain.txt"):
        (tmp_path / name).touch()
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "lost").chmod(0o755)
    report = examined("--", *words, **({"PATH": str(tmp_path / path)} if path else {}))
    assert report.code == 3
    assert report.verdicts() == {"command": "fail"}
    assert says in report.says("command")


def test_a_file_that_is_not_a_program_is_reported(tmp_path):
    (tmp_path / "text").write_bytes(b"\x00\x01 this is no program\n")
    (tmp_path / "text").chmod(0o755)
    report = examined("--", str(tmp_path / "text"))
    assert (report.code, report.verdicts()) == (3, {"command": "ok", "start": "fail"})
    assert "is not a program" in report.says("start")


def test_a_missing_folder_is_reported(tmp_path):
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"x": {"command": "cat", "cwd": str(tmp_path / "gone")}}}))
    report = examined("--config", str(config), "x")
    assert (report.code, report.verdicts()) == (3, {"folder": "fail"})


def test_npx_without_yes_is_reported(tmp_path):
    npx = tmp_path / "npx"
    npx.write_text("#!/bin/sh\nexit 1\n")
    npx.chmod(0o755)
    assert "add -y: npx -y server" in examined("--", "npx", "server", PATH=str(tmp_path)).says("command")
    assert examined("--", "npx", "-y", "server", PATH=str(tmp_path)).verdicts()["command"] == "ok"


@pytest.mark.parametrize(
    ("source", "name", "says"),
    [
        (
            "raise SystemExit(5)",
            "start",
            "the process ended with exit code 5 before it responded; no output on stderr",
        ),
        ("pass", "start", "does the script call server.run()?"),
        ("print('usage: …')", "stdout", "output that is not an MCP message:\nusage: …\nwrite other output"),
        ("import os; os.kill(os.getpid(), 9)", "start", "the process ended by SIGKILL"),
        (
            "import no_such_module",
            "start",
            "ModuleNotFoundError: No module named 'no_such_module'\ninstall it for",
        ),
        (
            "import sys; sys.stderr.write('busy\\n'); sys.stdin.read()",
            "answer",
            "the server process is still running",
        ),
        (
            "import sys; print('Welcome!', flush=True); sys.stdin.read()",
            "stdout",
            "Welcome!\nwrite other output",
        ),
    ],
)
def test_a_process_that_does_not_answer_is_reported(source, name, says):
    report = examined("--timeout", "1.5", *python(source))
    assert report.code == 3
    assert says in report.says(name)
    if name == "answer":
        assert "busy" in report.says(name)


def test_a_server_that_prints_is_reported():
    hello = str(EXAMPLES / "hello.py")
    source = (
        "import runpy, sys; print('Starting up', flush=True); runpy.run_path(sys.argv[1], {}, '__main__')"
    )
    report = examined(*python(source, hello))
    assert report.code == 1
    assert "Starting up\nwrite other output to stderr" in report.says("stdout")
    assert report.verdicts()["answer"] == "ok"


@pytest.mark.parametrize("end", ["\n", ""])
def test_what_a_server_prints_when_it_ends_is_reported(end):
    *start, source, answers = scripted()
    report = examined(*start, f"{source}\nprint('Good bye', end={end!r})", answers)
    assert report.code == 1
    assert "Good bye\nwrite other output to stderr" in report.says("stdout")


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("def f(:\n", "file", "broken.py, line 1: invalid syntax"),
        ("import no_such_module\n", "start", "No module named 'no_such_module'"),
        ("x = 1\ny = x / 0\n", "start", 'broken.py", line 2'),
        ("x = 1\n", "start", "Error: "),
    ],
)
def test_a_file_that_cannot_be_loaded_is_reported_with_its_lines(tmp_path, text, name, says):
    (tmp_path / "broken.py").write_text(text)
    report = examined(str(tmp_path / "broken.py"))
    assert report.code == 3
    assert says in report.says(name)


# --------------------------------------------------------------------- what a server says


def test_the_era_of_an_old_server_is_reported():
    report = examined(*scripted())
    assert report.code == 0
    assert report.says("revisions").strip() == f"{DATES[2]}; session era only"
    assert report.says("tools").strip() == "the server declares 'tools' but has none"


def tools(*listed):
    return {"result": {"tools": listed}}


@pytest.mark.parametrize(
    ("answers", "name", "verdict", "says"),
    [
        (
            {"tools_list": {"error": {"code": -32601, "message": "no"}}},
            "tools",
            "fail",
            "the server declares 'tools', but: Method not found",
        ),
        (
            {"tools_list": {"error": {"code": -32603, "message": "bang"}}},
            "tools",
            "fail",
            "could not read the list: bang",
        ),
        (
            {"tools_list": {"result": {"tools": [], "nextCursor": "a"}}},
            "tools",
            "fail",
            "the last page has the cursor 'a', but no page follows",
        ),
        (
            {"tools_list": tools({"name": "a b", "inputSchema": {"type": "object"}})},
            "tools",
            "fail",
            "tool a b: invalid name",
        ),
        ({"tools_list": tools({"name": "a"})}, "tools", "fail", "tool a: invalid definition: "),
        (
            {"tools_list": tools({"name": "a"})},
            "messages",
            "fail",
            "result tools/list: invalid result for tools/list",
        ),
        ({"ping": {"error": {"code": -32603, "message": "no"}}}, "ping", "fail", "no"),
        ({"tools_list": {"result": "what"}}, "messages", "fail", "result tools/list: "),
    ],
)
def test_violations_of_a_server_are_reported(answers, name, verdict, says):
    report = examined(*scripted(**answers))
    assert report.code == 1
    assert report.verdicts()[name] == verdict
    assert says in report.says(name)


def test_capabilities_are_compared_with_the_responses():
    hello = {
        "protocolVersion": DATES[3],
        "capabilities": {"resources": {}, "prompts": {}, "logging": {}},
        "serverInfo": {"name": "scripted", "version": "1"},
    }
    report = examined(
        *scripted(initialize={"result": hello}, resources_list={"result": {"resources": [{"uri": "x"}]}})
    )
    verdicts = report.verdicts()
    assert [verdicts[name] for name in ("resources", "prompts", "logging")] == ["fail"] * 3
    assert "templates" not in verdicts
    hello["capabilities"] = {}
    assert "the server declares none" in examined(*scripted(initialize={"result": hello})).says(
        "capabilities"
    )


def test_listed_but_unsupported_revisions_are_reported():
    found = {
        "supportedVersions": [DATES[4], DATES[0]],
        "capabilities": {},
        "ttlMs": 0,
        "cacheScope": "private",
    }
    answer = {"result": {**found, "resultType": "complete"}}
    report = examined(
        *scripted(server_discover=answer, initialize={"error": {"code": -32600, "message": "never"}})
    )
    assert report.code == 1
    assert report.says("revisions").startswith(
        f"the server supports {DATES[4]}, but lists others that fail\n{DATES[0]}"
    )
    found["supportedVersions"] = [DATES[4]]
    answer = {"result": {**found, "resultType": "complete"}}
    report = examined(
        *scripted(server_discover=answer, initialize={"error": {"code": -32600, "message": "never"}})
    )
    assert report.verdicts()["revisions"] == "warn"


# --------------------------------------------------------------------- a URL


def test_a_toolpost_site_has_no_failures():
    with our_site() as url:
        report = examined(url)
        assert report.code == 0
        names = "url tcp http answer capabilities tools ping stream revisions messages"
        assert [*report.checks] == names.split()
        assert report.says("revisions").strip() == ", ".join(DATES)
        wrong = examined(url.replace("/mcp", "/"))
        assert wrong.code == 1
        assert f"there is one at {url}" in wrong.says("http")
        old = examined(url.replace("/mcp", "/sse"))
        assert old.verdicts()["http"] == "ok"
        assert "HTTP+SSE" in old.says("http")
        assert examined("--revision", DATES[3], url).verdicts()["stream"] == "ok"


def test_no_server_is_listening():
    with odd_site(lambda _: Reply()) as origin:
        pass
    refused = examined(f"{origin}/mcp")
    assert (refused.code, refused.verdicts()["tcp"]) == (3, "fail")
    assert "is the server running on this port?" in refused.says("tcp")
    unknown = examined("http://no-such-host.invalid/mcp")
    assert (unknown.code, unknown.verdicts()["dns"]) == (3, "fail")
    assert "http is not encrypted" in unknown.says("url")


def test_a_server_that_never_responds():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        report = examined("--timeout", "0.5", f"http://localhost:{listening.getsockname()[1]}/mcp")
    assert (report.code, report.verdicts()["http"]) == (3, "fail")
    assert "no response within 0.5 s" in report.says("http")
    assert report.verdicts()["dns"] == "ok"


def test_a_proxy_is_reported():
    with odd_site(lambda _: Reply(502, b"", None)) as origin:
        report = examined("http://service.invalid/mcp", http_proxy=origin, no_proxy="", NO_PROXY="")
    assert f"using {origin}" in report.says("proxy")
    assert "502 Bad Gateway" in report.says("http")


@pytest.mark.parametrize(
    ("reply", "code", "says"),
    [
        (Reply(404, b"", None), 1, "no MCP endpoint at this URL: 404 Not Found"),
        (Reply(200, b"<html>", "text/html"), 1, "no MCP endpoint at this URL: 200 OK, text/html"),
        (Reply(403, b"who?", "text/plain"), 1, "403 Forbidden: who?\nthe server may reject the host name"),
        (Reply(421, b"", None), 1, "421 Misdirected Request\nthe server rejects the host name"),
        (Reply(502, b"", None), 1, "a proxy responds, but not the server behind it"),
        (Reply(307, b"", None, {"Location": "/mcp/"}), 1, "use http://127.0.0.1"),
        (Reply(307, b"", None, {"Location": "/mcp"}), 1, "the URL redirects to itself\nfix the redirect"),
        (Reply(400, b"The plain HTTP request was sent to HTTPS port", "text/plain"), 1, "use https://"),
    ],
)
def test_an_invalid_endpoint_is_reported(reply, code, says):
    with odd_site(lambda _: reply) as origin:
        report = examined(f"{origin}/mcp")
    assert report.code == code
    assert report.verdicts()["http"] == "fail"
    assert says in report.says("http")


def test_a_buffered_stream_is_reported():
    hello = {"protocolVersion": DATES[2], "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    results = {"initialize": hello, "ping": {}}

    def answer(request):
        if request.verb != "POST":
            return Reply(405, b"", None)
        message = json.loads(request.body)
        if "id" not in message:
            return Reply(202, b"", None)
        if message["method"] not in results:
            error = {"code": -32601, "message": "Method not found"}
            return Reply(400, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())
        said = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
        return Reply(
            200, b"event: message\ndata: " + json.dumps(said).encode() + b"\n\n", "text/event-stream"
        )

    with odd_site(answer) as origin:
        report = examined(f"{origin}/mcp")
    assert report.code == 0
    assert "content-length header" in report.says("stream")


def test_http_and_https_are_not_the_same(certified):
    with odd_site(lambda _: Reply(404, b"", None)) as origin:
        report = examined(f"{origin.replace('http', 'https')}/mcp")
        assert "try http:// instead of https://" in report.says("tls")
    with odd_site(lambda _: Reply(), certified(None, 90)[1]) as origin:
        report = examined(f"{origin.replace('https', 'http')}/mcp")
        assert (report.code, report.verdicts()["http"]) == (3, "fail")
        assert "https://" in report.says("http")


# --------------------------------------------------------------------- logins


def site_with_login(
    resource, issuer, challenge: str | None = 'Bearer resource_metadata="{origin}/prm", scope="a b"'
):
    """Run a server that requires a token, with this metadata."""

    def answer(request):
        origin = f"http://{request.headers['host']}"
        documents = {"/prm": resource, "/.well-known/oauth-authorization-server": issuer}
        document = documents.get(request.path)
        if document is not None:
            return Reply(200, json.dumps(document).replace("{origin}", origin).encode())
        if request.path != "/mcp":
            return Reply(404, b"", None)
        headers = {"WWW-Authenticate": challenge.replace("{origin}", origin)} if challenge else {}
        return Reply(401, b"", None, headers)

    return odd_site(answer)


RESOURCE = {"resource": "{origin}/mcp", "authorization_servers": ["{origin}"]}
ISSUER = {
    "issuer": "{origin}",
    "authorization_endpoint": "{origin}/authorize",
    "token_endpoint": "{origin}/token",
    "registration_endpoint": "{origin}/register",
    "code_challenge_methods_supported": ["S256"],
}


@pytest.mark.parametrize(
    ("resource", "issuer", "name", "verdict", "says"),
    [
        (RESOURCE, ISSUER, "challenge", "ok", "the server requires a token (bearer), for the scopes a b"),
        (RESOURCE, ISSUER, "metadata", "ok", "the token audience is http://127.0.0.1"),
        (RESOURCE, ISSUER, "issuer", "ok", "supports PKCE"),
        ({**RESOURCE, "resource": "https://other.example/mcp"}, ISSUER, "metadata", "fail", "not for"),
        ({"resource": "{origin}/mcp"}, ISSUER, "metadata", "fail", "lists no authorization server"),
        (RESOURCE, {**ISSUER, "code_challenge_methods_supported": []}, "issuer", "fail", "PKCE with S256"),
        (RESOURCE, {**ISSUER, "token_endpoint": None}, "issuer", "fail", "lacks token_endpoint"),
        (
            RESOURCE,
            {**ISSUER, "registration_endpoint": None},
            "issuer",
            "warn",
            "accepts only pre-registered clients",
        ),
        (RESOURCE, {**ISSUER, "issuer": "https://evil.example"}, "metadata", "fail", "evil.example"),
        (None, ISSUER, "metadata", "warn", "no protected-resource metadata (RFC 9728)"),
        (None, None, "issuer", "warn", "publishes no metadata (RFC 8414)"),
    ],
)
def test_the_metadata_for_a_login_is_checked(resource, issuer, name, verdict, says):
    with site_with_login(resource, issuer) as origin:
        report = examined(f"{origin}/mcp")
    assert report.code == 4
    assert report.verdicts()[name] == verdict
    assert says in report.says(name)
    assert "no token was sent\nuse --header" in report.says("login")


def test_a_token_that_is_not_accepted_is_reported():
    challenge = 'Bearer error="invalid_token"'
    with site_with_login(None, None, challenge) as origin:
        report = examined("--header", "Authorization: Bearer tiger", f"{origin}/mcp")
    assert report.code == 4
    assert report.says("login").startswith("the server rejected the token: invalid_token")
    with site_with_login(RESOURCE, ISSUER, None) as origin:
        assert "401 without a WWW-Authenticate" in examined(f"{origin}/mcp").says("challenge")
