import gzip
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from mimonets._inputs import InputSpec
from mimonets.data import DataConfig, load_data
from mimonets.data.images.cifar import to_grey
from mimonets.data.images.mnist import read_idx
from mimonets.data.registry import split_batches


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_mnist(folder, rng, *, packed):
    folder.mkdir(parents=True, exist_ok=True)
    for stem, count in (("train", 20), ("t10k", 6)):
        arrays = {
            "images-idx3": rng.integers(256, size=(count, 28, 28), dtype=np.uint8),
            "labels-idx1": rng.integers(10, size=count, dtype=np.uint8),
        }
        for kind, array in arrays.items():
            content = idx(array)
            name = f"{stem}-{kind}-ubyte"
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


def cifar_rows(rng, count, label_bytes=1, classes=10):
    labels = rng.integers(classes, size=(count, label_bytes), dtype=np.uint8)
    pixels = rng.integers(256, size=(count, 3072), dtype=np.uint8)
    return labels, pixels


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_flat_or_as_torchvision_left_them(name, packed, tmp_path, rng):
    tree = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name]
    write_mnist(tmp_path / "flat", rng, packed=packed)
    write_mnist(tmp_path / "tree" / tree / "raw", np.random.default_rng(0), packed=packed)
    flat, tree = (
        load_data(
            DataConfig(name=name, dir=str(tmp_path / place), download=False, validation=5)
        ).read()
        for place in ("flat", "tree")
    )
    assert flat.train.images.shape == (15, 1, 28, 28)
    assert len(flat.validation) == 5
    assert torch.equal(flat.train.images, tree.train.images)
    assert torch.equal(flat.test.labels, tree.test.labels)


def test_the_real_mnist_is_whole_and_split_as_in_the_paper(real):
    folder = real("mnist")
    data = load_data(DataConfig(name="mnist", dir=str(folder.parent), crop=20))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [55000, 5000, 10000]
    assert data.train.shape == (1, 20, 20)
    assert torch.bincount(data.test.labels).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [3, 20, 500])
def test_a_half_idx_file_is_named_and_not_used(cut, tmp_path, rng):
    write_mnist(tmp_path, rng, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=f"{path.name} is damaged or not complete"):
        load_data(DataConfig(name="mnist", dir=str(tmp_path), download=False)).read()


def test_an_idx_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\0\0\x0d\1" + b"\0" * 8)
    with pytest.raises(ValueError, match="does not start like an idx file of bytes"):
        read_idx(path)
    path.write_bytes(struct.pack(">HBBI", 0, 8, 1, 5) + b"1234")
    with pytest.raises(ValueError, match=r"4 bytes do not hold the shape \(5,\)"):
        read_idx(path)


def write_cifar(folder, rng, *, fine=False, count=7):
    folder.mkdir()
    names = ["train.bin", "test.bin"] if fine else [
        *(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin",
    ]  # fmt: skip
    rows = {}
    for name in names:
        labels, pixels = cifar_rows(rng, count, 2 if fine else 1, 20 if fine else 10)
        rows[name] = (labels, pixels)
        (folder / name).write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())
    return rows


def test_the_binary_cifar_folder_is_read_in_order(tmp_path, rng):
    rows = write_cifar(tmp_path / "cifar-10-batches-bin", rng)
    data = load_data(DataConfig(name="cifar10", dir=str(tmp_path)))
    assert data.train.images.shape == (35, 3, 32, 32)
    labels, pixels = rows["data_batch_2.bin"]
    assert np.array_equal(data.train.images[7:14].flatten(1), pixels)
    assert np.array_equal(data.train.labels[7:14], labels[:, 0])


def test_cifar100_uses_the_fine_label(tmp_path, rng):
    rows = write_cifar(tmp_path / "cifar-100-binary", rng, fine=True)
    data = load_data(DataConfig(name="cifar100", dir=str(tmp_path)))
    assert data.train.num_classes == 100
    assert np.array_equal(data.test.labels, rows["test.bin"][0][:, 1])


