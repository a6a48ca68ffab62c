import torch

from mimonets import GearedWideResNet, GearedWideResNetConfig, MIMOConv, MIMOConvConfig
from mimonets.evaluation import count_macs
from mimonets.experiments.speeds import Point, measure_speeds, one_thread, weight_bytes

SMALL = {"depth": 10, "width": 1, "initial_width": 1, "in_channels": 1, "image_size": 8}


def test_every_point_is_timed_in_its_mode(tmp_path):
    model = MIMOConv(MIMOConvConfig(**SMALL, num_streams=2, num_classes=3)).eval()
    called = []
    model.register_forward_pre_hook(
        lambda _, inputs, options: called.append((len(inputs[0]), options["active_streams"])),
        with_kwargs=True,
    )
    points = [Point("slow", model), Point("fast", model, 2)]
    slow, fast = measure_speeds(points, tmp_path, ["eager"], batch_size=4, rounds=2)
    assert {(4, 1), (4, 2)} <= set(called)
    assert (slow["what"], fast["what"], slow["engine"]) == ("slow", "fast", "eager")
    assert slow["inputs_per_second"] > 0
    assert slow["weight_bytes"] == fast["weight_bytes"] == weight_bytes(model)
    assert fast["peak_bytes"] < slow["peak_bytes"]
    assert fast["macs"] == count_macs(model, 2).paper


def test_gears_share_their_weights():
    network = GearedWideResNet(GearedWideResNetConfig(**SMALL, widths=(1.0, 0.5), shrinks=(1, 1)))
    assert weight_bytes(network.in_gear(2)) == weight_bytes(network)
    expected = sum(t.numel() * t.element_size() for t in network.state_dict().values())
    assert weight_bytes(network) == expected


def test_the_number_of_threads_comes_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
