"""The container file and the KServe manifest fit the package, as far as that shows without them."""

import json
import shlex
import tomllib

import pytest
import yaml

from mimonets.cli.main import make_parser
from results_files import ROOT
from serving.fakes import make_app, make_server

CONTAINER = ROOT / "deploy" / "Containerfile"
KSERVE = ROOT / "deploy" / "kserve.yaml"


def parsed(words):
    return make_parser().parse_args(["serve", *words])


def instructions():
    text = CONTAINER.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


def test_the_container_copies_what_is_there_and_leaves_pytorch_out():
    found = instructions()
    for name, rest in found:
        if name == "COPY":
            for source in shlex.split(rest)[:-1]:
                assert (ROOT / source).exists(), source
    (install,) = (rest for name, rest in found if name == "RUN")
    assert "-r serve.txt" in install
    assert "--no-deps ." in install
    assert "torch" not in install
    assert "USER" in dict(found), "never as root"


def test_what_serves_without_pytorch_is_what_the_extras_ask_for():
    """`make serve-only` installs it and serves a shipped network."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (numpy,) = (line for line in project["dependencies"] if line.startswith("numpy"))
    lines = (ROOT / "deploy" / "serve.txt").read_text().splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    assert listed == [numpy, *extras["onnxruntime"], *extras["serve"]]


def test_the_container_and_kserve_start_the_same_server():
    found = dict(instructions())
    assert json.loads(found["ENTRYPOINT"]) == ["mimonets", "serve"]
    args = parsed(json.loads(found["CMD"]))
    assert (args.models, args.host, args.port) == (["model=/mnt/models"], "0.0.0.0", 8080)
    assert args.keys, "it would refuse to start without keys"
    assert int(found["EXPOSE"]) == args.port

    predictor = yaml.safe_load(KSERVE.read_text())["spec"]["predictor"]
    (container,) = predictor["containers"]
    assert predictor["containerConcurrency"] == 0
    assert vars(parsed(container["args"])) == vars(args)
    assert container["ports"][0]["containerPort"] == args.port
    (mount,) = container["volumeMounts"]
    assert args.keys.startswith(mount["mountPath"] + "/")


@pytest.mark.parametrize("probe", ["readinessProbe", "livenessProbe"])
def test_probes_are_routes_of_the_server(probe):
    (container,) = yaml.safe_load(KSERVE.read_text())["spec"]["predictor"]["containers"]
    asked = container[probe]["httpGet"]
    assert asked["port"] == container["ports"][0]["containerPort"]
    assert asked["path"] in make_app(make_server()).openapi()["paths"]
