import shutil

import pytest
import torch

from mimonets.training import train
from mimonets.training.checks import cpp_compiler
from training.tiny import (
    TinyBatches,
    TinySequences,
    sequence_config,
    tiny_config,
    tiny_conv,
    tiny_former,
)


class ShortLastBatch(TinyBatches):
    """The last batch of an epoch holds half as many."""

    def epoch(self, epoch, start=0):
        for number, batch in enumerate(super().epoch(epoch, start), start):
            yield tuple(part[: self.size // 2] if number == 3 else part for part in batch)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(cpp_compiler()) is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("kind", ["conv", "former", "taught"])
def test_a_compiled_run_takes_the_same_steps(tmp_path, kind):
    weights = []
    teacher = tiny_conv(num_streams=1) if kind == "taught" else None
    for compiled in (False, True):
        model = tiny_former(dropout=0.0) if kind == "former" else tiny_conv()
        make = sequence_config if kind == "former" else tiny_config
        config = make(epochs=2, compile=compiled)
        data = TinySequences() if kind == "former" else ShortLastBatch()
        train(model, data, config, run_dir=tmp_path / str(compiled), teacher=teacher)
        weights.append(model.state_dict())
    for name, wanted in weights[0].items():
        torch.testing.assert_close(weights[1][name], wanted, rtol=1e-3, atol=1e-4, msg=name)


def test_compiling_without_a_compiler_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"no-such-compiler is not installed.*train.compile=false"):
        train(tiny_conv(), TinyBatches(), tiny_config(compile=True), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
