"""Printed output: escaped text, aligned tables, readable values, saved files."""

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest

from toolpost.cli.commands.requests import (
    OutputFolder,
    convert_result,
    decode_base64,
    save_content,
    show_blocks,
)
from toolpost.cli.errors import FAILED, UNAUTHORIZED, UNREACHABLE, CommandError, show_error, translate_errors
from toolpost.cli.output import CommandOutput, escape_control_characters
from toolpost.cli.terminal import ProgressDisplay, format_progress
from toolpost.errors import (
    AuthorizationRequired,
    ConnectFailed,
    InvalidParams,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeout,
    ToolError,
)
from toolpost.types import AudioContent, EmbeddedResource, ResourceContents, ResourceLink, TextContent
from toolpost.types.content import Content
from toolpost.types.notifications import ProgressParams


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\tb\nc\r\nd", "a\tb\nc\nd"),
        ("\x1b[31m\x07\x9b", r"\u001b[31m\u0007\u009b"),
        ("over\rwritten", r"over\rwritten"),
        ("caf\u00e9\u00a0!\u3000", "caf\u00e9\u00a0!\u3000"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\U0001f469\u200d\U0001f680", "\U0001f469\u200d\U0001f680"),
        ("\U000e0041", r"\udb40\udc41"),
    ],
)
def test_nothing_is_left_that_a_terminal_would_obey(text, shown):
    assert escape_control_characters(text) == shown
    assert json.loads(f'"{escape_control_characters(json.dumps(text, ensure_ascii=False)[1:-1])}"') == text


def test_a_table_is_aligned_and_each_row_is_a_line(capsys):
    CommandOutput().print_table("Title", ("a", "bb"), [("long", 1), (None, "two\n lines "), ("", "")])
    assert capsys.readouterr().out == "Title\nA     BB\nlong  1\n      two lines\n\n"
    CommandOutput().print_table(None, ("a",), [])
    assert capsys.readouterr().out == "A\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (3, "3"),
        (None, "null"),
        ([], "[]"),
        ({}, "{}"),
        ([1, "two", True], "1\ntwo\ntrue"),
        ({"a": 1, "long": "x\ny"}, "a     1\nlong  x\n      y"),
        ({"a": {"b": []}}, "a\n  b  []"),
        ({"a": 1, "rows": [{"x": 1}, {"x": 2}], "z": 3}, "a  1\nz  3\n\nrows\nX\n1\n2"),
        ({"a": [{"x": 1}], "b": [{"y": None}]}, "a\nX\n1\n\nb\nY\nnull"),
        ({"\x1b": [{"\x1b": "\x1b"}]}, "\\u001b\n\\U001B\n\\u001b"),
        ([{"a": 1}, {"b": "x"}], "A  B\n1\n   x"),
        ([{"a": [1]}, 2], "- a\n    - 1\n2"),
        ([[1, 2], [3]], "- - 1\n  - 2\n- - 3"),
    ],
)
def test_values_are_readable(capsys, value, shown):
    CommandOutput().print_value(value)
    assert capsys.readouterr().out == f"{shown}\n"


def test_programs_get_json_and_nothing_else(capsys):
    page = CommandOutput(json=True)
    page.print_text("words")
    page.print_table("t", ("a",), [("b",)])
    page.print_note("beside")
    page.print_value({"é": TextContent(text="x")})
    said = capsys.readouterr()
    assert json.loads(said.out) == {"é": {"type": "text", "text": "x"}}
    assert said.err == "beside\n"
    page.print_record({"a": [1, 2]}, "never")
    page.print_record({"b": "\n"}, "never")
    assert capsys.readouterr().out == '{"a":[1,2]}\n{"b":"\\n"}\n'


def test_content_of_every_kind_is_shown(capsys, tmp_path):
    blocks: list[Content] = [
        TextContent(text="one"),
        EmbeddedResource(resource=ResourceContents(uri="x://a", text="two\n")),
        EmbeddedResource(resource=ResourceContents(uri="x://b", blob="AAE=", mime_type="x/y")),
        AudioContent(data="AAE=", mime_type="audio/mpeg; rate=1"),
        ResourceLink(uri="x://c", name="c", description="third"),
        Content.read({"type": "new", "a": 1}),
    ]
    show_blocks(CommandOutput(), blocks, OutputFolder(tmp_path, "some/tool.name"))
    assert capsys.readouterr().out.replace(str(tmp_path), "FOLDER").splitlines() == [
        "one",
        "two",
        "Saved FOLDER/some_tool.name.bin (x/y, 2 bytes)",
        "Saved FOLDER/some_tool.name.mp3 (audio/mpeg; rate=1, 2 bytes)",
        "x://c  c: third",
        "type  new",
        "a     1",
    ]


def test_results_for_programs_may_have_their_files_elsewhere(tmp_path):
    raw = (
        b'{"content": [{"type": "resource", "resource": {"uri": "x://a", "blob": "AAE="}}, {"type": "text"}]}'
    )
    assert convert_result(raw, None) == json.loads(raw)
    told = convert_result(raw, OutputFolder(tmp_path / "new", "a"))
    assert told["content"][0]["resource"] == {"uri": "x://a", "savedTo": str(tmp_path / "new" / "a.bin")}


