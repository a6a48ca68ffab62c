"""What is written, what is refused, and that a folder answers as the network does."""

import inspect
import json
import shutil
from importlib.util import find_spec

import pytest
import torch

from mimonets import (
    Engine,
    MIMOFormer,
    MIMOFormerConfig,
    Performer,
    PerformerConfig,
    Transformer,
    TransformerConfig,
    WideResNet,
    WideResNetConfig,
    export,
    superpose,
)
from mimonets.inference import trace
from mimonets.inference.manifest import _hash_of, check_files, read_manifest
from mimonets.inference.measure import measure_accuracy
from serving.damage import change_manifest, rehash
from small_networks import ForeignCNN, randomise

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)
ir = pytest.importorskip("onnx_ir")

SMALL = {
    "vocab_size": 9,
    "max_length": 12,
    "num_classes": 3,
    "depth": 1,
    "heads": 2,
    "head_dim": 4,
    "dim": 8,
    "hidden_dim": 8,
}


def agree(engine, model, batch, active, **options):
    inputs = model.example_inputs(batch)
    if options.pop("masked", False):
        inputs = inputs[..., :-3]
        options["mask"] = torch.rand(inputs.shape) < 0.7
        options["mask"][..., 0] = True
    with torch.no_grad():
        wanted = model(inputs, active_streams=active, **options)
    found = engine(inputs, active, **options)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            MIMOFormer(MIMOFormerConfig(**SMALL, grid=(2, 1), superpose="attention+mlp+qkv")),
            marks=pytest.mark.slow,
            id="MIMOFormer",
        ),
        pytest.param(Performer(PerformerConfig(**SMALL)), marks=pytest.mark.slow, id="Performer"),
        Transformer(TransformerConfig(**SMALL)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_sequences_of_any_length_with_and_without_a_mask(tmp_path, model):
    model.eval()
    fastest = model.num_streams
    folder = export(model, tmp_path / "out", modes=(fastest,), measure=False)
    engine = Engine(folder, "onnxruntime")
    for groups in (1, 3):
        agree(engine, model, groups * fastest, fastest)
        agree(engine, model, groups * fastest, fastest, masked=True)
    with pytest.raises(ValueError, match=r"\(batch, tokens\), at most 12 tokens, but got \(1, 13"):
        engine(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(ValueError, match=r"between 0 and 9, but vocab_size=9 allows 0 to 8"):
        engine(torch.arange(10).unsqueeze(0))
    with pytest.raises(ValueError, match=r"mask is boolean and of the shape of the tokens"):
        engine(torch.zeros(1, 4, dtype=torch.long), mask=torch.ones(1, 4))


class MeanOfTokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.inner = torch.nn.Embedding(9, 8), torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, tokens, attention_mask=None):
        x = self.inner(self.embedding(tokens))
        if attention_mask is not None:
            x = x * attention_mask.unsqueeze(-1)
        return self.head(x.mean(dim=1))


@pytest.mark.parametrize("streams", [1, 2])
def test_a_network_of_ones_own_with_a_mask_takes_any_number_of_inputs(tmp_path, streams):
    example = torch.randint(9, (12, 12))
    where = {"bind_after": "embedding", "unbind_before": "inner", "binding": "hadamard"}
    settings = where if streams > 1 else {}
    model = superpose(MeanOfTokens(), num_streams=streams, example=example, **settings).eval()
    folder = export(model, tmp_path / "out", modes=(streams,), measure=False)
    engine = Engine(folder, "onnxruntime")
    for groups in (1, 3, 4):
        agree(engine, model, groups * streams, streams)
        agree(engine, model, groups * streams, streams, masked=True)


@pytest.mark.slow
@pytest.mark.parametrize("superpose", ["attention", "attention+mlp", "attention+mlp+qkv"])
@pytest.mark.parametrize("head", ["classify", "pair", "next_token"])
def test_every_kind_of_mimoformer_in_every_mode(tmp_path, superpose, head):
    options = {"head": head, "causal": head == "next_token"}
    model = MIMOFormer(MIMOFormerConfig(**SMALL, **options, grid=(2, 2), superpose=superpose))
    engine = Engine(export(model.eval(), tmp_path / "out", measure=False), "onnxruntime")
    assert engine.modes == ((1, 2, 4) if head == "pair" else (1, 2, 3, 4))
    for active in engine.modes:
        for batch in (1, 3, 8):
            agree(engine, model, batch, active)
            agree(engine, model, batch, active, masked=True)


@pytest.mark.slow
def test_causal_attention_over_many_chunks_of_tokens(tmp_path):
    shape = SMALL | {"max_length": 100}
    model = MIMOFormer(MIMOFormerConfig(**shape, grid=(2, 1), head="next_token", causal=True))
    engine = Engine(export(model.eval(), tmp_path, modes=(2,), measure=False), "onnxruntime")
    agree(engine, model, 4, 2, masked=True)
    for length in (2, 63, 64, 65, 100):  # in chunks of 64
        tokens = model.example_inputs(4)[..., :length]
        with torch.no_grad():
            torch.testing.assert_close(engine(tokens, 2), model(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        WideResNet(WideResNetConfig(depth=10, width=1, in_channels=1, image_size=8, num_classes=5)),
        ForeignCNN(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_networks_in_every_format(tmp_path, model):
    randomise(model)
    formats = ("onnx", "pt2", *(["openvino"] if find_spec("openvino") else []))
    folder = export(model, tmp_path / "out", formats=formats, measure=False)
    assert {*formats} == read_manifest(folder).formats.keys() - {"torch"}
    for name in formats:
        engine = Engine(folder, {"onnx": "onnxruntime"}.get(name, name))
        for active in engine.modes:
            for batch in (active, 3 * active):
                agree(engine, model, batch, active)
    if isinstance(model, ForeignCNN):
        with pytest.raises(ValueError, match=r"needs the network itself.*none of mimonets' own"):
            Engine(folder, "torch")


def test_all_modes_share_one_file_of_weights(exported, small_conv):
    weights = sum(p.numel() * 4 for p in small_conv.parameters() if p.numel() * 4 >= trace.LARGE)
    assert (exported / "weights.bin").stat().st_size < 1.5 * weights + 60_000
    for mode in (1, 2, 3):
        assert (exported / f"mode-{mode}.onnx").stat().st_size < 40_000


def test_the_manifest_names_every_file_and_how_it_was_made(exported):
    manifest = read_manifest(exported)
    named = {name for graphs in manifest.formats.values() for name in graphs.files}
    there = {str(p.relative_to(exported)) for p in exported.rglob("*") if p.is_file()}
    assert there == named | {"manifest.json"}
    assert {"mimonets", "torch", "onnx", "onnxruntime"} <= manifest.versions.keys()
    assert {"name", "avx2", "avx512", "vnni", "bf16"} <= manifest.cpu.keys()
    assert set(manifest.formats["onnx"].difference) == {"1", "2", "3"}
    assert max(manifest.formats["onnx"].difference.values()) < 1e-5


def test_accuracy_counts_right_answers_also_of_inputs_left_over(small_conv):
    images = torch.randn(7, 1, 8, 8)
    with torch.no_grad():
        slow = small_conv(images, active_streams=1).argmax(-1)
        fast = small_conv(images, active_streams=3).argmax(-1)
    engine = Engine(small_conv)
    assert measure_accuracy(engine, [(images[:4], slow[:4]), (images[4:], slow[4:])], 1) == 1.0
    expected = float((fast == slow).float().mean())
    assert measure_accuracy(engine, [(images, slow)], 3) == pytest.approx(expected)


def test_a_mode_that_answers_differently_is_named_and_nothing_is_written(tmp_path, monkeypatch):
    original = trace.to_onnx

    graphs = []

    def damage_the_second(program, name):
        graph = original(program, name)
        graphs.append(graph)
        if len(graphs) == 2:
            value = graph.graph.initializers["model.last.bias"]
            value.const_value = ir.tensor(value.const_value.numpy() * 1.01, name=value.name)
        return graph

    monkeypatch.setattr("mimonets.inference.export_folder.to_onnx", damage_the_second)
    with pytest.raises(ValueError, match=r"ForeignCNN with 2 active answers differently.*by 0.0"):
        export(ForeignCNN().eval(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class NotTraceable(ForeignCNN):
    def forward(self, x, active_streams=None):
        if x.sum().item() > 0:
            return super().forward(x, active_streams)
        return super().forward(-x, active_streams)


def test_what_cannot_be_exported_gets_a_sentence_and_writes_nothing(small_conv, tmp_path):
    broken = ForeignCNN()
    broken.last.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"ForeignCNN has weights that are not finite, in last"):
        export(broken, tmp_path / "out")
    with pytest.raises(ValueError, match=r"NotTraceable cannot be exported with 1 active: "):
        export(NotTraceable(), tmp_path / "out")
    with pytest.raises(ValueError, match=r"no format 'onxn' \(did you mean 'onnx'\?\)"):
        export(small_conv, tmp_path / "out", formats=("onxn",))
    with pytest.raises(ValueError, match=r"no mode with 4 active: choose from 1, 2, 3"):
        export(small_conv, tmp_path / "out", modes=(4,))
    with pytest.raises(ValueError, match=r"int8=.*to calibrate on, and evaluation="):
        export(small_conv, tmp_path / "out", int8=small_conv.example_inputs(3))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"holds other things than an earlier export"):
        export(small_conv, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_the_keywords_of_0_2_0_still_work(small_conv, tmp_path):
    assert len(inspect.signature(export).parameters) <= 8
    with (
        pytest.warns(DeprecationWarning, match=r"max_loss=.* is now options=ExportOptions\(max_l"),
        pytest.raises(ValueError, match="max_loss=-1"),
    ):
        export(small_conv, tmp_path / "out", max_loss=-1)
    for calibration in ({}, {"calibration": None}, {"calibration": []}):
        with (
            pytest.warns(DeprecationWarning, match="int8=batches"),
            pytest.raises(ValueError, match="int8=.* to calibrate on"),
        ):
            export(small_conv, tmp_path / "out", int8=True, **calibration)


def test_only_an_export_is_replaced_by_an_export(copy):
    def replace_it():
        return export(ForeignCNN().eval(), copy, formats=("pt2",), modes=(1,), measure=False)

    (copy / "model" / "notes.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"holds other things than an earlier export"):
        replace_it()
    (copy / "model" / "notes.txt").unlink()
    manifest = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text('{"name": "an extension of a browser"}')
    with pytest.raises(ValueError, match=r"holds other things than an earlier export"):
        replace_it()
    (copy / "manifest.json").write_text(manifest)
    (copy / "mode-2.onnx").write_bytes(b"damaged")
    assert Engine(replace_it(), "pt2").modes == (1,)


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "copy")


def test_tampered_weights_are_refused(copy):
    content = bytearray((copy / "weights.bin").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "weights.bin").write_bytes(content)
    for backend in ("onnxruntime", "auto"):
        with pytest.raises(ValueError, match=r"weights.bin does not have the hash in manifest"):
            Engine(copy, backend)


def test_a_tampered_manifest_is_refused(copy):
    path = copy / "manifest.json"
    content = json.loads(path.read_text())
    content["modes"][0]["accuracy"] = {"float32": 1.0}
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"does not have the hash it was written with"):
        Engine(copy)
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"is not JSON .*cut short or edited"):
        Engine(copy)


def test_missing_and_foreign_files_are_refused(copy):
    (copy / "mode-2.onnx").unlink()
    with pytest.raises(ValueError, match=r"holds no mode-2.onnx, which its manifest.json names"):
        Engine(copy, "onnxruntime")
    with pytest.raises(ValueError, match=r"points outside its folder, to ../secret"):
        check_files(copy, {"../secret": "0"})


def test_a_manifest_of_the_future_is_refused(copy):
    path = copy / "manifest.json"
    content = json.loads(path.read_text()) | {"format_version": 99}
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"format version 99.*install a newer mimonets"):
        Engine(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda modes: modes["2"].update(plain="../mode-1.onnx"),
            r"has no hash for ../mode-1.onnx, a graph of onnx",
        ),
        (lambda modes: modes.pop("2"), r"names no plain graph of onnx for 2 active: export"),
    ],
)
def test_every_mode_has_its_graphs_and_every_graph_its_hash(copy, change, message):
    path = copy / "manifest.json"
    content = json.loads(path.read_text())
    content.pop("sha256")
    change(content["formats"]["onnx"]["modes"])
    path.write_text(json.dumps(content | {"sha256": _hash_of(content)}))
    with pytest.raises(ValueError, match=message):
        Engine(copy, "onnxruntime")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(num_streams="three"), "num_streams='three'.*no int"),
        (lambda content: content.update(takes_mask=1), "takes_mask=1, which is no bool"),
        (lambda content: content.update(modes=[]), r"has the modes \[\]"),
        (lambda content: content.update(modes=7), "does not describe an exported model"),
        (lambda content: content["modes"].reverse(), r"has the modes \[3, 2, 1\]: they ascend"),
        (lambda content: content["modes"][0].update(active_streams=True), "active_streams=True"),
        (lambda content: content["modes"][0].update(accuracy={"float32": "high"}), "accuracy="),
        (lambda content: content["formats"]["onnx"].update(files=["a"]), "files="),
        (lambda content: content["formats"].update(onnx=None), "does not describe"),
        (lambda content: content["input_spec"].update(shape="large"), "shape='large'"),
    ],
)
def test_fields_of_another_type_are_refused(copy, change, message):
    change_manifest(copy, change)
    with pytest.raises(ValueError, match=message):
        Engine(copy, "onnxruntime")


