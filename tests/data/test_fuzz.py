"""Damaged files of every format: a loader copes, or says one sentence that names the file."""

import io
import pickle
import random
import shutil
import tarfile
import time
import warnings

import numpy as np
import pytest
from PIL import Image

from mimonets.data import DataConfig, load_data
from mimonets.data.sequences.listops import read_tsv


def write_tar(path, files):
    with tarfile.open(path, f"w:{path.suffix[1:] if path.suffix != '.tar' else ''}") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def mnist(folder, rng):
    for stem in ("train", "t10k"):
        for kind, shape in (("images-idx3", (4, 6, 6)), ("labels-idx1", (4,))):
            header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            content = header + rng.integers(10, size=shape, dtype=np.uint8).tobytes()
            (folder / f"{stem}-{kind}-ubyte").write_bytes(content)


def packed_mnist(folder, rng):
    import gzip

    mnist(folder, rng)
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def cifar_rows(rng):
    return rng.integers(10, size=(2, 3073), dtype=np.uint8)


CIFAR_FILES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def cifar10(ending):
    def write(folder, rng):
        files = {f"x/{name}.bin": cifar_rows(rng).tobytes() for name in CIFAR_FILES}
        write_tar(folder / f"cifar-10-binary.{ending}", files)

    return write


def cifar_python(folder, rng):
    folder = folder / "cifar-10-batches-py"
    folder.mkdir()
    for i, name in enumerate(CIFAR_FILES):
        rows = cifar_rows(rng)
        batch = {b"data": rows[:, 1:].copy(), b"labels": rows[:, 0].tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=(0, 2, 4)[i % 3]))


def svhn(folder, rng):
    import scipy.io

    for name in ("train", "test"):
        pixels = rng.integers(256, size=(32, 32, 3, 2), dtype=np.uint8)
        content = {"X": pixels, "y": np.array([[10], [1]], dtype=np.uint8)}
        scipy.io.savemat(folder / f"{name}_32x32.mat", content, do_compression=name == "train")


