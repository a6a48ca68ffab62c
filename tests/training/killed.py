"""Train a tiny model in a process of its own, so that a test can kill it or send it a signal."""

import os
import resource
import signal
import sys
from unittest import mock

from mimonets.training import TrainingInterrupted, loop, train
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


def run_and_stop(folder, number):
    """Get the signal in the third step; the handlers must be back when training has ended."""

    def press(step):
        if step == 2:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    try:
        train(tiny_conv(), TinyBatches(before=press), tiny_config(), run_dir=folder)
    except TrainingInterrupted as stopped:
        folder.with_suffix(".txt").write_text(str(stopped))
    assert signal.getsignal(number) is before


def run_without_room(folder, size):
    """Train where no file may be larger than ``size`` bytes, or the disk is as small as that."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        run(folder)
    except (OSError, ValueError) as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.exit(f"said: {error}")


if __name__ == "__main__":
    run_without_room(sys.argv[1], int(sys.argv[2]))
