"""One call for every runtime."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mimonets import Engine, MIMOFormer, MIMOFormerConfig, export
from mimonets._operating_point import OperatingPoint
from mimonets.inference import manifest
from mimonets.inference.engine import available_cores
from small_networks import ForeignCNN


def tell(model, inputs, active):
    with torch.no_grad():
        return model(inputs, active_streams=active)


@pytest.mark.parametrize("backend", ["torch", "onnxruntime", "openvino"])
@pytest.mark.parametrize("active", [1, 2, 3])
def test_every_backend_answers_as_the_network_does_for_every_batch_size(
    exported, small_conv, backend, active
):
    if backend == "openvino":
        pytest.importorskip("openvino")
    engine = Engine(exported, backend, threads=1)
    for batch in (1, 2, 3, 5, 7):
        images = torch.randn(batch, 1, 8, 8)
        found = engine(images, active_streams=active)
        torch.testing.assert_close(found, tell(small_conv, images, active), rtol=1e-4, atol=1e-5)


def test_arrays_give_arrays_and_tensors_give_tensors(exported):
    engine = Engine(exported, "onnxruntime")
    images = torch.randn(4, 1, 8, 8)
    from_tensor, from_array = engine(images), engine(images.numpy())
    assert isinstance(from_tensor, torch.Tensor)
    assert isinstance(from_array, np.ndarray)
    assert from_array.dtype == np.float32
    np.testing.assert_array_equal(from_tensor.numpy(), from_array)


def test_an_engine_says_what_it_takes_and_what_it_can(exported):
    engine = Engine(exported, "onnxruntime", threads=2)
    assert (engine.num_streams, engine.modes, engine.threads) == (3, (1, 2, 3), 2)
    assert engine.input_spec.shape == (1, 8, 8)
    assert repr(engine) == "Engine(MIMOConv, backend='onnxruntime', modes=(1, 2, 3), threads=2)"
    point = OperatingPoint(
        number=2, name="2 active", inputs_per_pass=2, options={"active_streams": 2}
    )
    assert engine.operating_points[1] == engine.manifest.operating_points[1] == point
    for mode in engine.manifest.modes:
        assert mode.macs_per_input > 0
        points = mode.service_seconds["onnxruntime"]
        assert points[0][0] == mode.active_streams
        assert all(seconds > 0 for _, seconds in points)
    macs = [mode.macs_per_input for mode in engine.manifest.modes]
    assert macs == sorted(macs, reverse=True)


def test_the_old_name_of_a_record_still_works():
    with pytest.warns(DeprecationWarning, match="is now mimonets.inference.manifest.PointRecord"):
        assert manifest.Mode is manifest.PointRecord


def test_auto_measures_and_says_what_it_picked(exported):
    engine = Engine(exported)
    assert engine.backend in ("onnxruntime", "openvino")
    assert engine.choice.startswith(f"{engine.backend}: a group of 3 took onnxruntime ")


def test_auto_sees_an_export_in_openvinos_own_format_only(tmp_path):
    pytest.importorskip("openvino")
    model = ForeignCNN().eval()
    folder = export(model, tmp_path / "out", formats=("openvino",), modes=(1,), measure=False)
    engine = Engine(folder)
    assert engine.backend == "openvino"
    assert not list(folder.glob("*.onnx")), "which were a step on the way"
    images = model.example_inputs(2)
    answers = engine(images)  # in the largest mode that was exported
    torch.testing.assert_close(answers, tell(model, images, 1), atol=1e-4, rtol=1e-4)


def test_a_network_in_memory_is_an_engine_too(small_conv):
    images = torch.randn(4, 1, 8, 8)
    engine = Engine(small_conv)
    assert engine.backend == "torch"
    torch.testing.assert_close(engine(images), tell(small_conv, images, 3))
    with pytest.raises(ValueError, match=r"runs exported networks: call mimonets.export"):
        Engine(small_conv, "onnxruntime")


@pytest.mark.slow
def test_a_compiled_network_answers_as_the_eager_one_does(small_conv):
    engine = Engine(small_conv, "compiled")
    for active in (1, 3):
        for batch in (3, 7):  # leftovers run in the mode of their number
            images = torch.randn(batch, 1, 8, 8)
            found = engine(images, active_streams=active)
            wanted = tell(small_conv, images, active)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_many_threads_may_call_at_once(exported, small_conv, backend):
    pytest.importorskip(backend)
    engine = Engine(exported, backend, threads=1)
    batches = [torch.randn(1 + n % 5, 1, 8, 8) for n in range(12)]
    found = {}

    def work(number):
        for _ in range(3):
            found[number] = engine(batches[number], active_streams=1 + number % 3)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, images in enumerate(batches):
        wanted = tell(small_conv, images, 1 + number % 3)
        torch.testing.assert_close(found[number], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("active", "sizes"), [(1, [4, 4, 4, 1]), (2, [4, 4, 4, 1]), (3, [3] * 4)])
def test_onnxruntime_answers_large_networks_in_pieces_that_fit_the_cache(
    exported, small_conv, monkeypatch, active, sizes
):
    monkeypatch.setattr("mimonets.inference.manifest.SMALL", 0)  # so this one is large
    monkeypatch.setattr("mimonets.inference.onnx_runtime.PIECE", 4)
    engine = Engine(exported, "onnxruntime", threads=1)
    seen = []
    original = engine._backend._session

    def spy(path):
        session = original(path)

        def run(names, feeds):
            seen.append(len(feeds["inputs"]))
            return session.run(names, feeds)

        return SimpleNamespace(run=run)

    monkeypatch.setattr(engine._backend, "_session", spy)
    images = torch.randn(13, 1, 8, 8)
    found = engine(images, active_streams=active)
    torch.testing.assert_close(found, tell(small_conv, images, active), rtol=1e-4, atol=1e-5)
    assert seen[: len(sizes)] == sizes


def test_a_graph_is_opened_when_its_mode_is_first_asked_for(exported, monkeypatch):
    engine = Engine(exported, "onnxruntime")
    opened = []
    original = engine._backend.open

    def spy(active_streams, *, masked):
        opened.append(active_streams)
        return original(active_streams, masked=masked)

    monkeypatch.setattr(engine._backend, "open", spy)
    engine(torch.randn(4, 1, 8, 8), active_streams=3)
    engine(torch.randn(3, 1, 8, 8), active_streams=3)
    assert opened == [3, 1]
    engine.warm_up()
    assert opened == [3, 1, 2]


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (np.zeros((2, 1, 8, 9), np.float32), {}, r"takes \(batch, 1, 8, 8\), but got \(2, 1, 8, 9"),
        (np.zeros((1, 8, 8), np.float32), {}, r"takes \(batch, 1, 8, 8\), but got \(1, 8, 8\)"),
        (np.zeros((2, 1, 8, 8), np.uint8), {}, r"float32 images.*uint8.*input_spec.prepare"),
        (np.zeros((0, 1, 8, 8), np.float32), {}, r"empty batch"),
        (np.zeros((2, 1, 8, 8), np.float32), {"active_streams": 4}, r"choose from 1, 2, 3"),
        (np.zeros((2, 1, 8, 8), np.float32), {"active_streams": True}, r"choose from 1, 2, 3"),
        (np.zeros((2, 1, 8, 8), np.float32), {"mask": np.ones((2, 3), bool)}, r"takes no mask"),
    ],
)
def test_bad_input_gets_a_sentence(exported, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        Engine(exported, "onnxruntime")(inputs, **options)


def test_freed_memory_is_kept_where_that_is_asked_for(small_conv, monkeypatch):
    asked = []
    monkeypatch.setattr("mimonets.inference.engine.keep_freed_memory", lambda: asked.append(1))
    Engine(small_conv)
    assert asked == []
    Engine(small_conv, keep_memory=True)
    assert asked == [1]


def test_bad_settings_get_a_sentence(exported, tmp_path):
    with pytest.raises(ValueError, match=r"no backend 'onnx' \(did you mean 'onnxruntime'\?\)"):
        Engine(exported, "onnx")
    with pytest.raises(ValueError, match=r"threads=0 must be an integer >= 1"):
        Engine(exported, "onnxruntime", threads=0)
    with pytest.raises(ValueError, match=r"needs the format 'onnx-int8'.*holds torch, onnx"):
        Engine(exported, "onnxruntime-int8")
    with pytest.raises(ValueError, match=r"holds no manifest.json"):
        Engine(tmp_path)
    with pytest.raises(ValueError, match=r"Linear is no network.*num_streams.*example_inputs"):
        Engine(torch.nn.Linear(2, 3))


WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "onnxscript", "safetensors"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Refuse())
import numpy as np
import mimonets.inference
engine = mimonets.Engine(sys.argv[1], sys.argv[2])
print(engine(np.ones((4, 1, 8, 8), np.float32), active_streams=2).tolist())
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_an_exported_network_needs_no_torch(exported, small_conv, backend):
    pytest.importorskip(backend)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(exported), backend],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wanted = tell(small_conv, torch.ones(4, 1, 8, 8), 2)
    np.testing.assert_allclose(eval(done.stdout), wanted, rtol=1e-4, atol=1e-5)


def test_modes_that_were_left_out_are_replaced_by_filled_groups():
    engine = Engine(ForeignCNN(num_streams=4))
    engine.manifest = engine.manifest.__class__(
        **{**vars(engine.manifest), "modes": tuple(engine.manifest.modes[i] for i in (0, 3))}
    )
    images = torch.randn(7, 2, 5, 5)
    found = engine(images, active_streams=4)
    model = engine._backend.model
    filled = torch.cat([images, images[4:5]])  # the last group holds its first input twice
    torch.testing.assert_close(found, tell(model, filled, 4)[:7])


@pytest.mark.parametrize("batch", [1, 3])
def test_the_two_documents_of_a_pair_that_is_left_over_share_a_pass_as_in_the_network(batch):
    sizes = {"vocab_size": 9, "max_length": 6, "depth": 1, "heads": 1, "head_dim": 4, "dim": 8}
    model = MIMOFormer(MIMOFormerConfig(**sizes, head="pair", grid=(2, 2))).eval()
    pairs = model.example_inputs(batch)
    with torch.no_grad():
        wanted = model(pairs)
    torch.testing.assert_close(Engine(model, "torch")(pairs), wanted)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "9900000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_cores_are_those_that_the_process_may_use(files, cores, tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert available_cores(tmp_path) == cores
