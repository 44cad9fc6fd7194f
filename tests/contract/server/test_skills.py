"""Skills of a server: entries, digests, hostile files, changes, functions, older revisions."""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from toolpost import Cache, Client, Context, Server
from toolpost.errors import InvalidParams, MCPError, MethodNotFound, ResourceNotFound
from toolpost.types import GetSkillResult, ResourceUpdatedParams, Skill
from waiting import until

STATELESS, SESSION = "2026-07-28", "2025-11-25"
FRONT = "---\nname: {name}\ndescription: Do {name}.\n---\n\nBody\n"

Visit = Callable[[Client], Awaitable[None]]


def write_skill(folder: Path, **files: str | bytes) -> Path:
    """Write a skill; `_` in the name of a file is a slash."""
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(FRONT.format(name=folder.name))
    for name, data in files.items():
        path = folder / name.replace("__", ".").replace("_", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def visit(server: Server, see: Visit, revision: str = STATELESS, **options: Any) -> None:
    async def main() -> None:
        async with Client(server, revision=revision, **options) as client:
            await see(client)

    asyncio.run(main())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_skill(tmp_path / "pdf", references_forms__md="Forms", logo__png=b"\x89PNG\xff")
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Server:
    server = Server("desk")
    server.skills(folder, watch=None)
    return server


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# --------------------------------------------------------------------- entries


def test_a_skill_is_listed_with_its_front_matter_and_all_its_files(server: Server, folder: Path):
    (folder / "pdf" / "SKILL.md").write_text(
        "---\nname: pdf\ndescription: Read PDFs.\nmetadata: {released: 2026-07-28, stable: yes}\n---\n"
    )

    async def see(client: Client) -> None:
        assert client.capabilities.resources is not None
        assert client.capabilities.extensions == {"io.modelcontextprotocol/skills": {"directoryRead": True}}
        [skill] = await client.list_skills()
        assert skill.uri == "skill://pdf/SKILL.md"
        assert skill.frontmatter["metadata"] == {"released": "2026-07-28", "stable": "yes"}
        listed = {file.uri: (file.digest, file.size) for file in skill.files}
        assert next(iter(listed)) == skill.uri
        for path in ("SKILL.md", "logo.png", "references/forms.md"):
            data = (folder / "pdf" / path).read_bytes()
            assert listed.pop(f"skill://pdf/{path}") == (digest(data), len(data))
        assert not listed
        [resource] = await client.list_resources()
        assert (resource.uri, resource.name, resource.description) == (skill.uri, "pdf", "Read PDFs.")

    visit(server, see)


def test_a_skill_is_returned_by_its_uri_and_no_other(server: Server):
    async def see(client: Client) -> None:
        got = await client.request("skills/get", {"uri": "skill://pdf/SKILL.md"}, result_type=dict[str, Any])
        assert got["skill"]["frontmatter"]["name"] == "pdf"
        assert got["cacheScope"] == "private"
        for uri in (
            "skill://pdf",
            "skill://pdf/logo.png",
            "skill://pdf/../pdf/SKILL.md",
            "skill://x/SKILL.md",
        ):
            with pytest.raises(InvalidParams, match="Unknown skill"):
                await client.request("skills/get", {"uri": uri})

    visit(server, see)


def test_a_directory_has_its_direct_children(server: Server):
    async def read(client: Client, uri: str, **more: str) -> list[dict[str, Any]]:
        asked = {"uri": uri, **more}
        return (await client.request("resources/directory/read", asked, result_type=dict[str, Any]))[
            "resources"
        ]

    async def see(client: Client) -> None:
        children = {each["uri"]: each for each in await read(client, "skill://pdf")}
        assert list(children) == ["skill://pdf/SKILL.md", "skill://pdf/logo.png", "skill://pdf/references"]
        assert children["skill://pdf/references"]["mimeType"] == "inode/directory"
        assert children["skill://pdf/logo.png"]["size"] == 5
        [form] = await read(client, "skill://pdf/references")
        assert (form["name"], form["mimeType"]) == ("forms.md", "text/markdown")
        for uri in ("skill://pdf/", "skill://pdf/SKILL.md", "skill:/", "skill://other", "ui://pdf"):
            with pytest.raises(InvalidParams, match="Not a directory"):
                await read(client, uri)
        with pytest.raises(InvalidParams, match="cursor"):
            await read(client, "skill://pdf", cursor="x")

    visit(server, see)


def test_a_list_has_pages_that_never_split_a_skill(tmp_path: Path):
    for name in ("a", "b", "c"):
        write_skill(tmp_path / name, x__md="x")
    server = Server("desk", page_size=2, cache={"resources/list": Cache(60)})
    server.skills(tmp_path, watch=None)

    async def see(client: Client) -> None:
        first = await client.request("skills/list", {}, result_type=dict[str, Any])
        assert [each["frontmatter"]["name"] for each in first["skills"]] == ["a", "b"]
        assert (first["ttlMs"], first["cacheScope"]) == (60_000, "private")
        assert [len(each.files) for each in await client.list_skills()] == [2, 2, 2]
        with pytest.raises(InvalidParams, match="cursor"):
            await client.request("skills/list", {"cursor": "x"})

    visit(server, see)


def test_a_folder_inside_a_skill_may_be_a_skill_too(tmp_path: Path):
    write_skill(write_skill(tmp_path / "acme" / "billing", rates__md="1") / "refunds", steps__md="2")
    server = Server("desk")
    server.skills(tmp_path, watch=None)

    async def see(client: Client) -> None:
        outer, inner = sorted(await client.list_skills(), key=lambda each: each.uri)
        assert (outer.uri, inner.uri) == (
            "skill://acme/billing/SKILL.md",
            "skill://acme/billing/refunds/SKILL.md",
        )
        assert {file.uri for file in inner.files} < {file.uri for file in outer.files}
        assert (await client.read_skill(inner, "steps.md")).text == "2"
        assert (await client.read_skill(outer, "refunds/steps.md")).text == "2"

    visit(server, see)


def test_a_folder_may_be_a_skill_itself_and_names_are_encoded(tmp_path: Path):
    skill = write_skill(tmp_path / "solo")
    (skill / "my notes #1.md").write_text("ä")
    (skill / "data").write_bytes(b"\xff")
    server = Server("desk")
    server.skills(skill, watch=None)

    async def see(client: Client) -> None:
        [entry] = await client.list_skills()
        assert "skill://solo/my%20notes%20%231.md" in [file.uri for file in entry.files]
        notes = await client.read_skill(entry, "my notes #1.md")
        assert (notes.text, notes.mime_type) == ("ä", "text/markdown")
        assert (await client.read_skill(entry, "data")).mime_type == "application/octet-stream"

    visit(server, see)


# --------------------------------------------------------------------- registration


def break_name(skill: Path) -> None:
    (skill / "SKILL.md").write_text(FRONT.format(name="other"))


def break_encoding(skill: Path) -> None:
    (skill / "SKILL.md").write_bytes(b"\xff")


def add_files(skill: Path) -> None:
    for number in range(512):
        (skill / f"{number}.md").touch()


def add_bytes(skill: Path) -> None:
    with (skill / "large").open("wb") as file:
        file.truncate(16 * 1024 * 1024)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (break_name, "SKILL.md: name: 'other' must be the name of its folder, 'pdf'"),
        (break_encoding, "SKILL.md: .*utf-8"),
        (add_files, "pdf: 515 files .limit: 512."),
        (add_bytes, r"pdf: 167\d+ bytes .limit: 16777216."),
    ],
)
def test_a_skill_that_breaks_a_rule_is_refused_when_it_is_registered(folder: Path, spoil, message: str):
    spoil(folder / "pdf")
    with pytest.raises(ValueError, match=message):
        Server("desk").skills(folder)


