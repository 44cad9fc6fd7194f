"""Images: tools that return a generated picture or sound.

`Image`, `Audio` and `File` take bytes or a path. The MIME type follows from the first bytes or the file name.

    toolpost call examples/images.py sunset --width 320 --height 200
    toolpost call examples/images.py tone --hertz 440
"""

import io
import math
import struct
import wave
import zlib
from typing import Annotated

from msgspec import Meta

from toolpost import Audio, Image, Server

server = Server("images", version="1.0")

Pixels = Annotated[int, Meta(ge=1, le=1024)]
DUSK, EVENING = (255, 140, 60), (40, 20, 90)
RATE = 8000  # samples per second


@server.tool
def sunset(width: Pixels = 160, height: Pixels = 100) -> list[str | Image]:
    """Paint a sunset and return it as a PNG image."""
    rows = [mix(EVENING, DUSK, y / height) * width for y in range(height)]
    return [f"A sunset, {width} by {height} pixels.", Image(png(width, rows))]


@server.tool
def tone(
    hertz: Annotated[float, Meta(ge=20, le=4000)] = 440,
    seconds: Annotated[float, Meta(gt=0, le=5)] = 0.5,
) -> Audio:
    """Generate a tone and return it as WAV audio."""
    waves = (math.sin(math.tau * hertz * moment / RATE) for moment in range(int(RATE * seconds)))
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes(b"".join(struct.pack("<h", int(20000 * height)) for height in waves))
    return Audio(file.getvalue())


def mix(above: tuple[int, ...], below: tuple[int, ...], share: float) -> bytes:
    """Return a pixel with a colour between two others."""
    return bytes(round(a + (b - a) * share) for a, b in zip(above, below, strict=True))


def png(width: int, rows: list[bytes]) -> bytes:
    """Return a PNG file made of rows of pixels, three bytes each."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, len(rows), 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


if __name__ == "__main__":
    server.run()
