"""Every table and figure that has numbers, in the paper's order, then our own."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from mimonets._config import did_you_mean
from mimonets.experiments.bounds import measure_bounds, measure_relu_kernel
from mimonets.experiments.cost import measure_mimoconv, measure_mimoformer
from mimonets.experiments.experiment import Experiment, Record, Row, Workplace
from mimonets.experiments.figures import DRAWINGS
from mimonets.experiments.plan import load_plan
from mimonets.experiments.trained import measure_plan
from mimonets.theory import plot_bounds, plot_relu_kernel


def trained(name: str) -> Experiment:
    """Make an experiment of a plan."""
    plan = load_plan(name)
    return Experiment(
        name=name,
        source=plan.source,
        title=plan.title,
        effort=plan.effort,
        needs_gpu=plan.needs_gpu,
        measure=partial(measure_plan, plan),
        draw=DRAWINGS[plan.axis],
        commands=tuple(trial.command() for trial in plan.trials),
    )


def quick(
    name: str,
    source: str,
    title: str,
    measure: Callable[[Workplace], tuple[Sequence[Row], Record]],
    plot: Callable[[Record, Path], object] | None = None,
) -> Experiment:
    """Make an experiment that trains nothing; ``plot`` draws its report."""
    draw = None if plot is None else lambda record, path: plot(record["report"], path)
    return Experiment(name, source, title, "seconds", False, measure, draw)


# In the paper's order, then our own. A name alone is that of a plan.
ALL: tuple[Experiment | str, ...] = (
    *("cifar", "mnist", "svhn", "lra", "synthetic"),
    quick(
        "bounds",
        "appendices A, D and G",
        "The theorems: every bound beside a simulation of what it bounds",
        measure_bounds,
        plot_bounds,
    ),
    quick(
        "relu-kernel",
        "appendix C, figure of the ReLU kernel",
        "The kernel of ReLU features, its closed form and its approximation",
        measure_relu_kernel,
        plot_relu_kernel,
    ),
    quick(
        "cost-mimoconv",
        "appendix E, table of MMAC on CIFAR-100; MNIST in its text",
        "Multiply-accumulates per input of MIMOConv, its baselines and DataMUX",
        measure_mimoconv,
    ),
    *("dynamic", "isometry", "activations", "skip-init", "epochs"),
    *("initial-width", "width", "frozen-keys", "lra-steps"),
    quick(
        "cost-mimoformer",
        "appendix F, table of GMAC on Text",
        "Multiply-accumulates per input of MIMOFormer and its baselines on Text",
        measure_mimoformer,
    ),
    *("cifar-cpu", "mnist-readout"),
)

# What the paper shows without numbers of its own, and where those that belong to it are.
ELSEWHERE = {
    "figures 1 to 3, figure of dynamic inference, table of VSA operations": "drawings",
    "appendix E, figure of ReLU slopes": "no numbers are printed; the runs are those of epochs",
    "appendix F, table of the setup on LRA": "the recipes: mimonets recipes lra-text-performer",
    "appendix F, table of training times on LRA": "the times of the runs of lra, on an A100",
}


@cache
def experiments() -> dict[str, Experiment]:
    """Make all experiments, by name."""
    made = [trained(one) if isinstance(one, str) else one for one in ALL]
    return {experiment.name: experiment for experiment in made}


def find_experiment(name: str) -> Experiment:
    """Get an experiment; an unknown name is answered with the nearest."""
    if name not in experiments():
        hint = did_you_mean(name, experiments())
        raise ValueError(
            f"There is no experiment {name!r}{hint}: `mimonets reproduce` lists them all."
        )
    return experiments()[name]