def test_a_folder_without_skills_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="not a folder"):
        Server("desk").skills(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"no folder in it has a file SKILL\.md"):
        Server("desk").skills(tmp_path)
    with pytest.raises(ValueError, match="watch"):
        Server("desk").skills(tmp_path, watch=0)


def test_two_skills_cannot_have_the_same_uri(server: Server, folder: Path):
    with pytest.raises(ValueError, match=r"'skill://pdf/SKILL\.md' is already registered"):
        server.skills(folder)

    with pytest.raises(ValueError, match="already registered"):

        @server.skill
        def pdf() -> str:
            """Read PDFs."""
            return "Read."


# --------------------------------------------------------------------- hostile files


def test_what_leads_out_or_is_not_a_file_is_left_out(folder: Path, caplog: pytest.LogCaptureFixture):
    skill = folder / "pdf"
    secret = folder.with_name("secret.txt")
    secret.write_text("secret")
    (skill / ".env").write_text("secret")
    (skill / "out.md").symlink_to(secret)
    (skill / "folder").symlink_to(folder.parent)
    (skill / "hidden.md").symlink_to(skill / ".env")
    (skill / "inside.md").symlink_to(skill / "references" / "forms.md")
    (skill / "broken.md").symlink_to(skill / "nothing")
    (skill / "line\nend.md").write_text("x")
    os.mkfifo(skill / "pipe")
    server = Server("desk")
    server.skills(folder, watch=None)

    async def see(client: Client) -> None:
        [entry] = await client.list_skills()
        names = {file.uri.removeprefix("skill://pdf/") for file in entry.files}
        assert names == {"SKILL.md", "inside.md", "logo.png", "references/forms.md"}
        assert (await client.read_skill(entry, "inside.md")).text == "Forms"
        for path in (
            "out.md", "pipe", ".env", "hidden.md", "folder/secret.txt", "../secret.txt", "%2e%2e/secret.txt",
            "references/../SKILL.md", "/etc/passwd", "references", "", "line%0Aend.md",
        ):  # fmt: skip
            with pytest.raises((InvalidParams, ResourceNotFound)):
                await client.read_resource(f"skill://pdf/{path}")

    visit(server, see)
    for name in ("out.md", "folder", "hidden.md", "broken.md", "pipe", "line"):
        assert sum(f"pdf/{name}" in record.getMessage() for record in caplog.records) == 1


