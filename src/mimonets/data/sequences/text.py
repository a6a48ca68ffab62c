"""Documents as bytes: IMDb reviews (LRA's Text task) and pairs of papers (its Retrieval task).

Maas et al., "Learning Word Vectors for Sentiment Analysis", ACL 2011; Radev et al., "The ACL
Anthology Network", 2013; Tay et al., "Long Range Arena", ICLR 2021. A token is a byte plus one; 0
is padding. Original archives are read once, from front to back, and their bytes are cached.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mimonets._show import progress
from mimonets.data.config import DataConfig, DataSet
from mimonets.data.files import Remote, cached, data_dir, find, find_or_fetch, fingerprint
from mimonets.data.sets import SequenceSet, Splits
from mimonets.data.unpack import Arrays, archive_files, damaged, named_files, open_binary, reading

VOCAB_SIZE = 257
MAX_LENGTH = 4_000
IMDB = Remote(
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "7c2ac02c03563afcf9b574c7e56c153a",
)
IMDB_FOLDERS = [(part, mood) for part in ("train", "test") for mood in ("neg", "pos")]
LRA_RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
RETRIEVAL_PARTS = {"train": "train", "validation": "eval", "test": "test"}


def load_text(config: DataConfig) -> Splits[SequenceSet]:
    """Load IMDb: 25,000 reviews to train on and 25,000 to test, liked (1) or not (0)."""
    most = config.length or MAX_LENGTH
    names = ["aclImdb", *(f"aclImdb{version}.tar{end}" for version in ("", "_v1") for end in ENDS)]
    path = find_or_fetch(config, names, IMDB, "imdb")
    sources = [path / part / mood for part, mood in IMDB_FOLDERS] if path.is_dir() else [path]
    key = ("imdb", 1, fingerprint(*sources), most)
    arrays = cached("imdb", key, lambda: _read_imdb(path, most))
    sets = []
    for part in ("train", "test"):
        tokens, lengths = to_tokens(arrays[f"{part}_bytes"], arrays[f"{part}_lengths"], most)
        labels = torch.from_numpy(arrays[f"{part}_labels"])
        sets.append(SequenceSet(tokens, lengths, labels, VOCAB_SIZE, 2, f"text {part}"))
    return Splits(sets[0], None, sets[1])


ENDS = (".gz", ".xz", ".bz2", "")


def load_retrieval(config: DataConfig) -> Splits[SequenceSet]:
    """Load pairs of papers, one citing the other (1) or not (0): tokens (n, 2, t).

    Reads LRA's ``new_aan_pairs.{train,eval,test}.tsv`` (label, two ids, two texts), or a folder or
    archive with ``papers.tsv`` (id, text) and ``pairs.{train,eval,test}.tsv`` (label, two ids).
    """
    most = config.length or MAX_LENGTH
    folder = data_dir(config)
    sets = []
    for part, word in RETRIEVAL_PARTS.items():
        arrays = _retrieval_part(folder, word, most)
        tokens, lengths = to_tokens(arrays["bytes"], arrays["lengths"], most)
        pairs = torch.from_numpy(arrays["pairs"])
        labels = torch.from_numpy(arrays["labels"])
        name = f"retrieval {part}"
        sets.append(SequenceSet(tokens[pairs], lengths[pairs], labels, VOCAB_SIZE, 2, name))
    return Splits(*sets)


def to_tokens(
    content: np.ndarray, lengths: np.ndarray, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad documents that lie one after the other: token = byte + 1, 0 is padding.

    >>> to_tokens(np.frombuffer(b"abc", np.uint8), np.array([1, 2]), most=2)[0]
    tensor([[ 98,   0],
            [ 99, 100]], dtype=torch.uint8)
    """
    # UTF-8 never uses 255, so that bytes plus one nearly always fit a byte.
    dtype = np.dtype(np.uint8 if content.max(initial=0) < 255 else np.int16)
    width = min(int(lengths.max(initial=1)), most)
    tokens = np.zeros((len(lengths), width), dtype=dtype)
    filled = np.arange(width) < lengths[:, None]
    tokens[filled] = content.astype(dtype) + 1
    return torch.from_numpy(tokens), torch.from_numpy(lengths.astype(np.int32))


