"""Files that a command makes of what a server sends: pictures, sounds, anything binary.

Owns their names, which come from the words of the user and never from the server, and that no file that is
there already is overwritten.
"""

import base64
import binascii
import re
from itertools import count
from pathlib import Path
from typing import Final

from toolpost.cli.exits import FAILED, USAGE, CommandError

__all__ = ["OutputFolder", "decode_base64"]

_UNSAFE_CHARACTERS: Final = re.compile(r"[^\w.-]+")

_FILE_EXTENSIONS: Final = {
    "image/jpeg": ".jpg",
    "image/webp": ".webp",
    "audio/wav": ".wav",
    "audio/x-wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/flac": ".flac",
    "text/plain": ".txt",
    "text/markdown": ".md",
}
"""What Python's own table lacks, or has several of."""


def decode_base64(text: str, what: str) -> bytes:
    """The bytes that base64 stands for.

    Raises:
        CommandError: it is no base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CommandError(f"{what} is no base64, and cannot be saved: {error}", FAILED) from error


class OutputFolder:
    """Where files are saved.

    Args:
        path: the folder; it is made when the first file is.
        stem: what files are called, in the words of the user.
    """

    def __init__(self, path: Path, stem: str) -> None:
        self._path = path
        # Neither a path nor hidden, whatever somebody has typed.
        self._stem = _UNSAFE_CHARACTERS.sub("_", stem).strip("._") or "saved"

    def save(self, data: bytes, mime: str | None) -> Path:
        """The path of a new file with this data.

        Raises:
            CommandError: it cannot be written.
        """
        ending = _guess_extension(mime)
        stem = self._stem.removesuffix(ending)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            for number in count():
                path = self._path / f"{stem}{f'-{number}' if number else ''}{ending}"
                try:
                    with path.open("xb") as file:
                        file.write(data)
                except FileExistsError:
                    continue
                return path
        except OSError as error:
            raise CommandError(
                f"{self._path} cannot be written to: {error.strerror or error}",
                USAGE,
                hint="--save DIR names another folder",
            ) from error
        raise AssertionError("a number is always free")


def _guess_extension(mime: str | None) -> str:
    kind = (mime or "").partition(";")[0].strip().lower()
    if kind in _FILE_EXTENSIONS:
        return _FILE_EXTENSIONS[kind]
    import mimetypes  # noqa: PLC0415 - reads the tables of the system

    return mimetypes.guess_extension(kind) or ".bin"
