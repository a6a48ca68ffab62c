"""Build the page that runs shipped networks in the browser: site/try, from docs/try.

``make docs`` calls this. ONNX Runtime comes from npm and is never committed; without npm the page
is built all the same, and says what is missing.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import mimonets as mn
from mimonets._files import write_text
from mimonets.checkpoints.shipped import card_accuracy, pretrained_folder
from mimonets.data import DataConfig, load_data
from mimonets.inference import read_manifest

ROOT = Path(__file__).parents[1]
RUNTIME = "onnxruntime-web@1.30.0"
SHA512 = (
    "ab4cbe26baedba45d2cec05610c71c55fa97db92d19a8b171c5f8269126683ca"
    "590a5cdc57bb2f35ce2b298de32f4d956fb42644c0ecd528a0a91e025c07ca61"
)
FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
NETWORKS = {  # and the numbers of digits per pass that the page offers
    "digits-keys": (1, 2, 4),
    "digits": (1, 2, 4),
    "digits-plain": (1,),
}


def build(folder, networks=NETWORKS):
    """Write the page, and say what came of ONNX Runtime."""
    shutil.copytree(ROOT / "docs" / "try", folder, dirs_exist_ok=True)
    shutil.copy(ROOT / "src" / "mimonets" / "serving" / "page" / "page.css", folder)
    problem = fetch_runtime(folder / "ort")
    if problem:
        return f"{problem}: {folder}/index.html says so"
    about = [exported(folder, name, points) for name, points in networks.items()]
    test = load_data(DataConfig(name="digits-writers")).test
    digits = base64.b64encode(test.images.numpy().tobytes()).decode()
    data = {"networks": about, "digits": digits, "labels": test.labels.tolist()}
    write_text(folder / "data.json", json.dumps(data))
    return f"{folder}/index.html runs {', '.join(networks)}; serve it by HTTP"


def fetch_runtime(folder):
    """Take ONNX Runtime's files out of its npm package; gives what went wrong."""
    if all((folder / name).exists() for name in FILES):
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    with tempfile.TemporaryDirectory() as place:
        command = [npm, "pack", "--silent", "--pack-destination", place, RUNTIME]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"npm cannot fetch {RUNTIME}"
        (package,) = Path(place).iterdir()
        if hashlib.sha512(package.read_bytes()).hexdigest() != SHA512:
            raise SystemExit(f"{RUNTIME} is not the package that was pinned in {__file__}")
        with tarfile.open(package) as archive:
            for name in FILES:
                archive.extract(f"package/dist/{name}", place, filter="data")
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:  # the last one is missing until all are there
            shutil.move(Path(place, "package", "dist", name), folder / name)
    return ""


def exported(folder, name, points):
    """Export a shipped network, unless that was done, and describe it to the page."""
    source, out = pretrained_folder(name), folder / name
    weights = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()
    stamp = f"{mn.__version__} {weights} {points}"
    if not (out / "made").exists() or (out / "made").read_text() != stamp:
        shutil.rmtree(out, ignore_errors=True)
        mn.export(mn.create(name, pretrained=True), out, modes=points, measure=False)
        shutil.rmtree(out / "model")  # PyTorch's weights
        write_text(out / "made", stamp)
    manifest = read_manifest(out)
    graphs, accuracy = manifest.formats["onnx"], card_accuracy(source)
    spec = manifest.input_spec
    return {
        "name": name,
        "mean": spec.mean[0],
        "deviation": spec.deviation[0],
        "points": [
            {
                "active": point.active_streams,
                "graph": graphs.graph(point.active_streams, masked=False),
                "accuracy": accuracy[point.active_streams],
            }
            for point in manifest.modes
        ],
    }


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
