"""`toolpost call`, in a pipe."""

import json
import subprocess

import pytest

import exit_codes
from command_line import PATIENCE, SHOP, TOOLPOST, serving, toolpost
from revision_dates import DATES


@pytest.fixture(scope="module")
def called():
    """Return a function that calls a tool of the shop."""
    with serving() as url:
        # TARGET stands first here, and TOOL somewhere behind it.
        yield lambda *words, **options: toolpost("call", url, *words, **options)


def test_words_are_converted_to_the_types_of_the_schema(called):
    words = [
        *("--text", "a b"),
        "--no-flag",
        *("--numbers", "1", "--numbers", "-2.5"),
        *("--address", '{"city": "Rome", "zip": 1}', "--address.zip", "12"),
        *("--lines", '{"name": "x", "amount": 1}', "--lines", '{"name": "y", "amount": 2}'),
        *("--either", "five"),
        *("--anything", '{"a": [null]}'),
        *("--json", "no option of ours"),
        *("--max-results", "3"),
    ]
    assert called("--json", "echo", *words).json["structuredContent"] == {
        "text": "a b",
        "flag": False,
        "numbers": [1, -2.5],
        "address": {"city": "Rome", "zip": 12},
        "lines": [{"name": "x", "amount": 1}, {"name": "y", "amount": 2}],
        "either": "five",
        "anything": {"a": [None]},
        "json": "no option of ours",
        "max_results": 3,
    }


def test_structured_results_are_tables_for_people(called):
    said = called("order", "--dish", "soup", "--extras", "salt")
    assert said.out == "NAME        AMOUNT\nsmall soup  1\nsalt        1\n"
    said = called("echo", "--text", "a", "--address.city", "Rome", "--numbers", "2")
    assert said.out == "text     a\nnumbers\n  - 2.0\naddress\n  city  Rome\n  zip   null\n"


def test_help_of_a_tool_shows_its_parameters(called):
    said = called("order", "--help")
    assert said.code == exit_codes.OK
    assert said.out.startswith("Usage: toolpost call http://")
    told = " ".join(said.out.split())
    assert "Order something to eat." in told
    assert "--dish TEXT What you want. [required]" in told
    assert "--amount INTEGER How many of it. [default: 1]" in told
    assert "--size [small|large] [default: small]" in told
    assert "--rush / --no-rush [default: false]" in told
    assert "--extras TEXT [repeatable]" in told
    assert "--day DATE" in told
    assert "--json Print the result" in told
    said = called("ship", "--help")
    assert "--address.city TEXT [required in address]" in " ".join(said.out.split())
    said = called("echo", "--help")
    assert "Print the result" not in said.out  # the tool has a parameter of that name


def test_help_shows_the_groups_of_commands():
    said = toolpost("call", "hello", "--help", *SHOP)
    assert said.out.startswith("Usage: toolpost call hello [PARAMETERS] [OPTIONS] -- COMMAND...\n")


def test_help_of_the_command_is_another_one():
    said = toolpost("call", "shop.py", "--help")
    assert "Usage: toolpost call [OPTIONS] TARGET TOOL [PARAMETERS]" in said.out
    assert "TARGET is a URL" in said.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["ship"], "ship requires --address.city, --kind, --careful, --tags"),
        (["hello", "x"], "unexpected extra argument (x)"),
        (
            ["hello", "--timeout", "3"],
            "hello has no --timeout; options of toolpost go before its name",
        ),
        (["order", "--size", "huge"], "'huge' is not one of 'small', 'large'"),
        (["echo", "--lines", "x"], "invalid JSON"),
        (["hello", "--args", "[]"], "--args: not a JSON object"),
        (["hello", "--args", "@nowhere.json"], "--args: could not read nowhere.json"),
    ],
)
def test_words_that_make_no_sense_are_usage_errors(called, words, problem):
    said = called(*words)
    assert (said.code, said.out) == (exit_codes.USAGE, "")
    assert problem in said.err


def test_an_unknown_tool_is_answered_with_those_that_exist(called):
    said = called("helo")
    assert said.code == exit_codes.USAGE
    assert " has no tool 'helo'\nHint: available: hello, " in said.err
    said = called()
    assert "Error: missing tool name\nHint: available: order, echo, " in said.err


