"""What is exported runs in kernels made for the CPU: reference kernels take next to no time."""

import statistics

import numpy as np
import pytest

import mimonets as mn

pytest.importorskip("openvino")

# These only move data; OpenVINO calls all of their kernels reference kernels.
MOVES = ("Concat", "Gather", "GatherND", "Pad", "Slice", "Split", "StridedSlice", "VariadicSplit")

# One recipe of every kind of network and way to share a pass, at a small scale.
SMALL = {"depth": 10, "width": 1}
RECIPES = {
    "cifar10-cpu-gears-resolutions": {},
    "cifar10-cpu-map-mimoconv-slots-n4": {},
    "cifar10-cpu-map-late-tiles-gears-n4": {},
    "cifar10-cpu-wideresnet": {},
    "cifar100-mimoconv-n4": SMALL,
    "cifar100-wideisonet": SMALL,
    "digits-mimoconv-dynamic": {},
    "digits-writers-tiles-dynamic": {},
    "digits-writers-tiles-views": {},
    "induction-datamux-n2": {},
    "induction-transformer": {},
    "lra-image-cpu-mimoformer-2x2": {},
    "lra-image-cpu-mimoformer-2x2-mlp": {},
    "lra-text-cpu-performer": {},
    "mnist-datamux-n16": {},
    "mnist-mimoconv-n16": {},
    "svhn-mimoconv-n4": SMALL,
}


def reference_share(path, inputs):
    """Measure the share of the time that OpenVINO spends in reference kernels, and where."""
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERF_COUNT": True,
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()
    times, reference = {}, set()
    for _ in range(9):
        request.infer({"inputs": inputs})
        for node in request.get_profiling_info():
            times.setdefault(node.node_name, []).append(node.real_time.total_seconds())
            if node.exec_type.startswith("ref") and node.node_type not in MOVES:
                reference.add(node.node_name)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    total = sum(medians.values())
    shares = {name: medians[name] / total for name in reference if medians[name]}
    return sum(shares.values()), shares


def check(model, tmp_path):
    most = model.num_streams
    modes = sorted({1, most})
    folder = mn.export(model, tmp_path / "export", modes=modes, measure=False)
    engine = mn.Engine(folder, "openvino")
    inputs = np.asarray(model.example_inputs(4 * max(4, most)))
    for point in engine.modes:
        path = folder / engine.manifest.formats["onnx"].graph(point, masked=False)
        share, where = reference_share(path, inputs)
        assert share <= 0.05, (point, where)


@pytest.mark.slow
@pytest.mark.parametrize("name", mn.list_models())
def test_shipped_networks(name, tmp_path):
    check(mn.create(name, pretrained=True), tmp_path)


@pytest.mark.slow
def test_the_network_of_the_demo(tmp_path):
    check(mn.create("digits-writers-tiles-late"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_kind_of_recipe(name, tmp_path):
    check(mn.create(name, **RECIPES[name]), tmp_path)


@pytest.mark.slow
@pytest.mark.xfail(reason="OpenVINO has only a reference kernel for the CumSum of causal sums")
def test_causal_attention_in_superposition(tmp_path):
    check(mn.create("induction-mimoformer-2x2-dpfp"), tmp_path)
