from dataclasses import fields

import numpy as np
import pytest
import torch
from PIL import Image

from mimonets.data import DATASETS, DataConfig, DataSet, ImageSet, SequenceSet, Splits, load_data
from mimonets.data.registry import split_batches
from mimonets.data.sets import hold_out


def write_images(folder, classes=("cat", "dog"), count=5, size=(6, 4), mode="RGB"):
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            colour = 10 * label + i if mode == "L" else (10 * label + i, 0, 1)
            Image.new(mode, size, colour).save(folder / name / f"{i}.png")
    return folder


def test_every_record_is_found_by_its_name_and_names_settings_that_exist():
    settings = {field.name for field in fields(DataConfig)}
    for name, record in DATASETS.items():
        assert record.name == name
        assert record.settings < settings
        assert record.home or record.licence == "yours"


def test_a_data_set_of_somebody_else_is_one_record(monkeypatch):
    def load(config):
        images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
        data = ImageSet(images, torch.arange(4) % 2, 2, "dots")
        return Splits(data, None, data)

    record = DataSet(name="dots", load=load, kind="images", class_names=("off", "on"), held_out=1)
    monkeypatch.setitem(DATASETS, "dots", record)
    data = load_data(DataConfig(name="dots", crop=1))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [3, 1, 4]
    assert data.test.class_names == ("off", "on")
    with pytest.raises(ValueError, match="validation=2 means nothing for dots"):
        DataConfig(name="dots", validation=2)


def test_classes_have_names(tmp_path):
    assert load_data(DataConfig(limit=5)).train.class_names == tuple("0123456789")
    folder = DataConfig(name="folder", dir=str(write_images(tmp_path / "pets")))
    assert load_data(folder).test.class_names == ("cat", "dog")
    assert [len(set(DATASETS[n].class_names)) for n in ("cifar10", "cifar100")] == [10, 100]
    assert list(DATASETS["cifar100"].class_names) == sorted(DATASETS["cifar100"].class_names)
    pixels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="2 names do not fit 3 classes"):
        ImageSet(pixels, torch.arange(3), 3, "x", ("a", "b"))


def test_all_mistakes_are_named_at_once():
    with pytest.raises(ValueError, match="mnits") as caught:
        DataConfig(name="mnits", validation=-1, limit=0, sizes=(1, 2), targets="some")
    message = str(caught.value)
    for part in ("did you mean 'mnist'", "validation=-1", "limit=0", "sizes=", "targets='some'"):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "folder"}, "needs dir: the path of a folder"),
        ({"name": "npz"}, "needs dir: the path of a .npz"),
        ({"name": "recall", "crop": 20}, "crop=20 means nothing for recall"),
        ({"name": "mnist", "sizes": (1, 1, 1)}, "sizes=.* means nothing for mnist"),
        ({"name": "listops", "validation": 5}, "validation=5 means nothing for listops.*use sizes"),
        ({"seed": True}, "seed=True must be an integer >= 0"),
        ({"name": "mnist", "contour_length": 9}, "contour_length=9 means nothing for mnist"),
        ({"name": "recall", "sizes": 5}, "sizes=5 must be a list of 3, each an integer >= 0"),
        ({"name": ["digits"]}, r"name=\('digits',\) is not known.*: choose from"),
        ({"contour_length": 2}, "contour_length=2 must be an integer >= 3"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**settings)


def test_validation_items_depend_on_the_seed_only():
    first, again, other = (load_data(DataConfig(validation=300, seed=s)) for s in (0, 0, 1))
    assert (len(first.train), len(first.validation)) == (1200, 300)
    assert torch.equal(first.validation.images, again.validation.images)
    assert not torch.equal(first.validation.images, other.validation.images)
    with pytest.raises(ValueError, match="cannot hold 1500 of 1500 training items out"):
        load_data(DataConfig(validation=1500)).read()


def test_a_limit_keeps_every_class():
    data = load_data(DataConfig(limit=200))
    assert (len(data.train), len(data.test)) == (200, 200)
    assert len(data.train.labels.unique()) == 10


def test_a_crop_that_does_not_fit_is_refused():
    assert load_data(DataConfig(crop=6)).train.shape == (1, 6, 6)
    with pytest.raises(ValueError, match="a crop of 20x20 does not fit images of 8x8"):
        load_data(DataConfig(crop=20)).read()


def test_holding_nothing_out_changes_nothing():
    data = load_data(DataConfig()).train
    assert hold_out(data, 0, seed=0) == (data, None)