def test_arguments_come_from_a_word_a_file_or_stdin(called, tmp_path):
    (tmp_path / "args.json").write_text('{"name": "file"}')
    assert called("hello", "--args", '{"name": "word"}').out == "Hello, word!\n"
    assert called("--args", "@args.json", "hello", cwd=tmp_path).out == "Hello, file!\n"
    assert called("hello", "--args", "-", given='{"name": "stdin"}').out == "Hello, stdin!\n"
    assert called("hello", "--args", '{"name": "word"}', "--name", "option").out == "Hello, option!\n"


def test_a_tool_that_fails_ends_with_1(called):
    assert called("fail") == (exit_codes.FAILED, "", "Error: the oven is cold\n")
    said = called("--json", "fail")
    assert (said.code, said.json["isError"]) == (exit_codes.FAILED, True)


def test_pictures_and_sounds_are_saved_and_nothing_is_overwritten(called, tmp_path):
    assert called("picture", cwd=tmp_path).out == "Saved picture.png (image/png, 67 bytes)\n"
    assert called("picture", cwd=tmp_path).out == "Saved picture-1.png (image/png, 67 bytes)\n"
    assert (
        called("sound", "--save", "in/here", cwd=tmp_path).out
        == "Saved in/here/sound.wav (audio/wav, 4 bytes)\n"
    )
    assert (tmp_path / "picture-1.png").read_bytes() == (tmp_path / "picture.png").read_bytes()
    assert (tmp_path / "in" / "here" / "sound.wav").read_bytes() == b"RIFF"
    [block] = called("--json", "picture", cwd=tmp_path).json["content"]
    assert block["data"].startswith("iVBOR")
    [block] = called("picture", "--json", "--save", "out", cwd=tmp_path).json["content"]
    assert block == {"type": "image", "mimeType": "image/png", "savedTo": "out/picture.png"}
    assert (tmp_path / "out" / "picture.png").exists()
    assert len(list(tmp_path.iterdir())) == 4


def test_an_unwritable_folder_is_reported(called, tmp_path):
    (tmp_path / "file").touch()
    said = called("picture", "--save", "file", cwd=tmp_path)
    assert said.code == exit_codes.USAGE
    assert "could not write to file" in said.err


@pytest.mark.parametrize("revision", DATES)
def test_progress_and_the_log_go_to_stderr_on_every_revision(called, revision):
    said = called("-v", "--revision", revision, "cook", "--steps", "2")
    assert (said.code, said.out) == (exit_codes.OK, "done\n")
    lines = sorted(said.err.splitlines())
    assert [line for line in lines if line.startswith("warning")] == [
        "warning: it is hot, 1",
        "warning: it is hot, 2",
    ]
    assert [line for line in lines if line.startswith("progress")][-1].startswith("progress: 2/2")


def test_a_log_level_is_asked_for(called):
    assert called("--log-level", "error", "cook").err == ""


@pytest.mark.parametrize("revision", [date for date in DATES if date >= "2025-06"])
def test_questions_are_declined_without_a_terminal(called, revision):
    said = called("--revision", revision, "ask")
    assert (said.code, said.out) == (exit_codes.OK, "no: Declined\n")
    assert said.err == "The server asks: How many?\nDeclined: there is no terminal.\n"


@pytest.mark.parametrize("revision", [date for date in DATES if date < "2025-06"])
def test_unsupported_questions_are_reported(called, revision):
    said = called("--revision", revision, "ask")
    assert said.code == exit_codes.FAILED
    assert f"clients of {revision} do not support" in said.err


def test_pages_to_visit_are_declined_too(called):
    said = called("send_away")
    assert said.out == "Declined\n"
    assert "(at http://127.0.0.1:9/pay)" in said.err
    said = toolpost("call", "--revision", "2025-11-25", "pay", *SHOP)
    assert said.code == exit_codes.FAILED
    assert "visit http://127.0.0.1:9/pay, then try again" in said.err


def test_folders_are_opened(called, tmp_path):
    (tmp_path / "open").mkdir()
    said = called("--root", "open", "--json", "folders", cwd=tmp_path)
    assert said.json["structuredContent"] in (
        {"result": [(tmp_path / "open").as_uri()]},
        [(tmp_path / "open").as_uri()],
    )


def test_programs_get_nothing_but_the_document():
    done = subprocess.run(
        [*TOOLPOST, "call", "cook", "--json", *SHOP], capture_output=True, check=True, timeout=PATIENCE
    )
    assert json.loads(done.stdout)["content"] == [{"type": "text", "text": "done"}]
    assert b"warning: it is hot, 1" in done.stderr
