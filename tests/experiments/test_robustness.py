import pytest
import torch

from mimonets import MIMOConv, MIMOConvConfig
from mimonets.data import DataConfig, split_batches
from mimonets.experiments.corruptions import corrupt
from mimonets.experiments.foreign import foreign_images, printed_letters
from mimonets.experiments.robustness import auroc, confidence, judge, judge_everywhere

pytest.importorskip("sklearn")


def test_every_judgement_is_of_the_images_it_names():
    torch.manual_seed(0)
    batches = split_batches(DataConfig(name="digits", limit=24))
    small = {"depth": 10, "width": 1, "initial_width": 1, "in_channels": 1, "image_size": 8}
    model = MIMOConv(MIMOConvConfig(**small, num_streams=2, num_classes=10))
    found = judge_everywhere(model, batches, [1, 2], "letters")
    mean, deviation = (value.view(1, -1, 1, 1) for value in batches.statistics)

    def logits(images, mode):
        with torch.no_grad():
            return model.eval()((images.float() - mean) / deviation, active_streams=mode)

    images, labels = batches.data.images, batches.data.labels
    letters = printed_letters(24, 8)
    for mode in (1, 2):
        one = found[str(mode)]
        assert one["clean"] == pytest.approx(judge(logits(images, mode), labels))
        blurred = logits(corrupt(images, "blur", 2), mode)
        assert one["damaged"]["blur"]["2"] == pytest.approx(judge(blurred, labels))
        own, others = (confidence(logits(some, mode)) for some in (images, letters))
        assert one["foreign"] == pytest.approx(auroc(own, others), abs=1e-3)


def test_foreign_images_fit_the_network_or_are_refused():
    own = split_batches(DataConfig(name="digits", limit=4)).data
    letters = foreign_images("letters", own)
    assert letters.images.shape == (4, 1, 8, 8)
    large = split_batches(DataConfig(name="digits", limit=4)).data
    large = type(large)(torch.zeros(2, 3, 24, 24, dtype=torch.uint8), torch.zeros(2).long(), 10, "")
    assert foreign_images("letters", large).images.shape == (2, 3, 24, 24)
    with pytest.raises(ValueError, match=r"digits are \(1, 8, 8\).*cannot be made"):
        foreign_images("digits", large)


def test_sequences_are_not_damaged():
    batches = split_batches(DataConfig(name="recall", limit=4))
    with pytest.raises(ValueError, match="recall test is no set of images"):
        judge_everywhere(None, batches, [1], "letters")