@pytest.mark.parametrize(
    ("stem", "mime", "name"),
    [
        ("plot", "image/png", "plot.png"),
        ("plot.png", "image/png", "plot.png"),
        ("../../etc/passwd", None, "etc_passwd.bin"),
        ("..", "text/plain", "saved.txt"),
        (".hidden", "IMAGE/JPEG", "hidden.jpg"),
        ("a b\n", "application/json; charset=utf-8", "a_b.json"),
    ],
)
def test_files_are_called_as_the_user_says_and_stay_in_their_folder(tmp_path, stem, mime, name):
    assert OutputFolder(tmp_path, stem).save(b"x", mime) == tmp_path / name


def test_no_file_is_overwritten_nor_a_link_followed(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "target")
    paths = [OutputFolder(tmp_path, "a").save(b"x", "text/plain") for _ in range(2)]
    assert paths == [tmp_path / "a-1.txt", tmp_path / "a-2.txt"]
    assert not (tmp_path / "target").exists()


def test_invalid_base64_is_reported():
    with pytest.raises(CommandError, match="could not save the picture: invalid base64"):
        decode_base64("???", "the picture")


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (ProgressParams("t", 1, total=3, message="a\n b"), "1/3 a b"),
        (ProgressParams("t", 0.5), "0.5"),
        (ProgressParams("t", 10**400, total=-(10**400)), "1e+300/-1e+300"),
    ],
)
def test_progress_is_shown_for_any_number(told, text):
    assert format_progress(told) == text


def test_a_bar_stands_any_number(monkeypatch):
    monkeypatch.setattr("toolpost.cli.terminal.is_plain", lambda _: False)
    with closing(ProgressDisplay(CommandOutput())) as meter:
        for total in (None, 10**400, 0, -1, 5e-324):
            asyncio.run(meter.show_progress(ProgressParams("t", 10**400, total=total)))


@pytest.mark.parametrize(("size", "shown"), [(0, "0 bytes"), (9_999, "9999 bytes"), (123_456, "123 kB")])
def test_sizes_are_for_people(tmp_path, capsys, size, shown):
    save_content(CommandOutput(), bytes(size), None, OutputFolder(tmp_path, "x"))
    assert capsys.readouterr().out == f"Saved {tmp_path / 'x.bin'} (unknown type, {shown})\n"


@pytest.mark.parametrize(
    ("error", "code", "message", "hint"),
    [
        (ConnectFailed("no way", peer="x"), UNREACHABLE, "x: no way", "doctor"),
        (ConnectFailed("no way", hint="try"), UNREACHABLE, "shop: no way", "try"),
        (ConnectFailed("no", hint="see auth=, or headers={…}"), UNREACHABLE, "shop: no", "--header 'Auth"),
        (RequestTimeout("too slow"), UNREACHABLE, "shop: too slow", "--timeout"),
        (AuthorizationRequired("who?"), UNAUTHORIZED, "shop: who?", "--header"),
        (AuthorizationRequired("who?", hint='pass auth="token"'), UNAUTHORIZED, "shop: who?", "--header"),
        (InvalidParams("bad", {"a": 1}), FAILED, "shop: bad (invalid params, -32602)", None),
        (ToolError("no"), FAILED, "shop: no", None),
        (LocalProtocolError("not now"), FAILED, "shop: not now", None),
        (RemoteProtocolError("no JSON"), FAILED, "shop: no JSON", "doctor"),
    ],
)
def test_errors_are_explained(error, code, message, hint):
    with pytest.raises(CommandError) as raised, translate_errors("shop"):
        raise error
    assert (raised.value.exit_code, raised.value.message) == (code, message)
    assert (hint or "") in (raised.value.hint or "")
    assert (hint is None) == (raised.value.hint is None)


def test_without_a_request_the_hint_about_doctor_is_omitted():
    with pytest.raises(CommandError) as raised, translate_errors():
        raise ConnectFailed("mcp.json is no JSON", peer="mcp.json")
    assert (raised.value.message, raised.value.hint) == ("mcp.json is no JSON", None)


def test_errors_are_shown_as_text_or_json(capsys):
    error = CommandError("it\x1b[0m failed", hint="do that", code=-1)
    show_error(error, as_json=False)
    assert capsys.readouterr().err == "Error: it\\u001b[0m failed\nHint: do that\n"
    show_error(error, as_json=True)
    assert json.loads(capsys.readouterr().err) == {
        "error": {"message": "it\x1b[0m failed", "exit": FAILED, "hint": "do that", "code": -1}
    }


def test_a_stream_that_was_closed_is_plain(tmp_path: Path):
    from toolpost.cli.output import is_plain  # noqa: PLC0415 - of use here only

    with (tmp_path / "x").open("w") as file:
        pass
    assert is_plain(file)
