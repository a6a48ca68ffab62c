"""Train a tiny model in a process of its own, so that a test can kill it."""

import sys
from unittest import mock

from mimonets.training import loop, train
from training.tiny import TinyBatches, tiny_config, tiny_conv

SPOILT = {3, 7, 8}


def settings():
    return tiny_config(epochs=6, fast_share=0.6, ema=0.9, evaluate_every=2)


def run(folder, *, resume=True, **options):
    model = tiny_conv()
    batches = TinyBatches(4, spoil=SPOILT, **options)
    with mock.patch.object(loop, "CHECKPOINT_SECONDS", 0):  # after every step
        result = train(
            model, batches, settings(), run_dir=folder, validation=TinyBatches(2), resume=resume
        )
    return model, result


if __name__ == "__main__":
    run(sys.argv[1])
