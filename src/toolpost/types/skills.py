"""Skills, which tell a model how to do something, and the names of the extensions for skills and apps.

A skill is a folder with a file `SKILL.md`; the files are resources. `toolpost.skills` has the rules.
"""

from typing import Final, Literal

from toolpost.types.base import JSON, Params, Result, WireStruct
from toolpost.types.initialize import CacheableResult, PaginatedRequestParams, PaginatedResult
from toolpost.types.resources import Resource

__all__ = [
    "APPS_EXTENSION",
    "APP_MIME_TYPE",
    "SKILLS_EXTENSION",
    "GetSkillParams",
    "GetSkillResult",
    "ListSkillsResult",
    "ReadDirectoryParams",
    "ReadDirectoryResult",
    "Skill",
    "SkillFile",
]

APPS_EXTENSION: Final = "io.modelcontextprotocol/ui"
APP_MIME_TYPE: Final = "text/html;profile=mcp-app"
SKILLS_EXTENSION: Final = "io.modelcontextprotocol/skills"


class SkillFile(WireStruct):
    """A file of a skill. `digest` is `sha256:` and 64 hexadecimal digits."""

    uri: str
    digest: str
    size: int


class Skill(WireStruct):
    """An entry in the list of skills; `uri` is that of its `SKILL.md`.

    Examples:
        >>> front = {"name": "greeting", "description": "How to greet."}
        >>> Skill("skill://greeting/SKILL.md", front, "dynamic").description
        'How to greet.'
    """

    uri: str
    frontmatter: dict[str, JSON]
    resources: list[SkillFile] | Literal["dynamic"]

    @property
    def name(self) -> str:
        """The name in its front matter."""
        return str(self.frontmatter.get("name", ""))

    @property
    def description(self) -> str:
        """The description in its front matter, for the model."""
        return str(self.frontmatter.get("description", ""))

    @property
    def files(self) -> list[SkillFile]:
        """Its files, `SKILL.md` included; those of a dynamic skill are not known."""
        return self.resources if isinstance(self.resources, list) else []


class ListSkillsResult(PaginatedResult):
    """One page of the skills."""

    skills: list[Skill]


class GetSkillParams(Params):
    """The parameters of `skills/get`."""

    uri: str


class GetSkillResult(CacheableResult):
    """The entry of one skill."""

    skill: Skill


class ReadDirectoryParams(PaginatedRequestParams, kw_only=True):
    """The parameters of `resources/directory/read`."""

    uri: str


class ReadDirectoryResult(Result):
    """The direct children of a directory."""

    resources: list[Resource]
    next_cursor: str | None = None