def test_weights_of_a_graph_without_a_hash_are_refused(copy):
    (copy / "other0.bin").write_bytes((copy / "weights.bin").read_bytes())
    graph = copy / "mode-2.onnx"
    graph.write_bytes(graph.read_bytes().replace(b"weights.bin", b"other0.bin\0"))
    rehash(copy)
    with pytest.raises(ValueError, match=r"mode-2.onnx reads weights from 'other0.bin.*no hash in"):
        Engine(copy, "onnxruntime")


def test_a_graph_that_the_engine_cannot_read_is_one_sentence(copy):
    (copy / "mode-3.onnx").write_bytes(b"no graph at all")
    rehash(copy)
    for backend in ("onnxruntime", "auto"):
        with pytest.raises(ValueError, match=r"^.*copy cannot be run by backend=.*again\.$"):
            Engine(copy, backend)(torch.zeros(3, 1, 8, 8), 3)


class WithPReLU(ForeignCNN):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Sequential(self.first, torch.nn.PReLU(6), torch.nn.Conv2d(6, 6, 1))
        torch.nn.init.uniform_(self.first[1].weight, -1.5, 1.5)


@pytest.mark.parametrize(("small", "products"), [(0, "Neg"), (1 << 25, "BatchNormalization")])
def test_prelu_is_exported_as_two_relus_whatever_its_slopes(small, products, tmp_path, monkeypatch):
    model = WithPReLU().eval()
    monkeypatch.setattr(trace, "SMALL", small)
    folder = export(model, tmp_path / "export", modes=(2,), measure=False)
    nodes = [node.op_type for node in ir.load(folder / "mode-2.onnx").graph]
    assert "PRelu" not in nodes
    assert products in nodes
    agree(Engine(folder, "onnxruntime"), model, 6, 2)
    if find_spec("openvino") is not None:
        agree(Engine(folder, "openvino"), model, 6, 2)


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")
def test_openvino_finds_the_prelus_of_every_export_again(tmp_path):
    import openvino

    model = WithPReLU().eval()
    folder = export(
        model, tmp_path / "a, b", formats=("onnx", "openvino"), modes=(2,), measure=False
    )
    shutil.copytree(folder, tmp_path / "export")
    agree(Engine(folder, "openvino"), model, 6, 2)  # whatever the name of the folder
    folder = tmp_path / "export"
    onnx = openvino.convert_model(str(folder / "mode-2.onnx"))
    for found in (onnx, str(folder / "openvino" / "mode-2.xml")):
        graph = openvino.Core().compile_model(found, "CPU").get_runtime_model()
        kinds = [op.get_rt_info()["layerType"].astype(str) for op in graph.get_ops()]
        assert kinds.count("Eltwise") <= 1  # the PReLU itself, and not its four parts


