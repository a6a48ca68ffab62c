"""Every table and figure that has numbers, in the paper's order, then our own.

Plans are found in their folder. What trains nothing is listed here.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from mimonets._messages import did_you_mean
from mimonets.experiments.bounds_plots import plot_bounds, plot_relu_kernel
from mimonets.experiments.bounds_report import measure_bounds, measure_relu_kernel
from mimonets.experiments.cost import measure_mimoconv, measure_mimoformer
from mimonets.experiments.experiment import Experiment, Record
from mimonets.experiments.figures import DRAWINGS, draw_averages, draw_slopes
from mimonets.experiments.plan import Plan, load_plan, plan_names, read_plan
from mimonets.experiments.sweep import measure_plan

# What the paper shows without numbers of its own, and where those that belong to it are.
ELSEWHERE = {
    "figures 1 to 3, figure of dynamic inference, table of VSA operations": "drawings",
    "appendix E, figure of ReLU slopes": "no numbers are printed; mnist and epochs draw theirs",
    "appendix F, table of the setup on LRA": "the recipes: mimonets recipes lra-text-performer",
    "appendix F, table of training times on LRA": "runs of lra keep theirs; the paper's: an A100",
}


@cache
def experiments() -> dict[str, Experiment]:
    """Make all experiments, by name, in their order."""
    made = [*QUICK, *(trained(load_plan(name)) for name in plan_names())]
    return {one.name: one for one in sorted(made, key=lambda one: (one.order, one.name))}


def find_experiment(name: str) -> Experiment:
    """Get an experiment by its name, or by the path of a plan of one's own.

    An unknown name is answered with the nearest.
    """
    if name.endswith((".yaml", ".yml")):
        return trained(read_plan(Path(name)))
    if name not in experiments():
        hint = did_you_mean(name, experiments())
        raise ValueError(
            f"There is no experiment {name!r}{hint}: `mimonets reproduce` lists them all."
        )
    return experiments()[name]


def earlier_runs(experiment: Experiment, folder: Path) -> list[Record]:
    """Read the runs of an experiment's result, and those of other results that it trains too.

    A run is the same one if its name, which says recipe and settings, and its seed are. What taught
    a network is not part of its name: of other results only networks without a teacher count.
    """
    own = experiment.runs_in(folder)
    trials = () if experiment.plan is None else experiment.plan.trials
    shared = {name for trial in trials if not trial.teacher for name in trial.names}
    others = [one for one in experiments().values() if one.plan and one.name != experiment.name]
    return own + [
        run for other in others for run in other.runs_in(folder) if run["trial"] in shared
    ]


def trained(plan: Plan) -> Experiment:
    """Make an experiment of a plan."""
    if plan.axis not in DRAWINGS:
        raise ValueError(
            f"The plan {plan.name}: axis={plan.axis!r} is not known: choose from "
            f"{', '.join(DRAWINGS)}."
        )
    return Experiment(
        name=plan.name,
        source=plan.source,
        title=plan.title,
        effort=plan.effort,
        order=plan.order,
        needs_gpu=plan.needs_gpu,
        measure=partial(measure_plan, plan),
        draw=partial(_draw_plan, plan),
        plan=plan,
    )


def _draw_plan(plan: Plan, record: Record, path: Path) -> None:
    """Draw the accuracies of a plan and, beside them, the slopes that its networks learned."""
    if plan.averages:
        draw_averages(plan.averages, record, path)
    else:
        DRAWINGS[plan.axis](record, path)
    draw_slopes(record, path.with_stem(f"{path.stem}-slopes"))


def _of_report(plot: Callable[[dict[str, Any], Path], object]) -> Callable[[Record, Path], object]:
    """Draw the report that is part of a record."""
    return lambda record, path: plot(record["report"], path)


QUICK = (
    Experiment(
        name="bounds",
        source="appendices A, D and G",
        title="The theorems: every bound beside a simulation of what it bounds",
        effort="seconds",
        order=60,
        measure=measure_bounds,
        draw=_of_report(plot_bounds),
    ),
    Experiment(
        name="relu-kernel",
        source="appendix C, figure of the ReLU kernel",
        title="The kernel of ReLU features, its closed form and its approximation",
        effort="seconds",
        order=70,
        measure=measure_relu_kernel,
        draw=_of_report(plot_relu_kernel),
    ),
    Experiment(
        name="cost-mimoconv",
        source="appendix E, table of MMAC on CIFAR-100; MNIST in its text",
        title="Multiply-accumulates per input of MIMOConv, its baselines and DataMUX",
        effort="seconds",
        order=80,
        measure=measure_mimoconv,
    ),
    Experiment(
        name="cost-mimoformer",
        source="appendix F, table of GMAC on Text",
        title="Multiply-accumulates per input of MIMOFormer and its baselines on Text",
        effort="seconds",
        order=180,
        measure=measure_mimoformer,
    ),
)
