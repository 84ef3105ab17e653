"Images in folders and lists: every kind of file, sets and classes, faults, caches, and the order after a restart."
import io
import os
import random
import signal
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from ptwrap.core import EmptyLoader, UnknownName
from ptwrap.data import DataModule, UnreadableSample, read_image
from ptwrap.data.cache import Cached
from ptwrap.data.images import ImageFiles
from ptwrap.learner import Learner
from ptwrap.predict import predict
from ptwrap.script import source

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def pixels(i: int, side: int = 8, colours: int = 3) -> np.ndarray:
    "Random bytes, the same for the same number."
    shape = (side, side, colours) if colours > 1 else (side, side)
    return np.random.default_rng(i).integers(0, 256, shape, dtype=np.uint8)


def put(folder: Path, n: int = 3, first: int = 0, ending: str = "png", **kw) -> list[Path]:
    "Writes n pictures."
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03}.{ending}" for i in range(first, first + n)]
    for i, path in enumerate(paths, first):
        Image.fromarray(pixels(i, **kw)).save(path)
    return paths


def raw(path, mode=None) -> torch.Tensor:
    "The picture as floats in 0..1, by Pillow alone."
    array = np.array(Image.open(path))
    return torch.from_numpy(array).view(*array.shape[:2], -1).permute(2, 0, 1) * (1 / 255)


def pets(root: Path, n: int = 5, **kw) -> Path:
    "Two classes with n pictures each."
    put(root / "cat", n, **kw)
    put(root / "dog", n, first=n, **kw)
    return root


def make(path, **kw):
    return DataModule.folder(path, **(dict(num_workers=0, seed=1) | kw))


def read_all(dl) -> list:
    return [(x.clone(), y.clone()) for x, y in dl]


def same(a: list, b: list) -> bool:
    return len(a) == len(b) and all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b))


def noise(x):
    return x + torch.rand(()) + random.random() + np.random.rand()


# every kind of file

def written(path: Path, image: Image.Image, **kw) -> Path:
    image.save(path, **kw)
    return path


def exif(turn: int) -> Image.Exif:
    notes = Image.Exif()
    notes[0x112] = turn
    return notes


