"""Train with several processes until the end, stopped and resumed as often as signals come.

Kinds of :mod:`training.together` that are named are trained first, without stops.
"""

import os
import sys
import time
from pathlib import Path

from mimonets.training import TrainingInterrupted, train
from training import together
from training.tiny import TinyBatches, tiny_config, tiny_conv


def run(folder, devices, steps, before=lambda step: None):
    model, batches = tiny_conv(), TinyBatches(7, 16, before=before)
    config = tiny_config(batch_size=8, steps=steps, devices=devices, fast_share=0.6)
    return model, train(model, batches, config, run_dir=folder, resume=True)


def main(folder, devices, steps, pause, kinds):
    for kind in kinds:
        together.run(folder / kind, kind, devices)
    rank = int(os.environ.get("LOCAL_RANK", 0))
    (folder / f"process-{rank}").write_text(str(os.getpid()))

    def before(step):
        time.sleep(pause)
        (folder / f"step-{rank}").write_text(str(step))

    while True:
        try:
            run(folder / "run", devices, steps, before)
            return
        except TrainingInterrupted as stopped:
            if not stopped.rank:
                print(stopped, flush=True)


if __name__ == "__main__":
    folder, devices, steps, pause, *kinds = sys.argv[1:]
    main(Path(folder), int(devices), int(steps), float(pause), kinds)
