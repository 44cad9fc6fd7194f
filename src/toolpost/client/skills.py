"""Skills of a server: list them, and read their files, each verified against its entry.

Nothing is read before it is asked for, and nothing is executed. Whether to trust a skill is left to the user.
"""

from collections.abc import Callable
from typing import Final

from toolpost import types
from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.session import ClientSession
from toolpost.client.listing import SKILLS
from toolpost.client.multi_round import MultiRoundCall
from toolpost.errors import RemoteProtocolError
from toolpost.protocol.methods import Row

GET_SKILL: Final = Row("skills/get", types.GetSkillParams, types.GetSkillResult)


class SkillMethods:
    """The methods of a client about skills."""

    _session: ClientSession
    _make_limits: Callable[..., CallLimits]

    async def list_skills(self, *, timeout: float | None = None) -> list[types.Skill]:
        """Return all skills that the server lists; an empty list if it does not offer skills.

        Raises:
            RemoteProtocolError: two entries with the same URI differ.
        """
        limits = await self._session.wait_connected(self._make_limits(timeout))
        offered = self._session.last_connection.result.capabilities.extensions or {}
        if types.SKILLS_EXTENSION not in offered:
            return []
        skills: dict[str, types.Skill] = {}
        for skill in await self._session.reader.read_list(SKILLS, limits):
            if skills.setdefault(skill.uri, skill) != skill:
                raise RemoteProtocolError(f"the server lists two different skills as {skill.uri}")
        return list(skills.values())

    async def read_skill(
        self, skill: types.Skill | str, path: str = "SKILL.md", *, timeout: float | None = None
    ) -> types.ResourceContents:
        """Return a file of a skill, after verifying that its entry lists it, with this size and digest.

        Of `SKILL.md`, the front matter is compared, too (this needs the extra `toolpost[skills]`). A dynamic
        skill has no digests; only its front matter can be verified.

        Args:
            skill: an entry from `list_skills`, or the URI of a `SKILL.md`. If a user has approved of a skill,
                pass the entry that the user has seen: a file that changed since then is refused.
            path: the path of the file, from the folder of the skill.
            timeout: seconds to wait for each request.

        Raises:
            LocalProtocolError: the skill has no such file; nothing was sent.
            RemoteProtocolError: the file is not the one in the entry, or the entry is not valid.
        """
        from toolpost.skills.entry import find_file, verify_file  # noqa: PLC0415 - start-up time

        if isinstance(skill, str):
            params = types.GetSkillParams(uri=skill)
            call = MultiRoundCall(self._session, GET_SKILL, params, self._make_limits(timeout), retry=True)
            skill = (await call.finish(types.GetSkillResult)).skill
        uri = find_file(skill, path)
        contents = (await self._session.reader.read_resource(uri, self._make_limits(timeout))).contents
        if len(contents) != 1 or contents[0].uri != uri:
            raise RemoteProtocolError(f"the server returned something other than the file {uri}")
        verify_file(skill, contents[0])
        return contents[0]
