import io

import numpy as np
import pytest
from PIL import Image

from mimonets.data import DataConfig, load_data
from mimonets.data.sequences import snakes
from mimonets.data.sequences.paddles import FULL, SIZE, markers, stamps
from mimonets.data.sequences.pathfinder import read_images
from mimonets.data.sequences.snakes import draw_images

STATISTICS = {
    "mean": lambda images: images.mean(axis=(1, 2)),
    "density": lambda images: (images > 0).mean(axis=(1, 2)),
    "spread": lambda images: images.std(axis=(1, 2)),
    "white": lambda images: (images == 255).sum(axis=(1, 2)),
    "bright": lambda images: (images > 128).mean(axis=(1, 2)),
    "left": lambda images: images[:, :, :4].mean(axis=(1, 2)),
    "top": lambda images: images[:, :4].mean(axis=(1, 2)),
    "middle": lambda images: images[:, 12:20, 12:20].mean(axis=(1, 2)),
}


def assert_alike(ours, reference, sigmas=4.0):
    """Compare means within the sampling error of both."""
    for name, statistic in STATISTICS.items():
        a, b = statistic(ours), statistic(reference)
        error = (a.var() / len(a) + b.var() / len(b)) ** 0.5
        assert abs(a.mean() - b.mean()) < sigmas * error, (name, a.mean(), b.mean(), error)


@pytest.fixture(scope="module")
def drawn():
    return draw_images(500, 14, np.random.default_rng(0))


def test_hard_images_match_the_reference_statistics(real, drawn):
    reference, labels = read_images(real("pathfinder/pathfinder32_ref.tar.xz"), 14)
    assert reference.shape == (3000, 32, 32)
    assert_alike(drawn[0], reference)
    assert abs(drawn[1].mean() - labels.mean()) < 4 * 0.5 * (1 / 500 + 1 / 3000) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("length", [6, 14])
def test_many_images_match_the_reference_statistics(real, length):
    reference, _ = read_images(real("pathfinder/pathfinder32_ref.tar.xz"), length)
    assert_alike(draw_images(3000, length, np.random.default_rng(1))[0], reference)


def test_both_labels_are_as_frequent_and_images_differ(drawn):
    images, labels = drawn
    assert 0.4 < labels.mean() < 0.6
    assert len({image.tobytes() for image in images}) == len(images)
    assert (images.max(axis=(1, 2)) == 255).all()
    assert (images.min(axis=(1, 2)) == 0).all()


def test_a_contour_that_does_not_fit_is_refused_instead_of_searched_for(monkeypatch):
    monkeypatch.setattr(snakes, "LANES", 64)  # pairs that are tried at a time
    with pytest.raises(ValueError, match="contour_length=60.*32x32.*such as 14"):
        load_data(DataConfig(name="pathfinder", contour_length=60, sizes=(4, 0, 4)))


def test_the_same_generator_state_draws_the_same_images():
    first, second = (draw_images(3, 6, np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


def test_a_paddle_needs_more_space_than_it_fills():
    table = stamps()
    assert (table.space.sum(axis=(1, 2)) > table.line.sum(axis=(1, 2))).all()
    assert table.tip_weight.max() <= 1
    assert 0 < table.seedable.mean() < 1


def test_a_marker_lies_where_it_is_asked_for():
    disk = markers()[10, 20]
    assert disk.shape == (SIZE, SIZE)
    assert disk[10, 20] == FULL
    assert abs(np.average(np.arange(SIZE), weights=disk.sum(axis=1)) - 10) < 0.6


def test_the_data_set_is_cached_and_its_limit_is_a_beginning(tmp_path):
    options = {"name": "pathfinder", "contour_length": 6, "sizes": (12, 4, 4)}
    data = load_data(DataConfig(**options))
    assert data.train.tokens.shape == (12, 1024)
    assert (data.train.vocab_size, data.train.num_classes) == (256, 2)
    assert len(list((tmp_path / "cache" / "derived").iterdir())) == 1
    few = load_data(DataConfig(**options, limit=4))
    assert np.array_equal(few.train.tokens, data.train.tokens[:4])


def png(size=(32, 32)):
    file = io.BytesIO()
    Image.new("L", size, 7).save(file, "png")
    return file.getvalue()


def write_release(folder, picture):
    folder = folder / "curv_contour_length_14"
    (folder / "metadata").mkdir(parents=True)
    (folder / "imgs" / "1").mkdir(parents=True)
    rows = [f"imgs/1 sample_{i}.png {i} {i % 2} 1.0 14 4 2 0.5 1 1" for i in range(10)]
    (folder / "metadata" / "1.npy").write_text("\n".join(rows) + "\n")
    for i in range(10):
        (folder / "imgs" / "1" / f"sample_{i}.png").write_bytes(picture)
    return folder


def test_the_released_folder_is_read_and_split(tmp_path):
    write_release(tmp_path, png())
    data = load_data(DataConfig(name="pathfinder", dir=str(tmp_path)))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [8, 1, 1]
    assert (data.train.tokens == 7).all()


def test_a_damaged_release_is_named(tmp_path):
    folder = write_release(tmp_path, png((30, 32)))
    with pytest.raises(ValueError, match=r"sample_0.png is damaged .*30x32"):
        read_images(folder)
    (folder / "imgs" / "1" / "sample_3.png").unlink()
    for i in (0, 1, 2):
        (folder / "imgs" / "1" / f"sample_{i}.png").write_bytes(png())
    with pytest.raises(ValueError, match="imgs/1/sample_3.png is missing"):
        read_images(folder)
