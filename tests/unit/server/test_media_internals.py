"""Pictures, sounds and files: what they are, and the content that they become."""

import pytest

from toolpost.server.registry.media import Media


def test_media_of_no_kind_have_no_content():
    with pytest.raises(TypeError, match="content"):
        Media(b"x")  # pyright: ignore[reportAbstractUsage] - that is the point
