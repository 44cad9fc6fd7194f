"""`FileGateway`: the server that a file describes, kept up to date while the file changes.

A changed entry restarts that upstream only. A broken file is refused, and the old configuration goes on.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolpost.auth.server.auth import Auth
from toolpost.errors import MCPError
from toolpost.gateway.access import Origin
from toolpost.gateway.audit import Audit
from toolpost.gateway.credentials import CallerTokens, Passthrough, TokenExchange, UserLogins
from toolpost.gateway.edit import Edit
from toolpost.gateway.file import GatewayFile, Problem, expand, read_gateway_file
from toolpost.gateway.policy import Decision, Policy
from toolpost.gateway.settings import (
    ArgumentSettings,
    AuditSettings,
    EditSettings,
    GatewaySettings,
    RateSettings,
    UpstreamAuth,
    UpstreamEntry,
)
from toolpost.protocol.methods import TOOLS_CALL
from toolpost.server.context import Context
from toolpost.server.middleware import Call, Next, RateLimit
from toolpost.server.registry.registry import RegistryEntry
from toolpost.server.server import Server
from toolpost.types.base import JSON, UNSET
from toolpost.version import __version__

if TYPE_CHECKING:
    from toolpost.gateway.mount import Mount

POLL_INTERVAL: Final = 0.25  # seconds between two looks at the file
DEFAULT_GRACE: Final = 60.0  # seconds for which the items of a server that is lost stay listed
SETTLE_TIME: Final = 0.05  # seconds without a change before it is read: an editor may still write


class BrokenFileError(Exception):
    """A file cannot be used. `problems` say why."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class FileGateway:
    """The server for a file.

    Args:
        path: the file.
        report: is called with a line for people when something changes or fails.
        audit: a file for the audit log, instead of the one that the settings name.

    Raises:
        BrokenFileError: the file cannot be used.
    """

    def __init__(
        self, path: Path, report: Callable[[str], object], *, audit: "str | os.PathLike[str] | None" = None
    ) -> None:
        self.path = path
        self._report = report
        self._audit_path = audit
        self._file_state = _read_state(path)
        found = read_gateway_file(path)
        if found.is_broken:
            raise BrokenFileError([each for each in found.problems if each.fatal])
        self._tokens = CallerTokens()
        self._mounts: dict[str, Mount] = {}
        self._origins: dict[int, Origin] = {}
        self._failures: dict[str, str] = {}
        self._logins: list[UserLogins] = []
        self._file = GatewayFile(path)
        self._audit: Audit | None = None
        self._audit_stack: AsyncExitStack | None = None
        self._rates: list[RateLimit] = []
        self._policy = Policy(origin=self._find_origin, on_decision=self._note_decision)
        settings = found.settings
        self.server = Server(
            settings.name,
            version=__version__,
            instructions=settings.instructions,
            middleware=[self._record, self._limit, self._policy],
            lifespan=self._run,
            auth=self._make_auth(settings),
        )
        self.server.health = self._describe_health
        self._use(found)

    def _make_auth(self, settings: GatewaySettings) -> Auth | None:
        given = settings.auth
        if given is None:
            return None
        return self._tokens.watch(Auth(given.issuer, resource=given.audience, scopes=given.scopes))

    # ----------------------------------------------------------------- middleware

    async def _record(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        return await (next(call) if self._audit is None else self._audit(call, next))

    async def _limit(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        for limit in self._rates:
            await limit(call, _do_nothing)
        return await next(call)

    def _note_decision(self, context: Context, number: int, decision: Decision) -> None:
        if self._audit is not None:
            self._audit.note(context, rule=number, decision=decision)

    def _find_origin(self, entry: "RegistryEntry[..., Any]") -> Origin:
        if entry.owner is None:
            return Origin()
        return self._origins.get(id(getattr(entry, "mount", None)), Origin("", trusted=False))

    def _find_upstream(self, call: Call) -> str | None:
        """Return the upstream of the tool that a call is about."""
        entry = self.server.tools.get(getattr(call.params, "name", ""))
        return None if entry is None else self._find_origin(entry).upstream

    # ----------------------------------------------------------------- configuration

    def _use(self, found: GatewayFile) -> list[str]:
        """Use the content of a file; return what has changed."""
        before, changed = self._file, list[str]()
        for name in list(before.upstreams):
            if found.upstreams.get(name) != before.upstreams[name]:
                self._unmount(name)
                changed.append(f"{'changed' if name in found.upstreams else 'removed'} {name}")
        start = found.settings.start
        for name, upstream in found.upstreams.items():
            if name not in before.upstreams:
                changed.append(f"added {name}")
            if upstream != before.upstreams.get(name) or name in self._failures:
                self._mount(upstream, start)
        for problem in found.problems:
            self._report(str(problem))
        self._use_settings(found.settings, before.settings, changed)
        self._file = found
        return changed

    def _use_settings(self, new: GatewaySettings, old: GatewaySettings, changed: list[str]) -> None:
        self._policy.rules = list(new.policy)
        if new.policy != old.policy:
            changed.append("changed the policy")
        if new.rate != old.rate:
            rates = new.rate if isinstance(new.rate, list) else [new.rate]
            self._rates = [self._make_rate(each) for each in rates]
            changed.append("changed the rate limits")
        if self._audit_path is not None:
            self._audit = self._audit or Audit(self._audit_path)
        elif new.audit != old.audit:
            given = AuditSettings(path=new.audit) if isinstance(new.audit, str) else new.audit
            self._audit = None if given is None else _make_audit(self.path.parent, given)
            changed.append("changed the audit log")
        if (new.auth, new.name) != (old.auth, old.name) and self._file.upstreams:
            self._report('"auth" and "name" at the top have no effect until the gateway is started again.')

    def _make_rate(self, given: RateSettings) -> RateLimit:
        keys: dict[str, Callable[[Call], str] | None] = {
            "principal": None,
            "client": _get_client,
            "tool": lambda call: f"tool {getattr(call.params, 'name', '')}",
            "upstream": lambda call: f"upstream {self._find_upstream(call)}",
        }
        return RateLimit(
            given.calls, given.seconds, method=TOOLS_CALL, shared=given.shared, by=keys[given.by]
        )

    def _mount(self, upstream: UpstreamEntry, start: str) -> None:
        name, settings = upstream.name, upstream.settings
        self._failures.pop(name, None)
        try:
            mount = self.server.mount(
                upstream.entry,
                name if settings.name is None else settings.name or None,
                only=settings.only,
                hide=settings.hide,
                tools={tool: _make_edit(edit) for tool, edit in settings.tools.items()},
                start=settings.start or start,  # type: ignore[arg-type] - one of two words
                idle=settings.idle,
                share=settings.share,
                auth=self._make_credentials(name, settings.auth),
                forward=settings.forward,
                grace=DEFAULT_GRACE if settings.grace is None else settings.grace,
            )
        except (MCPError, TypeError, ValueError) as error:
            self._failures[name] = str(error)
            self._report(f"server {name!r}: {error}")
            return
        self._mounts[name] = mount
        self._origins[id(mount)] = Origin(name, settings.trusted)

    def _unmount(self, name: str) -> None:
        self._failures.pop(name, None)
        mount = self._mounts.pop(name, None)
        if mount is not None:
            mount.remove()
            self._origins.pop(id(mount), None)

    def _make_credentials(self, name: str, auth: "str | UpstreamAuth | None") -> Any:
        """Return the credentials of an upstream."""
        if auth is None or isinstance(auth, str):
            return auth
        ((kind, section),) = auth.chosen
        given = {
            key: value for key, value in expand(msgspec.to_builtins(section)).items() if value is not None
        }
        if kind == "exchange":
            return TokenExchange(name, self._tokens, **given)
        if kind == "passthrough":
            return Passthrough(name, self._tokens)
        if kind == "per_user":
            folder = given.pop("storage", None)
            logins = UserLogins(name, None if folder is None else self.path.parent / folder, **given)
            self._logins.append(logins)
            return logins
        from toolpost.auth.client.credential_grants import ClientCredentials, WorkloadIdentity  # noqa: PLC0415 - rarely needed

        if kind == "client_credentials":
            return ClientCredentials(given.pop("client_id"), given.pop("client_secret"), **given)
        file = self.path.parent / given.pop("file")
        return WorkloadIdentity(lambda: file.read_text().strip(), **given)

    # ----------------------------------------------------------------- serving

    @asynccontextmanager
    async def _run(self, _server: object) -> AsyncGenerator[None]:
        """Watch the file while the server serves."""
        await self._switch_audit()
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            for logins in self._logins:
                await logins.close()
            await self._switch_audit(ends=True)

    async def _switch_audit(self, *, ends: bool = False) -> None:
        """End the audit log that is no longer used, and begin the new one."""
        if self._audit_stack is not None:
            stack, self._audit_stack = self._audit_stack, None
            await stack.aclose()
        if self._audit is not None and not ends:
            stack = self._audit_stack = AsyncExitStack()
            await stack.enter_async_context(self._audit.lifespan())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            state = _read_state(self.path)
            if state == self._file_state or state is None:  # an editor may have moved it away
                continue
            while True:
                await asyncio.sleep(SETTLE_TIME)
                state, last = _read_state(self.path), state
                if state == last:
                    break
            self._file_state = state
            if state is not None:
                await self.reload()

    async def reload(self) -> None:
        """Read the file again, and use it unless it is broken."""
        found = await asyncio.to_thread(read_gateway_file, self.path)
        if found.is_broken:
            for problem in found.problems:
                self._report(str(problem))
            self._report("Still running with the previous configuration.")
            return
        audit = self._audit
        changed = self._use(found)
        if self._audit is not audit:
            await self._switch_audit()
        if changed:
            self._report(f"Reloaded {self.path.name}: {', '.join(changed)}.")

    def _describe_health(self) -> tuple[bool, dict[str, JSON]]:
        """Return whether all required upstreams are there, and the state of each."""
        states = {name: self._describe_upstream(name) for name in self._file.upstreams}
        required = [name for name, each in self._file.upstreams.items() if each.settings.required]
        return all(states[name] == "ready" for name in required), {"upstreams": states}

    def _describe_upstream(self, name: str) -> str:
        mount = self._mounts.get(name)
        return "failed" if mount is None else mount.state


async def _do_nothing(_call: Call) -> None:
    """Stand for the rest of a call: a limit is only asked whether it may go on."""


def _read_state(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        found = os.stat(path)  # noqa: PTH116 - runs often
        return found.st_mtime_ns, found.st_size, found.st_ino
    return None


def _make_audit(folder: Path, given: AuditSettings) -> Audit:
    path = folder / Path(given.path).expanduser()
    return Audit(path, arguments=given.arguments, required=given.required)


def _get_client(call: Call) -> str:
    """Return the program that calls: by its token, or as it names itself."""
    principal, info = call.context.principal, call.context.client.info
    return f"client {(principal and principal.client) or (info and info.name) or ''}"


def _make_edit(given: EditSettings) -> Edit:
    arguments = {name: _make_argument(each) for name, each in given.arguments.items()}
    return Edit(
        name=given.name,
        title=given.title,
        description=given.description,
        hide=given.hide,
        arguments=arguments or None,
    )


def _make_argument(given: ArgumentSettings) -> Any:
    if given.constant is not UNSET:
        return Edit.Constant(given.constant)
    return Edit.Argument(given.name, given.description, given.default, given.required)
