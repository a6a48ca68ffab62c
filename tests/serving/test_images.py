"""Image files that cost more than they look like."""

import asyncio
import io
import threading
import time
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from mimonets._inputs import InputSpec
from mimonets.serving.decoders import Decoders
from mimonets.serving.errors import RequestError
from mimonets.serving.images import read_images, read_outline
from serving.hostile_files import PNG, chunk, jpeg, png, scan_bomb, text_bomb

SPEC = InputSpec(kind="image", shape=(1, 8, 8), mean=(100.0,), deviation=(50.0,))
COLOUR = InputSpec(kind="image", shape=(3, 8, 8))
PIXELS = 16_000_000


def refused(file, status, words, pixels=PIXELS):
    with pytest.raises(RequestError, match=words) as caught:
        read_images([file], SPEC, pixels)
    assert caught.value.status == status


def test_text_in_a_png_file_is_not_unpacked():
    """Ten files of 63 kB took 2.7 GB."""
    files = [text_bomb()] * 10
    tracemalloc.start()
    try:
        images = read_images(files, SPEC, PIXELS)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (images == 1).all()
    assert most < 5e6


@pytest.mark.parametrize("kind", [b"iTXt", b"zTXt", b"tEXt", b"iCCP", b"eXIf", b"acTL", b"fcTL"])
def test_only_what_decides_the_pixels_of_a_png_file_reaches_the_decoder(kind):
    file = png(extra=[(kind, b"x" * 100)], before_end=[(kind, b"x" * 100)])
    assert read_outline(file + b"more").data == png()
    assert (read_images([file], SPEC, PIXELS) == 1).all()


def test_comments_and_thumbnails_of_a_jpeg_file_do_not_reach_the_decoder():
    plain = jpeg()
    segments = b"".join(
        b"\xff" + bytes([kind]) + (102).to_bytes(2) + b"x" * 100 for kind in (0xE1, 0xE2, 0xFE)
    )
    assert read_outline(plain[:2] + segments + plain[2:]).data == plain


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("spec", [SPEC, COLOUR])
def test_pixels_are_those_of_pillow(mode, spec):
    rng = np.random.default_rng(0)
    grey = Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8))
    image = grey.convert("I").convert("I;16") if mode == "I;16" else grey.convert(mode)
    file = io.BytesIO()
    image.save(file, "PNG")
    found = read_images([file.getvalue()], spec, PIXELS)
    with Image.open(file) as again:
        if mode == "I;16":
            again = Image.fromarray((np.asarray(again) >> 8).astype(np.uint8))
        wanted = np.asarray(again.convert("L" if spec is SPEC else "RGB"))
    raw = wanted[None] if wanted.ndim == 2 else wanted.transpose(2, 0, 1)
    np.testing.assert_array_equal(found[0], spec.prepare(raw))


@pytest.mark.parametrize("settings", [{}, {"progressive": True}, {"subsampling": 2}])
def test_pixels_of_a_jpeg_file_are_those_of_pillow(settings):
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    picture = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
    picture.save(file, "JPEG", comment=b"hello", exif=b"Exif\0\0x", **settings)
    with Image.open(file) as again:
        wanted = np.asarray(again.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(
        read_images([file.getvalue()], COLOUR, PIXELS)[0], COLOUR.prepare(wanted)
    )


def test_a_jpeg_file_of_many_scans_is_refused_before_it_is_decoded():
    """Two of 78 kB kept everybody waiting for 53 s."""
    bomb = scan_bomb()
    assert len(bomb) < 150_000
    started = time.thread_time()
    refused(bomb, 413, "506 scans; at most 100")
    refused(scan_bomb(scans=40), 413, "pixels in up to 40 scans in one request")
    assert time.thread_time() - started < 1
    assert read_images([scan_bomb(side=64, scans=40)], SPEC, PIXELS).shape == (1, 1, 8, 8)


def test_files_that_lie_about_their_size_are_refused():
    header = (b"IHDR", (9).to_bytes(4) * 2 + b"\x08\0\0\0\0")
    refused(png(extra=[header]), 415, "damaged")
    refused(PNG + chunk(b"IDAT", b""), 415, "damaged")
    refused(png()[:60], 415, "damaged")
    made = jpeg()
    start = made.index(b"\xff\xc0")
    frame = made[start : made.index(b"\xff\xc4")]
    refused(made[:start] + frame * 2 + made[start + len(frame) :], 415, "damaged")
    refused(made.replace(b"\xff\xc0", b"\xff\xc9"), 415, "baseline or progressive")
    refused(made[:30], 415, "damaged")
    refused(b"\xff\xd8\xff\xd9", 415, "damaged")
    refused(PNG + chunk(b"IHDR", b"") + chunk(b"tEXt", b"") * 20_000, 413, "more than 20000 chunks")
    refused(b"\xff\xd8" + b"\xff\xfe\0\2" * 20_000, 413, "more than 20000 segments")


def test_any_damaged_file_is_refused_with_a_sentence():
    rng, statuses = np.random.default_rng(0), set()
    for good in (png(), jpeg(), jpeg(progressive=True), text_bomb(2, 100)):
        for _ in range(100):
            bad = bytearray(good)
            for at in rng.integers(0, len(bad), 3):
                bad[at] = rng.integers(256)
            try:
                assert read_images([bytes(bad)], SPEC, 10_000).shape == (1, 1, 8, 8)
            except RequestError as error:
                statuses.add(error.status)
    assert 415 in statuses
    assert statuses <= {400, 413, 415}


def test_decoding_ends_when_its_time_is_over():
    """At the next few bytes, not at the end of the file."""
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (1000, 1000, 3), dtype=np.uint8)).save(file, "JPEG")
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 8:
            raise RequestError(504, "late")

    with pytest.raises(RequestError, match="late"):
        read_images([file.getvalue()], COLOUR, PIXELS, check)
    assert len(calls) == 8


def never():
    return asyncio.sleep(60)


def test_no_tenant_takes_all_decoders_and_the_threads_are_free_when_clients_leave():
    async def main():
        decoders, started = Decoders(time.monotonic, share=0.5), threading.Event()

        def endless(check):
            started.set()
            while True:
                check()
                time.sleep(0.001)

        soon = time.monotonic() + 30
        gone = asyncio.Event()
        bad = [asyncio.create_task(decoders.run("bad", soon, endless, gone.wait)) for _ in range(5)]
        await asyncio.to_thread(started.wait)
        assert await decoders.run("good", soon, lambda check: 7, never) == 7
        with pytest.raises(RequestError, match="deadline passed") as caught:  # behind its own
            await decoders.run("bad", time.monotonic() + 0.02, lambda check: 7, never)
        assert caught.value.status == 504
        with pytest.raises(RequestError, match="deadline passed"):  # while it runs
            await decoders.run("good", time.monotonic() + 0.02, endless, never)
        gone.set()
        ended = await asyncio.gather(*bad, return_exceptions=True)
        assert [error.status for error in ended] == [499] * 5
        assert await decoders.run("bad", soon, lambda check: 8, never) == 8
        decoders.stop()

    asyncio.run(asyncio.wait_for(main(), 20))
