import json
import os
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Thread

import pytest

from toolpost.cli.errors import CommandError
from toolpost.cli.install.config_file import HostConfigFile
from toolpost.cli.install.hosts import HOSTS

WEATHER = '''
import os
from toolpost import Server

server = Server("weather")


@server.tool
def forecast(city: str) -> str:
    """Tell the weather."""
    return os.environ.get("SKY", "sunshine")
'''


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder that contains only a project with a server, which is the current folder."""
    project = tmp_path / "sky"
    project.mkdir()
    (project / "weather.py").write_text(WEATHER)
    monkeypatch.chdir(project)
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "COPILOT_HOME", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--for cursor", "missing server"),
        ("nothing.py --for cursor", "file not found: nothing.py"),
        ("README.md --for cursor", "README.md is not a Python file"),
        ("weather.py --for windsurf --scope project", "Windsurf has no project configuration"),
        ("http://127.0.0.1:1/mcp --for claude-desktop --name x", "Claude Desktop does not support URLs"),
        ("http://127.0.0.1:1/mcp --for cursor", "requires a name"),
        ("--http nonsense --name x --for cursor", "invalid URL 'nonsense'"),
        ("http://127.0.0.1:1/mcp --for cursor --name x --env A=1", "--env and --http cannot be combined"),
        ("weather.py --for cursor --name a.b", "invalid server name 'a.b'"),
        ("weather.py --for cursor --env NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE is not set in your environment"),
        ("weather.py --for cursor --env =A", "expected NAME=VALUE, not '=A'"),
        ("weather.py --for cursor --print --remove", "--print and --remove cannot be combined"),
        ("weather.py --for nobody", "'nobody' is not one of"),
        ("weather\udcff.py --for cursor", "weather\\udcff.py' is not valid UTF-8"),
        ("weather.py --for cursor --print --env A=\udcff", "'\\udcff' is not valid UTF-8"),
    ],
)
def test_contradictory_options_are_reported(home, words, told):
    (home / "sky" / "weather\udcff.py").write_text(WEATHER)
    from toolpost.cli.install.command import install_command  # noqa: PLC0415 - in this process: many others would take long

    with pytest.raises(Exception) as caught:  # noqa: PT011 - of click's kinds, which are looked at below
        install_command.main(words.split(), standalone_mode=False)
    assert caught.value.exit_code == 2  # pyright: ignore[reportAttributeAccessIssue] - as all of click's
    assert told in str(caught.value)


# --------------------------------------------------------------------- the hosts

PLACES = {
    "claude-desktop": (
        "~/.config/Claude/claude_desktop_config.json",
        "~/Library/Application Support/Claude/claude_desktop_config.json",
        "%/Claude/claude_desktop_config.json",
        None,
    ),
    "claude-code": ("~/.claude.json", "~/.claude.json", "~/.claude.json", ".mcp.json"),
    "cursor": ("~/.cursor/mcp.json", "~/.cursor/mcp.json", "~/.cursor/mcp.json", ".cursor/mcp.json"),
    "vscode": (
        "~/.config/Code/User/mcp.json",
        "~/Library/Application Support/Code/User/mcp.json",
        "%/Code/User/mcp.json",
        ".vscode/mcp.json",
    ),
    "zed": (
        "~/.config/zed/settings.json",
        "~/.config/zed/settings.json",
        "%/Zed/settings.json",
        ".zed/settings.json",
    ),
    "codex": ("~/.codex/config.toml", "~/.codex/config.toml", "~/.codex/config.toml", ".codex/config.toml"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_host_has_its_file_where_it_looks_for_it(home, name):
    *places, project = PLACES[name]
    for platform, place in zip(("linux", "darwin", "win32"), places, strict=True):
        wanted = place.replace("~", str(home)).replace("%", "C:/Roaming")
        assert HOSTS[name].find_config_path("user", {"APPDATA": "C:/Roaming"}, platform) == Path(wanted)
    assert HOSTS[name].find_config_path("project", {}) == (
        None if project is None else home / "sky" / project
    )


def test_a_variable_moves_the_file(home):
    assert HOSTS["codex"].find_config_path("user", {"CODEX_HOME": "/c"}) == Path("/c/config.toml")
    assert HOSTS["vscode"].find_config_path("user", {"XDG_CONFIG_HOME": "/x"}, "linux") == Path(
        "/x/Code/User/mcp.json"
    )
    assert (
        HOSTS["vscode"].find_config_path("user", {}, "win32") == home / "AppData/Roaming/Code/User/mcp.json"
    )


@pytest.mark.parametrize("name", HOSTS)
def test_an_entry_is_put_and_dropped_in_the_file_of_any_host(home, name):
    host = HOSTS[name]
    path = host.find_config_path("user", {})
    assert path is not None
    place = (host.key, "s")
    for entry in (
        host.build_entry(["py", "s.py"], None, {"A": "1"}),
        host.build_entry([], "http://h/mcp", {}),
    ):
        file = HostConfigFile(path, host.form)
        text = file.with_entry(place, entry)
        file.write(text)
        file = HostConfigFile(path, host.form)
        assert file.get_entry(place) == entry
        assert file.with_entry(place, entry) == file.text
    file.write(file.without_entry(place))
    assert not HostConfigFile(path, host.form).get_entry(place)


# --------------------------------------------------------------------- the file

PLACE = ("mcpServers", "s")
ENTRY = {"command": "new", "args": []}


def test_additions_of_a_user_stay(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(
        """{
  "mcpServers": {
    "s": {
      "url": "http://old", // not any more
      "env": {"KEY": "secret"},
      "autoApprove": ["x"] // I trust it
    }
  }
}
"""
    )
    file = HostConfigFile(path, "json")
    changed = file.with_entry(PLACE, {**ENTRY, "env": {"NEW": "1"}})
    assert "// I trust it" in changed
    file.write(changed)
    assert HostConfigFile(path, "json").get_entry(PLACE) == {
        **ENTRY,
        "env": {"KEY": "secret", "NEW": "1"},
        "autoApprove": ["x"],
    }


def test_an_entry_says_the_same_in_more_words(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"s": {"type": "stdio", "command": "new", "args": [], "env": null}}}')
    file = HostConfigFile(path, "json")
    assert file.with_entry(PLACE, ENTRY) == file.text
    assert '"env": {' in file.with_entry(PLACE, {**ENTRY, "env": {"A": "1"}})


@pytest.mark.parametrize(
    ("form", "text", "shown"),
    [
        ("json", '{\n  "key": "a \\"secret\\""\n}\n', '+  "key": "…",\n'),
        ("json", '{\n  "mcpServers": {\n    "x": {"env": {"K": "secret"}}\n  }\n}', '{"env": {"K": "…"}},\n'),
        ("toml", "[mcpServers.x]\nenv = { K = 'secret' }\n", ' env = { K = "…" }\n'),
    ],
)
def test_unchanged_lines_show_no_secrets(tmp_path, form, text, shown):
    path = tmp_path / "config"
    path.write_text(text)
    file = HostConfigFile(path, form)
    diff = file.diff(file.with_entry(PLACE, {**ENTRY, "env": {"MINE": "told"}}))
    assert "secret" not in diff
    assert shown in diff
    assert "told" in diff


def test_changed_values_are_shown_even_if_others_are_equal(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"other": ENTRY, "last": {}}}, indent=2))
    file = HostConfigFile(path, "json")
    diff = file.diff(file.with_entry(("mcpServers", "mine"), ENTRY))
    assert f'+      "command": {json.dumps(ENTRY["command"])},\n' in diff


def test_a_copy_of_each_state_is_kept_with_the_same_permissions(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    real.chmod(0o640)
    link.symlink_to(real)
    for number in ("", "2", "3"):
        file = HostConfigFile(link, "json")
        before = real.read_bytes()
        copy = file.write(file.with_entry(("mcpServers", f"s{number}"), ENTRY))
        assert copy is not None
        assert copy == tmp_path / f"real.json.bak{number}"
        assert copy.read_bytes() == before
        assert copy.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert [*json.loads(real.read_text())["mcpServers"]] == ["s", "s2", "s3"]
    assert len([*tmp_path.iterdir()]) == 5


def test_a_new_file_is_private(tmp_path):
    file = HostConfigFile(tmp_path / "new" / "mcp.json", "json")
    assert file.write(file.with_entry(PLACE, ENTRY)) is None
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_line_ends_and_the_mark_at_the_beginning_stay(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_bytes(b'\xef\xbb\xbf{\r\n  "a": 1\r\n}\r\n')
    file = HostConfigFile(path, "json")
    file.write(file.with_entry(PLACE, ENTRY))
    data = path.read_bytes()
    assert data.startswith(b'\xef\xbb\xbf{\r\n  "a": 1,\r\n')
    assert data.count(b"\n") == data.count(b"\r\n")


@pytest.mark.parametrize(
    ("form", "data", "told"),
    [
        ("json", b'{\n  "a" 1\n}', "invalid JSON in .*: line 2, column 7"),
        ("json", b'{"a": "\xff"}', "is not valid UTF-8 at byte 7"),
        ("json", b'{"mcpServers": []}', '"mcpServers" is not an object'),
        ("toml", b"a = 1\nb = \n", "invalid TOML in .*: .*line 2"),
        ("toml", b"mcpServers = []\n", "could not change .* safely"),
        ("toml", b"[[mcpServers]]\na = 1\n", "could not change .* safely"),
        ("json", b'{"a": ' + b"9" * 5000 + b"}", "invalid JSON in .*: .*digits"),
        ("toml", b"a = " + b"9" * 5000, "invalid TOML in .*: .*digits"),
    ],
)
def test_invalid_or_unexpected_files_are_not_changed(tmp_path, form, data, told):
    path = tmp_path / "config"
    path.write_bytes(data)
    with pytest.raises(CommandError, match=told):
        HostConfigFile(path, form).with_entry(PLACE, ENTRY)
    with suppress(CommandError):  # a list has nothing that could be taken out
        assert HostConfigFile(path, form).without_entry(PLACE).encode() == data
    assert path.read_bytes() == data
    assert [*tmp_path.iterdir()] == [path]


def test_concurrent_changes_are_not_overwritten(tmp_path):
    path = tmp_path / "mcp.json"
    file = HostConfigFile(path, "json")
    path.write_text('{"a": 1}')
    with pytest.raises(CommandError, match="changed in the meantime"):
        file.write(file.with_entry(PLACE, ENTRY))
    assert path.read_text() == '{"a": 1}'


def test_of_several_at_once_none_writes_over_another(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    files = [HostConfigFile(path, "json") for _ in range(8)]
    ready, written = Barrier(len(files)), set[str]()

    def write(number, file):
        text = file.with_entry(("mcpServers", f"s{number}"), ENTRY)
        ready.wait()
        with suppress(CommandError):
            file.write(text)
            written.add(f"s{number}")

    threads = [Thread(target=write, args=each) for each in enumerate(files)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written == {*json.loads(path.read_text())["mcpServers"]}
    assert len(written) == 1


def test_a_read_only_file_is_not_changed(tmp_path, monkeypatch):
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    monkeypatch.setattr(os, "access", lambda *_: False)  # for root, everything may be
    with pytest.raises(CommandError, match="is read-only"):
        HostConfigFile(path, "json")


def test_a_write_error_is_reported_and_nothing_is_left(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "mcp.json"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        file = HostConfigFile(path, "json")
        with pytest.raises(CommandError, match=r"could not write .*: No space left"):
            file.write(file.with_entry(PLACE, ENTRY))
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "folder").mkdir()
    with pytest.raises(CommandError, match="could not read"):
        HostConfigFile(tmp_path / "folder", "json")