def test_values_of_every_kind_of_file(tmp_path):
    rgb, grey = Image.fromarray(pixels(0)), Image.fromarray(pixels(0, colours=1))
    def as_read(image, ending="png", mode=None, **kw):
        return read_image(written(tmp_path / f"a.{ending}", image, **kw), mode)
    bytes_of = lambda image: torch.from_numpy(np.array(image)).view(8, 8, -1).permute(2, 0, 1)

    assert type(as_read(rgb)).__name__ == "Image" and as_read(rgb).dtype == torch.uint8
    for ending in ("png", "bmp", "tif", "ppm"):
        assert torch.equal(as_read(rgb, ending), bytes_of(rgb)), ending
        assert torch.equal(as_read(grey, ending), bytes_of(grey)), ending
    assert torch.equal(as_read(rgb, "webp", lossless=True), bytes_of(rgb))
    assert torch.equal(as_read(grey, mode="rgb"), bytes_of(grey).expand(3, 8, 8))
    assert torch.equal(as_read(rgb, mode="grey"), bytes_of(rgb.convert("L")))
    for image in (rgb, grey):  # lossy, so compared with Pillow's reading of the same file
        assert torch.equal(as_read(image, "jpg"), bytes_of(Image.open(tmp_path / "a.jpg")))
    # one bit, palette
    sharp = grey.point(lambda v: 255 * (v > 99))
    assert torch.equal(as_read(sharp.convert("1")), bytes_of(sharp))
    palette = rgb.convert("P", palette=Image.Palette.ADAPTIVE, colors=8)
    assert torch.equal(as_read(palette), bytes_of(palette.convert("RGB")))
    # 16 bit grey: divided by 257 and rounded
    deep = np.array([[0, 128, 129, 257, 385, 386, 32896, 65535]], dtype=np.uint16)
    for ending in ("png", "tif"):
        assert as_read(Image.fromarray(deep), ending).tolist() == [[[0, 0, 1, 1, 1, 2, 128, 255]]]
    # transparency over white: 200 at 128/255 gives (200 * 128 + 255 * 127) / 255 = 227.4
    assert as_read(Image.new("RGBA", (1, 1), (200, 100, 0, 128))).flatten().tolist() == [227, 177, 127]
    assert as_read(Image.new("RGBA", (1, 1), (200, 100, 0, 0))).flatten().tolist() == [255] * 3
    assert as_read(Image.new("RGBA", (1, 1), (200, 100, 0, 255))).flatten().tolist() == [200, 100, 0]
    assert as_read(Image.new("LA", (1, 1), (100, 51))).flatten().tolist() == [224]
    assert as_read(Image.new("L", (2, 1), 7), transparency=7).flatten().tolist() == [255, 255]
    assert as_read(Image.new("P", (1, 1), 0), transparency=0).flatten().tolist() == [255] * 3
    # CMYK: 255 * (1 - c) * (1 - k)
    assert torch.equal(as_read(Image.new("CMYK", (1, 1), (255, 0, 0, 0)), "tif").flatten(), torch.tensor([0, 255, 255]))
    found = as_read(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "jpg")
    assert found.shape == (3, 8, 8) and found[0].min() > 250 and found[1:].max() < 5
    # the first of several pictures
    as_gif = [Image.new("RGB", (2, 2), c) for c in ("red", "blue")]
    assert as_read(as_gif[0], "gif", save_all=True, append_images=as_gif[1:])[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("turn", range(1, 9))
def test_turned_by_the_camera(tmp_path, turn):
    upright = np.repeat(np.repeat(np.array([[0, 255], [85, 170], [255, 0]], np.uint8), 16, 0), 16, 1)  # 48 x 32
    undo = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[turn]  # Pillow's numbers of transpositions, inverted
    stored = Image.fromarray(upright) if undo is None else Image.fromarray(upright).transpose(undo)
    for ending in ("jpg", "png", "tif"):
        image = read_image(written(tmp_path / f"a.{ending}", stored, exif=exif(turn)))
        assert image.shape == (1, 48, 32) and (image[0].int() - torch.from_numpy(upright).int()).abs().max() < 9, ending


def test_what_cannot_be_read_is_named(tmp_path):
    good = put(tmp_path, 1)[0].read_bytes()
    jpeg = put(tmp_path, 1, ending="jpg", side=40)[0].read_bytes()
    cases = {"cut.png": (good[:100], "truncated"), "cut.jpg": (jpeg[: len(jpeg) // 2], "truncated"),
             "empty.png": (b"", "the file is empty"), "text.png": (b"hello", "no picture that Pillow knows"),
             "none.png": (None, "No such file")}
    for name, (data, reason) in cases.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(UnreadableSample) as error:
            read_image(tmp_path / name)
        assert str(error.value).startswith(f"{tmp_path / name}: ") and reason.lower() in str(error.value).lower()
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(UnreadableSample, match="kind 'F' has no known range of values; save it as 8 or 16 bit grey"):
        read_image(tmp_path / "float.tif")


def test_damaged_files_do_not_end_the_process(tmp_path):
    "Bytes changed at random inside PNG and JPEG files: a picture or an error that names the file."
    n_bad = 0
    for ending in ("png", "jpg"):
        data = put(tmp_path, 1, ending=ending, side=40)[0].read_bytes()
        for seed in range(150):
            rng, changed = np.random.default_rng(seed), bytearray(data)
            for at in rng.integers(30, len(data), 3):
                changed[at] ^= int(rng.integers(1, 256))
            (tmp_path / "x").write_bytes(changed)
            try:
                assert read_image(tmp_path / "x", "rgb").shape[0] == 3
            except UnreadableSample as error:
                n_bad += 1
                assert str(error).startswith(str(tmp_path / "x"))
    assert n_bad > 100


# sets, classes, splits

def test_validation_has_no_augmentation(tmp_path):
    "B26: one folder of 10 pictures, a fifth held out; noise in training only."
    data, again = (make(pets(tmp_path), transforms=[noise]) for _ in range(2))
    data.ready("fit"), again.ready("fit")
    train, valid = data.train_ds, data.valid_ds
    assert (len(train), len(valid)) == (8, 2)
    assert sorted(train.paths + valid.paths) == sorted(map(str, tmp_path.rglob("*.png")))
    assert (train.paths, valid.paths) == (again.train_ds.paths, again.valid_ds.paths)
    assert sorted(Path(p).parent.name for p in valid.paths) == ["cat", "dog"]  # each class keeps its share
    for i, path in enumerate(valid.paths):
        assert torch.equal(valid[i][0], valid[i][0]) and torch.equal(valid[i][0], raw(path))
    assert all(not torch.equal(train[i][0], train[i][0]) for i in range(8))
    epochs = [read_all(data.train_dl) for _ in range(2)]
    assert not any(torch.equal(a, b) for (a, _), (b, _) in zip(*epochs))
    assert same(read_all(data.valid_dl), read_all(data.valid_dl))
    other = make(tmp_path, seed=4)
    other.ready("fit")
    assert other.valid_ds.paths != valid.paths
    assert "noise, which may be random" in data.rows()["valid transforms"]


def test_validation_gets_the_fixed_steps_of_training(tmp_path):
    steps = [{"resize": [10, 10]}, {"random_crop": 8}, "flip", "normalize"]
    data = make(pets(tmp_path, side=12), transforms=steps, stats="cifar10")
    data.ready("fit")
    assert data.rows()["valid transforms"] == "resize (10, 10) > center_crop 8 > float > normalize cifar10"
    assert data.sample_shape == (3, 8, 8) == tuple(data.valid_ds[0][0].shape)
    apart = make(tmp_path, transforms=[{"random_crop": 8}], valid_transforms=[{"center_crop": 4}])
    apart.ready("fit")
    assert apart.valid_ds[0][0].shape == (3, 4, 4)


def test_class_numbers_come_from_training(tmp_path):
    "B27: a class that validation lacks does not shift the others; one that training lacks is an error."
    for i, name in enumerate(("0", "90", "180", "270")):
        put(tmp_path / "train" / name, 3, 10 * i)
    for name in ("0", "90", "270"):
        put(tmp_path / "valid" / name, 1)
    with pytest.warns(UserWarning, match="valid has no image of 1 of the 4 classes: 180"):
        data = make(tmp_path)
    data.ready("fit")
    assert data.labels.numbers == {"0": 0, "180": 1, "270": 2, "90": 3}
    by_path = lambda ds: {Path(p).parent.name: int(y) for p, y in zip(ds.paths, ds.targets)}
    assert by_path(data.train_ds) == data.labels.numbers
    assert by_path(data.valid_ds) == {"0": 0, "270": 2, "90": 3}
    assert "valid has no image of 1 of the 4 classes: 180" in data.rows()["notes"]

    put(tmp_path / "valid" / "45", 1)
    with pytest.raises(ValueError, match=r"valid: the class '45' is none of the 4 training classes \(0, 180, "):
        make(tmp_path)
    (tmp_path / "valid" / "45" / "000.png").unlink()  # empty it stays an error: its name says what was meant
    with pytest.raises(ValueError, match="'45' is none of the 4 training classes"):
        make(tmp_path)
    (tmp_path / "valid" / "45").rmdir()
    (tmp_path / "train" / "300").mkdir()
    with pytest.warns(UserWarning, match="no training image of the class '300'"):
        data = make(tmp_path)
    assert data.classes == ["0", "180", "270", "300", "90"]


def test_class_names_are_kept_with_the_model(tmp_path):
    for i, name in enumerate(("0", "90", "180", "270")):
        put(tmp_path / "train" / name, 2, 10 * i)
    net = lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4))
    learn = Learner(net(), make(tmp_path, valid_share=0), loss_fn="cross_entropy").fit(1)
    saved = learn.state_dict()
    for name in ("0", "90", "180", "270"):  # the same classes in a folder elsewhere, read for prediction
        put(tmp_path / "more" / "train" / name, 2)
    other = Learner(net(), make(tmp_path / "more", valid_share=0), loss_fn="cross_entropy")
    other.load_state_dict(saved)
    paths = sorted((tmp_path / "train" / "90").iterdir())
    numbers = predict(other, paths).argmax(1).tolist()
    assert predict(other, paths, decode=True) == [["0", "180", "270", "90"][i] for i in numbers]
    for path in sorted((tmp_path / "more" / "train" / "270").iterdir()):
        path.unlink()
    (tmp_path / "more" / "train" / "270").rmdir()
    with pytest.raises(ValueError, match="'270' is not in both"):
        net = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
        Learner(net, make(tmp_path / "more", valid_share=0)).load_state_dict(saved)


def test_folders_of_every_layout(tmp_path):
    for role in ("train", "val", "test"):
        pets(tmp_path / role, 2)
    put(tmp_path / "predict", 3)
    data = make(tmp_path, batch_size=2)
    assert [len(dl.dataset) for dl in (data.train_dl, data.valid_dl, data.test_dl, data.predict_dl)] == [4, 4, 4, 3]
    assert next(iter(data.predict_dl)).shape == (3, 3, 8, 8)
    assert data.splits is False and data.valid_dl.batch_sampler.batch_size == 4
    single = make(tmp_path / "train", predict=sorted((tmp_path / "predict").iterdir())[:2])
    assert len(single.predict_dl.dataset) == 2 and single.splits
    for name in ("cat", "dog"):  # a test folder without labels
        for path in (tmp_path / "test" / name).iterdir():
            path.rename(tmp_path / "test" / f"{name}{path.name}")
        (tmp_path / "test" / name).rmdir()
    for path in (tmp_path / "predict").iterdir():
        path.unlink()
    (tmp_path / "predict").rmdir()
    with pytest.warns(UserWarning, match="test has no class folders, so its images have no labels"):
        data = make(tmp_path)
    assert data.test_dl is None and len(data.predict_dl.dataset) == 4


def test_hidden_files_links_and_other_endings(tmp_path):
    pets(tmp_path, 3)
    (tmp_path / ".ipynb_checkpoints").mkdir()
    put(tmp_path / "__MACOSX", 1)
    put(tmp_path / "cat" / "more", 2, 50)
    (tmp_path / "cat" / "._000.png").write_bytes(b"")
    (tmp_path / "cat" / "notes.txt").write_text("hello")
    (tmp_path / "cat" / "up").symlink_to(tmp_path)  # leads back to all classes
    (tmp_path / "cat" / "me").symlink_to(tmp_path / "cat" / "me")
    (tmp_path / "dog" / "round").symlink_to(tmp_path / "dog", target_is_directory=True)
    data = make(tmp_path, valid_share=0)
    data.ready("fit")
    assert data.classes == ["cat", "dog"] and data.class_counts.tolist() == [5, 3]


def test_grey_or_colour(tmp_path):
    pets(tmp_path / "grey", colours=1)
    assert make(tmp_path / "grey").sample_shape == (1, 8, 8)
    assert make(tmp_path / "grey", mode="rgb").sample_shape == (3, 8, 8)
    assert make(tmp_path / "grey").rows()["images"] == "grey (so are the 10 training files looked at)"
    put(tmp_path / "grey" / "dog", 1, 7)  # one in colour
    mixed = make(tmp_path / "grey", valid_share=0)
    assert mixed.sample_shape == (3, 8, 8)
    assert mixed.rows()["images"] == "rgb (of 10 training files looked at, 9 are grey)"
    assert next(iter(mixed.train_dl))[0].shape == (10, 3, 8, 8)
    assert make(tmp_path / "grey", mode="grey").sample_shape == (1, 8, 8)


# faults

def halves(root: Path, bad=(7,)) -> Path:
    "Ten JPEGs in two classes, some of them cut in half."
    for i in range(10):
        path = put(root / ("cat", "dog")[i % 2], 1, i, "jpg", side=24)[0]
        if i in bad:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_one_unreadable_file(tmp_path, workers):
    "B28: the default names path and number; skip leaves it out, counts it once and averages over what was read."
    halves(tmp_path)
    kw = dict(num_workers=workers, valid_share=0, batch_size=4)
    data = make(tmp_path, **kw)
    data.ready("fit")
    number = data.train_ds.paths.index(str(tmp_path / "dog" / "007.jpg"))
    with pytest.raises(UnreadableSample, match=rf"(?i){tmp_path}/dog/007.jpg \(sample {number}\): .*truncated"):
        list(data.train_dl)

    data = make(tmp_path, on_bad="skip", **kw)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        epochs = [[len(y) for _, y in data.train_dl] for _ in range(3)]
    assert [sum(sizes) for sizes in epochs] == [9, 9, 9] and all(min(sizes) > 0 for sizes in epochs)
    assert len([w for w in seen if "left out" in str(w.message)]) == 1
    assert list(data.train_dl.skipped) == [number]
    assert f"{tmp_path / 'dog' / '007.jpg'} (sample {number})" in data.rows()["left out"]

    data = make(tmp_path, on_bad="skip", **kw)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 2))
    learn = Learner(net, data, loss_fn="cross_entropy", opt="sgd", lr=0.0)
    with pytest.warns(UserWarning, match="left out: .*007.jpg"):
        learn.fit(1)
    x, y = (torch.cat(part) for part in zip(*read_all(data.train_dl)))
    with torch.no_grad():
        expected = nn.functional.cross_entropy(learn.model(x), y).item()
    assert len(y) == 9 and learn.history.epochs[-1]["train_loss"] == pytest.approx(expected, abs=1e-6)


