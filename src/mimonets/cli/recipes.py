"""``mimonets recipes``: list the recipes, or show one."""

from argparse import Namespace

from mimonets._show import print_json
from mimonets.cli._options import NETWORK_HELP, Parser


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument(
        "name", nargs="?", metavar="NETWORK", help=f"whose recipe to show: {NETWORK_HELP}"
    )
    parser.add_json()


def run(args: Namespace) -> None:
    """List the recipes, or show one."""
    from mimonets.recipes.families import recipe_summaries

    if args.name is not None:
        from mimonets.cli.open_models import find_recipe

        recipe = find_recipe(args.name)
        if args.json:
            print_json(recipe.as_dict())
        else:
            print(recipe.as_yaml(), end="")
        return
    summaries = recipe_summaries()
    if args.json:
        print_json([{"name": name, "summary": summaries[name]} for name in summaries])
        return
    heading = ""
    for name, summary in summaries.items():
        if summary != heading:
            heading = summary
            print(f"\n{heading}")
        print(f"  {name}")
    print("\nmimonets recipes NAME shows one with all its settings.")