def test_a_file_that_becomes_a_link_is_not_served_any_more(server: Server, folder: Path):
    (secret := folder.with_name("key.txt")).write_text("secret")

    async def see(client: Client) -> None:
        uri = "skill://pdf/references/forms.md"
        assert (await client.read_resource(uri)).contents[0].text == "Forms"
        forms = folder / "pdf" / "references" / "forms.md"
        forms.unlink()
        forms.symlink_to(secret)
        with pytest.raises(InvalidParams):
            await client.read_resource(uri)

    visit(server, see)


# --------------------------------------------------------------------- changes


@pytest.mark.parametrize("revision", [STATELESS, SESSION])
def test_a_change_is_announced_and_the_next_answer_has_it(folder: Path, revision: str):
    heard: list[tuple[str, str | None]] = []

    def hear(method: str, params: Any) -> None:
        heard.append((method, params.uri if isinstance(params, ResourceUpdatedParams) else None))

    server = Server("desk")
    server.skills(folder, watch=0.01)

    async def see(client: Client) -> None:
        await client.subscribe("skill://pdf/references/forms.md")
        before = await client.list_skills()
        (folder / "pdf" / "references" / "forms.md").write_text("New forms")
        write_skill(folder / "tidy")
        changed = ("notifications/resources/list_changed", None)
        updated = ("notifications/resources/updated", "skill://pdf/references/forms.md")
        await until(lambda: changed in heard and updated in heard)
        if revision == SESSION:
            return
        after, tidy = await client.list_skills()
        assert (after.uri, tidy.name) == (before[0].uri, "tidy")
        assert (await client.read_skill(after, "references/forms.md")).text == "New forms"
        with pytest.raises(MCPError, match="has 9 bytes, but the skill lists 5"):
            await client.read_skill(before[0], "references/forms.md")

    visit(server, see, revision, on_notification=hear)


def test_a_change_that_no_clock_shows_is_found_when_the_file_is_read(server: Server, folder: Path):
    async def see(client: Client) -> None:
        path = folder / "pdf" / "references" / "forms.md"
        await client.list_skills()
        times = path.stat()
        path.write_text("Norms")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert (await client.read_resource("skill://pdf/references/forms.md")).contents[0].text == "Norms"
        [after] = await client.list_skills()
        assert digest(b"Norms") in [file.digest for file in after.files]

    visit(server, see)


def test_a_skill_that_becomes_invalid_is_left_out_until_it_is_valid(
    server: Server, folder: Path, caplog: pytest.LogCaptureFixture
):
    manifest = folder / "pdf" / "SKILL.md"
    good = manifest.read_text()

    async def see(client: Client) -> None:
        manifest.write_text("no front matter")
        assert await client.list_skills() == []
        with pytest.raises(InvalidParams):
            await client.read_resource("skill://pdf/references/forms.md")
        manifest.write_text(good)
        [skill] = await client.list_skills()
        assert (await client.read_skill(skill)).text == good

    visit(server, see)
    assert sum("a skill is left out" in record.message for record in caplog.records) == 1