def test_with_all_streams_busy_no_shape_is_computed(exported):
    graph = ir.load(exported / "mode-3.onnx").graph
    assert "Shape" not in [node.op_type for node in graph]
    for node in graph:
        above = node.inputs[0].producer()
        assert node.op_type != "Reshape" or above is None or above.op_type != "Reshape"


def test_reshapes_with_two_free_sizes_keep_one_of_them():
    def value(name, shape):
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))

    x, wanted = value("x", ["g", "t", 6]), value("y", ["g", "t", 2, 3])
    sizes = ir.Value(name="sizes")
    node = ir.node("Reshape", [x, sizes], outputs=[wanted], name="reshape")
    graph = ir.Graph([x, sizes], [wanted], nodes=[node], opset_imports={"": 20})
    trace._fix_shapes(graph)
    assert node.inputs[1].const_value.numpy().tolist() == [0, 0, 2, 3]


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")
def test_openvino_alone_gets_the_stem_in_groups(small_conv, tmp_path, monkeypatch):
    asked = []
    original = trace.to_onnx

    def look(program, name):
        graph = original(program, name)
        groups = [n.attributes["group"].as_int() for n in graph.graph if n.op_type == "Conv"]
        asked.append(max(groups))
        return graph

    monkeypatch.setattr("mimonets.inference.export_folder.to_onnx", look)
    folder = export(small_conv, tmp_path / "one", formats=("openvino",), modes=[3], measure=False)
    agree(Engine(folder, "openvino"), small_conv, 6, 3)
    assert asked == [3]


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")
def test_with_other_formats_openvino_gets_the_form_of_all(small_conv, tmp_path, monkeypatch):
    class StopError(Exception):
        pass

    def stop(model, manifest, active, example, *, masked, form):
        assert form == "stacked"
        raise StopError

    monkeypatch.setattr("mimonets.inference.export_folder.trace", stop)
    with pytest.raises(StopError):
        export(small_conv, tmp_path / "both", formats=("onnx", "openvino"), modes=[3])
