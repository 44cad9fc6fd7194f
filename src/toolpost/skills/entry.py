"""Checks of a client: is a file one that the entry of its skill lists, and is it the same file?

Reading is left to `toolpost.client.skills`.
"""

from base64 import b64decode
from urllib.parse import quote, unquote

from toolpost import types
from toolpost.errors import LocalProtocolError, RemoteProtocolError
from toolpost.skills.manifest import (
    MAX_SKILL_BYTES,
    MAX_SKILL_FILES,
    SKILL_FILE,
    digest_bytes,
    read_front_matter,
)


def find_file(skill: types.Skill, path: str) -> str:
    """Return the URI of a file of a skill. Raises unless the entry is valid and has the file."""
    folder, files = skill.uri.removesuffix(SKILL_FILE), skill.files
    uris = {file.uri for file in files}
    if (
        not skill.uri.endswith(f"/{SKILL_FILE}")
        or not all(uri.startswith(folder) for uri in uris)
        or not len(uris) == len(files) <= MAX_SKILL_FILES
        or sum(file.size for file in files) > MAX_SKILL_BYTES
    ):
        raise RemoteProtocolError(f"the entry of the skill {skill.uri} is not valid")
    if skill.resources == "dynamic" and ".." not in path.split("/"):
        return folder + quote(path)
    for uri in uris:
        if unquote(uri.removeprefix(folder)) == path:
            return uri
    raise LocalProtocolError(f"the skill {skill.uri} has no file {path!r}")


def verify_file(skill: types.Skill, contents: types.ResourceContents) -> None:
    """Raise RemoteProtocolError unless a file is what the entry of its skill says."""
    uri, text = contents.uri, contents.text
    try:
        data = b64decode(contents.blob or "", validate=True) if text is None else text.encode()
    except ValueError as error:
        raise RemoteProtocolError(f"{uri} is not valid base64") from error
    for file in skill.files:
        if file.uri == uri and file.size != len(data):
            raise RemoteProtocolError(f"{uri} has {len(data)} bytes, but the skill lists {file.size}")
        if file.uri == uri and file.digest != digest_bytes(data):
            raise RemoteProtocolError(f"{uri} does not have the digest that the skill lists")
    if uri == skill.uri:
        try:
            front = read_front_matter(data.decode())
        except ValueError as error:
            raise RemoteProtocolError(f"{uri} is not valid: {error}") from error
        wrong = [
            key for key in {**front, **skill.frontmatter} if front.get(key) != skill.frontmatter.get(key)
        ]
        if wrong:
            raise RemoteProtocolError(f"{uri}: the front matter differs from the entry in {', '.join(wrong)}")
