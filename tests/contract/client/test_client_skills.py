"""Skills on a client: what a server may lie about, and what the client refuses."""

import asyncio
import hashlib
from typing import Any

import pytest

from toolpost import Client, Extension, Server, SyncClient
from toolpost.errors import LocalProtocolError, RemoteProtocolError
from toolpost.types import (
    SKILLS_EXTENSION,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    PaginatedRequestParams,
    ResourceContents,
    Skill,
    SkillFile,
)

URI, NOTES = "skill://pdf/SKILL.md", "skill://pdf/notes.md"
FRONT = {"name": "pdf", "description": "Read PDFs."}
TEXT = "---\nname: pdf\ndescription: Read PDFs.\n---\nBody\n"


def entry_of(uri: str, text: str, **changes: Any) -> SkillFile:
    data = text.encode()
    facts: dict[str, Any] = {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
    return SkillFile(uri, **(facts | changes))


def make_skill(*files: SkillFile, **changes: Any) -> Skill:
    listed = [entry_of(URI, TEXT), entry_of(NOTES, "Notes"), *files]
    facts: dict[str, Any] = {"uri": URI, "frontmatter": FRONT, "resources": listed}
    return Skill(**(facts | changes))


class Liar:
    """A server of skills that serves what it was given, and counts what is read."""

    def __init__(self, *skills: Skill, text: str = TEXT) -> None:
        self.read: list[str] = []
        self.skills = list(skills)
        extension = Extension(SKILLS_EXTENSION, for_all_clients=True)

        @extension.method("skills/list", PaginatedRequestParams, ListSkillsResult)
        async def _list(ctx: Any, params: PaginatedRequestParams) -> ListSkillsResult:
            return ListSkillsResult(skills=self.skills)

        @extension.method("skills/get", GetSkillParams, GetSkillResult)
        async def _get(ctx: Any, params: GetSkillParams) -> GetSkillResult:
            return GetSkillResult(skill=self.skills[0])

        self.server = Server("liar", extensions=[extension])

        @self.server.resource(URI)
        def manifest() -> str:
            self.read.append(URI)
            return text

        @self.server.resource(NOTES)
        def notes() -> str:
            self.read.append(NOTES)
            return "Notes"

        @self.server.resource("skill://pdf/unlisted.md")
        def unlisted() -> str:
            self.read.append("unlisted")
            return "x"


def refuse(liar: Liar, error: type[Exception], message: str, path: str = "SKILL.md") -> None:
    async def main() -> None:
        async with Client(liar.server) as client:
            [skill] = await client.list_skills()
            assert liar.read == []
            with pytest.raises(error, match=message):
                await client.read_skill(skill, path)

    asyncio.run(main())


def test_a_file_that_is_the_one_in_the_list_is_returned():
    liar = Liar(make_skill())
    with SyncClient(liar.server) as client:
        [skill] = client.list_skills()
        assert (skill.name, skill.description) == ("pdf", "Read PDFs.")
        assert client.read_skill(skill).text == TEXT
        assert client.read_skill(skill.uri, "notes.md").text == "Notes"
    assert liar.read == [URI, NOTES]


def test_another_digest_or_size_is_refused():
    wrong = entry_of(NOTES, "Motes")
    liar = Liar(make_skill(resources=[entry_of(URI, TEXT), wrong]))
    refuse(liar, RemoteProtocolError, "notes.md does not have the digest", "notes.md")
    wrong = entry_of(NOTES, "Notes", size=6)
    liar = Liar(make_skill(resources=[entry_of(URI, TEXT), wrong]))
    refuse(liar, RemoteProtocolError, "notes.md has 5 bytes, but the skill lists 6", "notes.md")


def test_front_matter_that_differs_from_the_entry_is_refused():
    front = {**FRONT, "description": "Harmless.", "license": "MIT"}
    refuse(Liar(make_skill(frontmatter=front)), RemoteProtocolError, "differs .* in description, license")
    text = "no front matter"
    liar = Liar(make_skill(resources=[entry_of(URI, text)]), text=text)
    refuse(liar, RemoteProtocolError, "is not valid: the file must begin with front matter")
    liar = Liar(make_skill(frontmatter={**FRONT, "name": "other"}, resources="dynamic"))
    refuse(liar, RemoteProtocolError, "differs .* in name")


def test_a_file_that_is_not_listed_is_not_read():
    liar = Liar(make_skill())
    for path in ("unlisted.md", "../pdf/notes.md", "", "/notes.md"):
        refuse(liar, LocalProtocolError, "has no file", path)
    refuse(Liar(make_skill(resources="dynamic")), LocalProtocolError, "has no file", "a/../../other/SKILL.md")
    assert liar.read == []


@pytest.mark.parametrize(
    "changes",
    [
        {"uri": "skill://pdf/README.md"},
        {"resources": [entry_of("skill://other/notes.md", "x"), entry_of(URI, TEXT)]},
        {"resources": [entry_of(URI, TEXT), entry_of(URI, TEXT)]},
        {"resources": [entry_of(f"skill://pdf/{number}", "x") for number in range(513)]},
        {"resources": [entry_of(URI, TEXT, size=17 * 1024 * 1024)]},
    ],
)
def test_an_entry_that_breaks_a_rule_is_refused(changes: dict[str, Any]):
    refuse(Liar(make_skill(**changes)), RemoteProtocolError, "the entry of the skill .* is not valid")


def test_two_different_skills_with_one_uri_are_refused_and_the_same_twice_is_one():
    async def main() -> None:
        liar = Liar(make_skill(), make_skill())
        async with Client(liar.server) as client:
            assert len(await client.list_skills()) == 1
            liar.skills[1] = make_skill(entry_of("skill://pdf/more.md", "x"))
            with pytest.raises(RemoteProtocolError, match="two different skills as skill://pdf/"):
                await client.list_skills()

    asyncio.run(main())


def test_an_answer_with_another_resource_or_damaged_base64_is_refused():
    async def main() -> None:
        server = Server("liar")

        @server.resource(URI)
        def manifest() -> ResourceContents:
            return ResourceContents(NOTES, text=TEXT)

        @server.resource(NOTES)
        def notes() -> ResourceContents:
            return ResourceContents(NOTES, blob="!!!")

        async with Client(server) as client:
            with pytest.raises(RemoteProtocolError, match="something other than the file"):
                await client.read_skill(make_skill())
            with pytest.raises(RemoteProtocolError, match=r"notes\.md is not valid base64"):
                await client.read_skill(make_skill(), "notes.md")

    asyncio.run(main())


def test_a_server_without_skills_has_none():
    async def main() -> None:
        async with Client(Server("plain")) as client:
            assert await client.list_skills() == []

    asyncio.run(main())
