"""Imports point downhill: the algebra knows no layers, layers no models, models no evaluation."""

import ast
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
    "models": {"attention", "layers", "vsa"},
    "inference": {"models"},
    "evaluation": {"inference", "data", "models", "attention", "layers", "vsa"},
    "data": set(),
    "training": {"evaluation", "data", "models", "layers", "vsa"},
    "recipes": {"training", "evaluation", "data", "models", "vsa"},
    "experiments": {"recipes", "training", "evaluation", "models", "theory"},
    "serving": {"inference"},
    "cli": {
        "data",
        "inference",
        "layers",
        "serving",
        "experiments",
        "recipes",
        "training",
        "evaluation",
        "models",
        "theory",
        "vsa",
    },
}


def rooms_imported_by(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module]
        for name in names:
            if name.startswith("mimonets.") and not name.startswith("mimonets._"):
                yield name.split(".")[1]  # anyone may use mimonets._files and the like


def test_every_room_is_on_the_map():
    assert {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()} == set(
        MAY_IMPORT
    )


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_downhill(room):
    for path in (SOURCE / room).rglob("*.py"):
        assert set(rooms_imported_by(path)) - {room} <= MAY_IMPORT[room], path


def test_files_stay_small():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 320, path


def test_public_names_exist():
    for name in mimonets.__all__:
        assert getattr(mimonets, name).__name__ == name
    assert set(mimonets.__all__) <= set(dir(mimonets))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mimonets.nothing  # noqa: B018
