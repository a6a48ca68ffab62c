"""Associative recall and induction head: answers that must be looked up in the sequence.

Fu et al., "Hungry Hungry Hippos", ICLR 2023. 20 symbols, two of them special; next-token problems
whose accuracy counts the final token only. Token 0 is a symbol and nothing is padding.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from mimonets.data.config import DataConfig, DataSet
from mimonets.data.interface import IGNORED
from mimonets.data.sets import SequenceSet, Splits

VOCAB_SIZE = 20
PLAIN = 18  # symbols that carry content
MARK = 18  # "now answer"; 19 means "no answer" and does not occur in these tasks
PUBLISHED = (5_000, 0, 500)
Sampler = Callable[[np.random.Generator, int, int], np.ndarray]


def load_recall(config: DataConfig) -> Splits[SequenceSet]:
    """Make associative recall: 20 key-value pairs, the mark, a key that was seen; its value."""
    length = config.length or 40
    if length % 2:
        raise ValueError(f"recall: length={length} is no number of key-value pairs: make it even.")
    return _load(config, length, partial(recall_sequences, asked=config.asked))


def load_induction(config: DataConfig) -> Splits[SequenceSet]:
    """Make induction heads: 30 symbols with the mark among them, the mark; what followed it."""
    length = config.length or 30
    if length < 2:
        raise ValueError(f"induction: length={length} has no room for the mark and an answer.")
    return _load(config, length, induction_sequences)


def recall_sequences(
    rng: np.random.Generator, count: int, length: int, *, asked: str = "pairs"
) -> np.ndarray:
    """Draw (count, length + 3): pairs, mark, key, answer. A fresh random map for each sequence.

    The plain symbols are halved into 9 keys and 9 values; pairs are drawn with replacement. The key
    at the end is that of a random pair, so frequent keys are asked more often. With
    ``asked="keys"``, as in the source of the task, every key that was seen is equally likely.
    """
    half = PLAIN // 2
    value_of = half + rng.integers(half, size=(count, half))
    keys = rng.integers(half, size=(count, length // 2))
    pairs = np.stack([keys, np.take_along_axis(value_of, keys, axis=1)], axis=2)
    if asked == "keys":
        seen = (keys[:, :, None] == np.arange(half)).any(axis=1)  # count half
        key = np.where(seen, rng.random((count, half)), -1.0).argmax(axis=1)[:, None]
    else:
        key = np.take_along_axis(keys, rng.integers(length // 2, size=(count, 1)), axis=1)
    answer = np.take_along_axis(value_of, key, axis=1)
    mark = np.full((count, 1), MARK)
    return np.concatenate([pairs.reshape(count, -1), mark, key, answer], axis=1)


def induction_sequences(rng: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Draw (count, length + 2): symbols with the mark at a random place, mark, answer."""
    symbols = rng.integers(PLAIN, size=(count, length))
    place = rng.integers(length - 1, size=(count, 1))
    np.put_along_axis(symbols, place, MARK, axis=1)
    answer = np.take_along_axis(symbols, place + 1, axis=1)
    return np.concatenate([symbols, np.full((count, 1), MARK), answer], axis=1)


def _load(config: DataConfig, length: int, sample: Sampler) -> Splits[SequenceSet]:
    sizes = config.split_sizes(PUBLISHED)
    sequences = _distinct(np.random.default_rng(config.seed), sum(sizes), length, sample)
    train, validation, test = np.split(sequences, [sizes[0], sizes[0] + sizes[1]])
    return Splits(
        _as_set(train, config.name, every=config.targets == "all"),
        _as_set(validation, config.name, every=False),
        _as_set(test, config.name, every=False),
    )


def _distinct(rng: np.random.Generator, count: int, length: int, sample: Sampler) -> np.ndarray:
    """Draw sequences without duplicates, in the order they came."""
    drawn = sample(rng, count, length)
    for _ in range(100):
        first = np.sort(np.unique(drawn, axis=0, return_index=True)[1])
        drawn = drawn[first]
        if len(drawn) >= count:
            return drawn[:count]
        drawn = np.concatenate([drawn, sample(rng, count, length)])
    raise ValueError(
        f"there are not {count} different sequences of length {length}: ask for fewer or longer."
    )


def _as_set(sequences: np.ndarray, name: str, *, every: bool) -> SequenceSet:
    tokens = torch.from_numpy(sequences[:, :-1].astype(np.uint8))
    labels = torch.from_numpy(sequences[:, 1:].astype(np.int64))
    if not every:
        labels[:, :-1] = IGNORED
    lengths = torch.full((len(tokens),), tokens.shape[1], dtype=torch.int32)
    return SequenceSet(tokens, lengths, labels, VOCAB_SIZE, VOCAB_SIZE, name)


RECALL = DataSet(
    name="recall",
    load=load_recall,
    kind="sequences",
    takes=frozenset({"length", "sizes", "targets", "asked"}),
    home="https://github.com/HazyResearch/safari",
    licence="generated",
)
INDUCTION = replace(RECALL, name="induction", load=load_induction)
