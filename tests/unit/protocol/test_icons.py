import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.protocol.local_peer import IMAGE_TYPES, check_icons, explain_unsafe_icon, safe_icons
from toolpost.types import Icon

SAFE = [
    "https://example.com/a.png",
    "HTTPS://example.com",
    "https://[2001:db8::1]/a.png",
    "https://example.com:8443/a.png?size=48#top",
    "data:image/png;base64,iVBORw0KGgo=",
    "DATA:IMAGE/PNG;base64,iVBORw0KGgo=",
    "data:image/svg+xml,%3Csvg%3E",
    "data:image/webp;charset=x;base64,UklGRg==",
]

UNSAFE = [
    "http://example.com/a.png",
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    "java\tscript:alert(1)",
    "\x01javascript:alert(1)",
    "file:///etc/passwd",
    "ftp://example.com/a.png",
    "ws://example.com/",
    "wss://example.com/",
    "vscode://open",
    "blob:https://example.com/1",
    "",
    ":",
    "a.png",
    "/a.png",
    "//example.com/a.png",
    "https",
    "https:",
    "https:a.png",
    "https:/example.com/a.png",
    "https://",
    "https:///etc/passwd",
    r"https://\example.com",
    "https://?",
    "https://example.com/a b.png",
    "https://example.com/\n",
    "https://example.com/ü.png",
    "https://example.com/\ud800",
    " https://example.com/a.png",
    "data:",
    "data:,x",
    "data:;base64,eA==",
    "data:text/html,<script>alert(1)</script>",
    "data:text/html;image/png,x",
    "data:image/gif;base64,R0lGODlh",
    "data:image/pngx;base64,eA==",
    "data: image/png;base64,eA==",
]


@pytest.mark.requirement("ICON-1", "ICON-2")
@pytest.mark.parametrize("kind", IMAGE_TYPES)
def test_each_kind_of_picture_that_clients_draw_is_kept(kind):
    icons = [Icon(f"data:{kind};base64,eA=="), Icon("https://example.com/a", mime_type=kind)]
    assert safe_icons(icons) == icons
    assert safe_icons([Icon("https://example.com/a", mime_type=kind.upper())])


def test_the_kinds_are_those_of_the_specification():
    must, should = {"image/png", "image/jpeg", "image/jpg"}, {"image/svg+xml", "image/webp"}
    assert set(IMAGE_TYPES) == must | should


@pytest.mark.parametrize("src", SAFE)
def test_a_safe_icon_is_kept_and_may_be_offered(src):
    icon = Icon(src, sizes=["48x48"], theme="dark")
    assert safe_icons([icon]) == [icon]
    check_icons([icon])


@pytest.mark.requirement("ICON-4")
@pytest.mark.parametrize("src", UNSAFE)
def test_an_unsafe_icon_is_left_out_and_may_not_be_offered(src):
    good, bad = Icon(SAFE[0]), Icon(src)
    assert safe_icons([bad, good, bad]) == [good]
    with pytest.raises(ValueError, match="the icon ") as refused:
        check_icons([good, bad])
    assert repr(src)[:20].rstrip("'") in str(refused.value)


@pytest.mark.requirement("ICON-3")
@pytest.mark.parametrize("kind", ["text/html", "application/javascript", "", "image", "ximage/png"])
def test_an_icon_with_another_declared_type_is_unsafe(kind):
    assert safe_icons([Icon(SAFE[0], mime_type=kind)]) == []
    assert safe_icons([Icon(SAFE[4], mime_type=kind)]) == []


@pytest.mark.parametrize("icons", [None, []])
def test_no_icons_are_none(icons):
    assert safe_icons(icons) == []
    check_icons(icons)


def test_a_large_icon_is_named_shortly():
    wrong = explain_unsafe_icon(Icon("data:text/html," + "x" * 1_000_000))
    assert wrong is not None
    assert len(wrong) < 300
    assert explain_unsafe_icon(Icon("data:image/png;base64," + "x" * 1_000_000)) is None


@pytest.mark.requirement("ICON-3", "ICON-4")
@given(st.text() | st.from_regex(r"(?i)\s?(https|data|java\tscript|file):.*"), st.none() | st.text())
def test_only_two_schemes_are_safe(src, mime_type):
    for icon in safe_icons([Icon(src, mime_type=mime_type, sizes=[src], theme=src)]):
        assert icon.src.lower().startswith(("https://", "data:image/"))
        assert not set(icon.src) & set(" \t\r\n\x00")


@pytest.mark.parametrize("icons", ["https://example.com/a.png", Icon(SAFE[0])])
def test_one_icon_is_not_a_list(icons):
    with pytest.raises(TypeError, match="icons must be a list, even if there is only one"):
        check_icons(icons)


@pytest.mark.parametrize("icon", [SAFE[0], {"src": SAFE[0]}, None])
def test_an_invalid_icon_is_named(icon):
    with pytest.raises(TypeError, match=r"icons must be a list of Icon objects, .*, not ") as refused:
        check_icons([Icon(SAFE[0]), icon])
    assert repr(icon) in str(refused.value)