def pictures(ending):
    def write(folder, rng):
        for name in ("cat", "dog"):
            (folder / name).mkdir()
            pixels = rng.integers(256, size=(5, 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"a.{ending}")

    return write


def deep_grey(folder, rng):
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        pixels = rng.integers(2**16, size=(5, 7), dtype=np.uint16)
        Image.fromarray(pixels).save(folder / name / "a.png")


def npz(save):
    def write(folder, rng):
        images = rng.integers(256, size=(5, 4, 4), dtype=np.uint8)
        save(folder / "a.npz", images=images, labels=np.arange(5))

    return write


def listops(folder, rng):
    for part in ("train", "val", "test"):
        text = "Source\tTarget\n( ( ( [MAX 2 ) 7 ) ] )\t7\n( ( ( [MIN 2 ) 7 ) ] )\t2\n"
        (folder / f"basic_{part}.tsv").write_text(text)


def imdb(ending):
    def write(folder, rng):
        names = [f"{part}/{mood}" for part in ("train", "test") for mood in ("neg", "pos")]
        files = {f"aclImdb/{name}/{i}_1.txt": b"so so" * i for name in names for i in (1, 2)}
        write_tar(folder / f"aclImdb.{ending}", files)

    return write


def retrieval(folder, rng):
    for part in ("train", "eval", "test"):
        rows = ["1.0\ta\tb\talpha\tbeta", "0.0\ta\tc\talpha\tgam"]
        (folder / f"new_aan_pairs.{part}.tsv").write_text("\n".join(rows) + "\n")


def papers(folder, rng):
    files = {f"x/pairs.{part}.tsv": b"1\ta\tb\n0\tb\ta\n" for part in ("train", "eval", "test")}
    write_tar(folder / "aan.tar.xz", files | {"x/papers.tsv": b"a\talpha\nb\tbeta\n"})


def pathfinder(folder, rng):
    folder = folder / "curv_contour_length_14"
    (folder / "metadata").mkdir(parents=True)
    (folder / "imgs" / "1").mkdir(parents=True)
    rows = [f"imgs/1 sample_{i}.png {i} {i % 2} 1.0" for i in range(10)]
    (folder / "metadata" / "1.npy").write_text("\n".join(rows) + "\n")
    for i in range(10):
        Image.fromarray(rng.integers(256, size=(32, 32), dtype=np.uint8)).save(
            folder / "imgs" / "1" / f"sample_{i}.png"
        )


FORMATS = {
    "mnist": ("mnist", mnist),
    "mnist.gz": ("mnist", packed_mnist),
    "cifar10.tar": ("cifar10", cifar10("tar")),
    "cifar10.tar.gz": ("cifar10", cifar10("tar.gz")),
    "cifar10.tar.xz": ("cifar10", cifar10("tar.xz")),
    "cifar10.py": ("cifar10", cifar_python),
    "svhn": ("svhn", svhn),
    **{kind: ("folder", pictures(kind)) for kind in ("png", "jpg", "bmp", "webp")},
    "png16": ("folder", deep_grey),
    "npz": ("npz", npz(np.savez)),
    "npz-packed": ("npz", npz(np.savez_compressed)),
    "listops": ("listops", listops),
    "text.tar": ("text", imdb("tar")),
    "text.tar.bz2": ("text", imdb("tar.bz2")),
    "retrieval": ("retrieval", retrieval),
    "retrieval.tar.xz": ("retrieval", papers),
    "pathfinder": ("pathfinder", pathfinder),
}


def mutate(content, source):
    """Damage some bytes in one of the ways that disks, networks and editors do."""
    content = bytearray(content)
    at = source.randrange(max(len(content), 1))
    head = source.randrange(max(min(len(content), 200), 1))  # where headers are
    kind = source.randrange(8)
    if kind == 0:
        return bytes(content[:at])
    if kind == 1:
        return bytes(content[:at] + content[at + source.randrange(1, 20) :])
    if kind == 2:
        return bytes(content[:at] + source.randbytes(source.randrange(1, 20)) + content[at:])
    if kind == 3:
        return bytes(content + content[:at])
    if kind == 4:
        return source.randbytes(source.randrange(300))
    if not content:
        return b"\0"
    for _ in range(source.randrange(1, 4)):
        place = source.choice((at, head))
        content[place] = source.choice(
            (0, 0xFF, 0x7F, 0x80, content[place] ^ 1 << source.randrange(8))
        )
        head = source.randrange(min(len(content), 200))
    return bytes(content)


def hammer(kind, folder, monkeypatch, rounds, seed):
    name, write = FORMATS[kind]
    monkeypatch.setenv("MIMONETS_CACHE", str(folder / "cache"))
    where = folder / "files"
    where.mkdir()
    write(where, np.random.default_rng(0))
    files = sorted(path for path in where.rglob("*") if path.is_file())
    originals = {path: path.read_bytes() for path in files}
    source = random.Random(f"{kind} {seed}")
    place = where / "a.npz" if name == "npz" else where
    config = DataConfig(name=name, dir=str(place), download=False)
    load_data(config).read()  # untouched
    refused = 0
    for number in range(rounds):
        path = source.choice(files)
        damaged = mutate(originals[path], source)
        path.write_bytes(damaged)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        begin = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow warns about what it forgives
                load_data(config).read()
        except ValueError as error:
            refused += 1
            message = str(error)
            assert "\n" not in message, (number, message)
            assert len(message) < 600, (number, message)
            assert str(where) in message or name in message, (number, message)
        except Exception as error:
            raise AssertionError(f"{kind}, mutation {number} of {path.name}: {error!r}") from error
        assert time.perf_counter() - begin < 10, (kind, number)
        path.write_bytes(originals[path])
    assert refused > rounds / 20


@pytest.mark.parametrize("kind", FORMATS)
def test_a_damaged_file_gets_one_sentence(kind, tmp_path, monkeypatch):
    hammer(kind, tmp_path, monkeypatch, 40, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_hundreds_of_damaged_files_get_one_sentence_each(kind, tmp_path, monkeypatch):
    hammer(kind, tmp_path, monkeypatch, 500, seed=1)


def test_lines_of_other_shapes_are_named(tmp_path):
    path = tmp_path / "x.tsv"
    for line in ("[MAX 1 ]\t12", "[MAX 1 ]\t²", "\t3", "[AVG 1 ]\t1", ""):
        path.write_text(line)
        with pytest.raises(ValueError, match="x.tsv is damaged or not complete"):
            read_tsv(path)