@pytest.mark.parametrize("ending", ["tar.gz", "tar.xz"])
def test_cifar_is_read_straight_from_its_archive(ending, tmp_path, rng, write_tar):
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder, rng)
    files = {f"{folder.name}/{path.name}": path.read_bytes() for path in folder.iterdir()}
    packed = tmp_path / "packed"
    packed.mkdir()
    write_tar(packed / f"cifar-10-binary.{ending}", files)
    unpacked, archive = (
        load_data(DataConfig(name="cifar10", dir=str(place))) for place in (tmp_path, packed)
    )
    assert torch.equal(unpacked.train.images, archive.train.images)
    assert [path.name for path in packed.iterdir()] == [f"cifar-10-binary.{ending}"]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_the_python_version_holds_the_same_as_the_binary_one(protocol, tmp_path, rng):
    rows = write_cifar(tmp_path / "cifar-10-batches-bin", rng)
    folder = tmp_path / "python" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, (labels, pixels) in rows.items():
        batch = {b"data": pixels, b"labels": labels[:, 0].tolist(), b"batch_label": b"x"}
        (folder / name.removesuffix(".bin")).write_bytes(pickle.dumps(batch, protocol))
    binary, python = (
        load_data(DataConfig(name="cifar10", dir=str(place))) for place in (tmp_path, folder.parent)
    )
    assert torch.equal(binary.train.images, python.train.images)
    assert torch.equal(binary.test.labels, python.test.labels)


def test_a_harmful_pickle_is_refused_and_not_run(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps({b"data": Harm()}))
    with pytest.raises(ValueError, match="mkdir, which no image file needs"):
        load_data(DataConfig(name="cifar100", dir=str(tmp_path))).read()
    assert not (tmp_path / "harm").exists()


def test_damaged_cifar_files_are_named(tmp_path, rng, write_tar):
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder, rng)
    (folder / "data_batch_3.bin").write_bytes(b"12345")
    with pytest.raises(ValueError, match="data_batch_3.bin.*5 bytes are not records"):
        load_data(DataConfig(name="cifar10", dir=str(tmp_path))).read()
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match="it holds no data_batch_3.bin.*fetch it again"):
        load_data(DataConfig(name="cifar10", dir=str(tmp_path))).read()
    packed = tmp_path / "packed"
    packed.mkdir()
    archive = write_tar(packed / "cifar-10-binary.tar.gz", {"x/data_batch_1.bin": bytes(99999)})
    with pytest.raises(ValueError, match="it holds no data_batch_2.bin"):
        load_data(DataConfig(name="cifar10", dir=str(packed))).read()
    archive.write_bytes(archive.read_bytes()[:60])
    with pytest.raises(ValueError, match="cifar-10-binary.tar.gz is damaged"):
        load_data(DataConfig(name="cifar10", dir=str(packed))).read()
    (folder / "data_batch_3.bin").write_bytes(b"")
    python = tmp_path / "python" / "cifar-100-python"
    python.mkdir(parents=True)
    for name in ("train", "test"):
        (python / name).write_bytes(pickle.dumps({b"data": np.zeros(3)})[:-4])
    with pytest.raises(ValueError, match="train is damaged or not complete"):
        load_data(DataConfig(name="cifar100", dir=str(python.parent))).read()


@pytest.mark.slow
def test_the_real_cifar10_is_whole(real):
    folder = real("cifar10/cifar-10-binary.tar.xz").parent
    data = load_data(DataConfig(name="cifar10", dir=str(folder)))
    assert torch.bincount(data.train.labels).tolist() == [5000] * 10
    assert torch.bincount(data.test.labels).tolist() == [1000] * 10
    mean = data.train.images.double().mean(dim=(0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-3)


def test_grey_is_what_pillow_makes(rng):
    pixels = rng.integers(256, size=(50, 32, 32, 3), dtype=np.uint8)
    expected = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in pixels])
    assert np.array_equal(to_grey(torch.from_numpy(pixels.transpose(0, 3, 1, 2))), expected)


def test_the_image_task_is_grey_cifar_without_padding(tmp_path, rng):
    write_cifar(tmp_path / "cifar-10-batches-bin", rng)
    data = load_data(DataConfig(name="image", dir=str(tmp_path)))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [32, 3, 7]
    assert data.train.tokens.shape == (32, 1024)
    assert (data.train.lengths == 1024).all()
    assert (data.train.vocab_size, data.train.num_classes) == (256, 10)


def test_fewer_pixels_of_the_image_task_are_averages_of_squares(tmp_path, rng):
    write_cifar(tmp_path / "cifar-10-batches-bin", rng)
    full = load_data(DataConfig(name="image", dir=str(tmp_path))).test.tokens
    small = load_data(DataConfig(name="image", dir=str(tmp_path), length=256)).test
    assert (small.lengths == 256).all()
    for y, x in ((0, 0), (3, 11), (15, 15)):
        square = full.view(-1, 32, 32)[:, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].double()
        assert small.tokens[:, 16 * y + x].tolist() == square.mean(dim=(1, 2)).round().tolist()
    for wrong in (200, 2048, 9):
        with pytest.raises(ValueError, match=f"length={wrong}.*image.*choose from 10"):
            load_data(DataConfig(name="image", dir=str(tmp_path), length=wrong))


