import numpy as np
import pytest
import torch

from mimonets.data import IGNORED, DataConfig, load_data
from mimonets.data.sequences.listops import SYMBOLS, TOKEN_OF, read_tsv, tokenise
from mimonets.data.sequences.listops_trees import sample_trees
from mimonets.data.sequences.recall import MARK, recall_sequences


def tree_by_recursion(random, depth=1):
    """Sample one tree as the definition says: tokens and value."""
    if depth >= 10 or random.random() >= 0.25:
        digit = random.randint(0, 9)
        return [digit + 1], digit
    operator = random.randrange(4)
    parts = [tree_by_recursion(random, depth + 1) for _ in range(random.randint(2, 10))]
    values = sorted(value for _, value in parts)
    value = [values[0], values[-1], int(np.median(values)), sum(values) % 10][operator]
    return [11 + operator, *(token for tokens, _ in parts for token in tokens), 15], value


def evaluate(tokens):
    """Work an expression out with a stack, the plain way."""
    operators = {"[MIN": min, "[MAX": max, "[MED": lambda v: int(np.median(v)), "[SM": sum}
    stack = [[]]
    for token in tokens:
        symbol = SYMBOLS[token - 1]
        if symbol in operators:
            stack.append([operators[symbol]])
        elif symbol == "X":
            operator, *values = stack.pop()
            stack[-1].append(operator(values) % 10)
        else:
            stack[-1].append(int(symbol))
    ((value,),) = stack
    return value


def test_the_evaluator_scores_every_reference_row(real):
    sequences, values = read_tsv(real("listops/listops_nyu_test_d20s.tsv.xz"))
    assert len(sequences) == 10_000
    assert [evaluate(tokens) for tokens in sequences] == values


def test_generated_trees_carry_the_value_the_evaluator_finds(rng):
    trees = list(sample_trees(rng, 20, 300))
    assert len(trees) > 300
    for tokens, value in trees:
        assert 20 < len(tokens) < 300
        assert evaluate(tokens.tolist()) == value


def test_trees_are_distributed_as_the_definition_says(rng):
    import random

    source = random.Random(0)
    slow = [tree_by_recursion(source) for _ in range(4000)]
    fast = list(sample_trees(rng, 0, 10**9))
    lengths = [np.array([len(tokens) for tokens, _ in trees]) for trees in (slow, fast)]
    values = [np.array([value for _, value in trees]) for trees in (slow, fast)]
    for quantile in (0.8, 0.9, 0.95):
        cut = np.quantile(lengths[0], quantile)
        shares = [(length > cut).mean() for length in lengths]
        assert abs(shares[0] - shares[1]) < 0.02
    operators = [
        [v for n, v in zip(ns, vs, strict=True) if n > 1]
        for ns, vs in zip(lengths, values, strict=True)
    ]
    shares = [np.bincount(v, minlength=10) / len(v) for v in operators]
    assert np.abs(shares[0] - shares[1]).max() < 0.04


def test_listops_lengths_and_labels_match_the_reference():
    data = load_data(DataConfig(name="listops", sizes=(2000, 50, 50))).train
    lengths, labels = data.lengths.double(), data.labels
    assert lengths.min() > 500
    assert lengths.max() < 2000
    # About 938 and 1,028; the spread of a tree's length is 390, of the median about 1.25 times.
    error = 3 * 390 / len(data) ** 0.5
    assert abs(lengths.mean().item() - 1028) < error + 5
    assert abs(lengths.median().item() - 938) < 1.25 * error + 5
    shares = torch.bincount(labels, minlength=10) / len(data)
    assert abs(shares[0] - 0.17) < 0.03
    assert abs(shares[9] - 0.17) < 0.03
    assert data.vocab_size == 16


def test_the_same_seed_makes_the_same_trees_and_a_limit_their_beginning():
    options = {"name": "listops", "min_length": 10, "length": 60}
    data = load_data(DataConfig(**options, sizes=(40, 10, 10)))
    few = load_data(DataConfig(**options, sizes=(40, 10, 10), limit=10))
    other = load_data(DataConfig(**options, sizes=(40, 10, 10), seed=1))
    width = few.train.tokens.shape[1]
    assert torch.equal(few.train.tokens, data.train.tokens[:10, :width])
    assert data.train.labels.tolist() != other.train.labels.tolist()
    texts = {bytes(row.numpy()) for part in (data.train, data.validation) for row in part.tokens}
    assert len(texts) == 50


