"""A way to get tokens: what all of them have in common, and what each has to do for itself.

Owns what a user may say about any of them, and one account for each server that the grant is used with. Keeps
the promise of an authorizer; what happens at one server is told in `account`.

PART given: What a user hands to a grant, looked at before anything is asked of anybody.

Owns the words for what cannot be meant. None of them repeats what may be a secret.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, cast
from weakref import WeakKeyDictionary

from toolpost.auth.client.discovery import DiscoveredServer, split_scopes
from toolpost.auth.client.signing import DpopProver
from toolpost.auth.client.storage import MemoryTokens, Storage, Vault
from toolpost.auth.client.token_endpoint import ClientIdentity, Tokens
from toolpost.auth.fetch import AuthHttpClient
from toolpost.auth.urls import UrlPolicy, parse_http_url, redact_url
from toolpost.errors import AuthError


def normalize_scopes(what: str, scopes: "str | Iterable[str] | None") -> tuple[str, ...]:
    """Scopes as a user gives them: a list, or a text with spaces.

    Raises:
        TypeError: this is neither, or one of them is no text.
        ValueError: one of them cannot be a scope.
    """
    if scopes is None:
        return ()
    if not isinstance(cast("object", scopes), Iterable):
        raise TypeError(f"{what}: a list of texts, not a {type(scopes).__name__}")
    given: list[Any] = scopes.split() if isinstance(scopes, str) else [*scopes]
    for scope in given:
        if not isinstance(scope, str):
            raise TypeError(f"{what}: a list of texts, not {scope!r}")
        if split_scopes(scope) != (scope,):
            raise ValueError(f"{what}: {scope!r} cannot be a scope")
    return tuple(dict.fromkeys(given))


def check_text(what: str, given: object, *, needed: bool = False) -> None:
    """Return if something is a text with something in it, or was not given and is not needed.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty.
    """
    if (needed or given is not None) and not isinstance(given, str):
        raise TypeError(f"{what}: a text, not a {type(given).__name__}")
    if given == "":
        raise ValueError(f"{what} is empty; is a variable of the environment not set?")


def check_issuer_url(what: str, given: object) -> None:
    """Return if something is the URL of an authorization server, or was not given.

    Raises:
        TypeError: it is no text.
        ValueError: it is no URL.
    """
    check_text(what, given)
    if isinstance(given, str):
        try:
            parse_http_url(given, f"{what}={given[:80]!r}")
        except AuthError as error:
            raise ValueError(f"{error.message}; it looks like https://login.example.com") from None


def check_flag(what: str, given: object, *others: object) -> None:
    """Return if something is True or False, or one of some others.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(given, bool) and not any(given is other or given == other for other in others):
        choices = ", ".join(repr(choice) for choice in (True, False, *others))
        raise TypeError(f"{what}: one of {choices}, not {given!r}")


