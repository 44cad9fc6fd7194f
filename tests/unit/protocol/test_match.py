import re
from itertools import product

import pytest
import uritemplate
from hypothesis import example, given
from hypothesis import strategies as st

from toolpost.protocol.uri_template import MAX_URI, UriTemplate

# --------------------------------------------------------------------- the rules

MATCHES = [
    # literals
    ("", "", {}),
    ("x://a", "x://a", {}),
    ("x://a", "x://ab", None),
    ("x://ab", "x://a", None),
    ("x://a", "y://a", None),
    ("x://é", "x://é", {}),
    ("x://é", "x://%C3%A9", {}),
    # one variable
    ("test://template/{id}/data", "test://template/123/data", {"id": "123"}),
    ("users://{id}/profile", "users://ann/profile", {"id": "ann"}),
    ("users://{id}/profile", "users://ann@example.com/profile", {"id": "ann@example.com"}),
    ("users://{id}/profile", "users://a%20b%C3%A9/profile", {"id": "a bé"}),
    ("users://{id}/profile", "users://é€😀/profile", {"id": "é€😀"}),
    ("users://{id}/profile", "users:///profile", None),
    ("users://{id}/profile", "users://a/b/profile", None),
    ("users://{id}/profile", "users://ann/profile/", None),
    ("users://{id}/profile", "users://ann/profile?x=1", None),
    ("users://{id}/profile", "users://ann?x/profile", None),
    ("users://{id}/profile", "users://ann#x/profile", None),
    ("users://{id}/profile", "users://ann/profil", None),
    ("users://{id}", "users://", None),
    ("{a}", "a", {"a": "a"}),
    # several
    ("x://{a}/{b}", "x://1/2", {"a": "1", "b": "2"}),
    ("x://{a}/{b}", "x://1/2/3", None),
    ("x://{a}/{b}", "x://1", None),
    ("x://{a,b}", "x://1,2", {"a": "1", "b": "2"}),
    ("x://{a,b}", "x://1%2C,2", {"a": "1,", "b": "2"}),
    ("x://{a,b}", "x://1", None),
    # a literal query
    ("x://a?id={id}&n={n}", "x://a?id=1&n=2", {"id": "1", "n": "2"}),
    ("x://a?id={id}&n={n}", "x://a?id=1&m=3&n=2", None),
    ("x://a?id={id}&n={n}", "x://a?id=1&n=2&m=3", None),
    ("x://{a}", "x://R&D", {"a": "R&D"}),
    # {+name}
    ("file:///{+path}", "file:///a/b%20c.txt", {"path": "a/b c.txt"}),
    ("file:///{+path}", "file:///a?b#c", {"path": "a?b#c"}),
    ("file:///{+path}", "file:///a%2Fb", {"path": "a/b"}),
    ("file:///{+path}", "file:///", None),
    ("file://{+path}", "file://host/share", {"path": "host/share"}),
    ("x:{+path}", "x:a/b", {"path": "a/b"}),
    ("proxy://{+url}", "proxy://https://example.com//a", {"url": "https://example.com//a"}),
    ("x://{+path}{?q}", "x://a/b?q=1", {"path": "a/b", "q": "1"}),
    ("x://{+path}{#f}", "x://a/b#c#d", {"path": "a/b", "f": "c#d"}),
    # {/name}
    ("repo://{owner}/{name}{/path*}", "repo://o/n/a/b", {"owner": "o", "name": "n", "path": ["a", "b"]}),
    ("repo://{owner}/{name}{/path*}", "repo://o/n/a", {"owner": "o", "name": "n", "path": ["a"]}),
    ("repo://{owner}/{name}{/path*}", "repo://o/n", {"owner": "o", "name": "n"}),
    ("repo://{owner}/{name}{/path*}", "repo://o/n/", None),
    ("repo://{owner}/{name}{/path*}", "repo://o/n/a//b", None),
    ("repo://{owner}/{name}{/path*}", "repo://o", None),
    ("x://h{/a,b}", "x://h", {}),
    ("x://h{/a,b}", "x://h/1", {"a": "1"}),
    ("x://h{/a,b}", "x://h/1/2", {"a": "1", "b": "2"}),
    ("x://h{/a,b}", "x://h/1/2/3", None),
    ("x://h{/a,b}", "x://h2", None),
    ("x://h{/a,b*}", "x://h/1", {"a": "1"}),
    ("x://h{/a,b*}", "x://h/1/2/3", {"a": "1", "b": ["2", "3"]}),
    ("x://h{/a}/end", "x://h/end", {}),
    ("x://h{/a}/end", "x://h/1/end", {"a": "1"}),
    ("x://h{/a*}/end", "x://h/1/end/end", {"a": ["1", "end"]}),
    # {.name}
    ("x://h{.a,b}", "x://h.1.2", {"a": "1", "b": "2"}),
    ("x://h{.a,b}", "x://h.1.2.3", {"a": "1", "b": "2.3"}),
    ("x://h{.a,b}", "x://h", {}),
    ("x://h{.a}", "x://h.", None),
    ("x://h{.a}", "x://h.1/2", None),
    # {;name}
    ("x://h{;a,b}", "x://h;a=1;b=2", {"a": "1", "b": "2"}),
    ("x://h{;a,b}/end", "x://h;b=2;a/end", {"a": "", "b": "2"}),
    ("x://h{;a,b}", "x://h", {}),
    ("x://h{;a,b}", "x://h;c=1", None),
    ("x://h{;a,b}", "x://h;a=1;a=2", None),
    ("x://h{;a,b}", "x://h;a=1#f", None),
    ("x://h{;a,b}", "x://h;a=1?q", None),
    ("x://h{;a,b}", "x://h/x;a=1", None),
    # {?name} and {&name}
    ("search://items{?q,limit}", "search://items?q=a&limit=5", {"q": "a", "limit": "5"}),
    ("search://items{?q,limit}", "search://items?limit=5&q=a", {"q": "a", "limit": "5"}),
    ("search://items{?q,limit}", "search://items?utm=1&q=a&&x", {"q": "a"}),
    ("search://items{?q,limit}", "search://items?utm=%FF&q=a", {"q": "a"}),
    ("search://items{?q,limit}", "search://items", {}),
    ("search://items{?q,limit}", "search://items?", {}),
    ("search://items{?q,limit}", "search://items?q", {"q": ""}),
    ("search://items{?q,limit}", "search://items?q=", {"q": ""}),
    ("search://items{?q,limit}", "search://items?q=a=b+c%2B/../d?", {"q": "a=b+c+/../d?"}),
    ("search://items{?q,limit}", "search://items?%71=a", {"q": "a"}),
    ("search://items{?q,limit}", "search://items?q=a,b", {"q": "a,b"}),
    ("search://items{?q,limit}", "search://items?q=1&q=2", None),
    ("search://items{?q,limit}", "search://items?q=1&%71=2", None),
    ("search://items{?q,limit}", "search://items?%FF=1", None),
    ("search://items{?q,limit}", "search://items?q=1#f", None),
    ("search://items{?q,limit}", "search://items&q=1", None),
    ("search://items{?q,limit}", "search://item?q=1", None),
    ("x://a{?p*}", "x://a?b=1&c%20d=%26&e", {"p": {"b": "1", "c d": "&", "e": ""}}),
    ("x://a{?p*}", "x://a?p=1", {"p": {"p": "1"}}),
    ("x://a{?p*}", "x://a", {}),
    ("x://a{?p*}", "x://a?", {}),
    ("x://a{?p*}", "x://a?b=1&b=2", None),
    ("x://a{?q,p*}", "x://a?b=1&q=2", {"q": "2", "p": {"b": "1"}}),
    ("x://a{?q,p*}", "x://a?q=2", {"q": "2"}),
    ("x://a{?q}{#f}", "x://a?q=1#f?g", {"q": "1", "f": "f?g"}),
    ("x://a{?q}{#f}", "x://a#f?q=1", {"f": "f?q=1"}),
    ("x://a?v=1{&q}", "x://a?v=1&q=2", {"q": "2"}),
    ("x://a?v=1{&q}", "x://a?v=1", {}),
    ("x://a?v=1{&q}", "x://a?q=2&v=1", None),
    ("x://a?v=1{&q}", "x://a?v=12&q=2", None),
    ("x://a?v=1&w=2{&q}", "x://a?v=1&w=2&z=0&q=3", {"q": "3"}),
    ("x://a?v={v}{&q}", "x://a?v=1&q=2", {"v": "1", "q": "2"}),
    # {#name}
    ("x://a{#frag}", "x://a#b/c?d", {"frag": "b/c?d"}),
    ("x://a{#frag}", "x://a#", {"frag": ""}),
    ("x://a{#frag}", "x://a", {}),
    ("x://a{#frag}", "x://ab#c", None),
    ("x://a#{frag}", "x://a#b", {"frag": "b"}),
    ("x://a#b{#frag}", "x://a#b#c", {"frag": "c"}),
]


