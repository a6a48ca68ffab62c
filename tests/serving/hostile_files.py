"""Files and requests that were made to break the server; used by tests only."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(side=8, *, extra=(), before_end=(), pixels=None):
    """A grey image, with more chunks after the header or before the end."""
    raw = b"".join(b"\0" + b"\x96" * side for _ in range(side)) if pixels is None else pixels
    return b"".join(
        [
            PNG,
            chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)),
            *(chunk(kind, data) for kind, data in extra),
            chunk(b"IDAT", zlib.compress(raw)),
            *(chunk(kind, data) for kind, data in before_end),
            chunk(b"IEND", b""),
        ]
    )


def text_bomb(chunks=60, size=2**20):
    """A small file whose text takes ``chunks`` x ``size`` bytes when it is unpacked."""
    packed = zlib.compress(b"a" * size, 9)
    return png(extra=[(b"iTXt", b"k%d\0\1\0\0\0" % number + packed) for number in range(chunks)])


def jpeg(side=8, **settings):
    file = io.BytesIO()
    Image.new("RGB", (side, side), (150, 150, 150)).save(file, "JPEG", **settings)
    return file.getvalue()


def scan_bomb(side=3992, scans=506):
    """A progressive file of few bytes: the same scan again and again."""
    made = jpeg(side, progressive=True, quality=30).removesuffix(b"\xff\xd9")
    last = made[made.rindex(b"\xff\xda") :]
    return made + last * (scans - made.count(b"\xff\xda")) + b"\xff\xd9"


def noise_png(side, seed=0):
    rng = np.random.default_rng(seed)
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(
        file, "PNG", compress_level=0
    )
    return file.getvalue()