def test_svhn_labels_its_zero_as_ten(tmp_path, rng):
    import scipy.io

    pixels = rng.integers(256, size=(32, 32, 3, 5), dtype=np.uint8)
    for name in ("train", "test"):
        content = {"X": pixels, "y": np.array([[10], [1], [9], [2], [10]], dtype=np.uint8)}
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", content)
    data = load_data(DataConfig(name="svhn", dir=str(tmp_path)))
    assert data.train.labels.tolist() == [0, 1, 9, 2, 0]
    assert np.array_equal(data.train.images[3].permute(1, 2, 0), pixels[..., 3])
    (tmp_path / "test_32x32.mat").write_bytes(b"MATLAB 5.0" + b" " * 200)
    with pytest.raises(ValueError, match="test_32x32.mat is damaged or not complete"):
        load_data(DataConfig(name="svhn", dir=str(tmp_path))).read()


def test_digits_need_no_files():
    data = load_data(DataConfig())
    assert (len(data.train), data.validation, len(data.test)) == (1500, None, 297)
    assert data.train.shape == (1, 8, 8)
    assert data.train.images.max() == 255


def test_writers_of_digits_are_kept_apart():
    sklearn = pytest.importorskip("sklearn.datasets").load_digits()
    data = load_data(DataConfig(name="digits-writers"))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [1200, 300, 297]
    parts = (data.train, data.validation, data.test)
    labels = np.concatenate([part.labels for part in parts])
    assert np.array_equal(labels, sklearn.target), "in the order of scikit-learn: writer by writer"
    images = np.concatenate([part.images.squeeze(1) for part in parts])
    assert np.abs(images / 255 * 16 - sklearn.images).max() < 0.04
    everything = load_data(DataConfig(name="digits-writers", validation=0))
    assert (len(everything.train), everything.validation) == (1500, None)
    assert np.array_equal(everything.test.images, data.test.images)
    for fold in range(6):
        parts = load_data(DataConfig(name="digits-writers", validation=7, fold=fold))
        assert [len(parts.train) + 7, len(parts.test)] == ([1497, 300] if fold < 5 else [1500, 297])
        assert np.array_equal(parts.test.labels, sklearn.target[300 * fold :][:300])
        others = np.concatenate([parts.train.labels, parts.validation.labels])
        tested = slice(300 * fold, 300 * fold + 300)
        assert np.array_equal(others, np.delete(sklearn.target, tested))
    with pytest.raises(ValueError, match="fold=6 is not there: choose from 0 to 5"):
        load_data(DataConfig(name="digits-writers", fold=6)).read()
    with pytest.raises(ValueError, match="validation=1500 leaves nothing of 1500 digits"):
        load_data(DataConfig(name="digits-writers", validation=1500)).read()


def write_image_files(name, folder, rng):
    """Write a small data set in its original files, and give those to train on."""
    if name == "mnist":
        write_mnist(folder, rng, packed=True)
        return list(folder.glob("train-*"))
    write_cifar(folder / "cifar-10-batches-bin", rng)
    return list(folder.glob("*/data_batch_*"))


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_evaluation_opens_no_training_file_and_training_no_test_file(name, tmp_path, rng):
    training = write_image_files(name, tmp_path, rng)
    config = DataConfig(name=name, dir=str(tmp_path), download=False, validation=5)
    channels = 1 if name == "mnist" else 3
    spec = InputSpec(
        kind="image", shape=(channels, 1, 1), mean=(1.0,) * channels, deviation=(2.0,) * channels
    )
    before = next(iter(split_batches(config, spec=spec)))[0]
    for file in training:
        file.rename(file.with_suffix(".away"))
    assert torch.equal(next(iter(split_batches(config, spec=spec)))[0], before)
    with pytest.raises(ValueError, match="train|data_batch"):
        load_data(config).read()
    for file in tmp_path.glob("**/*"):
        if file.is_file() and file.suffix != ".away":
            file.unlink()
    for file in training:
        file.with_suffix(".away").rename(file)
    data = load_data(config)
    assert len(data.train) + len(data.validation) == (20 if name == "mnist" else 35)