@pytest.mark.parametrize(("template", "text", "expected"), MATCHES)
def test_matching(template, text, expected):
    assert UriTemplate(template).match(text) == expected


# Where a literal could also belong to a value: these are the rules of the docstring, one by one.
AMBIGUITIES = [
    # A variable ends where the literal after it occurs first …
    ("x://{name}.{ext}", "x://a.tar.gz", {"name": "a", "ext": "tar.gz"}),
    ("x://{a}-{b}-{c}", "x://1-2-3-4", {"a": "1", "b": "2", "c": "3-4"}),
    ("x://{user}@{host}", "x://a@b@c", {"user": "a", "host": "b@c"}),
    ("x://{a,b}", "x://1,2,3", {"a": "1", "b": "2,3"}),
    ("x://{a}ab{b}", "x://aabab", {"a": "a", "b": "ab"}),
    # … but takes one character at least …
    ("x://{a}-{b}", "x://--", None),
    ("x://{a}-{b}", "x://---", {"a": "-", "b": "-"}),
    ("x://{name}{.ext}", "x://.hidden", {"name": ".hidden"}),
    # … and the last one takes all up to the end.
    ("x://{name}.json", "x://a.json.json", {"name": "a.json"}),
    ("x://{name}.json", "x://.json", None),
    ("x://{name}.json/{key}", "x://a.json.json/k", {"name": "a.json", "key": "k"}),
    # The sign of an expression ends a variable as a literal does.
    ("x://{name}{.ext}", "x://a.tar.gz", {"name": "a", "ext": "tar.gz"}),
    ("x://{name}{.ext}", "x://a", {"name": "a"}),
    ("x://{name}{.ext}/{id}", "x://a/1.5", {"name": "a", "id": "1.5"}),
    ("x://{name}{;v}", "x://a;v=1", {"name": "a", "v": "1"}),
    ("x://{name}{/path*}", "x://a/b", {"name": "a", "path": ["b"]}),
    # The wide one takes what the others leave; right of it literals are found from the right.
    ("{+path}/end", "a/end/b/end", {"path": "a/end/b"}),
    ("{+path}/end", "a/end/b", None),
    ("{+path}/end", "/end", None),
    ("x://{+path}/meta/{key}", "x://a/meta/b/meta/k", {"path": "a/meta/b", "key": "k"}),
    ("x://{a}/{+path}/{b}", "x://1/2/3/4", {"a": "1", "path": "2/3", "b": "4"}),
    ("x://{a}/{+path}/{b}", "x://1/2", None),
    ("x://{+path}/{a}-{b}", "x://p/1-2-3", {"path": "p", "a": "1-2", "b": "3"}),
    ("x://{a}-{+path}-{b}", "x://1-2-3-4", {"a": "1", "path": "2-3", "b": "4"}),
    # A literal inside an escape breaks the escape, and does not match.
    ("x://{a}20{b}", "x://1%20220", None),
    ("x://{+a}F{b}", "x://1%2F2", None),
    # Only whole segments and no raw "&" where there is a literal query.
    ("x://{a}-{b}", "x://1/2-3", None),
    ("x://{a}?v={v}", "x://1?v=2&w=3", None),
]


