"""Every table and figure that has numbers, in the paper's order, then our own."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import cache, partial

from mimonets.experiments.bounds import measure_bounds, measure_relu_kernel
from mimonets.experiments.cost import measure_mimoconv, measure_mimoformer
from mimonets.experiments.experiment import Experiment
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


def cost_mimoconv() -> Experiment:
    """Make the experiment that counts the image networks."""
    return Experiment(
        name="cost-mimoconv",
        source="appendix E, table of MMAC on CIFAR-100; MNIST in its text",
        title="Multiply-accumulates per input of MIMOConv, its baselines and DataMUX",
        effort="seconds",
        needs_gpu=False,
        measure=measure_mimoconv,
    )


def cost_mimoformer() -> Experiment:
    """Make the experiment that counts the sequence networks."""
    return Experiment(
        name="cost-mimoformer",
        source="appendix F, table of GMAC on Text",
        title="Multiply-accumulates per input of MIMOFormer and its baselines on Text",
        effort="seconds",
        needs_gpu=False,
        measure=measure_mimoformer,
    )


def bounds() -> Experiment:
    """Make the experiment that holds the theorems to simulation."""
    return Experiment(
        name="bounds",
        source="appendices A, D and G",
        title="The theorems: every bound beside a simulation of what it bounds",
        effort="seconds",
        needs_gpu=False,
        measure=measure_bounds,
        draw=lambda record, path: plot_bounds(record["report"], path),
    )


def relu_kernel() -> Experiment:
    """Make the figure of the ReLU kernel."""
    return Experiment(
        name="relu-kernel",
        source="appendix C, figure of the ReLU kernel",
        title="The kernel of ReLU features, its closed form and its approximation",
        effort="seconds",
        needs_gpu=False,
        measure=measure_relu_kernel,
        draw=lambda record, path: plot_relu_kernel(record["report"], path),
    )


MAKERS: dict[str, Callable[[], Experiment]] = {
    "cifar": partial(trained, "cifar"),
    "mnist": partial(trained, "mnist"),
    "svhn": partial(trained, "svhn"),
    "lra": partial(trained, "lra"),
    "synthetic": partial(trained, "synthetic"),
    "bounds": bounds,
    "relu-kernel": relu_kernel,
    "cost-mimoconv": cost_mimoconv,
    "dynamic": partial(trained, "dynamic"),
    "isometry": partial(trained, "isometry"),
    "activations": partial(trained, "activations"),
    "skip-init": partial(trained, "skip-init"),
    "epochs": partial(trained, "epochs"),
    "initial-width": partial(trained, "initial-width"),
    "width": partial(trained, "width"),
    "frozen-keys": partial(trained, "frozen-keys"),
    "lra-steps": partial(trained, "lra-steps"),
    "cost-mimoformer": cost_mimoformer,
    "cifar-cpu": partial(trained, "cifar-cpu"),
    "mnist-readout": partial(trained, "mnist-readout"),
}

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
    return {name: make() for name, make in MAKERS.items()}


def find_experiment(name: str) -> Experiment:
    """Get an experiment; an unknown name is answered with the nearest."""
    if name not in MAKERS:
        close = get_close_matches(name, MAKERS, n=1, cutoff=0.4)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"There is no experiment {name!r}{hint}: `mimonets reproduce` lists them all."
        )
    return MAKERS[name]()