def test_all_files_unreadable(tmp_path):
    halves(tmp_path, range(10))
    for on_bad in ("raise", "skip"):
        with pytest.raises(UnreadableSample, match="none of the 10 training images can be read; .*cat/000.jpg"):
            make(tmp_path, on_bad=on_bad)
    halves(tmp_path, [])
    data = make(tmp_path, on_bad="skip", valid_share=0)
    halves(tmp_path, range(10))  # they are cut later
    with pytest.warns(UserWarning, match="left out"), pytest.raises(EmptyLoader, match="no sample of 10 could be read"):
        list(data.train_dl)


def test_sizes_that_differ(tmp_path):
    pets(tmp_path)
    put(tmp_path / "dog", 1, 5, side=9)
    for workers in (0, 2):
        with pytest.raises(ValueError, match=r"\(3, 9, 9\).*resize them, e.g. transforms=\['resize'\]|resize them"):
            list(make(tmp_path, valid_share=0, num_workers=workers).train_dl)
    fixed = make(tmp_path, valid_share=0, transforms=[{"resize": [8, 8]}])
    assert [x.shape for x, _ in fixed.train_dl] == [(10, 3, 8, 8)]
    drawn = make(tmp_path, valid_share=0, sizes=[6, 12], batch_size=2)
    assert {x.shape[-1] for _ in range(3) for x, _ in drawn.train_dl} == {6, 12}
    with pytest.raises(ValueError) as error:
        list(make(pets(tmp_path), transforms=[{"random_crop": 20}]).train_dl)
    assert any("This was sample" in note and ".png" in note for note in error.value.__notes__)