@pytest.mark.parametrize(("template", "text", "expected"), AMBIGUITIES)
def test_ambiguous_uris_are_read_by_rule(template, text, expected):
    assert UriTemplate(template).match(text) == expected


@pytest.mark.parametrize(
    ("template", "names", "reason"),
    [
        ("x://{a}{b}", "'a' and 'b'", "nothing separates"),
        ("x://{/a}{b}", "'a' and 'b'", "nothing separates"),
        ("x://{a}{+b}", "'a' and 'b'", "nothing separates"),
        ("x://{+a}{b}", "'a' and 'b'", "nothing separates"),
        ("x://{+a}/{+b}", "'a' and 'b'", "it is ambiguous where each of"),
        ("x://{/a,b}/{c}{.d}", "'a' and 'b' and 'd'", "it is ambiguous where each of"),
        ("x://{+a}{/b*}", "'a' and 'b'", "it is ambiguous where each of"),
        ("x://{+a,b}", "'a' and 'b'", "the values of"),
        ("x://{#a,b}", "'a' and 'b'", "the values of"),
        ("x://{a}/{a}", "'a'", "appears twice"),
        ("x://{a}{?b,a}", "'a'", "appears twice"),
        ("x://{a:3}", "'a'", "is only a prefix of the value"),
        ("x://{a*}", "'a'", "is allowed only at the end of {/…*} and {?…*}"),
        ("x://{;a*}", "'a'", "is allowed only"),
        ("x://{/a*,b}", "'a'", "is allowed only"),
        ("x://{?a*,b*}", "'a'", "is allowed only"),
        ("x://{a%20b}", "'a%20b'", "has percent escapes"),
        ("x://{?a}/b", "'a'", "the query or fragment with"),
        ("x://{?a}{&b}", "'a'", "the query or fragment with"),
        ("x://{#a}{?b}", "'a'", "the query or fragment with"),
    ],
)
def test_an_unmatchable_template_explains_why(template, names, reason):
    parsed = UriTemplate(template)
    assert parsed.unmatchable is not None
    assert f"{template!r} can be expanded but not matched: " in parsed.unmatchable
    assert names in parsed.unmatchable
    assert reason in parsed.unmatchable
    assert "; " in parsed.unmatchable
    with pytest.raises(ValueError, match=re.escape(parsed.unmatchable)):
        parsed.match("x://a")


