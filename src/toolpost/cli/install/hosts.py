"""The programs that start MCP servers: the path and the format of each configuration.

A table with one row per host. Accesses no files.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from toolpost.types.base import JSON

Scope = Literal["user", "project"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDefinition:
    """The facts about a host. `{home}`, `{xdg}` and `{data}` stand for folders of the user."""

    title: str
    folder: str
    windows: str | None = None  # the folder on Windows, if it differs
    variable: str | None = None  # the variable that names another folder
    file: str = "mcp.json"
    project: str | None = None  # the file of one project, if the host reads one
    key: str = "mcpServers"  # the key of the servers
    form: Literal["json", "toml"] = "json"
    # Members of each entry besides the command, or the URL; None if the host reads no URLs.
    command: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    remote: Mapping[str, JSON] | None = field(default_factory=dict[str, JSON])
    url: str = "url"  # the key of a URL
    after: str = "The next session loads it; /mcp lists it."  # how to make the host read its file

    def find_config_path(
        self, scope: Scope, environ: Mapping[str, str], platform: str = sys.platform
    ) -> Path | None:
        """Return the file for all projects of the user, or for the one in this folder."""
        if scope == "project":
            return None if self.project is None else Path.cwd() / self.project
        if self.variable and environ.get(self.variable):
            return Path(environ[self.variable], self.file)
        home = str(Path.home())
        named = None if platform in {"darwin", "win32"} else environ.get("XDG_CONFIG_HOME")
        data = xdg = named or f"{home}/.config"
        if platform == "darwin":
            data = f"{home}/Library/Application Support"
        elif platform == "win32":
            data = environ.get("APPDATA") or f"{home}/AppData/Roaming"
        folder = self.windows if self.windows and platform == "win32" else self.folder
        return Path(folder.format(home=home, xdg=xdg, data=data), self.file)

    def build_entry(self, words: list[str], url: str | None, env: Mapping[str, str]) -> dict[str, JSON]:
        """Build the entry of a server: from the words that start it, or from its URL."""
        if url is not None:
            return {**(self.remote or {}), self.url: url}
        entry = {**self.command, "command": words[0], "args": words[1:]}
        return {**entry, "env": dict(env)} if env else entry


_VSCODE: Final = HostDefinition(
    title="VS Code",
    folder="{data}/Code/User",
    project=".vscode/mcp.json",
    key="servers",
    command={"type": "stdio"},
    remote={"type": "http"},
    after="To start it, run “MCP: List Servers” in VS Code.",
)

HOSTS: Final[dict[str, HostDefinition]] = {
    "claude-desktop": HostDefinition(
        title="Claude Desktop",
        folder="{data}/Claude",
        file="claude_desktop_config.json",
        remote=None,
        after="Quit Claude Desktop and start it again; closing its window is not enough.",
    ),
    "claude-code": HostDefinition(
        title="Claude Code",
        folder="{home}",
        variable="CLAUDE_CONFIG_DIR",
        file=".claude.json",
        project=".mcp.json",
        command={"type": "stdio"},
        remote={"type": "http"},
    ),
    "cursor": HostDefinition(
        title="Cursor",
        folder="{home}/.cursor",
        project=".cursor/mcp.json",
        after="Restart Cursor; its settings list the server under MCP.",
    ),
    "vscode": _VSCODE,
    "vscode-insiders": replace(_VSCODE, title="VS Code Insiders", folder="{data}/Code - Insiders/User"),
    "windsurf": HostDefinition(
        title="Windsurf",
        folder="{home}/.codeium/windsurf",
        file="mcp_config.json",
        url="serverUrl",
        after="Press Refresh in Cascade's list of MCP servers.",
    ),
    "zed": HostDefinition(
        title="Zed",
        folder="{xdg}/zed",
        windows="{data}/Zed",
        file="settings.json",
        project=".zed/settings.json",
        key="context_servers",
        command={"source": "custom"},
        after="Zed starts it immediately; the settings of the agent panel list it.",
    ),
    "gemini-cli": HostDefinition(
        title="Gemini CLI",
        folder="{home}/.gemini",
        file="settings.json",
        project=".gemini/settings.json",
        url="httpUrl",
    ),
    "codex": HostDefinition(
        title="Codex",
        folder="{home}/.codex",
        variable="CODEX_HOME",
        file="config.toml",
        project=".codex/config.toml",
        key="mcp_servers",
        form="toml",
    ),
    "copilot-cli": HostDefinition(
        title="Copilot CLI",
        folder="{home}/.copilot",
        variable="COPILOT_HOME",
        file="mcp-config.json",
        project=".mcp.json",
        command={"type": "local", "tools": ["*"]},
        remote={"type": "http", "tools": ["*"]},
    ),
    "kiro": HostDefinition(
        title="Kiro",
        folder="{home}/.kiro/settings",
        project=".kiro/settings/mcp.json",
        after="Kiro connects as soon as the file is saved.",
    ),
    "lm-studio": HostDefinition(
        title="LM Studio",
        folder="{home}/.lmstudio",
        after="Turn it on in LM Studio, under Program.",
    ),
}
"""The choices of `--for`."""

MANAGED_KEYS: Final = frozenset({"command", "args", "env", "type", "url", "httpUrl", "serverUrl", "source"})
"""Members of an entry that define the connection. All others belong to the user, and stay."""
