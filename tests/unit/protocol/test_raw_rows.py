"""Rows of requests that are forwarded without being decoded."""

from toolpost.protocol.forward import is_error_result, make_raw_row
from toolpost.protocol.methods import Row
from toolpost.types.base import Params, Result


def test_the_row_of_a_method_of_the_protocol_is_made_once():
    assert make_raw_row("tools/call") is make_raw_row("tools/call")
    assert make_raw_row("tools/call").named == "name"


def test_names_that_a_peer_has_made_up_are_not_kept():
    assert make_raw_row("made/up") is not make_raw_row("made/up")


def test_the_row_of_an_extension_keeps_what_names_its_target_and_whether_it_can_be_repeated():
    known = Row("shop/buy", Params, Result, repeatable=True)
    known.named, known.member = "item", "goods"
    row = make_raw_row("shop/buy", known)
    assert (row.named, row.member, row.repeatable) == ("item", "goods", True)


def test_a_failed_tool_is_known_without_decoding_its_result():
    assert is_error_result(b'{"content":[],"isError":true}')
    assert not is_error_result(b'{"content":[],"isError":false}')
    assert not is_error_result(b'{"content":[]}')
