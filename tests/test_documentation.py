"""What README and docs tell people to type works as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def readme_commands():
    for block in blocks(ROOT / "README.md", "sh"):
        for line in block.splitlines():
            command = line.partition("#")[0].strip()
            if command:
                yield command


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """One folder for all commands, since some use what earlier ones made."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.xdist_group("readme")
@pytest.mark.parametrize("command", list(readme_commands()))
def test_every_command_of_the_readme_runs(command, workplace):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    where = workplace
    if command.startswith("make"):
        if not (ROOT / ".venv").exists():
            pytest.skip("make would set up a .venv of its own first")
        where = ROOT
        environment["PYTEST_ADDOPTS"] = "--collect-only -q"  # the tests do not run themselves
        environment["DEMO_ARGS"] = f"--epochs 1 --out {workplace}/demo"
        environment["MAKEFLAGS"] = ""
    done = subprocess.run(
        command.split(), cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_fits_on_a_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 70


def test_python_names_in_the_equations_page_exist():
    import importlib

    text = (ROOT / "docs" / "equations.md").read_text()
    names = re.findall(r"`((?:vsa|layers|evaluation|attention|models)\.[\w.]+)`", text)
    assert len(names) > 20
    for name in names:
        room, *rest = name.split(".")
        found = importlib.import_module(f"mimonets.{room}")
        for part in rest:
            found = getattr(found, part)


def test_versions_agree():
    from importlib.metadata import version

    import mimonets

    assert mimonets.__version__ == version("mimonets")
    assert f"version: {mimonets.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {mimonets.__version__}" in (ROOT / "CHANGELOG.md").read_text()
