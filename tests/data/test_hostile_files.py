"""Files that lie about their size or hold other things than they should: one quick sentence."""

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from mimonets.data import DataConfig, ImageSet, load_data
from mimonets.data.images.mnist import read_idx
from mimonets.data.images.reading import read_image
from mimonets.data.unpack import archive_files, load_arrays

GIB = 2**30
resource = pytest.importorskip("resource", reason="limits memory as Linux does")


@pytest.fixture(autouse=True)
def _little_memory():
    """Allow this process half a gigabyte more than it has."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + GIB // 2, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def idx_header(*shape):
    return struct.pack(">HBB", 0, 8, len(shape)) + struct.pack(f">{len(shape)}I", *shape)


def squeeze(pack, start, zeros):
    """Pack so many zeros without ever holding them."""
    squeezer = {
        "gz": lambda: zlib.compressobj(1, zlib.DEFLATED, 31),
        "xz": lzma.LZMACompressor,
        "bz2": bz2.BZ2Compressor,
    }[pack]()
    pieces = [squeezer.compress(start)]
    for _ in range(zeros // 2**22):
        pieces.append(squeezer.compress(bytes(2**22)))
    return b"".join([*pieces, squeezer.flush()])


@pytest.mark.parametrize(("pack", "zeros"), [("gz", 2**29), ("xz", 2**26), ("bz2", 2**26)])
def test_an_idx_file_that_goes_on_and_on_is_left_after_what_it_announced(pack, zeros, tmp_path):
    path = tmp_path / f"x.{pack}"
    path.write_bytes(squeeze(pack, idx_header(3, 4, 4), zeros))
    with pytest.raises(ValueError, match=r"more bytes do not hold the shape \(3, 4, 4\)"):
        read_idx(path)


def test_an_idx_header_of_ten_gigabytes_is_refused_before_reading(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx_header(10_000, 1000, 1000) + bytes(100)))
    with pytest.raises(ValueError, match=r"\(10000, 1000, 1000\).*too large"):
        read_idx(path)
    path.write_bytes(gzip.compress(b"\0\0\x08\xff" + b"\1" * 1020))
    with pytest.raises(ValueError, match="header.*255 axes"):
        read_idx(path)


@pytest.mark.parametrize("pack", ["gz", "xz"])
def test_an_archive_with_a_huge_member_is_refused_at_its_header(pack, tmp_path):
    entry = tarfile.TarInfo("aclImdb/train/pos/1_1.txt")
    entry.size = 10 * GIB
    path = tmp_path / f"aclImdb.tar.{pack}"
    path.write_bytes(squeeze(pack, entry.tobuf(), 2**22))
    with pytest.raises(ValueError, match=f"{path.name}.*unpacks to {10 * GIB} bytes"):
        load_data(DataConfig(name="text", dir=str(tmp_path))).read()


def test_an_archive_that_unpacks_without_end_is_left(tmp_path):
    entry = tarfile.TarInfo("other")
    entry.size = 10 * GIB
    path = tmp_path / "aan.tar.gz"
    path.write_bytes(squeeze("gz", entry.tobuf(), 2**28 + 2**23))
    with pytest.raises(ValueError, match="aan.tar.gz.*unpacks to more than 268435456"):
        list(archive_files(path, lambda name: False))


def test_a_damaged_header_in_the_middle_of_an_archive_is_not_its_end(tmp_path):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in "abc":
            entry = tarfile.TarInfo(name)
            entry.size = 3
            archive.addfile(entry, io.BytesIO(b"xyz"))
    content = bytearray(file.getvalue())
    content[1024] ^= 1
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="x.tar is damaged .*a header is damaged"):
        list(archive_files(path, lambda name: True))


def npz_with_header(path, shape, payload, dtype="|u1"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + payload
        archive.writestr("images.npy", content)
        archive.writestr("labels.npy", content)


def test_an_npz_header_of_ten_gigabytes_is_refused_before_allocating(tmp_path):
    path = tmp_path / "a.npz"
    npz_with_header(path, (10 * GIB,), bytes(10))
    with pytest.raises(ValueError, match=rf"bytes do not hold the shape \({10 * GIB},\)"):
        load_data(DataConfig(name="npz", dir=str(path))).read()


def test_an_npz_that_unpacks_to_too_much_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("images.npy", "w", force_zip64=True) as file,
    ):
        for _ in range(72):
            file.write(bytes(2**22))
    with pytest.raises(ValueError, match="a.npz is damaged .*unpacks to 301989888 bytes"):
        load_arrays(path)


def png_with_header(width, height):
    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", squeeze("gz", b"", 0))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [5_000, 10_000, 60_000])
def test_a_picture_of_too_many_pixels_is_not_unpacked(side, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(png_with_header(side, side))
    with pytest.raises(ValueError, match="a.png.*at most 16777216"):
        load_data(DataConfig(name="folder", dir=str(tmp_path))).read()


def test_sixteen_bits_of_grey_are_scaled_to_eight(tmp_path):
    pixels = np.array([[0, 255, 256], [0x1234, 0x8000, 0xFFFF]], dtype=np.uint16)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "a.png")
    data = load_data(DataConfig(name="folder", dir=str(tmp_path))).train
    assert data.images[0].tolist() == [[[0, 0, 1], [0x12, 0x80, 0xFF]]]


def test_grey_of_sixteen_bits_beside_colour_becomes_colour(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    Image.fromarray(np.full((2, 2), 0x4000, dtype=np.uint16)).save(tmp_path / "cat" / "a.png")
    Image.new("RGB", (2, 2), (1, 2, 3)).save(tmp_path / "dog" / "a.png")
    data = load_data(DataConfig(name="folder", dir=str(tmp_path)))
    found = {tuple(part.images[0, :, 0, 0].tolist()) for part in (data.train, data.test)}
    assert found == {(0x40, 0x40, 0x40), (1, 2, 3)}


def test_floating_point_pixels_are_refused(tmp_path):
    path = tmp_path / "a.tiff"
    Image.fromarray(np.full((2, 2), 0.5, dtype=np.float32)).save(path)
    with pytest.raises(ValueError, match="a.tiff holds floating-point pixels"):
        read_image(path)


@pytest.mark.parametrize("labels", [[3.7, 1.0], [[1], [2]], ["1", "2"], [True, 2], [10**30, 1], 5])
def test_cifar_labels_that_are_no_integers_are_refused(labels, tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": labels}
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps(batch))
    with pytest.raises(ValueError, match="train is damaged or not complete"):
        load_data(DataConfig(name="cifar100", dir=str(tmp_path))).read()


def test_svhn_labels_that_are_no_integers_are_refused(tmp_path):
    import scipy.io

    for name in ("train", "test"):
        content = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[3.7], [1]])}
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", content)
    with pytest.raises(ValueError, match="y holds other.*1 to 10"):
        load_data(DataConfig(name="svhn", dir=str(tmp_path))).read()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 0, 5), np.uint8), "hold no pixel"),
        (np.full((2, 4, 4), np.nan), "expected uint8 images .*float64.*Scale to 0..255"),
        (np.zeros((2, 4, 4), np.float16), "expected uint8 images .*float16.*Scale to 0..255"),
        (np.zeros((2, 4, 4), "S3"), "expected uint8 images .*S3"),
        (np.zeros((2,), [("a", "u1")]), "expected uint8 images"),
    ],
)
def test_arrays_that_are_no_images_are_refused(images, message, tmp_path):
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(2))
    with pytest.raises(ValueError, match=message):
        load_data(DataConfig(name="npz", dir=str(tmp_path / "a.npz"))).read()


def test_images_without_height_are_no_image_set():
    with pytest.raises(ValueError, match="hold no pixel"):
        ImageSet(torch.zeros(3, 1, 0, 5, dtype=torch.uint8), torch.arange(3), 3, "flat")


def test_an_empty_split_is_refused(tmp_path):
    for stem in ("train", "t10k"):
        (tmp_path / f"{stem}-images-idx3-ubyte").write_bytes(idx_header(0, 28, 28))
        (tmp_path / f"{stem}-labels-idx1-ubyte").write_bytes(idx_header(0))
    with pytest.raises(ValueError, match="mnist: there is no train item in"):
        load_data(DataConfig(name="mnist", dir=str(tmp_path))).read()


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "x.gz"
    path.mkdir()
    with pytest.raises(ValueError, match=r"x.gz cannot be read \(Is a directory\)"):
        read_idx(path)
