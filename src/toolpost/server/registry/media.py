"""Images, audio and files that a tool returns, as content blocks.

Each is made from bytes or from a path, whose file is read when the block is made.
"""

import os
from base64 import b64encode
from copy import copy
from typing import ClassVar, Final, Self

from toolpost.server.options import parse_hints
from toolpost.types.base import Annotations
from toolpost.types.content import AudioContent, Content, EmbeddedResource, ImageContent, ResourceContents

_SIGNATURES: Final[tuple[tuple[bytes, int, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"OggS", 0, "audio/ogg"),
    (b"fLaC", 0, "audio/flac"),
)
"""First bytes, their position, and the media type that they mean."""

DEFAULT_MIME_TYPE: Final = "application/octet-stream"


class Media:
    """The base of `Image`, `Audio` and `File`; raises ValueError if the type cannot be guessed."""

    family: ClassVar[str] = ""
    name: str = ""
    _block: ClassVar[type[ImageContent | AudioContent]]

    def __init__(
        self,
        source: bytes | str | os.PathLike[str],
        *,
        mime_type: str | None = None,
        annotations: Annotations | None = None,
    ) -> None:
        self.data = source if isinstance(source, bytes) else None
        self.path = None if isinstance(source, bytes) else os.fspath(source)
        self.mime_type = mime_type or self._guess_mime_type()
        self.annotations = annotations and parse_hints(Annotations, "annotations", annotations)

    def _guess_mime_type(self) -> str:
        data = self.data or b""
        kinds = [kind for start, at, kind in _SIGNATURES if data.startswith(start, at)]
        for name in filter(None, (self.path, self.name)):
            import mimetypes  # noqa: PLC0415 - start-up time

            # Not the global table, which depends on the machine.
            kinds.insert(0, mimetypes.MimeTypes().guess_type(name, strict=False)[0] or "")
        guess = next(filter(None, kinds), DEFAULT_MIME_TYPE)
        if not guess.startswith(self.family):
            source = "the first bytes" if self.path is None else f"the name {self.path!r}"
            raise ValueError(f"cannot detect the {self.family[:-1]} type from {source}; pass mime_type=")
        return guess

    def read(self) -> bytes:
        """The bytes."""
        if self.path is None:
            return self.data or b""
        with open(self.path, "rb") as file:  # noqa: PTH123 - pathlib is slow to load, and few servers need it
            return file.read()

    def load(self) -> Self:
        """Return a copy with the bytes of the file in memory."""
        if self.path is None:
            return self
        loaded = copy(self)
        loaded.data, loaded.path = self.read(), None
        return loaded

    def _encode_base64(self) -> str:
        return b64encode(self.read()).decode()

    def to_contents(self, uri: str, mime_type: str) -> ResourceContents:
        """The contents of a resource; text stays text."""
        contents = ResourceContents(uri=uri, mime_type=mime_type)
        if mime_type.startswith("text/"):
            contents.text = self.read().decode(errors="replace")
        else:
            contents.blob = self._encode_base64()
        return contents

    def content(self) -> Content:
        """The content block."""
        return self._block(data=self._encode_base64(), mime_type=self.mime_type, annotations=self.annotations)


class Image(Media):
    r"""An image, from bytes or a file.

    Examples:
        >>> Image(b"\x89PNG\r\n\x1a\n").mime_type
        'image/png'
        >>> Image("chart.webp").mime_type
        'image/webp'
    """

    family = "image/"
    _block = ImageContent


class Audio(Media):
    """An audio clip, from bytes or a file.

    Examples:
        >>> Audio(b"OggS").mime_type
        'audio/ogg'
    """

    family = "audio/"
    _block = AudioContent


class File(Media):
    """Any file, sent as an embedded resource.

    Args:
        source: the bytes, or the path of a file, read on use.
        name: its name for the client; that of the file by default. The folder is never sent.
        mime_type: its MIME type; guessed by default, else `application/octet-stream`.
        annotations: hints about the audience.

    Examples:
        >>> File("report.pdf").mime_type
        'application/pdf'
    """

    def __init__(
        self,
        source: bytes | str | os.PathLike[str],
        *,
        name: str | None = None,
        mime_type: str | None = None,
        annotations: Annotations | None = None,
    ) -> None:
        self.name = name or ""
        super().__init__(source, mime_type=mime_type, annotations=annotations)
        self.name = name or os.path.basename(self.path or "data")  # noqa: PTH119 - as above

    def content(self) -> Content:
        """The content block; text stays text."""
        from urllib.parse import quote  # noqa: PLC0415 - start-up time

        contents = self.to_contents(f"file:///{quote(self.name)}", self.mime_type)
        return EmbeddedResource(resource=contents, annotations=self.annotations)