WRONG = [
    (lambda p: make(p / "pest"), FileNotFoundError, "there is no folder .*pest; did you mean 'pets'?"),
    (lambda p: make(p / "pest" / "train"), FileNotFoundError, "there is no folder .*pest; did you mean 'pets'?"),
    (lambda p: make(p / "list.csv"), NotADirectoryError, "is a file, not a folder; read it with DataModule.image_csv"),
    (lambda p: make(p / "flat"), ValueError, "flat has 3 images and no class folders; expected PATH/train/CLASS/"),
    (lambda p: make(p / "one"), ValueError, "one has images of one class, 'cat'; two or more are needed"),
    (lambda p: make(p / "hollow"), ValueError, r"hollow has 2 class folders and no image in any \(but 1 .npy\)"),
    (lambda p: make(p / "nothing"), ValueError, "nothing has no class folders; expected"),
    (lambda p: make(p / "no_train"), ValueError, "no_train has a folder 'val' and no 'train'"),
    (lambda p: make(p / "both"), ValueError,
     "both has the folders val and valid|valid and val, which all mean valid; keep one"),
    (lambda p: make(p / "empty_valid"), ValueError, "valid has no image in class folders; expected .*CLASS"),
    (lambda p: make(p / "pets", transfroms=[]), TypeError,
     "DataModule.folder has no argument 'transfroms'; did you mean 'transforms'"),
    (lambda p: make(p / "pets", num_worker=2), TypeError, "no argument 'num_worker'; did you mean 'num_workers'"),
    (lambda p: make(p / "pets", mode="gray"), ValueError,
     "mode='gray': give 'rgb', 'grey' or None; did you mean 'grey'?"),
    (lambda p: make(p / "pets", cache="dsk"), ValueError,
     "cache='dsk': give 'ram', 'disk' or None; did you mean 'disk'?"),
    (lambda p: make(p / "pets", cache="ram", cache_mb=-1), ValueError,
     "cache_mb=-1: give a number of megabytes above 0"),
    (lambda p: make(p / "pets", cache="disk", cache_dir=p / "list.csv" / "x"), OSError,
     "cannot make the folder .*give cache_dir="),
    (lambda p: make(p / "pets", valid_share=20), ValueError, "valid_share=20: give a share from 0 to below 1"),
    (lambda p: make(p / "pets", valid_share="20%"), ValueError, "valid_share='20%': give a share from 0 to below 1"),
    (lambda p: make(p / "pets", size=224), TypeError,
     r"DataModule.folder has no argument 'size'; images get one size by transforms=\[{'resize': \[224, 224\]}\]"),
    (lambda p: listed(p / "list.csv", resize=(20, 30)), TypeError, r"by transforms=\[{'resize': \[20, 30\]}\]"),
    (lambda p: make(p / "pets", sizes=24), ValueError,
     r"sizes=24: give the image sizes to draw from, such as \[24, 28, 32\]; one size for all images is transforms="),
    (lambda p: make(p / "pets", weighted="yes"), TypeError, "weighted='yes': give True to draw each class equally"),
    (lambda p: make(p / "pets", seed="a"), TypeError, "seed='a': give a whole number from 0 on"),
    (lambda p: make(p / "pets", bs=32), TypeError, "no argument 'bs'; did you mean 'batch_size'?"),
    (lambda p: make(p / "pets", item_tfms=[]), TypeError, "did you mean 'transforms'?"),
    (lambda p: make(p / "pets", augment="mild"), TypeError, "did you mean 'transforms'?"),
    (lambda p: make(p / "pets", valid_pct=0.2), TypeError, "did you mean 'valid_share'?"),
    (lambda p: make(p / "pets", xyz=1), TypeError, "known names: path, predict, classes, transforms, valid_transforms"),
    (lambda p: make(p / "pets", transforms=["random_corp"]), UnknownName,
     "unknown transform 'random_corp'; did you mean"),
    (lambda p: make(p / "pets", on_bad="ignore").train_dl, ValueError, "on_bad='ignore': give 'raise' or 'skip'"),
    (lambda p: make(p / "pets", classes=["cat"]), ValueError,
     r"the class 'dog' is none of the 1 training classes \(cat\)"),
    (lambda p: make(p / "pets", predict=["a.png", "b.png"]), FileNotFoundError,
     "predict: 2 of 2 files are missing, such as a.png"),
    (lambda p: listed(p / "lits.csv"), FileNotFoundError, "there is no file .*lits.csv; did you mean 'list.csv'?"),
    (lambda p: listed(p / "pets"), IsADirectoryError,
     "is a folder, not a table; class folders are read by DataModule.folder"),
    (lambda p: listed(p / "list.csv", path_col="flie"), ValueError,
     "path_col='flie': no such column; did you mean 'file'?"),
    (lambda p: listed(p / "list.csv", label_col="labl"), ValueError,
     "label_col='labl': no such column; did you mean 'label'?"),
    (lambda p: listed(p / "list.csv", target="numbers"), ValueError,
     "target='numbers' with sep=None: give target='classes'"),
    (lambda p: listed(p / "list.csv", target="number"), ValueError, "line 2 has 'cat', which is no number"),
    (lambda p: listed(p / "list.csv", label_col=["label", "x"]), ValueError,
     "several columns are several numbers, with target='numb"),
    (lambda p: listed(p / "lost.csv"), FileNotFoundError,
     "4 of 5 files are missing, such as .*a.png, .*b.png, .*c.png; paths start"),
    (lambda p: listed(p / "bad_split.csv"), ValueError,
     "line 3 has 'trian' in the column 'part'; did you mean 'train'?"),
    (lambda p: listed(p / "one_class.csv"), ValueError,
     "the column 'label' has one class, 'cat'; two or more are needed"),
    (lambda p: listed(p / "columns.csv"), ValueError,
     "which column holds the labels\\? Give label_col=, one of 'u', 'v'"),
    (lambda p: listed(p / "no_files.csv"), ValueError, "no column holds image files \\('u', 'v'\\); give path_col="),
    (lambda p: listed(p / "new_class.csv"), ValueError,
     "the label 'dgo' in the validation rows of .* is none of the 2 training"),
    (lambda p: listed(p / "hole.csv"), ValueError, "line 3 names no file"),
    (lambda p: listed(p / "zero.csv"), ValueError, "zero.csv has 0 rows and the columns 'file', 'label'"),
]


