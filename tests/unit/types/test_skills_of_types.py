"""`Skill`: what its properties take from front matter, and the files of each kind."""

from toolpost.types import Skill, SkillFile


def test_a_skill_has_the_name_description_and_files_of_its_entry():
    file = SkillFile("skill://pdf/SKILL.md", "sha256:0", 1)
    skill = Skill(file.uri, {"name": "pdf", "description": "Read PDFs."}, [file])
    assert (skill.name, skill.description, skill.files) == ("pdf", "Read PDFs.", [file])


def test_what_an_entry_lacks_is_empty():
    skill = Skill("skill://pdf/SKILL.md", {}, "dynamic")
    assert (skill.name, skill.description, skill.files) == ("", "", [])
