"""Imports point downhill: the algebra knows no layers, layers no models, models no evaluation."""

import ast
import re
from pathlib import Path

import pytest

import mimonets

SOURCE = Path(mimonets.__file__).parent

# What each room may import of ours, besides itself.
MAY_IMPORT = {
    "vsa": set(),
    "theory": {"vsa"},
    "layers": {"vsa"},
    "attention": {"vsa"},
    "bindings": {"layers", "vsa"},
    "models": {"bindings", "attention", "layers", "vsa"},
    "checkpoints": {"models"},
    "inference": {"checkpoints", "models"},
    "data": set(),
    "evaluation": {
        *("inference", "checkpoints", "data", "models", "bindings", "attention", "layers", "vsa"),
    },
    "training": {"evaluation", "checkpoints", "data", "models", "bindings", "layers", "vsa"},
    "recipes": {"training", "evaluation", "checkpoints", "data", "models", "vsa"},
    "experiments": {
        *("recipes", "training", "evaluation", "inference", "checkpoints", "data", "models"),
        *("theory", "layers", "vsa"),
    },
    "serving": {"inference"},
    "loadtest": {"serving"},
    "cli": {
        *("loadtest", "serving", "experiments", "recipes", "training", "evaluation", "inference"),
        *("checkpoints", "data", "models", "layers", "theory", "vsa"),
    },
}


def rooms_imported_by(path):
    tree = ast.parse(path.read_text())
    ours = set()  # what `import mimonets as mn` is called here
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            ours |= {alias.asname or alias.name for alias in node.names if alias.name == "mimonets"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module]
            if node.module == "mimonets":
                names = [room_of(alias.name) for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [room_of(node.attr)] if node.value.id in ours else []
        for name in names:
            if name.startswith("mimonets.") and not name.startswith("mimonets._"):
                yield name.split(".")[1]  # anyone may use mimonets._files and the like


def room_of(name):
    """Name the module that a public name of the package comes from."""
    if name in mimonets.__all__:
        return getattr(mimonets, name).__module__
    return f"mimonets.{name}"


def test_import_as_mn_is_seen(tmp_path):
    path = tmp_path / "sly.py"
    path.write_text("import mimonets as mn\nfrom mimonets import Engine\nmn.save, mn.vsa\n")
    assert set(rooms_imported_by(path)) == {"checkpoints", "inference", "vsa"}


def test_every_room_is_on_the_map():
    assert {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()} == set(
        MAY_IMPORT
    )


def test_the_map_in_contributing_shows_every_room_once():
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^ *\| (`.*?) \| .* \| (.*) \|$", text, re.MULTILINE)
    shown = [re.findall(r"`(\w+)`", cell) for cell in (room for room, _ in rows)]
    assert sorted(room for rooms in shown for room in rooms) == sorted(MAY_IMPORT)
    for rooms, (_, imports) in zip(shown, rows, strict=True):
        for room in rooms:
            assert set(re.findall(r"`(\w+)`", imports)) <= MAY_IMPORT[room], room


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_downhill(room):
    for path in (SOURCE / room).rglob("*.py"):
        assert set(rooms_imported_by(path)) - {room} <= MAY_IMPORT[room], path


def test_operating_points_are_no_gears():
    """One name per idea: gear stays in old names, and in those that results and recipes have."""
    texts = {path: path.read_text().lower() for path in SOURCE.rglob("*.py")}
    assert len([path for path, text in texts.items() if re.search(r"\bgear", text)]) <= 3


def test_models_do_not_ask_which_binding_they_have():
    for path in (SOURCE / "models").rglob("*.py"):
        assert not re.search(r"isinstance\(\w*\.?binding\b", path.read_text()), path


def test_public_names_exist():
    for name in mimonets.__all__:
        assert getattr(mimonets, name).__name__ == name
    assert set(mimonets.__all__) <= set(dir(mimonets))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mimonets.nothing  # noqa: B018


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_LINES = 60


def lines_of(function):
    """Count the lines of a function without signature, docstring and functions inside it."""
    first, *others = function.body
    if ast.get_docstring(function) is not None:
        if not others:
            return 0
        first = others[0]
    lines = set(range(first.lineno, function.end_lineno + 1))
    for inner in ast.walk(function):
        if inner is not function and isinstance(inner, FUNCTIONS):
            lines -= set(range(inner.lineno, inner.end_lineno + 1))
    return len(lines)


def test_functions_stay_short():
    """Files may be long; a function that is can be split by what it does."""
    long = [
        f"{path.relative_to(SOURCE)}: {node.name} has {lines_of(node)} lines"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, FUNCTIONS)
        and node.name != "add_options"  # a list of options
        and lines_of(node) > MOST_LINES
    ]
    assert not long, f"split them, at most {MOST_LINES} lines each: {long}"


def test_the_length_of_a_function_is_that_of_what_it_does():
    text = '''
def f(
    a,
):
    """Say
    it."""
    def g():
        return 1
    b = g()
    return b
'''
    (function,) = ast.parse(text).body
    assert lines_of(function) == 2
    assert lines_of(function.body[1]) == 1
    assert lines_of(ast.parse('def f():\n    """Nothing."""').body[0]) == 0
