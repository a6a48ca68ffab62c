"""What must work right after ``pip install`` without extras; ``make wheel`` runs it."""

import sys
import tempfile
import time

started = time.perf_counter()
import mimonets as mn  # noqa: E402

print(f"import mimonets: {time.perf_counter() - started:.2f} s")

import torch  # noqa: E402

assert "/src/" not in mn.__file__, f"{mn.__file__} is the source tree, not what was installed"
for extra in ("rich", "yaml", "jsonargparse", "matplotlib", "sklearn"):
    assert extra not in sys.modules, f"import mimonets brought {extra} along"

model = mn.MIMOConv(mn.MIMOConvConfig(depth=10, width=1, num_streams=4, num_classes=10)).eval()
images = torch.randn(6, 3, 32, 32)
fast, slow = model(images), model(images, active_streams=1)
with tempfile.TemporaryDirectory() as folder:
    mn.save(model, folder)
    assert torch.equal(mn.load(folder)(images), fast)

former = mn.MIMOFormer(mn.MIMOFormerConfig(vocab_size=9, max_length=12, num_classes=3, depth=1))
assert former.eval()(torch.randint(9, (5, 12))).shape == (5, 3)
for name in mn.list_models():
    network = mn.create(name, pretrained=True)
    assert len(network.input_spec.labels) == 10, name
    assert network(network.example_inputs(5)).shape == (5, 10), name
print("the installed library works")