# --------------------------------------------------------------------- what is refused

PATH_TEMPLATES = [
    "file:///{a}",
    "file:///{a}/{b}",
    "file:///{a}.{b}",
    "file:///.{a}",
    "file:///{a}.",
    "file:///x{a}",
    "file:///{a,b}",
    "file:///{a}{.b}",
    "file:///d{.a,b}",
    "file:///d{/a}",
    "file:///d{/a,b}",
    "file:///d{/a*}",
    "file:///d{;a,b}",
    "file:///{+a}",
    "file:///x{+a}",
    "file:///.{+a}",
    "file:///{+a}.",
    "file:///{+a}/{b}",
    "file:///{+a}{?q}",
    "file:///{+a}{#f}",
    "file://{+a}",
    "file:{+a}",
    "{+a}",
]

TRAVERSALS = [
    "..",
    ".",
    "../etc/passwd",
    "./../etc",
    "a/..",
    "a/../b",
    "a/.",
    "a/./b",
    "/..",
    "//..",
    "..;/x",
    "..%2Fetc",
    "..%2f..%2fetc",
    "%2e%2e",
    "%2E%2E/etc",
    "%2e./etc",
    ".%2E/etc",
    "%2e",
    "%2e%2e%2fetc",
    "a%2f%2e%2e%2fb",
    "a%2F..%2Fb",
    "..%5Cetc",
    "..%5c..%5cetc",
    "a%5C..%5Cb",
    "a%5C%2e%2e",
    "a/..%5Cb",
    "..\\etc",
    "a\\..\\b",
    "..%00",
    "..%00/etc",
    "a/..%00/b",
    "%00../x",
    "%c0%ae%c0%ae/etc",  # an overlong dot is not UTF-8
    "%c0%ae%c0%ae%c0%afetc",
    "%e0%80%ae%e0%80%ae/etc",
    "..%c0%af",
    "..%2",
    "..%",
    "%2e%2",
    "%u002e%u002e/etc",
    ";a=..",
    ";a=%2e%2e",
    ";a=..%2Fetc",
    ";a=x;b=..",
    "d..",
    "d...",
    "d.%2e%2e",
    "d/..",
    "d/%2e%2e/etc",
    "d/a/..%2Fb",
    "d;a=..",
    "d;a=..%5Cx",
    "...",
    "....//etc",
]


