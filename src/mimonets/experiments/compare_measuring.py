"""Measure the trained candidates of ``compare``: exports, speed, cost and memory."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from mimonets._messages import first_line
from mimonets._operating_point import OperatingPoint
from mimonets.checkpoints import load
from mimonets.evaluation import Contender, count_macs, peak_memory, race
from mimonets.evaluation.metrics import accuracy, loss_of
from mimonets.experiments.advice import interval
from mimonets.experiments.candidates import Trainee
from mimonets.experiments.compare_data import CompareData, answer
from mimonets.experiments.compare_training import Score, Tell
from mimonets.inference import Engine, ExportOptions, export
from mimonets.models import SlimmableWideResNet, fixed_at

MOST_ITEMS = 2000  # of the test data, on which int8 is compared with float32
RUNTIMES = ("onnxruntime", "openvino", "onnxruntime-int8", "openvino-int8")
ANY_LOSS = ExportOptions(max_loss=100.0)  # by int8: the table says what it costs
Row = dict[str, Any]


@dataclass(frozen=True)
class Measurer:
    """Measures candidates at a batch size; their exports are kept in a folder."""

    data: CompareData
    served: Path
    batch_size: int
    int8: bool
    tell: Tell

    def measure(self, found: Sequence[tuple[Trainee, Path, Sequence[Score]]]) -> list[Row]:
        """Give a row for each operating point of candidates, by their saved models and scores."""
        rows: list[Row] = []
        contenders: list[Contender] = []
        for one, saved, scores in found:
            self.tell(f"exporting {one.name}")
            fresh = one.make()
            own = isinstance(fresh, SlimmableWideResNet)
            model = load(saved, network=None if own else fresh).eval()
            points = one.points(model)
            folder = self._export(one, model, [point.number for point in points.values()])
            engines = self._engines(model, folder)
            quantised = [name for name in engines if name.endswith("int8")]
            inputs = model.example_inputs(self.batch_size).numpy()
            for name, point in points.items():
                results = [score["points"][name] for score in scores]
                row = self._row(name, model, point, results)
                row["served"] = None if folder is None else str(folder)
                rows.append(row)
                if quantised and folder is not None:
                    rows.append(self._int8_row(row, folder, point, engines[quantised[0]]))
                for engine_name, engine in engines.items():
                    title = f"{name}, int8" if engine_name in quantised else name
                    call = partial(engine, inputs, point.number)
                    contenders.append(Contender(f"{title}/{engine_name}", call, self.batch_size))
        self.tell("timing all candidates in turn")
        _enter_speeds(rows, contenders)
        return rows

    def _row(
        self, name: str, model: Any, point: OperatingPoint, results: Sequence[Mapping[str, Any]]
    ) -> Row:
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        run = partial(model, model.example_inputs(self.batch_size), **point.options)
        with torch.inference_mode():
            activations = peak_memory(run)
        by_seed, items = [one["mean"] for one in results], results[0]["total"]
        return {
            "name": name,
            "base": name,
            "inputs_per_pass": point.inputs_per_pass,
            self.data.judged_by: statistics.mean(by_seed),
            "interval": interval(by_seed, items, results[0]["deviation"]),
            "by_seed": by_seed,
            "items": items,
            "macs": count_macs(fixed_at(model, point)).plain,
            "memory": weights + activations,
            "activations": activations,
        }

    def _export(self, one: Trainee, model: Any, numbers: Sequence[int]) -> Path | None:
        """Export a candidate, in int8 too if that works; None if it runs in PyTorch only."""
        folder = self.served / one.folder
        if (folder / "manifest.json").exists():
            return folder
        calibration = [batch[0] for batch in islice(self.data.train.epoch(0), 4)]
        settings: dict[str, Any] = {"modes": numbers, "measure": False}
        settings["evaluation"] = self.data.some_tests(MOST_ITEMS)
        for int8 in (calibration, None) if self.int8 else (None,):
            try:
                export(model, folder, int8=int8, options=ANY_LOSS, **settings)
                return folder  # export's own answer is an absolute path
            except Exception as error:  # quantisers and exporters may raise anything
                where = "PyTorch only" if int8 is None else "float32 only"
                self.tell(f"{one.name} runs in {where}: {first_line(error)}")
        return None

    def _engines(self, model: Any, folder: Path | None) -> dict[str, Engine]:
        engines = {"torch": Engine(model, "torch")}
        for name in RUNTIMES if folder is not None else ():
            try:
                engines[name] = Engine(folder, name)
            except ValueError as error:  # not installed, or not exported
                if "int8" not in name:
                    self.tell(f"{name} does not take part: {first_line(error)}")
        return engines

    def _int8_row(self, row: Row, folder: Path, point: OperatingPoint, int8: Engine) -> Row:
        """Shift a row by what int8 changes, with one seed and on some of the test items."""
        key, plain = self.data.judged_by, Engine(folder, int8.backend.partition("-")[0])
        changed = self._score(int8, point) - self._score(plain, point)
        name = int8.backend.replace("onnxruntime", "onnx")
        size = sum((folder / path).stat().st_size for path in int8.manifest.formats[name].files)
        return {
            **row,
            "name": f"{row['name']}, int8",
            key: row[key] + changed,
            "by_seed": [row["by_seed"][0] + changed],
            "memory": size + row["activations"],
        }

    def _score(self, engine: Engine, point: OperatingPoint) -> float:
        """Measure accuracy or loss on some of the test items."""
        run, tests = partial(engine, active_streams=point.number), self.data.some_tests(MOST_ITEMS)
        measure = accuracy if self.data.judged_by == "accuracy" else loss_of(self.data.loss)
        scores = [float(measure(answer(run, batch), batch[-1])) * len(batch[0]) for batch in tests]
        return sum(scores) / sum(len(batch[0]) for batch in tests)


def _enter_speeds(rows: Sequence[Row], contenders: Sequence[Contender]) -> None:
    """Race all engines, and enter the best of each row."""
    timings = sorted(race(contenders, rounds=7), key=attrgetter("inputs_per_second"))
    fastest = {timing.name.rpartition("/")[0]: timing for timing in timings}
    for row in rows:
        best = fastest[row["name"]]
        row["inputs_per_second"] = best.inputs_per_second
        row["engine"] = best.name.rpartition("/")[2]
        row["speed"] = best.speedup_over(fastest[rows[0]["name"]]).median
