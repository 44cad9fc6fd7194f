"""`toolpost read`, `prompt`, `complete` and `ping`."""

import subprocess

import pexpect
import pytest

import exit_codes
from command_line import PATIENCE, TALKER, TOOLPOST, on_terminal, serving, toolpost
from revision_dates import DATES


@pytest.fixture(scope="module")
def shop():
    with serving() as url:
        yield url


@pytest.mark.parametrize("revision", DATES)
def test_text_is_printed_as_it_is(revision, shop):
    assert toolpost("read", shop, "--revision", revision, "shop://menu") == (
        exit_codes.OK,
        "soup\nbread\n",
        "",
    )


def test_bytes_go_to_a_pipe_or_a_file_but_not_to_a_terminal(tmp_path, shop):
    done = subprocess.run(
        [*TOOLPOST, "read", shop, "shop://dot.png"], capture_output=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.startswith(b"\x89PNG")
    said = toolpost("read", shop, "--save", "out", "shop://dot.png", cwd=tmp_path)
    assert said.out == "Saved out/dot.png (image/png, 67 bytes)\n"
    assert (tmp_path / "out" / "dot.png").read_bytes() == done.stdout
    with on_terminal("read", shop, "shop://dot.png") as child:
        child.expect("is binary")
        child.expect(pexpect.EOF)
    assert child.exitstatus == exit_codes.FAILED


def test_a_template_is_read_by_a_uri_and_nothing_is_added_to_it(shop):
    assert toolpost("read", shop, "shop://dish/soup").out == "soup is good"


def test_text_is_saved_too(tmp_path, shop):
    said = toolpost("read", shop, "--save", ".", "shop://menu", cwd=tmp_path)
    assert said.out == "Saved menu.txt (text/plain, 11 bytes)\n"
    assert (tmp_path / "menu.txt").read_text() == "soup\nbread\n"


def test_programs_get_the_contents(shop):
    [part] = toolpost("read", shop, "--json", "shop://dot.png").json["contents"]
    assert (part["mimeType"], part["blob"][:5]) == ("image/png", "iVBOR")


def test_a_missing_item_is_reported(shop):
    said = toolpost("read", shop, "shop://nothing")
    assert (said.code, said.out) == (exit_codes.FAILED, "")
    assert "Resource not found: shop://nothing" in said.err
    said = toolpost("read", "shop://nothing", *TALKER)
    assert (said.code, said.out) == (exit_codes.FAILED, "")
    assert "resources" in said.err


@pytest.mark.parametrize("revision", DATES)
def test_a_prompt_is_filled_in(revision, shop):
    said = toolpost("prompt", shop, "--revision", revision, "praise", "--dish", "soup", "--style", "grand")
    assert said == (exit_codes.OK, "user:\nPraise soup in a grand style.\n", "")


def test_a_prompt_has_help_and_errors_of_its_own(shop):
    assert "--dish TEXT" in toolpost("prompt", shop, "praise", "--help").out
    said = toolpost("prompt", shop, "praise")
    assert (said.code, "praise requires --dish" in said.err) == (exit_codes.USAGE, True)
    said = toolpost("prompt", shop, "prays")
    assert "has no prompt 'prays'\nHint: available: praise" in said.err
    told = toolpost("prompt", shop, "praise", "--args", '{"dish": "soup"}', "--json").json
    assert told["messages"][0]["role"] == "user"


@pytest.mark.parametrize("revision", DATES)
def test_arguments_are_completed(revision, shop):
    words = ("--revision", revision, "prompt", "praise", "dish", "so")
    assert toolpost("complete", shop, *words) == (exit_codes.OK, "soup\nsouffle\n", "")


def test_completion_for_programs_and_mistakes(shop):
    words = ("--json", "--context", "style=plain", "prompt", "praise", "dish", "br")
    told = toolpost("complete", shop, *words).json
    assert told["values"] == ["bread"]
    unknown = toolpost("complete", shop, "prompt", "praise", "nope", "p")
    assert (unknown.code, unknown.out) == (exit_codes.OK, "")
    assert "No completions for nope" in unknown.err
    assert toolpost("complete", shop, "prompt", "nothing", "x").code == exit_codes.FAILED
    assert toolpost("complete", shop, "--context", "x", "prompt", "praise", "dish").code == exit_codes.USAGE
    assert toolpost("complete", shop, "tool", "praise", "dish").code == exit_codes.USAGE


@pytest.mark.parametrize("revision", [DATES[0], DATES[-1]])
def test_a_server_answers(revision, shop):
    told = toolpost("ping", shop, "--json", "--count", "2", "--interval", "0", "--revision", revision).json
    assert (told["target"], told["revision"]) == (shop, revision)
    assert len(told["milliseconds"]) == 2


def test_a_server_answers_people(shop):
    lines = toolpost("ping", shop, "--count", "2", "--interval", "0").out.splitlines()
    assert lines[0].startswith(f"{shop}: ")
    assert lines[2].startswith("min/mean/max ")
    assert len(lines) == 3
