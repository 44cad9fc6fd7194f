"""Settings of a gateway: what stands under "toolpost" in an `mcp.json`, in an entry and at the top.

Only their shapes; `file` reads and checks them.
"""

from typing import Any, Final, Literal

import msgspec

from toolpost.gateway.policy import Rule
from toolpost.types.base import JSON

SECTION: Final = "toolpost"
"""The member that holds our settings; hosts ignore it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings in a file; an unknown member is an error, because it may be a misspelt rule."""


# --------------------------------------------------------------------- of an entry


class ExchangeSettings(Settings, frozen=True):
    """Exchange the token of each caller for one of this server (RFC 8693)."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    audience: str | None = None
    resource: str | None = None
    scopes: list[str] = []


class ClientSettings(Settings, frozen=True):
    """A token of the gateway's own, by the client credentials grant."""

    issuer: str
    client_id: str
    client_secret: str
    scopes: list[str] = []


class WorkloadSettings(Settings, frozen=True):
    """A token of the gateway's own, for the JWT that its platform keeps in a file."""

    file: str
    issuer: str
    client_id: str | None = None
    scopes: list[str] = []


class LoginSettings(Settings, frozen=True):
    """Each caller logs in at this server, once."""

    client_id: str | None = None
    client_secret: str | None = None
    issuer: str | None = None
    redirect_uri: str | None = None
    scopes: list[str] = []
    storage: str | None = None


class PassthroughSettings(Settings, frozen=True):
    """Pass the token of each caller on. The caller's token must name this server as its audience."""

    same_audience: Literal[True]


class UpstreamAuth(Settings, frozen=True):
    """How the gateway authorizes itself at a server: exactly one of these."""

    exchange: ExchangeSettings | None = None
    client_credentials: ClientSettings | None = None
    workload: WorkloadSettings | None = None
    per_user: LoginSettings | None = None
    passthrough: PassthroughSettings | None = None

    @property
    def chosen(self) -> list[tuple[str, Settings]]:
        """The kinds that are set."""
        given = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, each) for name, each in given if each is not None]

    @property
    def needs_caller(self) -> bool:
        """Whether the credentials depend on the token of the caller."""
        return any(each is not None for each in (self.exchange, self.per_user, self.passthrough))


class ArgumentSettings(Settings, frozen=True):
    """A changed argument of a tool."""

    name: str | None = None
    description: str | None = None
    default: JSON = msgspec.UNSET
    constant: JSON = msgspec.UNSET
    required: bool | None = None


class EditSettings(Settings, frozen=True):
    """A changed tool."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    hide: bool = False
    arguments: dict[str, ArgumentSettings] = {}


class UpstreamSettings(Settings, frozen=True):
    """What stands under "toolpost" in the entry of a server."""

    name: str | None = None
    only: list[str] | None = None
    hide: list[str] | None = None
    tools: dict[str, EditSettings] = {}
    start: Literal["eager", "lazy"] | None = None
    idle: float | None = None
    grace: float | None = None
    share: Literal["all", "principal", "session"] | None = None
    auth: Literal["oauth"] | UpstreamAuth | None = None
    forward: list[str] = []
    trusted: bool = False
    required: bool = False


class UpstreamEntry(msgspec.Struct, frozen=True):
    """A server in the file: its entry as hosts read it, and our settings."""

    name: str
    entry: dict[str, Any]
    settings: UpstreamSettings = UpstreamSettings()

    def __repr__(self) -> str:
        return f"UpstreamEntry({self.name!r})"  # entries hold secrets


# --------------------------------------------------------------------- at the top


class InboundAuth(Settings, frozen=True):
    """Which tokens the gateway accepts."""

    issuer: str
    audience: str | None = None
    scopes: list[str] = []


class RateSettings(Settings, frozen=True):
    """A limit of calls."""

    calls: int
    seconds: float = 60.0
    by: Literal["principal", "client", "tool", "upstream"] = "principal"
    shared: bool = False


class AuditSettings(Settings, frozen=True):
    """Where calls are recorded."""

    path: str
    arguments: bool = False
    required: bool = False


class GatewaySettings(Settings, frozen=True):
    """What stands under "toolpost" at the top of the file."""

    name: str = "gateway"
    instructions: str | None = None
    start: Literal["eager", "lazy"] = "eager"
    auth: InboundAuth | None = None
    policy: list[Rule] = []
    rate: RateSettings | list[RateSettings] = []
    audit: str | AuditSettings | None = None