def test_a_folder_of_images_is_read_in_colour(tmp_path):
    data = load_data(DataConfig(name="folder", dir=str(write_images(tmp_path / "pets"))))
    assert (len(data.train), len(data.test)) == (8, 2)
    assert data.train.shape == (3, 4, 6)
    images = torch.cat([data.train.images, data.test.images])
    labels = torch.cat([data.train.labels, data.test.labels])
    assert torch.equal(images[:, 0, 0, 0] // 10, labels)


def test_images_to_evaluate_on_are_not_listed_class_by_class(tmp_path):
    write_images(tmp_path / "train", count=30)
    write_images(tmp_path / "test", count=30)
    data = load_data(DataConfig(name="folder", dir=str(tmp_path), validation=20))
    for part in (data.validation, data.test):
        assert (part.labels[1:] != part.labels[:-1]).sum() > 5
    config = DataConfig(name="folder", dir=str(tmp_path), validation=20)
    labels = torch.cat([labels for *_, labels in split_batches(config, "train")])
    assert (labels[1:] != labels[:-1]).sum() > 5


def test_grey_images_stay_grey_and_test_folders_are_kept(tmp_path):
    write_images(tmp_path / "train", mode="L")
    write_images(tmp_path / "test", mode="L", count=2)
    data = load_data(DataConfig(name="folder", dir=str(tmp_path), validation=2))
    assert data.train.shape == (1, 4, 6)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [8, 2, 4]


def test_folders_that_do_not_fit_are_answered_in_one_line(tmp_path):
    folder = write_images(tmp_path / "pets")
    Image.new("RGB", (9, 9)).save(folder / "dog" / "big.png")
    with pytest.raises(ValueError, match=r"0.png is 6x4 and .*big.png is 9x9: bring all"):
        load_data(DataConfig(name="folder", dir=str(folder))).read()
    (folder / "dog" / "big.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="big.png is damaged or not complete"):
        load_data(DataConfig(name="folder", dir=str(folder))).read()
    with pytest.raises(ValueError, match="is no folder.*sub-folder per class"):
        load_data(DataConfig(name="folder", dir=str(tmp_path / "nowhere"))).read()
    with pytest.raises(ValueError, match="cat has 0 sub-folders: make one per class"):
        load_data(DataConfig(name="folder", dir=str(folder / "cat"))).read()
    (folder / "fish").mkdir()
    with pytest.raises(ValueError, match="fish holds no image"):
        load_data(DataConfig(name="folder", dir=str(folder))).read()
    write_images(tmp_path / "two" / "train")
    write_images(tmp_path / "two" / "test", classes=("cat", "eel"))
    with pytest.raises(ValueError, match="classes eel, .*counts do not fit"):
        load_data(DataConfig(name="folder", dir=str(tmp_path / "two"))).read()


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3), (3, 4, 6)])
def test_an_npz_of_any_common_layout_is_read(shape, tmp_path, rng):
    images = rng.integers(256, size=(10, *shape), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(10) % 3)
    data = load_data(DataConfig(name="npz", dir=str(tmp_path / "a.npz")))
    assert (len(data.train), len(data.test), data.train.num_classes) == (8, 2, 3)
    assert data.train.shape == ((1, 4, 6) if shape == (4, 6) else (3, 4, 6))
    parts = {"x_train": images, "y_train": np.arange(10), "x_test": images[:3]}
    np.savez(tmp_path / "b.npz", **parts, y_test=np.array([[1], [2], [3]]))
    data = load_data(DataConfig(name="npz", dir=str(tmp_path / "b.npz")))
    assert (len(data.train), sorted(data.test.labels.tolist())) == (10, [1, 2, 3])


def test_an_npz_that_does_not_fit_is_answered_in_one_line(tmp_path):
    path = tmp_path / "a.npz"
    config = DataConfig(name="npz", dir=str(path))
    with pytest.raises(ValueError, match="there is no file"):
        load_data(config).read()
    path.write_bytes(b"PK half")
    with pytest.raises(ValueError, match="a.npz is damaged or not complete"):
        load_data(config).read()
    np.savez(path, pixels=np.zeros(3))
    with pytest.raises(ValueError, match="holds pixels: expected images and labels"):
        load_data(config).read()
    np.savez(path, images=np.zeros((3, 4, 4)), labels=np.arange(3))
    with pytest.raises(ValueError, match="expected uint8 images .* these are float64"):
        load_data(config).read()
    np.savez(path, images=np.zeros((3, 4, 4), np.uint8), labels=np.arange(2))
    with pytest.raises(ValueError, match="3 images need as many labels"):
        load_data(config).read()
    np.savez(path, images=np.zeros((3, 4, 4), np.uint8), labels=np.array([{}, 1, 2], dtype=object))
    with pytest.raises(ValueError, match="labels.npy holds Python.*plain arrays"):
        load_data(config).read()


def test_sets_refuse_parts_that_do_not_fit():
    pixels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="labels.*0 to 2.*2 classes"):
        ImageSet(pixels, torch.arange(3), 2, "x")
    with pytest.raises(ValueError, match=r"images must be uint8 of shape \(n, c, h, w\)"):
        ImageSet(pixels.float(), torch.arange(3), 3, "x")
    with pytest.raises(ValueError, match=r"labels must be int64 of shape \(3,\)"):
        ImageSet(pixels, torch.arange(2), 3, "x")
    tokens = torch.zeros(3, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"need lengths of shape \(3,\)"):
        SequenceSet(tokens, torch.ones(2), torch.arange(3), 5, 3, "x")
    with pytest.raises(ValueError, match="tokens must be uint8, int16 or int32"):
        SequenceSet(tokens.long(), torch.ones(3), torch.arange(3), 5, 3, "x")
