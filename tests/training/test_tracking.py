"""Loggers: anything that keeps to the protocol of Lightning Fabric."""

import pytest
from lightning_fabric.loggers import CSVLogger, Logger

from mimonets.training import train
from training.tiny import TinyBatches, tiny_config, tiny_conv


class Kept(Logger):
    name, version = "kept", 0

    def __init__(self):
        self.rows, self.ended = {}, []

    def log_metrics(self, metrics, step=None):
        self.rows[step] = metrics

    def log_hyperparams(self, params):
        raise AssertionError("settings are in the run folder")

    def finalize(self, status):
        self.ended.append(status)


class WandB(Kept):
    """Weights & Biases in ten lines, as in docs/training.md."""

    def __init__(self, **options):
        import wandb

        self.run = wandb.init(**options)

    def log_metrics(self, metrics, step=None):
        self.run.log(metrics, step=step)

    def finalize(self, status):
        self.run.finish(exit_code=int(status != "success"))


def run(folder, logger, **options):
    batches = TinyBatches(4, **options)
    return train(
        tiny_conv(),
        batches,
        tiny_config(),
        run_dir=folder,
        validation=TinyBatches(2),
        logger=logger,
    )


def test_a_logger_gets_the_numbers_of_every_epoch(tmp_path):
    logger = Kept()
    result = run(tmp_path / "run", logger, spoil={2})
    assert list(logger.rows) == [4, 8]
    for row, history in zip(logger.rows.values(), result.history, strict=True):
        for name in ("loss", "accuracy", "lr", "skipped", "gradient_norm", "inputs_per_second"):
            assert row[name] == history[name]
        assert row["validation/2/accuracy"] == history["validation"]["2"]["accuracy"]
        assert row["skipped_in_all"] == 1
        assert sum(name.startswith("slopes/") for name in row) == len(result.slopes) > 0
    assert logger.ended == ["success"]
    assert not (tmp_path / "run/tensorboard").exists()


def test_a_logger_learns_that_training_was_cut_short(tmp_path):
    def fail(step):
        if step == 5:
            raise OSError("the disk is gone")

    logger = Kept()
    with pytest.raises(OSError, match="the disk is gone"):
        run(tmp_path / "run", logger, before=fail)
    assert (list(logger.rows), logger.ended) == ([4], ["aborted"])


def test_loggers_of_fabric_work(tmp_path):
    run(tmp_path / "run", CSVLogger(tmp_path, "csv", "", flush_logs_every_n_steps=1))
    header, *rows = (tmp_path / "csv/metrics.csv").read_text().splitlines()
    assert {"loss", "lr", "gradient_norm", "inputs_per_second"} <= set(header.split(","))
    assert len(rows) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library's own dependencies
def test_weights_and_biases_works_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandB(mode="offline", dir=tmp_path, project="tiny")
    result = run(tmp_path / "run", logger)
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    written = path.read_bytes().decode(errors="ignore")
    for name, value in result.history[-1].items():
        assert name in written
        assert name == "validation" or str(value) in written
    assert "slopes/" in written
