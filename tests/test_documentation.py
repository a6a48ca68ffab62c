"""What README and docs tell people to type works as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mimonets.cli.main import main
from pages import notes, page_names, page_text

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def python_blocks():
    pattern = re.compile(
        r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL
    )
    for page in PAGES:
        for number, (code, output) in enumerate(pattern.findall(page.read_text())):
            yield pytest.param(code, output, id=f"{page.stem}-{number}")


@pytest.mark.parametrize(("code", "output"), list(python_blocks()))
def test_python_blocks_run_and_print_what_they_show(code, output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<page>", "exec"), {})
    assert capsys.readouterr().out == output


def first_commands():
    """List the commands of README and the first page, each once."""
    lines = [
        line.partition("#")[0].strip()
        for page in (ROOT / "README.md", ROOT / "docs" / "start.md")
        for block in blocks(page, "sh")
        for line in block.splitlines()
    ]
    return list(dict.fromkeys(filter(None, lines)))


def environment(**more):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "MAKEFLAGS": "", **more}


def made_by(target):
    """Say what the last line of a target in the Makefile runs, without running it."""
    lines = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target],
        cwd=ROOT,
        env=environment(DEMO_ARGS="--epochs 1"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return lines[-1]


def test_every_command_that_we_show_first_runs_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    makes, commands = (
        [command for command in first_commands() if command.startswith("make ") == is_make]
        for is_make in (True, False)
    )
    assert makes == ["make demo", "make test", "make serve"]
    assert made_by("serve").startswith(".venv/bin/mimonets serve --demo")  # tests/serving runs it
    assert made_by("demo") == ".venv/bin/mimonets demo --epochs 1"  # tests/cli runs it
    assert made_by("test").startswith("OMP_NUM_THREADS=1 .venv/bin/python -m pytest ")
    # One as the program that pip installs, the others in this process, which has PyTorch loaded.
    assert commands[0] == "mimonets recipes"
    assert subprocess.run(commands[0].split(), env=environment(), check=False).returncode == 0
    assert len(commands) >= 7
    for program, *arguments in map(str.split, commands):
        assert program == "mimonets"
        if arguments[0] == "train":
            arguments += ["--set", "train.steps=20"]  # in place of a minute or two
        code = main(arguments)
        captured = capsys.readouterr()
        assert code == 0, (arguments, captured)
        assert captured.out, arguments


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_that_we_show_first_runs_as_a_program(tmp_path):
    no_test_runs = {"PYTEST_ADDOPTS": "--collect-only -q tests/test_rooms.py"}
    demo = {"DEMO_ARGS": f"--epochs 1 --out {tmp_path}/demo"}
    for command in first_commands():
        if command == "make serve":
            continue  # it would not end
        is_make = command.startswith("make")
        if is_make and not (ROOT / ".venv").exists():
            continue  # it would set up a .venv of its own first
        done = subprocess.run(
            command.split(),
            cwd=ROOT if is_make else tmp_path,
            env=environment(**no_test_runs, **demo),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, command + done.stdout + done.stderr
        assert done.stdout, command


def test_links_between_pages_lead_somewhere():
    made = {ROOT / "docs" / "experiments" / f"{name}.md" for name in page_names()}
    pages = {path: path.read_text() for path in [*PAGES, *ROOT.glob("C*.md")]}
    pages |= {path: page_text(path.stem) for path in made}  # when the documentation is built
    for path, text in pages.items():
        for target in re.findall(r"\]\((?!http)([^)#]+)", text):
            there = Path(os.path.normpath(path.parent / target))
            assert there.exists() or there in made, f"{path.name}: {target}"


def words(text):
    """Count the words of a page's prose: without tables, code, pictures and addresses.

    >>> words("Two words.\\n\\n| a | b |\\n\\n```sh\\nmake demo\\n```\\n\\n* [One more](there.md)")
    4
    """
    text = re.sub(r"^```.*?^```[^\n]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(\||!\[).*$", "", text, flags=re.MULTILINE)
    return len(re.findall(r"\S*\w\S*", re.sub(r"\]\([^)]*\)", "]", text)))


def test_pages_are_short():
    """A page answers one question; what is longer is two pages, or a table from results/."""
    count = {path.name: words(path.read_text()) for path in PAGES}
    assert count["README.md"] <= 500
    assert count["results.md"] <= 600
    assert {name: number for name, number in count.items() if number > 1000} == {}
    said = {name: words(text) for name, text in notes().items()}  # on generated pages
    assert {name: number for name, number in said.items() if number > 150} == {}
    assert sum(count.values()) + sum(said.values()) <= 11_000, count


def test_the_readme_fits_on_a_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_python_names_in_the_equations_page_exist():
    import importlib

    text = (ROOT / "docs" / "equations.md").read_text()
    names = re.findall(r"`((?:vsa|layers|evaluation|attention|models|theory)\.[\w.]+)`", text)
    assert len(names) > 20
    for name in names:
        room, *rest = name.split(".")
        found = importlib.import_module(f"mimonets.{room}")
        for part in rest:
            found = getattr(found, part)


def test_every_setting_of_training_is_explained():
    from dataclasses import fields

    from mimonets.training import TrainConfig

    section = (ROOT / "docs" / "training.md").read_text().split("## Every setting")[1]
    named = set(re.findall(r"`(\w+)", section.split("\n## ")[0]))
    assert {field.name for field in fields(TrainConfig)} <= named


def test_versions_agree():
    from importlib.metadata import version

    import mimonets

    assert mimonets.__version__ == version("mimonets")
    assert f"version: {mimonets.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {mimonets.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_linter_of_pre_commit_is_that_of_the_pins():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    ruff = next(repo["rev"] for repo in hooks if "ruff" in repo["repo"])
    assert f"ruff=={ruff.removeprefix('v')}" in (ROOT / "constraints.txt").read_text().split()
