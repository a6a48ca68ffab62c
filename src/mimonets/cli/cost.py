"""``mimonets cost``: MACs per input by part and operating point; GPU-hours and memory of training.

Count multiply-accumulates per input by part of the network, at every operating point: as the paper
counts them, and plainly (convolutions and matrix products only). For a recipe, or a plan of
`mimonets reproduce`, estimate the hours of training on an A100 and its peak memory.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mimonets._show import make_console, make_table, mmac, print_json, show
from mimonets.cli._options import Parser

if TYPE_CHECKING:
    from mimonets.recipes.needs import Needs

OF_TRAINING = ("train.", "data.", "augment.")  # settings that change no network
CONVENTIONS = {
    "paper": "the paper's count: normalisation 2, activation and pooling 1 per element",
    "plain": "plain count: convolutions and matrix products only",
}


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_model()
    parser.add_json()


def run(args: Namespace) -> None:
    """Print MACs per input, by part and operating point, and what training needs."""
    if _is_plan(args.model):
        show_plan(args)
        return
    rows, needs = _costs(args), _needs(args)
    if args.json:
        more = {} if needs is None else {"training": needs.as_dict()}
        print_json({"model": args.model, "macs_per_input": rows, **more})
        return
    for convention in CONVENTIONS:
        make_console().print(cost_table(args.model, rows, convention))
    if needs is not None:
        print(training_line(needs))


def _is_plan(name: str) -> bool:
    plan = (files("mimonets") / "experiments" / "plans" / f"{name}.yaml").is_file()
    return plan or name.endswith((".yaml", ".yml"))


def show_plan(args: Namespace) -> None:
    """Print GPU-hours and memory of every row of a plan."""
    from mimonets.experiments import find_experiment
    from mimonets.experiments.cost import plan_needs
    from mimonets.experiments.report import needs_table

    plan = find_experiment(args.model).plan
    assert plan is not None
    rows = plan_needs(plan.changed(args.set) if args.set else plan)
    found = {"plan": plan.name, "rows": rows}
    show(found, lambda _: needs_table(plan.title, rows), as_json=args.json)


def training_line(needs: "Needs") -> str:
    """Say what training takes in both precisions."""
    from mimonets.recipes.needs import show_hours

    words = []
    for name, title in (("32", "float32"), ("bf16", "bf16")):
        hours = needs.hours(name)
        time = "" if hours is None else f"{show_hours(hours)} on an A100, "
        words.append(f"{title} {time}{needs.peak[name] / 1e9:.2g} GB at the peak")
    steps = "" if needs.steps is None else f" of {needs.steps:,} steps"
    return f"Training{steps}, by estimate: {'; '.join(words)}."


def cost_table(title: str, rows: Sequence[Mapping[str, Any]], convention: str) -> Any:
    """Lay out MMACs per input: one row per operating point, one column per part."""
    names = ["operating point", *rows[0][convention]]
    table = make_table(f"{title}\nMMAC per input, {CONVENTIONS[convention]}", names, words=())
    table.columns[names.index("total")].style = "bold"
    for row in rows:
        table.add_row(row["point"], *map(mmac, row[convention].values()))
    return table


def _costs(args: Namespace) -> Sequence[Mapping[str, Any]]:
    """Look the costs up if they are those of a recipe as it stands, else count.

    Counting takes two seconds, since PyTorch loads its compiler to run a network on shapes alone.
    """
    from mimonets.cli.open_models import find_config, find_network
    from mimonets.recipes.costs import known_costs

    named = find_network(args.model)
    same_network = all(setting.startswith(OF_TRAINING) for setting in args.set)
    as_it_stands = same_network and not (args.active_streams or args.imports)
    known = known_costs(named) if as_it_stands and isinstance(named, str) else None
    if known is not None:
        return known
    from mimonets.evaluation import count_points

    found = count_points(find_config(args.model, args.set), args.active_streams)
    return [cost.as_dict() for cost in found]


def _needs(args: Namespace) -> "Needs | None":
    """Look up or count what training a recipe needs; None for a saved model."""
    from mimonets.cli.open_models import find_network
    from mimonets.recipes.needs import known_needs, needs_of

    if not isinstance(find_network(args.model), str):
        return None
    found = None if args.set or args.imports else known_needs(args.model)
    if found is not None:
        return found
    from mimonets.recipes import load_recipe

    return needs_of(load_recipe(args.model, args.set))
