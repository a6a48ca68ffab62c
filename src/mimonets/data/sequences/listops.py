"""ListOps: nested lists of operations on digits, their tokens and their value.

Nangia & Bowman, "ListOps: A Diagnostic Dataset for Latent Tree Learning", 2018, at the lengths of
Tay et al., "Long Range Arena", ICLR 2021. ``[MAX 2 9 [MIN 4 7 ] 0 ]`` is 9.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mimonets._show import progress
from mimonets.data.config import DIGITS, DataConfig, DataSet
from mimonets.data.files import cached, data_dir, find, fingerprint
from mimonets.data.sequences.listops_trees import CLOSE, OPERATORS, sample_trees
from mimonets.data.sets import SPLITS, SequenceSet, Splits
from mimonets.data.unpack import Arrays, damaged, open_binary, reading

FILES = ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv")
PUBLISHED = (96_000, 2_000, 2_000)
MIN_LENGTH, MAX_LENGTH = 500, 2_000  # both exclusive for generated trees
SYMBOLS = [*DIGITS, *OPERATORS, "X"]
TOKEN_OF = {symbol: token for token, symbol in enumerate(SYMBOLS, start=1)}  # 0 is padding
TOKEN_OF["]"] = TOKEN_OF["X"]
VOCAB_SIZE = len(SYMBOLS) + 1
ROUNDS_IN_VAIN = 100  # without a new tree: there are no more


def load_listops(config: DataConfig) -> Splits[SequenceSet]:
    """Read LRA's ``basic_{train,val,test}.tsv`` if they are in the data folder, else generate."""
    most = config.length or MAX_LENGTH
    if config.dir is not None:
        folder = data_dir(config)
        inside = ("listops", "listops-1000", "lra_release/listops-1000")
        found = {name: find(folder, [name], *inside) for name in FILES}
        missing = [name for name, path in found.items() if path is None]
        if 0 < len(missing) < len(FILES):
            raise ValueError(
                f"listops: {folder} holds only some of LRA's files: {', '.join(missing)} missing."
            )
        if not missing:
            return Splits(*(_as_set(_read_cached(path, most)) for path in found.values() if path))
    least = MIN_LENGTH if config.min_length is None else config.min_length
    if not least + 1 < most:
        raise ValueError(
            f"listops: no tree is longer than min_length={least} and shorter than length={most}: "
            f"leave room between them."
        )
    sizes = config.split_sizes(PUBLISHED)
    key = ("listops", 1, config.seed, least, most, sizes)
    arrays = cached("listops", key, lambda: _generate(sizes, least, most, config.seed))
    sets = [
        _as_set({"tokens": arrays[f"{name}_tokens"], "labels": arrays[f"{name}_labels"]})
        for name in SPLITS
    ]
    return Splits(*sets)


def tokenise(source: str) -> list[int]:
    """Turn an expression into tokens: parentheses go, ``]`` is called X, 0 is left for padding.

    >>> tokenise("( ( ( [SM 6 ) 5 ) ] )")
    [14, 7, 6, 15]
    """
    try:
        return [TOKEN_OF[word] for word in source.split() if word not in "()"]
    except KeyError as error:
        raise ValueError(
            f"{error.args[0]!r} is no ListOps symbol: expected {', '.join(SYMBOLS)} or ']'."
        ) from None


def read_tsv(path: Path) -> tuple[list[list[int]], list[int]]:
    """Read expressions and values: ``Source<tab>Target`` (LRA) or ``value<tab>source`` (2018)."""
    sequences, labels = [], []
    with reading(path), open_binary(path) as file:
        for number, line in enumerate(file.read().decode().splitlines(), start=1):
            if number == 1 and line.split("\t") == ["Source", "Target"]:
                continue
            first, _, second = line.partition("\t")
            source, value = (second, first) if first in DIGITS else (first, second)
            if value not in DIGITS:
                raise damaged(path, f"line {number} is not a source and a value of 0 to 9")
            tokens = tokenise(source)
            if not tokens:
                raise damaged(path, f"line {number} has an empty source")
            sequences.append(tokens)
            labels.append(int(value))
        if not labels:
            raise damaged(path, "it holds no expression")
    return sequences, labels


def _read_cached(path: Path, most: int) -> Arrays:
    def make() -> Arrays:
        sequences, labels = read_tsv(path)
        cut = [np.array(tokens[:most], dtype=np.uint8) for tokens in sequences]
        return {"tokens": _pad(cut), "labels": np.array(labels, dtype=np.int64)}

    return cached("listops-tsv", ("listops-tsv", 1, fingerprint(path), most), make)


def _generate(sizes: tuple[int, int, int], least: int, most: int, seed: int) -> Arrays:
    """Sample trees of different text for all splits, each split from a stream of its own."""
    arrays: Arrays = {}
    seen: set[bytes] = set()
    with progress("making ListOps trees", sum(sizes)) as advance:
        for index, (name, size) in enumerate(zip(SPLITS, sizes, strict=True)):
            rng = np.random.default_rng([seed, index])
            kept: list[np.ndarray] = []
            labels: list[int] = []
            in_vain = 0  # rounds in a row that found no new tree
            while len(kept) < size:
                before = len(kept)
                for tokens, label in sample_trees(rng, least, most):
                    text = tokens.tobytes()
                    if len(kept) < size and text not in seen:
                        seen.add(text)
                        kept.append(tokens)
                        labels.append(label)
                advance(len(kept) - before)
                in_vain = 0 if len(kept) > before else in_vain + 1
                if in_vain == ROUNDS_IN_VAIN:
                    raise ValueError(
                        f"listops: there seem to be only {len(seen)} different trees of more than "
                        f"{least} and fewer than {most} tokens; {sum(sizes)} are asked for: lower "
                        f"sizes, or raise length."
                    )
            arrays[f"{name}_tokens"] = _pad(kept)
            arrays[f"{name}_labels"] = np.array(labels, dtype=np.int64)
    return arrays


def _pad(sequences: Sequence[np.ndarray]) -> np.ndarray:
    width = max((len(tokens) for tokens in sequences), default=1)
    padded = np.zeros((len(sequences), width), dtype=np.uint8)
    for row, tokens in zip(padded, sequences, strict=True):
        row[: len(tokens)] = tokens
    return padded


def _as_set(arrays: Arrays) -> SequenceSet:
    tokens = torch.from_numpy(arrays["tokens"])
    lengths = (tokens != 0).sum(dim=1, dtype=torch.int32)  # 0 is no symbol here
    labels = torch.from_numpy(arrays["labels"])
    return SequenceSet(tokens, lengths, labels, VOCAB_SIZE, 10, "listops")


assert TOKEN_OF["X"] == CLOSE


LISTOPS = DataSet(
    name="listops",
    load=load_listops,
    kind="sequences",
    takes=frozenset({"length", "min_length", "sizes"}),
    class_names=DIGITS,
    home="https://github.com/google-research/long-range-arena",
    licence="generated, or Apache-2.0 as released",
)
