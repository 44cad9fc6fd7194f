"""Images, audio and files: their types, and their conversion to content."""

from base64 import b64encode
from typing import Any

import pytest

from toolpost import Audio, File, Image
from toolpost.types import Annotations, AudioContent, EmbeddedResource, ImageContent, ResourceContents

PNG = b"\x89PNG\r\n\x1a\n..."


@pytest.mark.parametrize(
    ("media", "mime_type"),
    [
        (Image(PNG), "image/png"),
        (Image(b"\xff\xd8\xff\xe0"), "image/jpeg"),
        (Image(b"GIF89a"), "image/gif"),
        (Image(b"RIFF....WEBPVP8 "), "image/webp"),
        (Image(b"?", mime_type="image/x-mine"), "image/x-mine"),
        (Image("a.jpeg"), "image/jpeg"),
        (Image("a.webp"), "image/webp"),
        (Audio(b"RIFF....WAVEfmt "), "audio/wav"),
        (Audio(b"ID3."), "audio/mpeg"),
        (Audio(b"\xff\xfb.."), "audio/mpeg"),
        (Audio(b"OggS"), "audio/ogg"),
        (Audio(b"fLaC"), "audio/flac"),
        (Audio("a.mp3"), "audio/mpeg"),
        (File(b"?"), "application/octet-stream"),
        (File(b""), "application/octet-stream"),
        (File(PNG), "image/png"),
        (File("a/b.pdf"), "application/pdf"),
        (File("a/b.unheard-of"), "application/octet-stream"),
        (File(b"a,b", name="x.csv"), "text/csv"),
        (File(PNG, name="x.unheard-of"), "image/png"),
        (File("a/tmp123", name="x.csv"), "text/csv"),
        (File("a/b.csv", name="a report"), "text/csv"),
    ],
    ids=lambda it: it if isinstance(it, str) else None,
)
def test_media_detect_their_type(media, mime_type):
    assert media.mime_type == mime_type


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Image(b"?"), "cannot detect the image type from the first bytes; pass mime_type="),
        (lambda: Image(b"OggS"), "cannot detect the image type from the first bytes"),
        (lambda: Image("a.txt"), "cannot detect the image type from the name 'a.txt'"),
        (lambda: Audio("picture.png"), "cannot detect the audio type from the name 'picture.png'"),
    ],
)
def test_media_of_unknown_type_need_a_mime_type(make, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        make()


def test_a_file_is_read_on_demand_and_its_folder_is_never_sent(tmp_path):
    path = tmp_path / "a b.png"
    picture = Image(path)
    with pytest.raises(FileNotFoundError):
        picture.content()
    path.write_bytes(PNG)
    assert picture.content() == ImageContent(data=b64encode(PNG).decode(), mime_type="image/png")
    assert File(path).content() == EmbeddedResource(
        resource=ResourceContents(
            uri="file:///a%20b.png", blob=b64encode(PNG).decode(), mime_type="image/png"
        )
    )
    assert str(tmp_path) not in repr(File(path).content())


def test_each_kind_of_media_is_its_own_kind_of_content():
    hints = Annotations(audience=["user"])
    assert Image(PNG, annotations=hints).content() == ImageContent(
        data=b64encode(PNG).decode(), mime_type="image/png", annotations=hints
    )
    assert Audio(b"OggS", annotations=hints).content() == AudioContent(
        data=b64encode(b"OggS").decode(), mime_type="audio/ogg", annotations=hints
    )
    assert File(b"a,b", name="t.csv", mime_type="text/csv").content() == EmbeddedResource(
        resource=ResourceContents(uri="file:///t.csv", text="a,b", mime_type="text/csv")
    )
    assert File(b"x", annotations=hints).content() == EmbeddedResource(
        resource=ResourceContents(uri="file:///data", blob="eA==", mime_type="application/octet-stream"),
        annotations=hints,
    )


def test_annotations_may_be_a_dict_in_either_spelling():
    for hints in ({"last_modified": "2026-07-28"}, {"lastModified": "2026-07-28"}):
        given: Any = hints
        assert File(b"", annotations=given).annotations == Annotations(last_modified="2026-07-28")
    wrong: Any = {"priority": "high"}
    with pytest.raises(TypeError, match=r"^annotations: Expected .* at `\$.priority`"):
        Image(PNG, annotations=wrong)