def path_texts(found):
    for name, value in (found or {}).items():
        if name not in {"q", "f"}:  # query and fragment are free text
            yield from [value] if isinstance(value, str) else value


def leads_out(value):
    return "\0" in value or value[:1] in {"/", "\\"} or not {".", ".."}.isdisjoint(re.split(r"[/\\]", value))


@pytest.mark.requirement("RES-11", "RES-14")
@pytest.mark.parametrize("template", PATH_TEMPLATES)
def test_no_traversal_yields_a_value_that_leads_out(template):
    parsed = UriTemplate(template)
    for attempt, end in product(TRAVERSALS, ["", "/x", "?q=1", "#f", "%2Fx", "."]):
        found = parsed.match(f"file:///{attempt}{end}")
        assert not [value for value in path_texts(found) if leads_out(value)], (attempt, end)


@pytest.mark.requirement("RES-11", "RES-14")
@given(st.sampled_from(PATH_TEMPLATES), st.text("./\\%2eE5cCfF0;=ad?#,é\0") | st.text())
def test_no_uri_yields_a_value_that_leads_out(template, text):
    found = UriTemplate(template).match(f"file:///{text}")
    values = list(path_texts(found))
    assert not [value for value in values if leads_out(value)]
    if "+" not in template:
        assert not [value for value in values if {"/", "\\"} & set(value)]


@pytest.mark.requirement("RES-14")
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("file:///{+path}", "file:////etc/passwd"),
        ("file:///{+path}", "file:///%2Fetc/passwd"),
        ("file:///{+path}", "file:///%5Cetc"),
        ("docs://{+path}", "docs:///etc/passwd"),
        ("docs://{+path}", "docs://%2Fetc/passwd"),
        ("docs://{+path}", "docs://%5C%5Chost%5Cshare"),
        ("docs:{+path}", "docs:/etc/passwd"),
        ("docs:{+path}", "docs://host/etc"),
        ("file://{+path}", "file:///etc/passwd"),
        ("x://h{+path}", "x://h/etc"),
        ("x://h/.{+path}", "x://h/./etc"),
        ("x://{id}-{+path}/end", "x://1-/etc/end"),
        ("{+path}", "/etc/passwd"),
        ("{+path}{?q}", "/etc/passwd?q=1"),
        ("x://host/{id}/{+path}", "x://host/1//etc"),
        ("x://h{/path*}", "x://h//etc/passwd"),
        ("x://h{/path*}", "x://h/%2Fetc/passwd"),
    ],
)
def test_no_value_is_an_absolute_path(template, text):
    assert UriTemplate(template).match(text) is None


@pytest.mark.requirement("RES-11")
@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        ("x://{a}", "x://%2F", None),
        ("x://{a}", "x://%252F", {"a": "%2F"}),
        ("x://{a}", "x://%25252F", {"a": "%252F"}),
        ("x://{a}", "x://%252e%252e", {"a": "%2e%2e"}),
        ("x://{+a}", "x://%252e%252e/b", {"a": "%2e%2e/b"}),
        ("x://h{/a*}", "x://h/%252F/b", {"a": ["%2F", "b"]}),
        ("x://h{?a}", "x://h?a=%252F", {"a": "%2F"}),
        ("x://h{?a*}", "x://h?%2525=%2525", {"a": {"%25": "%25"}}),
        ("x://h{#a}", "x://h#%2541", {"a": "%41"}),
    ],
)
def test_a_value_is_decoded_exactly_once(template, text, expected):
    assert UriTemplate(template).match(text) == expected


@pytest.mark.requirement("RES-11")
@pytest.mark.parametrize(
    "template", ["x://{a}", "x://{+a}", "x://{/a*}", "x://{?a}", "x://{?a*}", "x://{#a}"]
)
@pytest.mark.parametrize(
    "broken",
    ["%", "%4", "%4g", "%%41", "a%", "%FF", "%C3", "%C3a", "%ED%A0%80", "%F4%90%80%80", "%zz"],
)
def test_broken_escapes_and_broken_utf8_do_not_match(template, broken):
    parsed = UriTemplate(template)
    good = uritemplate.expand(template, {"a": {"a": "good"} if template == "x://{?a*}" else "good"})
    assert parsed.match(good) is not None
    assert parsed.match(good.replace("good", broken)) is None


