import numpy as np
import pytest

from mimonets._inputs import InputSpec
from mimonets.serving.errors import RequestError
from mimonets.serving.input_checks import check_inputs
from mimonets.serving.networks import PADDING

TOKENS = InputSpec(kind="tokens", shape=(4,), vocab_size=5)


def test_short_sequences_are_filled_up():
    found = check_inputs(np.array([[1, 4]]), TOKENS, takes_short=True)
    assert found.tolist() == [[1, 4, PADDING, PADDING]]
    with pytest.raises(RequestError, match=r"\(inputs, 4\)"):
        check_inputs(np.array([[1, 4]]), TOKENS, takes_short=False)


@pytest.mark.parametrize(
    ("token", "vocab_size", "message"),
    [(5, 5, "between 0 and 4"), (-1, 5, "at least 0"), (-1, None, "at least 0")],
)
def test_token_ids_outside_the_vocabulary_are_refused(token, vocab_size, message):
    spec = InputSpec(kind="tokens", shape=(1,), vocab_size=vocab_size)
    with pytest.raises(RequestError, match=message):
        check_inputs(np.array([[token]]), spec, takes_short=False)
