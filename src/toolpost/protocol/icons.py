"""Icons: which of them may be shown, and which a server may offer.

One rule for both ends: a picture comes from `https:`, or stands in a `data:` URI and is of a kind that
clients draw. Looks at what an icon says of itself; nothing is fetched here.
"""

from collections.abc import Iterable
from typing import Final

from toolpost.protocol.headers import quote_value
from toolpost.types.base import Icon

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp")
"""What clients must or should be able to draw (ICON-1, ICON-2)."""


def explain_unsafe_icon(icon: Icon) -> str | None:
    """What is wrong with an icon, in a sentence; None if nothing is (ICON-4).

    Who fetches an icon and is sent on to another place asks again about that one.
    """
    named = f"the icon {quote_value(icon.src)}"
    # Also because browsers skip tabs and line ends, which could hide a scheme from us.
    if not icon.src.isascii() or not icon.src.isprintable() or " " in icon.src:
        return f"{named} is no URI: it may have only visible ASCII characters"
    if icon.mime_type is not None and not icon.mime_type.lower().startswith("image/"):
        return f"{named} is no picture, but {quote_value(icon.mime_type)}"
    scheme, _, rest = icon.src.partition(":")
    if scheme.lower() == "data":
        kind = rest.partition(",")[0].partition(";")[0]
        return None if kind.lower() in IMAGE_TYPES else f"{named} holds none of {', '.join(IMAGE_TYPES)}"
    if scheme.lower() == "https" and rest.startswith("//") and (rest[2:3].isalnum() or rest[2:3] == "["):
        return None
    return f"{named} is not safe: it must be an https: or data: URI"


def safe_icons(icons: Iterable[Icon] | None) -> list[Icon]:
    """The icons that may be shown, in their order. A client asks: what a server says is not to be trusted.

    Examples:
        >>> offered = [Icon("https://example.com/pen.png"), Icon("javascript:alert(1)")]
        >>> [icon.src for icon in safe_icons(offered)]
        ['https://example.com/pen.png']
    """
    return [icon for icon in icons or () if explain_unsafe_icon(icon) is None]


def check_icons(icons: Iterable[Icon] | None) -> None:
    """Return if a server may offer these icons.

    Raises:
        TypeError: they are no list of icons.
        ValueError: clients would refuse one; the text names it.
    """
    if isinstance(icons, str | Icon):
        raise TypeError("icons has to be a list, also when there is only one")
    for icon in icons or ():
        if not isinstance(icon, Icon):  # pyright: ignore[reportUnnecessaryIsInstance] - who is not checked may err
            raise TypeError(
                f'icons has to be a list of Icon objects, such as Icon("https://…"), not of {icon!r}'
            )
        wrong = explain_unsafe_icon(icon)
        if wrong is not None:
            raise ValueError(wrong)
