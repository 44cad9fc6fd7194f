import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.server.signature.inspection import parse_docstring

GOOGLE = """Forecast the weather.

    It is often right.

    Args:
        city: the name of a city
        days (int, optional): how many days,
            at most ten
        *places: more cities
        **options (dict[str, tuple[int, ...]]): whatever else: see below

            with a blank line

    Returns:
        the weather

    Raises:
        ValueError: city: nowhere
    """

NUMPY = """Forecast the weather.

    Parameters
    ----------
    city : str
        the name of a city
    days, hours : int, optional
        how many,
        at most ten
    bare
        without a type
    nothing : str

    Other Parameters
    ----------------
    *places : str
        more cities

    Returns
    -------
    str
        the weather
    """

SPHINX = """Forecast the weather.

    :param city: the name of a city
    :param int days: how many days,
        at most ten
    :type city: str
    :parameter empty:
    :keyword **options: whatever else

    :returns: the weather
    :raises ValueError: nowhere
    """


@pytest.mark.parametrize(
    ("doc", "summary", "parameters"),
    [
        pytest.param(
            GOOGLE,
            "Forecast the weather.\n\nIt is often right.\n\n"
            "Returns:\n    the weather\n\nRaises:\n    ValueError: city: nowhere",
            {
                "city": "the name of a city",
                "days": "how many days, at most ten",
                "places": "more cities",
                "options": "whatever else: see below with a blank line",
            },
            id="google",
        ),
        pytest.param(
            NUMPY,
            "Forecast the weather.\n\nReturns\n-------\nstr\n    the weather",
            {
                "city": "the name of a city",
                "days": "how many, at most ten",
                "hours": "how many, at most ten",
                "bare": "without a type",
                "places": "more cities",
            },
            id="numpy",
        ),
        pytest.param(
            SPHINX,
            "Forecast the weather.\n\n:returns: the weather\n:raises ValueError: nowhere",
            {"city": "the name of a city", "days": "how many days, at most ten", "options": "whatever else"},
            id="sphinx",
        ),
        pytest.param(None, "", {}, id="none"),
        pytest.param("", "", {}, id="empty"),
        pytest.param("   ", "", {}, id="blank"),
        pytest.param("One line.", "One line.", {}, id="one line"),
        pytest.param("Do.\nArgs:\n    a: b", "Do.", {"a": "b"}, id="only parameters"),
        pytest.param("Args:", "", {}, id="a heading without lines"),
        pytest.param("Args:\nNext.", "Next.", {}, id="a heading without indented lines"),
        pytest.param("Arguments: a and b", "Arguments: a and b", {}, id="no heading"),
        pytest.param("Parameters", "Parameters", {}, id="a word"),
        pytest.param(
            "Do.\nArgs:\n    not an entry\n    a: b", "Do.", {"a": "b"}, id="prose before the first entry"
        ),
        pytest.param(
            "Do.\nArgs:\n    a: b\n    and so on", "Do.", {"a": "b and so on"}, id="prose between entries"
        ),
        pytest.param(
            "Do.\nArgs:\n    a: b\n    - c: d", "Do.", {"a": "b - c: d"}, id="a list in a description"
        ),
        pytest.param("Do.\nArgs:\n    a (int: b\n    c: d", "Do.", {"c": "d"}, id="an open bracket"),
        pytest.param("Do.\nArgs:\n    a (int) b", "Do.", {}, id="no colon"),
        pytest.param("Args:\n\n    a: b\n\n    c: d\nMore.", "More.", {"a": "b", "c": "d"}, id="blank lines"),
        pytest.param("Do.\nAttributes:\n    a: b", "Do.", {"a": "b"}, id="attributes of a class"),
        pytest.param("Do.\nParams:\n    a:b", "Do.", {"a": "b"}, id="without a space"),
        pytest.param(
            "Parameters\n----\na : b\n    c\nProse, with words.",
            "Prose, with words.",
            {"a": "c"},
            id="numpy, then prose",
        ),
        pytest.param("Parameters:\n====\na\n    b", "", {"a": "b"}, id="numpy with another line"),
        pytest.param("Parameters\n----", "", {}, id="numpy without entries"),
        pytest.param(":param: a", ":param: a", {}, id="sphinx without a name"),
        pytest.param(":param a: b\n\nMore.", "More.", {"a": "b"}, id="sphinx, then prose"),
        pytest.param(":param a", ":param a", {}, id="sphinx without an end"),
        pytest.param("A.\n\n\n\n\nB.", "A.\n\nB.", {}, id="many blank lines"),
    ],
)
def test_a_docstring_is_taken_apart(doc, summary, parameters):
    assert parse_docstring(doc) == (summary, parameters)


PIECES = [
    "Args:",
    "Parameters",
    "-----",
    "    a: b",
    "    a (x): y",
    ":param a: b",
    ":type",
    "text",
    "",
    "\t",
    "(",
    "é: ü",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=10), max_size=20))
def test_any_docstring_can_be_parsed(lines):
    summary, parameters = parse_docstring("\n".join(lines))
    assert isinstance(summary, str)
    assert all(name and text for name, text in parameters.items())


@pytest.mark.parametrize("piece", ["a (", "a: b\n    ", ":param a: b\n", "Args:\n", "a, ", "* ", ":param  "])
def test_a_long_docstring_is_read_in_one_go(piece):
    parse_docstring("Args:\n    " + piece * 100_000)
    parse_docstring("Parameters\n---\n" + piece * 100_000)
    parse_docstring(piece * 100_000)
