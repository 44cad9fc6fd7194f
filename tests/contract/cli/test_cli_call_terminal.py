"""`toolpost call` and `prompt` on a terminal: they ask for missing arguments, and for answers to servers."""

import pexpect
import pytest

import exit_codes
from command_line import SHOP, on_terminal
from revision_dates import DATES

ASKING = [date for date in DATES if date >= "2025-06"]


def test_missing_arguments_are_prompted_for():
    with on_terminal("call", "ship", "--address.zip", "1", *SHOP) as child:
        for prompt, typed in [
            (r"address\.city \(text\): ", "Oslo"),
            (r"kind \(ship, train\): ", "plane"),
            (r"kind \(ship, train\): ", "train"),
            (r"careful \(yes or no\): ", "n"),
            (r"tags, 1\. .*: ", "a"),
            (r"tags, 2\. .*: ", ""),
        ]:
            child.expect(prompt)
            child.sendline(typed)
        child.expect(r"train to Oslo, careful: False, tags: \['a'\]")
    assert child.exitstatus == exit_codes.OK


@pytest.mark.parametrize("leave", ["intr", "eof"])
def test_the_user_can_leave_a_question(leave):
    with on_terminal("call", "hello", *SHOP) as child:
        child.expect("name")
        child.sendintr() if leave == "intr" else child.sendeof()
        child.expect(pexpect.EOF)
        assert "Error" not in child.before
    assert child.exitstatus == exit_codes.INTERRUPTED


def test_missing_arguments_of_a_prompt_are_prompted_for():
    with on_terminal("prompt", "praise", *SHOP) as child:
        child.expect("dish")
        child.sendline("soup")
        child.expect("Praise soup in a plain style.")
    assert child.exitstatus == exit_codes.OK


@pytest.mark.parametrize("revision", ASKING)
def test_questions_of_a_server_are_asked(revision):
    with on_terminal("call", "--revision", revision, "ask", *SHOP) as child:
        child.expect("How many?")
        child.expect("integer>")
        child.sendline("5")
        child.expect("Send it?")
        child.sendline("y")
        child.expect("5 it is")
    assert child.exitstatus == exit_codes.OK


def test_ctrl_c_leaves_a_question():
    with on_terminal("call", "ask", *SHOP) as child:
        child.expect("integer>")
        child.sendintr()
        child.expect(pexpect.EOF)
        assert "Traceback" not in child.before
        assert "Fatal" not in child.before
    assert child.exitstatus == exit_codes.INTERRUPTED


def test_a_page_is_opened_if_the_user_says_so():
    with on_terminal("call", "send_away", *SHOP) as child:
        child.expect("Please pay.")
        child.expect("Open it in your browser?")
        child.sendline("n")
        child.expect("Declined")
    assert child.exitstatus == exit_codes.OK


@pytest.mark.parametrize("revision", DATES[-2:])
def test_a_page_that_has_to_be_visited_first_is_visited(revision):
    with on_terminal("call", "--revision", revision, "pay", *SHOP, BROWSER="true") as child:
        child.expect("Open it in your browser?")
        child.sendline("y")
        if revision == DATES[-2]:
            child.expect("Press Enter")
            child.sendline("")
        child.expect("paid")
    assert child.exitstatus == exit_codes.OK


def test_progress_is_a_bar():
    with on_terminal("call", "cook", *SHOP) as child:
        child.expect("━")
        child.expect("3/3 step 3")
        child.expect("done")
    assert child.exitstatus == exit_codes.OK


def test_results_are_boxes_and_errors_are_red():
    with on_terminal("call", "order", "--dish", "soup", *SHOP) as child:
        child.expect("╭")
        child.expect("small soup")
    with on_terminal("call", "fail", *SHOP) as child:
        child.expect_exact("\x1b[31m\x1b[1mError:\x1b[0m the oven is cold")
    assert child.exitstatus == exit_codes.FAILED