def listed(csv, **kw):
    if csv.name == "bad_split.csv":
        kw["split_col"] = "part"
    return DataModule.image_csv(csv, **(dict(num_workers=0, seed=1) | kw))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    "Folders and tables with one fault each."
    root = tmp_path_factory.mktemp("shelf")
    pets(root / "pets")
    put(root / "flat")
    put(root / "one" / "cat")
    (root / "nothing").mkdir()
    for name in ("cat", "dog"):
        (root / "hollow" / name).mkdir(parents=True)
    (root / "hollow" / "cat" / "a.npy").write_bytes(b"")
    pets(root / "no_train" / "val", 1)
    for role in ("train", "val", "valid"):
        pets(root / "both" / role, 1)
    pets(root / "empty_valid" / "train", 1)
    (root / "empty_valid" / "valid").mkdir()
    table = lambda name, *lines: (root / f"{name}.csv").write_text("\n".join(lines))
    table("list", "file,label,x", "pets/cat/000.png,cat,1", "pets/dog/005.png,dog,2")
    table("lost", "file,label", "a.png,1", "b.png,2", "c.png,3", "d.png,3", "pets/cat/000.png,1", )
    table("bad_split", "file,label,part", "pets/cat/000.png,cat,train", "pets/dog/005.png,dog,trian")
    table("one_class", "file,label", "pets/cat/000.png,cat", "pets/cat/001.png,cat")
    table("columns", "file,u,v", "pets/cat/000.png,1,2", "pets/cat/001.png,1,2")
    table("no_files", "u,v", "1,2", "3,4")
    table("new_class", "file,label,split", "pets/cat/000.png,cat,train", "pets/dog/005.png,dog,train",
          "pets/dog/006.png,dgo,valid")
    table("hole", "file,label", "pets/cat/000.png,cat", ",dog")
    table("zero", "file,label")
    return root


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_inputs_say_what_to_do(shelf, case):
    call, kind, text = WRONG[case]
    with pytest.raises(kind, match=text):
        call(shelf)


