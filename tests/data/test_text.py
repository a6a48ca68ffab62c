import shutil

import numpy as np
import pytest
import torch

from mimonets.data import DataConfig, load_data
from mimonets.data.sequences.text import to_tokens


def imdb_files():
    return {
        f"aclImdb/{part}/{mood}/{i}_{i}.txt": f"{part} {mood} {i}".encode()
        for part in ("test", "train")
        for mood in ("neg", "pos")
        for i in range(3)
    } | {"aclImdb/train/unsup/0_0.txt": b"not rated", "aclImdb/README": b"read me"}


def decode(row, length):
    return bytes((row[:length] - 1).tolist()).decode()


def test_imdb_is_read_from_its_archive_and_from_its_folder(tmp_path, write_tar):
    archive = tmp_path / "archive"
    archive.mkdir()
    write_tar(archive / "aclImdb_v1.tar.gz", imdb_files())
    for name, content in imdb_files().items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    packed, unpacked = (
        load_data(DataConfig(name="text", dir=str(tmp_path / place)))
        for place in ("archive", "folder")
    )
    assert packed.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert decode(packed.train.tokens[4], packed.train.lengths[4]) == "train pos 1"
    assert torch.equal(packed.train.tokens, unpacked.train.tokens)
    assert torch.equal(packed.test.tokens, unpacked.test.tokens)
    assert packed.train.vocab_size == 257


def test_reviews_to_evaluate_on_are_mixed_and_each_keeps_its_label(tmp_path, write_tar):
    files = {
        f"aclImdb/{part}/{mood}/{i}_{i}.txt": f"{mood} {i}".encode()
        for part in ("test", "train")
        for mood in ("neg", "pos")
        for i in range(40)
    }
    write_tar(tmp_path / "aclImdb.tar.gz", files)
    config = DataConfig(name="text", dir=str(tmp_path), validation=30)
    splits, again = load_data(config), load_data(config)
    for part, other in ((splits.validation, again.validation), (splits.test, again.test)):
        assert (part.labels[1:] != part.labels[:-1]).sum() > 5, "not one class after the other"
        texts = [decode(*row) for row in zip(part.tokens, part.lengths, strict=True)]
        assert ["pos" in text for text in texts] == [bool(label) for label in part.labels]
        assert torch.equal(part.tokens, other.tokens)


def test_a_review_that_comes_later_is_read(tmp_path):
    for name, content in imdb_files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    config = DataConfig(name="text", dir=str(tmp_path))
    assert len(load_data(config).test) == 6
    (tmp_path / "aclImdb/test/neg/9_9.txt").write_bytes(b"one more")
    assert len(load_data(config).test) == 7
    shutil.rmtree(tmp_path / "aclImdb/test/pos")
    with pytest.raises(ValueError, match="it holds no test/pos reviews"):
        load_data(config)


def test_pairs_of_papers_that_change_are_read_again(tmp_path):
    (tmp_path / "papers.tsv").write_bytes(b"a\tfirst\nb\tsecond\n")
    for word in ("train", "eval", "test"):
        (tmp_path / f"pairs.{word}.tsv").write_bytes(b"1\ta\tb\n")
    config = DataConfig(name="retrieval", dir=str(tmp_path))
    assert load_data(config).train.labels.tolist() == [1]
    (tmp_path / "pairs.train.tsv").write_bytes(b"0\ta\tb\n1\tb\ta\n")
    assert load_data(config).train.labels.tolist() == [0, 1]


def test_reviews_are_cut_and_padded_with_zero(tmp_path, write_tar):
    write_tar(tmp_path / "aclImdb.tar.xz", imdb_files() | {"aclImdb/train/neg/0_0.txt": b"ab"})
    data = load_data(DataConfig(name="text", dir=str(tmp_path), length=8, validation=2)).train
    assert data.tokens.shape == (4, 8)
    full = load_data(DataConfig(name="text", dir=str(tmp_path), length=8)).train
    assert full.tokens[0].tolist() == [98, 99, 0, 0, 0, 0, 0, 0]
    assert full.lengths.tolist() == [2, 8, 8, 8, 8, 8]


def test_an_archive_that_ends_early_is_named(tmp_path, write_tar):
    path = write_tar(tmp_path / "aclImdb.tar.gz", imdb_files())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="aclImdb.tar.gz is damaged or not complete"):
        load_data(DataConfig(name="text", dir=str(tmp_path)))
    write_tar(path, {"aclImdb/train/pos/1_1.txt": b"good"})
    with pytest.raises(ValueError, match="it holds no train/neg reviews"):
        load_data(DataConfig(name="text", dir=str(tmp_path)))


def test_byte_255_moves_tokens_to_a_wider_type():
    content = np.array([0, 254, 255], dtype=np.uint8)
    tokens, lengths = to_tokens(content, np.array([3]), most=10)
    assert tokens.dtype == torch.int16
    assert tokens.tolist() == [[1, 255, 256]]
    assert lengths.tolist() == [3]


def test_released_pairs_are_read(tmp_path):
    rows = ["1.0\ta\tb\talpha\tbeta", "0.0\ta\tc\talpha\tgam"]
    for part in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_text("\n".join(rows) + "\n")
    data = load_data(DataConfig(name="retrieval", dir=str(tmp_path)))
    assert data.train.tokens.shape == (2, 2, 5)
    assert data.train.lengths.tolist() == [[5, 4], [5, 3]]
    assert data.validation.labels.tolist() == [1, 0]
    assert decode(data.test.tokens[1, 1], 3) == "gam"
    (tmp_path / "new_aan_pairs.eval.tsv").write_text("1\ta\tb\talpha\n")
    with pytest.raises(ValueError, match="eval.tsv.*line 1 is not label, two ids"):
        load_data(DataConfig(name="retrieval", dir=str(tmp_path)))


def test_papers_and_pairs_of_the_stand_in_are_joined(real):
    folder = real("aan/aan_scisumm.tar.xz").parent
    data = load_data(DataConfig(name="retrieval", dir=str(folder), length=64))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [4412, 552, 552]
    assert data.train.tokens.shape == (4412, 2, 64)
    assert abs(data.train.labels.double().mean().item() - 0.5) < 0.01


@pytest.mark.slow
def test_the_real_imdb_is_whole(real):
    folder = real("imdb/aclImdb.tar.xz").parent
    data = load_data(DataConfig(name="text", dir=str(folder)))
    for part in (data.train, data.test):
        assert torch.bincount(part.labels).tolist() == [12500, 12500]
        assert part.tokens.shape == (25000, 4000)
        assert part.tokens.dtype == torch.uint8
        assert torch.equal((part.tokens != 0).sum(dim=1), part.lengths.long())
