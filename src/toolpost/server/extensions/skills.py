"""The skills of a server: their entries, their files as resources, and the three methods of the extension.

A skill is visible where its `SKILL.md` is: a selection of a server that leaves out the resource leaves out
the skill. The rules of skills, and the files, are in `toolpost.skills`.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from urllib.parse import unquote

from toolpost import types
from toolpost.errors import InvalidParams, ResourceNotFound
from toolpost.protocol import jsonrpc
from toolpost.protocol.extension import Extension
from toolpost.protocol.methods import RESOURCES_LIST
from toolpost.protocol.uri_template import UriTemplate
from toolpost.server.context import Context
from toolpost.server.registry.proxy import ProxyEntry
from toolpost.server.registry.registry import ListKind, Registry, RegistryEntry, apply_cache
from toolpost.server.registry.registry_server import RegistryServer
from toolpost.server.registry.resources import RegisteredResource, check_variables
from toolpost.server.signature.function_schema import BoundFunction
from toolpost.server.sync_context import SyncContext
from toolpost.skills.folder import SkillFolder
from toolpost.skills.manifest import SCHEME, SKILL_FILE, check_front_matter
from toolpost.types.base import Raw
from toolpost.types.content import ResourceContents
from toolpost.types.resources import ReadResourceParams, ReadResourceResult, Resource, ResourceTemplate

if TYPE_CHECKING:
    from toolpost.server.server import Server

logger: Final = logging.getLogger("toolpost.server")

CONTEXT_TYPES: Final = (Context, SyncContext)
MARKDOWN: Final = "text/markdown"
DIRECTORY: Final = "inode/directory"
TEMPLATE: Final = SCHEME + "{+path}"

_SKILLS: Final = ListKind("skills", "skills", "resources", types.ListSkillsResult, "skills")
_MIME_TYPES: Final = {".md": MARKDOWN, ".yaml": "application/yaml", ".yml": "application/yaml"}
"""Types that Python does not know on every machine."""

P = ParamSpec("P")
R = TypeVar("R")


class RegisteredSkill(RegisteredResource[P, R]):
    """A skill whose function returns the text below the front matter."""

    async def serve(self, context: Context, params: ReadResourceParams) -> ReadResourceResult:
        """Read the `SKILL.md`."""
        about = self.resource
        body = await self._threads.run(self.bound, self.bound.read_strings({}), context)
        if not isinstance(body, str):
            raise TypeError(f"{self.__name__}() must return the text of the skill {about.name!r}")
        description = jsonrpc.encode(about.description).decode()  # a JSON string is valid YAML
        text = f"---\nname: {about.name}\ndescription: {description}\n---\n\n{body}"
        return ReadResourceResult(contents=[ResourceContents(params.uri, text=text, mime_type=MARKDOWN)])


class ServerSkills:
    """The skills of one server, and the extension that serves them."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._folders: list[SkillFolder] = []
        self._interval: float | None = None  # seconds between two checks of the folders
        self._shown: dict[SkillFolder, dict[str, types.Skill]] = {}  # what clients were notified of
        self._entries = Registry[ProxyEntry](
            _SKILLS,
            server.broadcaster.broadcast_list_changed,
            server.resources.size,
            server.cache_for(RESOURCES_LIST),
        )
        extension = Extension(types.SKILLS_EXTENSION, settings={"directoryRead": True}, for_all_clients=True)
        add = extension.method
        add("skills/list", types.PaginatedRequestParams, types.ListSkillsResult, repeatable=True)(self._list)
        add("skills/get", types.GetSkillParams, types.GetSkillResult, repeatable=True)(self._get)
        add(
            "resources/directory/read", types.ReadDirectoryParams, types.ReadDirectoryResult, repeatable=True
        )(self._read_directory)
        extension.lifespan(self._watch)
        server.add_extension(extension)

    def add_folder(self, path: "str | os.PathLike[str]", watch: float | None) -> None:
        """Serve the skills in a folder; look for changes every `watch` seconds."""
        folder = SkillFolder(path)
        if self._server.templates.get(TEMPLATE) is None:
            about = ResourceTemplate(TEMPLATE, "skill-file", description="A file of a skill.")
            self._server.templates.replace(self, [ProxyEntry(TEMPLATE, about, self._read)])
        self._show(folder)
        self._folders.append(folder)
        self._interval = watch if self._interval is None else min(watch or inf, self._interval)

    def add_function(
        self, fn: Callable[..., Any], name: str | None, description: str | None
    ) -> RegisteredSkill[..., Any]:
        """Serve a skill that a function makes."""
        server, bound = self._server, BoundFunction(fn, context_types=CONTEXT_TYPES, name=name)
        name, description = name or bound.name.replace("_", "-"), description or bound.summary
        uri, front = f"{SCHEME}{name}/{SKILL_FILE}", {"name": name, "description": description}
        check_variables(bound, UriTemplate(""))
        check_front_matter(front, name)
        about = Resource(uri, name, description=description, mime_type=MARKDOWN)
        entry = RegisteredSkill[..., Any](about, bound, server.resources, server.worker_threads, frozenset())
        server.resources.add(entry)
        skill = ProxyEntry(uri, types.Skill(uri, front, "dynamic"), self._read)
        self._entries.replace(uri, [skill])
        return entry

    # ----------------------------------------------------------------- changes

    async def _refresh(self) -> None:
        """Look for changes, and notify clients of them."""
        for folder in list(self._folders):
            await self._server.worker_threads.run_in_thread(folder.refresh)
            self._show(folder)

    def _show(self, folder: SkillFolder) -> None:
        """List the skills of a folder as they are now; clients are notified if that is a change."""
        skills, before = folder.skills, self._shown.get(folder, {})
        if skills is before:
            return
        self._shown[folder] = skills
        files = [
            ProxyEntry(
                skill.uri,
                Resource(skill.uri, skill.name, description=skill.description, mime_type=MARKDOWN),
                self._read,
            )
            for skill in skills.values()
        ]
        self._server.resources.replace(folder, files)
        self._entries.replace(folder, [ProxyEntry(uri, skill, self._read) for uri, skill in skills.items()])
        old, new = _digests(*before.values()), _digests(*skills.values())
        for uri in [uri for uri in old if new.get(uri) != old[uri]]:
            self._server.notify_resource_updated(uri)

    @asynccontextmanager
    async def _watch(self, _server: object) -> AsyncGenerator[None]:
        """Look for changes while the server serves."""
        watching = asyncio.create_task(self._look())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    async def _look(self) -> None:
        while self._interval is not None:
            await asyncio.sleep(self._interval)
            try:
                await self._refresh()
            except Exception:
                logger.exception("could not look for changes of skills")

    # ----------------------------------------------------------------- methods

    def _find(self, ctx: Context, uri: str) -> RegistryEntry[..., Any] | None:
        """Return the resource of a `SKILL.md`, if the client may see the skill."""
        server = ctx.server
        return server.resources.get(uri) if isinstance(server, RegistryServer) else None

    async def _list(self, ctx: Context, params: types.PaginatedRequestParams) -> Raw:
        await self._refresh()
        assert ctx.incoming is not None, "only requests have routes"
        visible = self._entries.select(
            lambda entry: self._find(ctx, entry.name) is not None, lambda _changed: None
        )
        return visible.get_page(ctx.server.local_peer, ctx.incoming, params.cursor)

    async def _get(self, ctx: Context, params: types.GetSkillParams) -> types.GetSkillResult:
        await self._refresh()
        entry = self._entries.get(params.uri)
        if entry is None or self._find(ctx, params.uri) is None:
            raise InvalidParams(f"Unknown skill: {jsonrpc.shorten(params.uri)}")
        skill: Any = entry.item
        return apply_cache(types.GetSkillResult(skill=skill), ctx.server.cache_for(RESOURCES_LIST))

    async def _read_directory(
        self, ctx: Context, params: types.ReadDirectoryParams
    ) -> types.ReadDirectoryResult:
        if params.cursor:
            raise InvalidParams("Invalid params: the cursor is not valid; directories have one page")
        await self._refresh()
        folder = f"{params.uri}/"
        children: dict[str, Resource] = {}
        for resource in self._list_files(ctx):
            if resource.uri.startswith(folder) and len(folder) > len(SCHEME):
                name, is_folder, _ = resource.uri.removeprefix(folder).partition("/")
                if is_folder:
                    resource = Resource(folder + name, unquote(name), mime_type=DIRECTORY)  # noqa: PLW2901 - in its place
                children.setdefault(resource.uri, resource)
        if not children:
            raise InvalidParams(f"Not a directory: {jsonrpc.shorten(params.uri)}", {"uri": params.uri})
        return types.ReadDirectoryResult(resources=list(children.values()))

    def _list_files(self, ctx: Context) -> Iterator[Resource]:
        """Yield the files of all skills that the client may see."""
        for entry in self._entries:
            manifest = self._find(ctx, entry.name)
            if manifest is None:
                continue
            yield manifest.to_list_item(None)
            skill: Any = entry.item
            for file in skill.files:
                name = unquote(file.uri.rpartition("/")[2])
                if file.uri != entry.name:
                    yield Resource(file.uri, name, mime_type=_guess_type(name), size=file.size)

    async def _read(self, ctx: Context, params: ReadResourceParams) -> ReadResourceResult:
        """Read a file of a skill that the client may see."""
        uri = params.uri
        for folder in list(self._folders):
            data = await self._server.worker_threads.run_in_thread(lambda folder=folder: folder.read(uri))
            self._show(folder)
            owners = [skill.uri for skill in folder.skills.values() if uri in _digests(skill)]
            if data is not None and any(self._find(ctx, owner) is not None for owner in owners):
                return ReadResourceResult(contents=[_make_contents(uri, data)])
        raise ResourceNotFound(f"Resource not found: {uri}", {"uri": uri})


def _digests(*skills: types.Skill) -> dict[str, str]:
    """Return the digests of all files of skills, by URI."""
    return {file.uri: file.digest for skill in skills for file in skill.files}


def _guess_type(name: str) -> str | None:
    import mimetypes  # noqa: PLC0415 - start-up time

    kind = _MIME_TYPES.get(os.path.splitext(name)[1].lower())  # noqa: PTH122 - a name, not a path
    return kind or mimetypes.MimeTypes().guess_type(name)[0]


def _make_contents(uri: str, data: bytes) -> ResourceContents:
    """Return the contents of a file: text if it is UTF-8."""
    from base64 import b64encode  # noqa: PLC0415 - start-up time

    kind = _guess_type(unquote(uri.rpartition("/")[2]))
    try:
        return ResourceContents(uri, text=data.decode(), mime_type=kind or "text/plain")
    except UnicodeDecodeError:
        blob = b64encode(data).decode()
        return ResourceContents(uri, blob=blob, mime_type=kind or "application/octet-stream")