# --------------------------------------------------------------------- match is the inverse of expansion

unicode_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
segments = unicode_texts.filter(
    lambda text: text not in {"", ".", ".."} and not {"/", "\\", "\0"} & set(text)
)
undotted = segments.map(lambda text: text.replace(".", "") or "x")
wide_values = {
    "{+w}": st.lists(segments.map(lambda text: re.sub("[%?#&]", "", text)), min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda text: text[:1] not in {"", "/"} and not leads_out(text))
    .map(lambda text: {"w": text}),
    "{/w}": segments.map(lambda text: {"w": text}),
    "{/v,w}": st.tuples(segments, segments).map(lambda pair: {"v": pair[0], "w": pair[1]}),
    "{/w*}": st.lists(segments, min_size=1, max_size=4).map(lambda texts: {"w": texts}),
    "{/v,w*}": st.tuples(segments, st.lists(segments, min_size=1, max_size=4)).map(
        lambda pair: {"v": pair[0], "w": pair[1]}
    ),
    "{.w}": segments.map(lambda text: {"w": text}),
    "{.v,w}": st.tuples(undotted, segments).map(lambda pair: {"v": pair[0], "w": pair[1]}),
    "{;v,w}": st.fixed_dictionaries({}, optional={"v": segments | st.just(""), "w": segments}),
}
query_values = {
    "{?q,r}": st.fixed_dictionaries({}, optional={"q": unicode_texts, "r": unicode_texts}),
    "?fixed=1&z{&q,r}": st.fixed_dictionaries({}, optional={"q": unicode_texts, "r": unicode_texts}),
    "{?q*}": st.dictionaries(unicode_texts, unicode_texts, min_size=1).map(lambda found: {"q": found}),
    "{?r,q*}": st.fixed_dictionaries(
        {"q": st.dictionaries(unicode_texts.filter(lambda key: key != "r"), unicode_texts, min_size=1)},
        optional={"r": unicode_texts},
    ),
}
fragment_values = {
    "{#f}": unicode_texts.map(lambda text: {"f": text.replace("%", "")}),
}
# What an encoded value never holds: it separates without doubt.
separators = st.sampled_from(["/", ":", "@", ",", "/x/", "!a", "(", "/%2F/", "/é/", "'"])


@st.composite
def templates_and_values(draw):
    template, values = draw(st.sampled_from(["x://", "x:", "file:///", "https://h/"])), {}
    left, right = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    optional = [draw(st.sampled_from([None, *kind])) for kind in (wide_values, query_values, fragment_values)]
    for number in range(left):
        name = f"l{number}"
        values[name] = draw(undotted)
        template += "{" + name + "}" + draw(separators)
    if (wide := optional[0]) is not None:
        values |= draw(wide_values[wide])
        if left and "+" not in wide and draw(st.booleans()):
            template = template[: template.rindex("}") + 1]
        template += wide
    for number in range(right):
        name = f"r{number}"
        values[name] = draw(segments)
        template += draw(separators) + "{" + name + "}"
    for part, kind in zip(optional[1:], (query_values, fragment_values), strict=True):
        if part is not None:
            values |= draw(kind[part])
            template += part
    return template, values


@given(templates_and_values())
@example(("x://{l0}{/w*}{?q*}{#f}", {"l0": "%2F", "w": ["a b", "é"], "q": {"&": "="}, "f": "#/?"}))
def test_expanded_uris_match(case):
    template, values = case
    parsed = UriTemplate(template)
    assert parsed.unmatchable is None
    assert parsed.match(uritemplate.expand(template, values)) == values