def _read_imdb(path: Path, most: int) -> Arrays:
    reviews: dict[tuple[str, str], dict[str, bytes]] = {place: {} for place in IMDB_FOLDERS}

    def is_review(name: str) -> bool:
        return tuple(name.split("/")[-3:-1]) in reviews and name.endswith(".txt")

    with progress("reading IMDb", 50_000) as advance:
        for name, content in archive_files(path, is_review):
            part, mood, file = name.split("/")[-3:]
            reviews[part, mood][file] = content[:most]
            advance(1)
    arrays: Arrays = {}
    for part in ("train", "test"):
        documents, labels = [], []
        for label, mood in enumerate(("neg", "pos")):
            found = reviews[part, mood]
            if not found:
                raise damaged(path, f"it holds no {part}/{mood} reviews")
            documents += [found[name] for name in sorted(found)]
            labels += [label] * len(found)
        arrays |= {f"{part}_{key}": value for key, value in _join(documents).items()}
        arrays[f"{part}_labels"] = np.array(labels, dtype=np.int64)
    return arrays


def _join(documents: Sequence[bytes]) -> Arrays:
    return {
        "bytes": np.frombuffer(b"".join(documents), dtype=np.uint8),
        "lengths": np.array([len(document) for document in documents], dtype=np.int32),
    }


def _retrieval_part(folder: Path, word: str, most: int) -> Arrays:
    release = f"new_aan_pairs.{word}.tsv"
    path = find(folder, [release], "aan", "tsv_data", "lra_release")
    if path is not None:
        key = ("aan", 1, fingerprint(path), most)
        return cached("aan", key, lambda: _read_release(path, most))
    papers = find(folder, ["papers.tsv"], "aan", "aan_scisumm")
    archives = sorted([*folder.glob("aan*.tar*"), *folder.glob("aan/aan*.tar*")])
    source = papers.parent if papers else next(iter(archives), None)
    if source is None:
        raise ValueError(
            f"retrieval: no {release} in {folder}: get it out of {LRA_RELEASE} and put it there."
        )
    files = (papers, papers.parent / f"pairs.{word}.tsv") if papers else (source,)
    papers_key = ("aan-papers", 1, fingerprint(*files), word, most)
    return cached("aan-papers", papers_key, lambda: _read_papers(source, word, most))


def _read_release(path: Path, most: int) -> Arrays:
    """Label, id, id, text, text: texts of one id are kept once."""
    index: dict[bytes, int] = {}
    documents: list[bytes] = []
    pairs, labels = [], []
    with reading(path), open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            words = line.rstrip(b"\r\n").split(b"\t")
            if len(words) != 5 or words[0] not in (b"0", b"1", b"0.0", b"1.0"):
                raise damaged(path, f"line {number} is not label, two ids and two texts")
            for text in words[3:]:
                if text[:most] not in index:
                    index[text[:most]] = len(documents)
                    documents.append(text[:most])
            pairs.append([index[text[:most]] for text in words[3:]])
            labels.append(int(float(words[0])))
    return _pairs(path, documents, pairs, labels)


def _read_papers(source: Path, word: str, most: int) -> Arrays:
    name = f"pairs.{word}.tsv"
    files = named_files(source, ("papers.tsv", name))
    papers = [line.split(b"\t", 1) for line in files["papers.tsv"].splitlines()]
    index = {words[0]: number for number, words in enumerate(papers)}
    documents = [words[-1][:most] for words in papers]
    pairs, labels = [], []
    for line in files[name].splitlines():
        label, *ids = line.split(b"\t")
        if label not in (b"0", b"1") or len(ids) != 2 or not index.keys() >= set(ids):
            raise damaged(
                f"{source}, {name}", f"the line {line[:60]!r} is not a label 0 or 1 and two papers"
            )
        pairs.append([index[paper] for paper in ids])
        labels.append(int(label))
    return _pairs(source, documents, pairs, labels)


def _pairs(path: Path, documents: list[bytes], pairs: list[list[int]], labels: list[int]) -> Arrays:
    if not pairs:
        raise damaged(path, "it holds no pairs")
    arrays = _join(documents)
    arrays["pairs"] = np.array(pairs, dtype=np.int64)
    arrays["labels"] = np.array(labels, dtype=np.int64)
    return arrays


TEXT = DataSet(
    name="text",
    load=load_text,
    kind="sequences",
    takes=frozenset({"length", "validation"}),
    class_names=("negative", "positive"),
    by_class=True,
    home="https://ai.stanford.edu/~amaas/data/sentiment/",
)
RETRIEVAL = DataSet(
    name="retrieval",
    load=load_retrieval,
    kind="sequences",
    takes=frozenset({"length"}),
    class_names=("unrelated", "citing"),
    home=LRA_RELEASE,
)
