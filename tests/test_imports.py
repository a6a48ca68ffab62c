"""The library needs PyTorch, NumPy and safetensors; everything else is for who uses it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mimonets

SOURCE = Path(mimonets.__file__).parents[1]
FOR_THE_COMMAND_LINE = ["rich", "jsonargparse", "yaml", "huggingface_hub", "lightning_fabric"]

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"blocked {{name}}", name=name.partition(".")[0])

sys.meta_path.insert(0, Block())
"""


def run_without(blocked, program):
    """Run a program where some libraries are not installed; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=blocked) + program],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_library_imports_and_runs_without_what_the_command_line_needs():
    program = """
import tempfile, torch, mimonets as mn
import mimonets.vsa, mimonets.layers, mimonets.attention, mimonets.theory, mimonets.data
import mimonets.evaluation, mimonets.inference, mimonets.training, mimonets.recipes
model = mn.create("mimoconv", depth=10, width=1, num_classes=3)
with tempfile.TemporaryDirectory() as folder:
    mn.save(model, folder)
    print(mn.load(folder)(torch.zeros(2, 3, 8, 8)).shape)
    model.save_pretrained(folder)
    print(type(mn.MIMOConv.from_pretrained(folder)).__name__)
    try:
        model.push_to_hub("someone/model")
    except ValueError as error:
        print(error)
print(mimonets.checkpoints.checkpoint.__version__)
"""
    shape, kind, reason, version = run_without(FOR_THE_COMMAND_LINE, program).splitlines()
    assert shape == "torch.Size([2, 3])"
    assert kind == "MIMOConv"
    assert "The Hugging Face Hub needs huggingface_hub" in reason
    assert "pip install 'mimonets[hub]'" in reason
    assert version == mimonets.__version__


def test_importing_the_package_imports_no_library_at_all():
    program = """
import mimonets
mimonets.__version__
print(sorted({"torch", "numpy", "safetensors"} & sys.modules.keys()))
"""
    assert run_without(FOR_THE_COMMAND_LINE, program) == "[]"


@pytest.mark.parametrize("command", ["recipes", "cost mnist-mimoconv-n4"])
def test_the_command_line_names_the_extra_it_needs(command):
    program = f"""
from mimonets.cli.main import main
sys.stderr = sys.stdout
print(main({command.split()!r}))
"""
    *message, code = run_without(["yaml"], program).splitlines()
    assert code == "2"
    assert "this needs yaml: pip install -e '.[cli]' in a clone" in message[-1]


def test_a_command_that_needs_pytorch_says_so_where_only_exports_are_served():
    program = """
from mimonets.cli.main import main
sys.stderr = sys.stdout
print(main(["evaluate", "digits-keys"]))
"""
    said = run_without(["torch"], program)
    assert said == "mimonets evaluate: error: this needs torch: pip install torch.\n2"


def test_there_is_one_source_of_the_version():
    pyproject = (SOURCE.parent / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in pyproject
    assert "\nversion =" not in pyproject


@pytest.mark.parametrize("package", ["openvino", "nncf"])
def test_what_exports_and_runs_for_openvino_reports_nothing_to_its_makers(package, tmp_path):
    pytest.importorskip(package)
    program = f"""
from mimonets._extras import need
need({package!r})
import sys
print([name for name in sys.modules if name.startswith("openvino_telemetry.")])
"""
    ours = {name: value for name, value in os.environ.items() if name not in ("CI", "NNCF_CI")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**ours, "PYTHONPATH": str(SOURCE), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
    assert not (tmp_path / "intel").exists()