@given(
    st.sampled_from([row[0] for row in [*MATCHES, *AMBIGUITIES] if not re.search("{[+#]", row[0])]),
    st.text("x:/ab12.-;=&?#,%41@é", max_size=20),
)
def test_matched_values_expand_to_an_equivalent_uri(template, tail):
    parsed = UriTemplate(template)
    found = parsed.match(template.partition("{")[0] + tail)
    if found is not None:
        assert parsed.match(uritemplate.expand(template, {**found})) == found


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        # The classes of values that do not come back as they were.
        ("x://h{/a*}", {"a": []}, {}),
        ("x://h{?a}", {"a": None}, {}),
        ("x://{a}", {"a": ""}, None),
        ("x://h{/a}", {"a": ""}, None),
        ("x://{a}", {"a": 12}, {"a": "12"}),
        ("x://{a}", {"a": ["1", "2"]}, {"a": "1,2"}),
        ("x://h{?a}", {"a": {"k": "v"}}, {"a": "k,v"}),
        ("x://h{?a*}", {"a": ["1", "2"]}, None),
        ("x://{a}", {"a": "../b"}, None),
        ("x://{+a}", {"a": "/b"}, None),
        ("x://{a}-{b}", {"a": "1-2", "b": "3"}, {"a": "1", "b": "2-3"}),
        ("x://h{/a,b}", {"b": "1"}, {"a": "1"}),
        ("x://h{?a,b*}", {"a": "1", "b": {"a": "2"}}, None),
        ("x://{+a}", {"a": "%41"}, {"a": "A"}),
        ("x://h{#a}", {"a": "%41"}, {"a": "A"}),
        ("x://{+a}{?b}", {"a": "1?b=2"}, {"a": "1", "b": "2"}),
    ],
)
def test_values_that_do_not_round_trip(template, values, expected):
    parsed = UriTemplate(template)
    assert parsed.match(uritemplate.expand(template, values)) == expected


# --------------------------------------------------------------------- large input

# Each would take minutes or more with work that grows with the square of the length.
SIZE = 100_000
LARGE = [
    ("x://{a}", "x://" + "a" * SIZE, True),
    ("x://{a}", "x://" + "%41" * (SIZE // 3), True),
    ("x://{a}/b", "x://" + "/" * SIZE, False),
    ("x://" + "-".join(f"{{v{n}}}" for n in range(64)), "x://" + "-" * SIZE, True),
    ("x://" + "-".join(f"{{v{n}}}" for n in range(64)) + "/", "x://" + "-" * SIZE, False),
    ("x://{a}" + "a" * 2000 + "b{b}", "x://" + "a" * SIZE, False),
    ("x://{+a}b" + "a" * 2000 + "{b}", "x://" + "a" * SIZE, False),
    ("x://{a}ab{b}ab{c}ab{d}", "x://" + "a" * SIZE + "ab", False),
    ("{+p}/{a}/{b}/{c}", "/" * SIZE, False),
    ("{+p}/end", "end" + "/end" * (SIZE // 4 - 1), True),
    ("{a}/{+p}/{b}", "a" + "/a" * (SIZE // 2), True),
    ("{+p}", "a\u20ac" * (SIZE // 2), True),
    ("x://h{/p*}/end", "x://h" + "/end" * (SIZE // 4), True),
    ("x://h{/p*}", "x://h" + "/" * SIZE, False),
    ("x://{n}{.a,b}", "x://n" + ".a" * (SIZE // 2), True),
    ("x://h{;a,b}", "x://h" + ";" * SIZE, True),
    ("x://h{?a,b}", "x://h?" + "&" * SIZE, True),
    ("x://h{?a,b}", "x://h?" + "?" * SIZE, True),
    ("x://h?" + "&" * 2000 + "{&a}", "x://h?" + "&" * SIZE, True),
    ("x://h{?p*}", "x://h?" + "&".join(f"{n}=" for n in range(SIZE // 7)), True),
    ("x://h{?p*}", "x://h?" + "&a" * (SIZE // 2), False),
    ("x://h{#f}", "x://h" + "#" * SIZE, True),
    ("x://h{?a}{#f}", "x://h?" + "%25" * (SIZE // 3), True),
    ("x://h{?a}", "x://h" + "%" * SIZE, False),
]


@pytest.mark.parametrize(("template", "text", "matches"), LARGE)
def test_the_work_grows_with_the_length_only(template, text, matches):
    assert len(text) <= MAX_URI
    assert (UriTemplate(template).match(text) is not None) is matches