def test_listops_says_when_there_are_too_few_trees(monkeypatch):
    monkeypatch.setattr("mimonets.data.sequences.listops.ROUNDS_IN_VAIN", 10)
    short = {"length": 4, "min_length": 0, "sizes": (2000, 0, 2)}
    with pytest.raises(ValueError, match=r"only \d+ different trees.*lower sizes"):
        load_data(DataConfig(name="listops", **short)).read()


def test_listops_needs_room_between_its_lengths():
    with pytest.raises(ValueError, match="min_length=500.*length=400: leave room"):
        load_data(DataConfig(name="listops", length=400))


def test_released_listops_files_are_read_as_they_are(tmp_path):
    for part in ("train", "val", "test"):
        text = "Source\tTarget\n( ( ( [MAX 2 ) 7 ) ] )\t7\n( ( ( [MIN 2 ) 7 ) ] )\t2\n"
        (tmp_path / f"basic_{part}.tsv").write_text(text)
    data = load_data(DataConfig(name="listops", dir=str(tmp_path)))
    assert data.train.tokens.tolist() == [[12, 3, 8, 15], [11, 3, 8, 15]]
    assert data.validation.labels.tolist() == [7, 2]
    (tmp_path / "basic_val.tsv").unlink()
    with pytest.raises(ValueError, match="only some of.*basic_val.tsv missing"):
        load_data(DataConfig(name="listops", dir=str(tmp_path)))


def test_words_that_are_no_symbols_are_refused():
    assert tokenise("[MAX 1 ]") == [TOKEN_OF["[MAX"], 2, 15]
    with pytest.raises(ValueError, match=r"'\[AVG' is no ListOps symbol"):
        tokenise("[AVG 1 2 ]")


def test_recall_answers_with_the_value_of_the_key():
    splits = load_data(DataConfig(name="recall"))
    data, test = splits.train, splits.test
    assert (len(data), len(test), data.tokens.shape[1]) == (5000, 500, 42)
    assert (test.labels[:, :-1] == IGNORED).all()
    assert torch.equal(data.labels[:, :-1], data.tokens[:, 1:].long())
    for tokens, labels in zip(test.tokens.tolist(), test.labels.tolist(), strict=True):
        pairs = dict(zip(tokens[:40:2], tokens[1:40:2], strict=True))
        assert all(pairs[k] == v for k, v in zip(tokens[:40:2], tokens[1:40:2], strict=True))
        assert set(tokens[:40:2]) <= set(range(9))
        assert set(tokens[1:40:2]) <= set(range(9, 18))
        assert tokens[40] == MARK
        assert labels[-1] == pairs[tokens[41]]


def test_recall_may_ask_for_every_key_that_was_seen_equally_often():
    rng = np.random.default_rng(0)
    share = {}
    for asked in ("pairs", "keys"):
        made = recall_sequences(rng, 4_000, 40, asked=asked)
        keys, key = made[:, :40:2], made[:, 41:42]
        times = (keys == key).sum(axis=1)
        assert times.min() >= 1
        values = np.where(keys == key, made[:, 1:40:2], -1).max(axis=1)
        assert (values == made[:, 42]).all()
        share[asked] = times.mean()
    # 20 pairs of 9 keys: a seen key stands a little more than 20 / 9 times.
    assert share["keys"] == pytest.approx(20 / (9 * (1 - (8 / 9) ** 20)), abs=0.1)
    assert share["pairs"] == pytest.approx(1 + 19 / 9, abs=0.1)


def test_induction_answers_with_what_followed_the_mark():
    splits = load_data(DataConfig(name="induction", targets="final"))
    assert splits.train.tokens.shape == (5000, 31)
    assert (splits.train.labels[:, :-1] == IGNORED).all()
    for tokens, labels in zip(
        splits.test.tokens.tolist(), splits.test.labels.tolist(), strict=True
    ):
        assert tokens.count(MARK) == 2
        assert tokens[-1] == MARK
        assert labels[-1] == tokens[tokens.index(MARK) + 1]


@pytest.mark.parametrize("name", ["recall", "induction"])
def test_made_sequences_have_no_duplicates_across_splits(name):
    splits = load_data(DataConfig(name=name, sizes=(300, 100, 100)))
    rows = [
        tuple(row)
        for part in (splits.train, splits.validation, splits.test)
        for row in part.tokens.tolist()
    ]
    assert len(set(rows)) == 500


def test_impossible_sequences_are_refused():
    with pytest.raises(ValueError, match="length=41 is no number of key-value pairs"):
        load_data(DataConfig(name="recall", length=41))
    with pytest.raises(ValueError, match="not 500 different.*length 2"):
        load_data(DataConfig(name="induction", length=2, sizes=(400, 0, 100)))
