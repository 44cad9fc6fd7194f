import doctest
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.protocol import uri_template
from toolpost.protocol.uri_template import MAX_TEMPLATE, MAX_URI, MAX_VARIABLES, UriTemplate

# --------------------------------------------------------------------- parse


def test_a_template_knows_its_text_and_its_variables():
    template = UriTemplate("x://{b}/{a.c,_1}{?b,q*,r:3}")
    assert template.text == "x://{b}/{a.c,_1}{?b,q*,r:3}"
    assert template.variables == ("b", "a.c", "_1", "q", "r")


@pytest.mark.parametrize(
    ("template", "position", "message"),
    [
        ("x://{a", 4, "unclosed expression"),
        ("x://{a}{", 7, "unclosed expression"),
        ("{a{b}", 0, "unclosed expression"),
        ("x://a}", 5, "unexpected '}'"),
        ("{a}}", 3, "unexpected '}'"),
        ("{}", 1, "empty expression"),
        ("{?}", 2, "invalid variable ''"),
        ("{a,}", 3, "invalid variable ''"),
        ("{a,,b}", 3, "invalid variable ''"),
        ("{=a}", 1, "reserved operator '='"),
        ("{,a}", 1, "reserved operator ','"),
        ("{!a}", 1, "reserved operator '!'"),
        ("{@a}", 1, "reserved operator '@'"),
        ("{|a}", 1, "reserved operator '|'"),
        ("{$a}", 1, "invalid variable '$a'"),
        ("{??a}", 2, "invalid variable '?a'"),
        ("{ a}", 1, "invalid variable ' a'"),
        ("{a }", 2, "invalid variable 'a '"),
        ("{a, b}", 3, "invalid variable ' b'"),
        ("{user-id}", 5, "invalid variable 'user-id'"),
        ("{a\n}", 2, r"invalid variable 'a\n'"),
        ("{é}", 1, "invalid variable 'é'"),
        ("{a٣}", 2, "invalid variable 'a٣'"),
        ("{.a.}", 3, "invalid variable 'a.'"),
        ("{a..b}", 2, "invalid variable 'a..b'"),
        ("{%4}", 1, "invalid variable '%4'"),
        ("{a=b}", 2, "invalid variable 'a=b'"),
        ("{a**}", 3, "invalid variable 'a**'"),
        ("{a:}", 2, "invalid variable 'a:'"),
        ("{a:0}", 2, "invalid variable 'a:0'"),
        ("{a:03}", 2, "invalid variable 'a:03'"),
        ("{a:10000}", 7, "invalid variable 'a:10000'"),
        ("{a:-1}", 2, "invalid variable 'a:-1'"),
        ("{a:3*}", 4, "invalid variable 'a:3*'"),
        ("{a*:3}", 3, "invalid variable 'a*:3'"),
        ("x://my docs/{a}", 6, "unexpected ' '"),
        ("x://{a}/\\", 8, r"unexpected '\\'"),
        ("x://{a}/5%", 9, "unexpected '%'"),
        ("x://%4g", 4, "unexpected '%'"),
        ("x://\x00", 4, r"unexpected '\x00'"),
        ("x://\x85", 4, r"unexpected '\x85'"),
        ("x://\ud800", 4, r"unexpected '\ud800'"),
        *[(f"x{char}", 1, f"unexpected {char!r}") for char in '"<>^`|\x7f'],
    ],
)
def test_an_invalid_template_is_rejected_with_its_position(template, position, message):
    with pytest.raises(ValueError, match=re.escape(f"at position {position} of the URI template")) as caught:
        UriTemplate(template)
    what, _, do = str(caught.value).partition(" at position ")
    assert message in what
    assert re.search(": [a-z]", do)


def test_an_error_shows_a_long_template_shortened():
    with pytest.raises(ValueError, match="unclosed expression") as caught:
        UriTemplate("x" * 4000 + "{")
    assert len(str(caught.value)) < 250


def test_the_length_of_a_template_is_bounded():
    assert UriTemplate("x" * MAX_TEMPLATE).variables == ()
    with pytest.raises(ValueError, match=r"too long: 4097 characters \(limit: 4096\)"):
        UriTemplate("x" * (MAX_TEMPLATE + 1))


def test_the_number_of_variables_is_bounded():
    assert len(UriTemplate("/".join(f"{{v{n}}}" for n in range(MAX_VARIABLES))).variables) == MAX_VARIABLES
    for template in ("{a}" * 65, "{?" + ",".join(f"v{n}" for n in range(65)) + "}"):
        with pytest.raises(ValueError, match=r"too many variables .*: 65 \(limit: 64\)"):
            UriTemplate(template)


@given(st.text("{}+#./;?&=,:*%ab1é \\") | st.text())
def test_any_text_is_a_template_or_a_value_error(text):
    try:
        UriTemplate(text)
    except ValueError as error:
        assert "URI template" in str(error)  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize(
    "template",
    ["{" * MAX_TEMPLATE, "}" * MAX_TEMPLATE, "{a}" * 1365, "{" + "a." * 2047, "{a" + ",a" * 2000 + "}"],
)
def test_large_nonsense_is_refused_as_a_template(template):
    with pytest.raises(ValueError, match="URI template"):
        UriTemplate(template)


# --------------------------------------------------------------------- match: see test_match for the rules


def test_the_result_is_in_the_order_of_the_template():
    found = UriTemplate("x://{c}{/b*}/{a}{?e,d}").match("x://1/2/3?d=4&e=5")
    assert found is not None
    assert list(found) == ["c", "b", "a", "e", "d"]


def test_a_template_that_cannot_be_matched_says_so_when_asked():
    template = UriTemplate("x://{a}{b}")
    assert template.unmatchable is not None
    with pytest.raises(ValueError, match=re.escape(template.unmatchable)):
        template.match("x://a")


def test_the_length_of_a_uri_is_bounded():
    template = UriTemplate("x://{a}")
    longest = "x://" + "a" * (MAX_URI - 4)
    assert template.match(longest) == {"a": longest[4:]}
    assert template.match(longest + "a") is None


@pytest.mark.requirement("RES-11")
@pytest.mark.parametrize("char", [*'\x00\t\n\r "<>\\^`{|}\x7f\x85\ud800', "{a}"])
def test_characters_outside_uris_do_not_match(char):
    for template, good in {
        "x://{a}": "x://b",
        "x://{+a}": "x://b",
        "x://h{?a}": "x://h?a=b",
        "x://h{#a}": "x://h#b",
    }.items():
        assert UriTemplate(template).match(good) == {"a": "b"}
        assert UriTemplate(template).match(good + char) is None


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(uri_template) == (0, 2)