def check_seconds(what: str, given: object) -> None:
    """Return if something is a time that passes.

    Raises:
        TypeError: it is no number.
        ValueError: it is none that is above zero.
    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{what}: seconds, not a {type(given).__name__}")
    if not given > 0 or math.isinf(given):
        raise ValueError(f"{what}: seconds above zero, not {given!r}")


def check_callable(what: str, given: object) -> None:
    """Return if something can be called, or was not given.

    Raises:
        TypeError: it cannot.
    """
    if given is not None and not callable(given):
        raise TypeError(f"{what}: a function, not a {type(given).__name__}")


def check_storage(given: object) -> None:
    """Return if something can keep tokens, or was not given.

    Raises:
        TypeError: it cannot.
    """
    if isinstance(given, type):
        raise TypeError(f"storage={given.__name__}: this is a class; make one of it: {given.__name__}(…)")
    if given is not None and not isinstance(given, Storage):
        raise TypeError(
            f"storage: FileTokens(folder), MemoryTokens(), or an object with get, put and delete, "
            f"not a {type(given).__name__}"
        )


# --------------------------------------------------------------------- grant

DpopMode: TypeAlias = "bool | Literal['auto']"
"""Whether tokens are bound to a key: always, never, or where both servers speak of it."""


class AuthorizableRequest(Protocol):
    """A request, as `transports.authorizer` describes it."""

    @property
    def server(self) -> str: ...  # noqa: D102 - described there
    @property
    def method(self) -> str: ...  # noqa: D102 - described there
    @property
    def url(self) -> str: ...  # noqa: D102 - described there
    @property
    def unattended(self) -> bool: ...  # noqa: D102 - described there


class UnauthorizedResponse(Protocol):
    """A refusal, as `transports.authorizer` describes it."""

    @property
    def status(self) -> int: ...  # noqa: D102 - described there
    @property
    def headers(self) -> Mapping[str, str]: ...  # noqa: D102 - described there
    @property
    def sent(self) -> Mapping[str, str]: ...  # noqa: D102 - described there
    @property
    def challenge(self) -> str: ...  # noqa: D102 - described there


class TokenProvider(Protocol):
    """What a grant holds at one server."""

    async def headers(self, errand: AuthorizableRequest, /) -> Mapping[str, str]: ...  # noqa: D102 - an authorizer's
    async def on_rejected(self, errand: AuthorizableRequest, refused: UnauthorizedResponse, /) -> bool: ...  # noqa: D102 - an authorizer's
    def on_accepted(  # noqa: D102 - an authorizer's
        self, errand: AuthorizableRequest, headers: Mapping[str, str], sent: Mapping[str, str], /
    ) -> None: ...


class GrantSettings(NamedTuple):
    """What may be said about every grant.

    Args:
        scopes: what to ask for, besides what a server wants.
        dpop: whether tokens are bound to a key.
        http: what carries requests to authorization servers.
        allow_private: whether these may lie further in than the MCP server.
        allow_http: whether plain http is good enough elsewhere than on loopback.
    """

    scopes: tuple[str, ...] = ()
    dpop: DpopMode = "auto"
    http: object = None
    allow_private: bool = False
    allow_http: bool = False

    def make_url_policy(self, server: str) -> UrlPolicy:
        """Who says where requests may go."""
        return UrlPolicy(server, allow_private=self.allow_private, allow_http=self.allow_http)


class TokenRequest(NamedTuple):
    """One attempt to get tokens.

    Args:
        fetch: carries requests.
        storage: keeps things.
        server: what is known of the server, and who issues its tokens.
        scopes: what to ask for.
        proofs: proves that the tokens are used by us; None if they are not bound.
    """

    fetch: AuthHttpClient
    storage: Vault
    server: DiscoveredServer
    scopes: tuple[str, ...]
    proofs: DpopProver | None = None

    @property
    def scope_param(self) -> dict[str, str]:
        """The scopes as a field of a form; nothing if there are none."""
        return {"scope": " ".join(self.scopes)} if self.scopes else {}

    @property
    def resource_param(self) -> dict[str, str]:
        """The resource as a field of a form, exactly as published (AUTH-40)."""
        return {"resource": self.server.resource.resource}


class Grant(ABC):
    """A way to get tokens, for any number of servers.

    Args:
        settings: what the user says.
        storage: where tokens are kept.
        client_key: tells the clients apart that share a storage.
        issuer: the one authorization server where the credentials may be shown; None pins the first.
        pinned: whether there are credentials that belong to one authorization server.

    Raises:
        TypeError: something is of the wrong type.
        ValueError: something cannot be meant.
    """

    asks_user: ClassVar[bool] = False
    """Whether getting tokens bothers a person."""
    steps_up: ClassVar[bool] = True
    """Whether it helps to ask for more scopes."""

    def __init__(
        self,
        settings: GrantSettings,
        *,
        storage: Storage | None = None,
        who: str = "",
        issuer: str | None = None,
        pinned: bool = False,
    ) -> None:
        check_flag("dpop", settings.dpop, "auto")
        check_flag("allow_private", settings.allow_private)
        check_flag("allow_http", settings.allow_http)
        check_storage(storage)
        check_issuer_url("issuer", issuer)
        self.settings = settings
        self.storage = Vault(MemoryTokens() if storage is None else storage)
        self.client_key = f"{type(self).__name__} {who}"  # what one kind of grant got is not for another
        self.issuer = issuer
        self._pinned = pinned
        self._providers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, TokenProvider]] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    # ----------------------------------------------------------------- what an authorizer promises

    async def headers(self, errand: AuthorizableRequest, /) -> Mapping[str, str]:
        """The token for a request, if there is one."""
        return await self._get_provider(errand.server).headers(errand)

    async def on_rejected(self, errand: AuthorizableRequest, refused: UnauthorizedResponse, /) -> bool:
        """Get another token, if that may help."""
        return await self._get_provider(errand.server).on_rejected(errand, refused)

    def on_accepted(
        self, errand: AuthorizableRequest, headers: Mapping[str, str], sent: Mapping[str, str], /
    ) -> None:
        """A request was not refused."""
        self._get_provider(errand.server).on_accepted(errand, headers, sent)

    def _get_provider(self, server: str) -> TokenProvider:
        accounts = self._providers.setdefault(asyncio.get_running_loop(), {})
        account = accounts.get(server)
        if account is None:
            from toolpost.auth.client.token_manager import ServerTokenProvider  # noqa: PLC0415 - each knows the other

            self.settings.make_url_policy(server).check_scheme(server, "the URL of the server")
            account = accounts[server] = ServerTokenProvider(server, self)
        return account

    def pin(self, issuer: str) -> None:
        """Note where the credentials are from, or see that they are from there (AUTH-29, AUTH-32).

        Raises:
            AuthError: they are from elsewhere.
        """
        if not self._pinned:
            return
        if self.issuer is None:
            self.issuer = issuer
        elif self.issuer != issuer:
            raise AuthError(
                f"the credentials are for {redact_url(self.issuer)}, "
                f"but the server names {redact_url(issuer)}",
                hint="if the server has moved to another authorization server, register the client there",
            )

    # ----------------------------------------------------------------- what each grant does

    @abstractmethod
    async def obtain(self, visit: TokenRequest) -> Tokens:
        """New tokens.

        Raises:
            AuthError: there are none.
        """

    @abstractmethod
    async def identity(self, visit: TokenRequest) -> ClientIdentity | None:
        """Who asks when a token is refreshed; None if nobody can."""

    async def forget_registration(self, visit: TokenRequest) -> None:  # noqa: B027 - a hook; most have nothing to forget
        """The authorization server does not know the client any more."""