# lists

def test_list_of_classes_labels_and_numbers(tmp_path):
    put(tmp_path / "img", 6)
    def table(name, header, *cells):
        (tmp_path / name).write_text("\n".join([header, *cells]), encoding="utf-8-sig")
        data = lambda **kw: listed(tmp_path / name, folder=tmp_path / "img", valid_share=0, **kw)
        return data
    def y(data):
        data.ready("fit")
        return data.train_ds.targets

    data = table("a.csv", "id\tclass", "000\t01", "001\tNA", "002\t01", "003\t")  # no ending; labels stay text
    with pytest.warns(UserWarning, match="1 of 4 rows have no label; the loss leaves them out"):
        made = data()
    assert made.classes == ["01", "NA"] and y(made).tolist() == [0, 1, 0, -100]
    assert made.rows()["columns"] == "'id' files (guessed), 'class' classes (guessed)"
    assert torch.equal(made.train_ds[2][0], raw(tmp_path / "img" / "002.png"))

    data = table("b.csv", "w,img,tags", "1,000.png,cat;dog", "2,001.png, dog", "3,002.png,", "4,003.png,eel")
    made = data(sep=";")
    assert (made.classes, made.n_outputs, made.is_classes) == (["cat", "dog", "eel"], 3, False)
    assert torch.equal(y(made), torch.tensor([[1., 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]))
    assert torch.equal(y(data(sep=";", classes=["eel", "dog", "cat"])), y(made).flip(1))
    with pytest.warns(UserWarning, match="labels hold ';', such as 'cat;dog'; for several .* give sep=';'"):
        data()
    assert next(iter(made.train_dl))[1].shape == (4, 3)

    data = table("c.csv", "img,a,b", "000.png,1.5,2", "001.png,,4", "002.png,3,6")
    made = data(target="number", label_col=["a", "b"])
    assert torch.equal(y(made).nan_to_num(-1), torch.tensor([[1.5, 2], [-1, 4], [3, 6]])) and made.n_outputs == 2
    assert data(target="number", label_col="b").train_targets.tolist() == [[2.], [4.], [6.]]

    data = table("d.csv", "img,label,is_valid", *(f"{i:03}.png,{'ab'[i % 2]},{i > 3}" for i in range(6)))
    made = data()
    made.ready("fit")
    assert [len(made.train_ds), len(made.valid_ds)] == [4, 2] and made.valid_ds.targets.tolist() == [0, 1]
    sets = ["train", "train", "val", "test", "predict", "train"]
    data = table("e.csv", "img,label,set", *(f"{i:03}.png,{'ab'[i % 2]},{s}" for i, s in enumerate(sets)))
    made = data()
    assert [len(dl.dataset) for dl in (made.train_dl, made.valid_dl, made.test_dl, made.predict_dl)] == [3, 1, 1, 1]
    assert made.class_counts.tolist() == [1, 2]
    assert source(made, set()).startswith("DataModule.image_csv(csv=")


def test_list_with_missing_files(tmp_path):
    put(tmp_path, 4)
    (tmp_path / "a.csv").write_text("\n".join(["file,label", *(f"{i:03}.png,{'ab'[i % 2]}" for i in range(6))]))
    with pytest.raises(FileNotFoundError, match="2 of 6 files are missing, such as .*004.png, .*005.png; paths"):
        listed(tmp_path / "a.csv")
    data = listed(tmp_path / "a.csv", on_bad="skip", valid_share=0)
    with pytest.warns(UserWarning, match="004.png .*No such file"):
        assert sum(len(y) for _, y in data.train_dl) == 4
    assert len(data.train_dl.skipped) == 2


# caches

@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", ["ram", "disk"])
def test_the_same_values_with_a_cache(tmp_path, cache, workers, monkeypatch):
    pets(tmp_path / "data", 6, side=10)
    make_it = lambda **kw: make(tmp_path / "data", transforms=[{"resize": 9}, {"random_crop": 8}, noise], batch_size=4,
                                num_workers=workers, cache_dir=tmp_path / "kept", **kw)
    plain, kept = make_it(), make_it(cache=cache)
    kept.one_batch()
    assert "filled when an epoch begins" in kept.rows()["cache"]
    for _ in range(2):
        assert same(read_all(plain.train_dl), read_all(kept.train_dl))
        assert same(read_all(plain.valid_dl), read_all(kept.valid_dl))
    # training is kept after resize, validation after resize and the crop from the middle: two caches
    assert [(c.n_kept, c.n_bytes) for c in kept._caches.values()] == [(10, 10 * 3 * 9 * 9), (2, 2 * 3 * 8 * 8)]
    assert kept.rows()["cache"].startswith("10 of 10 images, 0.0 MB in ")

    if cache == "disk":  # a second run reads no picture, and one whose picture changed reads all
        def refuse(*args):
            raise AssertionError("a picture was read")
        first, expected = sorted((tmp_path / "kept").iterdir()), read_all(plain.valid_dl)
        again = make_it(cache="disk")
        with monkeypatch.context() as patch:
            patch.setattr(ImageFiles, "__getitem__", refuse)
            assert same(expected, read_all(again.valid_dl))
            list(again.train_dl)
        assert sorted((tmp_path / "kept").iterdir()) == first
        put(tmp_path / "data" / "cat", 1, 0, side=11)
        changed = make_it(cache="disk")
        assert same(read_all(make_it().valid_dl), read_all(changed.valid_dl))
        list(changed.train_dl)
        assert len(list((tmp_path / "kept").iterdir())) > len(first)


def test_only_what_fits_is_kept(tmp_path):
    pets(tmp_path)
    plain, kept = make(tmp_path), make(tmp_path, cache="ram", cache_mb=4 * 192 / 2**20)
    for dl in ("train_dl", "valid_dl"):
        assert same(read_all(getattr(plain, dl)), read_all(getattr(kept, dl)))
    assert kept.rows()["cache"] == "4 of 10 images, 0.0 MB in memory"
    halves(tmp_path / "cut")
    data = make(tmp_path / "cut", cache="ram", on_bad="skip", valid_share=0)
    with pytest.warns(UserWarning, match="left out: .*007.jpg"):
        assert sum(len(y) for _, y in data.train_dl) == 9
    assert data.rows()["cache"].startswith("9 of 10 images")


@pytest.mark.parametrize("cache", ["ram", "disk"])
def test_a_cache_in_a_spawned_worker(tmp_path, cache):
    pets(tmp_path / "data")
    kw = dict(transforms=["flip"], cache=cache, cache_dir=tmp_path / "kept")
    spawned = make(tmp_path / "data", num_workers=1, multiprocessing_context="spawn", **kw)
    assert same(read_all(make(tmp_path / "data", **kw).train_dl), read_all(spawned.train_dl))
    spawned.close()


def test_a_file_that_broke_off_is_not_used(tmp_path):
    files = ImageFiles([str(p) for p in put(tmp_path / "data", 8)])
    pid = os.fork()
    if not pid:  # a process that is killed while it writes
        class Deadly(ImageFiles):
            def __getitem__(self, i):
                if i == 7:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().__getitem__(i)
        Cached(Deadly(files.paths), "disk", folder=tmp_path / "kept").fill()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert [p.suffix for p in (tmp_path / "kept").iterdir()] == [".tmp"]
    whole = Cached(files, "disk", folder=tmp_path / "kept").fill()
    assert whole.n_kept == 8 and all(torch.equal(whole[i], files[i]) for i in range(8))
    old = next((tmp_path / "kept").glob(".*.tmp"))
    os.utime(old, (0, 0))  # what is old is taken away by the next that writes
    whole.path.unlink()
    Cached(files, "disk", folder=tmp_path / "kept").fill()
    assert [p.suffix for p in (tmp_path / "kept").iterdir()] == [".bin"]


def test_where_the_cache_file_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    data = make(pets(tmp_path / "data"), cache="disk")
    list(data.train_dl)
    assert len(list((tmp_path / "xdg" / "ptwrap" / "images").glob("*.bin"))) == 1
    assert str(tmp_path / "xdg") in data.rows()["cache"]


# order and values, whatever reads them

@pytest.mark.parametrize("workers", [0, 2])
def test_a_restart_at_every_position_gives_the_rest(tmp_path, workers):
    pets(tmp_path)
    kw = dict(transforms=[{"random_crop": 6}, "flip", noise], valid_share=0, batch_size=3, seed=5)
    reference = make(tmp_path, **kw).train_dl
    epochs = [read_all(reference) for _ in range(3)]
    assert not same(epochs[0], epochs[1]) and [len(y) for _, y in epochs[0]] == [3, 3, 3, 1]
    data = make(tmp_path, num_workers=workers, **kw)
    dl = data.train_dl
    assert same(read_all(dl), epochs[0])
    for start in range(4):
        dl.batch_sampler.load_state_dict(dict(seed=5, epoch=1, start=start))
        rest = read_all(dl)
        assert same(rest, epochs[1][start:]) and same(read_all(dl), epochs[2])
    stopped = iter(dl)  # broken off in the middle of an epoch
    next(stopped)
    dl.batch_sampler.load_state_dict(dict(seed=5, epoch=2, start=1))
    assert same(read_all(dl), epochs[2][1:])


def test_global_generators_stay_where_they_are(tmp_path):
    data = make(pets(tmp_path), transforms=["flip", noise], num_workers=2)
    state = lambda: (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate())
    before = state()
    for dl in (data.train_dl, data.valid_dl):
        list(dl), list(dl)
    single = make(tmp_path, transforms=["flip", noise], cache="ram")
    list(single.train_dl), single.one_batch(), single.summary(), repr(single)
    assert state() == before


# a learner

def test_digits_as_files_are_learned(tmp_path):
    digits = DataModule.digits()
    for i, (x, y) in enumerate(zip((digits.x * 255).byte(), digits.y.tolist())):
        (tmp_path / str(y)).mkdir(exist_ok=True)
        Image.fromarray(x[0].numpy()).save(tmp_path / str(y) / f"{i}.png")
    data = DataModule.folder(tmp_path, num_workers=0, cache="ram", name="digits")
    learn = Learner("cnn", data, loss_fn="cross_entropy", opt="adamw", lr=0.003, metrics="accuracy").fit(5)
    assert learn.history.epochs[-1]["valid_accuracy"] >= 0.96
    paths = data.valid_ds.paths[:40]
    right = [a == Path(p).parent.name for a, p in zip(predict(learn, paths, decode=True), paths)]
    assert sum(right) >= 36
    assert repr(data) == "digits: 1,438 training, 359 validation samples (1, 8, 8), 10 classes, batch 64"
    assert data.rows()["cache"] == "1,797 of 1,797 images, 0.1 MB in memory"
    made = f"DataModule.folder(path={str(tmp_path)!r}, num_workers=0, cache='ram', name='digits')"
    assert source(data, set()) == made


def test_predictions_for_files_folders_and_open_pictures(tmp_path):
    data = make(pets(tmp_path / "pets", 6), batch_size=4)
    learn = Learner("cnn", data, seed=0, device="cpu")
    files = sorted((tmp_path / "pets" / "dog").iterdir())
    expected = predict(learn, files)
    assert expected.shape == (6, 2)
    for given in (tmp_path / "pets" / "dog", str(tmp_path / "pets" / "dog"), [Image.open(f) for f in files],
                  torch.stack([raw(f) for f in files]), [files[0], Image.open(files[1]), *map(str, files[2:])]):
        assert torch.allclose(predict(learn, given), expected, atol=1e-6)
    grey = Image.open(files[0]).convert("L")
    assert predict(learn, grey).shape == (1, 2)  # made RGB, as a grey file is
    (tmp_path / "empty").mkdir()
    for given, kind, text in [
            (tmp_path / "empty", FileNotFoundError, "the folder .*empty holds no image"),
            ("nowhere.png", UnreadableSample, "nowhere.png"),
            (pd.DataFrame(dict(path=["a.png"])), TypeError, "predict got a DataFrame with path, and this learner reads"),
            ([dict(path="a.png")], TypeError, "predict got a dict among the images")]:
        with pytest.raises(kind, match=text):
            predict(learn, given)
    plain = Learner("mlp", DataModule.arrays(torch.rand(20, 3), torch.arange(20) % 2), device="cpu")
    with pytest.raises(TypeError, match=r"data \(ArrayData\) cannot read that: give a tensor"):
        predict(plain, grey)
    with pytest.raises(TypeError, match="a frame with columns that hold no numbers"):
        predict(plain, pd.DataFrame(dict(a=["x"])))


def test_a_summary_as_a_table_has_room_and_no_colours(tmp_path):
    html = make(pets(tmp_path)).summary()._repr_html_()
    assert "padding: 0.2em 1.5em 0.2em 0" in html and '<caption style="text-align: left' in html and "color" not in html


def test_names_with_markup_stay_text(tmp_path):
    "B30: what tells about the data is text; nothing of it is written as HTML."
    name = "<img src=x onerror=alert(1)>"
    put(tmp_path / name)
    put(tmp_path / "dog")
    Image.fromarray(pixels(0)).save(tmp_path / name / 'a"><b>x.png')
    data = make(tmp_path, on_bad="raise")
    assert data.classes == [name, "dog"] and name in repr(data.summary())
    assert not hasattr(data, "_repr_html_")
    if hasattr(data.summary(), "_repr_html_"):
        assert "<img" not in data.summary()._repr_html_()