def test_a_folder_that_vanishes_leaves_no_skills(server: Server, folder: Path):
    folder.rename(folder.with_name("moved"))

    async def see(client: Client) -> None:
        assert await client.list_skills() == []

    visit(server, see)


# --------------------------------------------------------------------- functions


def test_a_function_makes_a_dynamic_skill():
    server = Server("desk")

    @server.skill
    async def release_notes(ctx: Context) -> str:
        """Write: "release notes"."""
        return f"For {ctx.revision}."

    @server.skill(name="greet", description="Greet.")
    def hello() -> str:
        return "Say hello."

    async def see(client: Client) -> None:
        notes, greet = await client.list_skills()
        front = {"name": "release-notes", "description": 'Write: "release notes".'}
        assert (notes.frontmatter, notes.resources, notes.files) == (front, "dynamic", [])
        read = await client.read_skill(notes)
        assert (read.text or "").endswith(f"---\n\nFor {STATELESS}.")
        assert (await client.read_skill(greet.uri)).mime_type == "text/markdown"
        got = await client.request("skills/get", {"uri": greet.uri}, result_type=dict[str, Any])
        assert got["skill"]["resources"] == "dynamic"

    visit(server, see)
    assert hello() == "Say hello."


def test_a_function_with_a_wrong_signature_name_or_result_is_refused(caplog: pytest.LogCaptureFixture):
    server = Server("desk")
    with pytest.raises(TypeError, match="topic"):

        @server.skill
        def explain(topic: str) -> str:
            """Explain."""
            return topic

    with pytest.raises(ValueError, match="description"):

        @server.skill
        def silent() -> str:
            return ""

    with pytest.raises(ValueError, match="not a valid name"):
        server.skill(name="No Name", description="x")(lambda: "x")

    @server.skill
    def numbers() -> dict[str, int]:
        """Count."""
        return {"one": 1}

    async def see(client: Client) -> None:
        with pytest.raises(MCPError, match="Internal error"):
            await client.read_resource("skill://numbers/SKILL.md")

    visit(server, see)
    assert "numbers() must return the text of the skill 'numbers'" in caplog.text


# --------------------------------------------------------------------- other clients


def test_clients_of_older_revisions_read_the_same_files(server: Server):
    async def see(client: Client) -> None:
        assert client.capabilities.extensions is None
        assert await client.list_skills() == []
        with pytest.raises(MethodNotFound):
            await client.request("skills/list", {})
        [manifest] = await client.list_resources()
        assert (await client.read_resource(manifest.uri)).contents[0].mime_type == "text/markdown"
        [template] = await client.list_resource_templates()
        assert template.uri_template == "skill://{+path}"
        logo = await client.read_resource("skill://pdf/logo.png")
        assert (logo.contents[0].blob, logo.contents[0].mime_type) == ("iVBOR/8=", "image/png")

    for revision in (SESSION, "2024-11-05"):
        visit(server, see, revision)


def test_a_selection_without_the_manifest_is_without_the_skill(server: Server):
    @server.skill
    def greeting() -> str:
        """Greet."""
        return "Say hello."

    part = server.select(lambda entry: "pdf" not in entry.name)

    async def see(client: Client) -> None:
        [skill] = await client.list_skills()
        assert skill.name == "greeting"
        for method, uri in (
            ("skills/get", "skill://pdf/SKILL.md"),
            ("resources/directory/read", "skill://pdf"),
            ("resources/read", "skill://pdf/logo.png"),
        ):
            with pytest.raises(InvalidParams):
                await client.request(method, {"uri": uri})

    visit(part, see)


def test_a_client_need_not_declare_the_extension_over_http(server: Server):
    async def main() -> None:
        app = server.asgi()
        async with app.lifespan(), Client("http://127.0.0.1/mcp", http=app) as client:
            [skill] = await client.list_skills()
            assert (await client.read_skill(skill, "logo.png")).blob == "iVBOR/8="
            got = await client.request("skills/get", {"uri": skill.uri}, result_type=GetSkillResult)
            assert isinstance(got.skill, Skill)

    asyncio.run(main())
