"Tables: real data learned from a file, statistics that know only training rows, and texts of errors."
import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from ptwrap.all import Learner
from ptwrap.data import DataModule
from ptwrap.predict import predict

DATA = Path(__file__).parent / "data"
LABELS = [f"Class{i}" for i in range(1, 15)]
TASKS = ["Origin", "Miles_per_Gallon"]


def last(learn: Learner) -> dict:
    "The values of the last epoch."
    return learn.history.to_frame().iloc[-1].to_dict()


def test_breast_cancer():
    data = DataModule.csv(DATA / "breast_cancer.csv", target="diagnosis")
    learn = Learner("mlp", data, metrics="accuracy", lr=3e-3, seed=0).fit(8)
    assert (data.classes, data.sample_shape) == (["benign", "malignant"], (30,))
    assert (len(data.train_ds), len(data.valid_ds)) == (455, 114)
    majority = (data.valid_dl.dataset.tensors[1] == 0).float().mean().item()
    assert last(learn)["valid_accuracy"] >= 0.91 > majority + 0.2


WEIGHED = [dict(name="Origin"), dict(name="Miles_per_Gallon", weight=0.02)]  # one over its variance, about


@pytest.mark.parametrize("kinds, loss_fn", [(None, None), ({"Cylinders": "category"}, WEIGHED)])
def test_cars_origin_and_mpg_in_one_run(kinds, loss_fn):
    data = DataModule.csv(DATA / "cars.csv", target=TASKS, kinds=kinds, batch_size=32)
    metrics = dict(Origin="accuracy", Miles_per_Gallon="r2")
    learn = Learner("mlp", data, loss_fn, metrics=metrics, lr=1e-2, seed=0).fit(40)
    found = last(learn)
    y = torch.cat([y["Origin"] for _, y in data.valid_dl])
    majority = torch.bincount(y).max().item() / len(y)
    assert found["valid_Origin_accuracy"] >= 0.76 > majority + 0.1
    assert found["valid_Miles_per_Gallon_r2"] >= 0.80
    mpg = torch.cat([y["Miles_per_Gallon"] for dl in (data.train_dl, data.valid_dl) for _, y in dl])
    assert (len(mpg), mpg.isnan().sum()) == (406, 8)  # rows without a target stay
    assert len(data.columns) == (7 if kinds is None else 11)


def test_cars_predicted_from_a_frame():
    data = DataModule.csv(DATA / "cars.csv", target=TASKS, batch_size=32)
    learn = Learner("mlp", data, lr=1e-2, seed=0).fit(15)
    new = pd.read_csv(DATA / "cars.csv").drop(columns=["Origin", "Miles_per_Gallon", "Name"])[:50]
    out = predict(learn, new)
    assert {k: tuple(v.shape) for k, v in out.items()} == dict(Origin=(50, 3), Miles_per_Gallon=(50, 1))
    names = predict(learn, new, decode=True)
    assert set(names["Origin"]) <= {"Europe", "Japan", "USA"}
    assert names["Miles_per_Gallon"] == pytest.approx(out["Miles_per_Gallon"][:, 0].tolist())
    assert predict(learn, new.iloc[0])["Origin"].shape == (1, 3)  # one row
    text = new.astype(str).replace("nan", None)  # a form gives text
    assert torch.allclose(predict(learn, text)["Origin"], out["Origin"], atol=1e-5)


def test_mpg_alone_drops_rows_without_it_and_stays_in_its_units():
    data = DataModule.csv(DATA / "cars.csv", target="Miles_per_Gallon", batch_size=32)
    learn = Learner("mlp", data, metrics=["r2", "mae"], lr=3e-3, seed=0).fit(10)
    assert len(data.train_ds) + len(data.valid_ds) == 398
    assert (data.kind, data.n_outputs) == ("number", 1)
    assert last(learn)["valid_r2"] >= 0.8 and last(learn)["valid_mae"] < 3.5
    assert "8 without a target" in repr(data.summary())


def test_price_in_dollars():
    "A net whose outputs start near 0 gets to numbers of any size."
    rng = np.random.default_rng(0)
    df = pd.DataFrame(dict(size=rng.uniform(50, 200, 500), rooms=rng.integers(1, 6, 500)))
    df["price"] = 2500.0 * df["size"] + 10_000 * df["rooms"] + rng.normal(0, 5000, 500)
    data = DataModule.frame(df, target="price")
    learn = Learner("mlp", data, metrics="mae", lr=1e-2, seed=0).fit(15)
    assert last(learn)["valid_mae"] < 15_000
    assert float(predict(learn, df[:1])) == pytest.approx(df["price"][0], rel=0.15)


def test_yeast_labels():
    data = DataModule.csv(DATA / "yeast.csv.gz", target=LABELS)
    learn = Learner("mlp", data, metrics=["f1_micro", "accuracy"], lr=3e-3, seed=0).fit(4)
    assert (data.kind, data.n_outputs, data.classes, data.tasks) == ("labels", 14, LABELS, None)
    y = data.valid_dl.dataset.tensors[1]
    prior = (data.train_dl.dataset.tensors[1].mean(0) > 0.5).float().expand_as(y)
    f1 = lambda pred: (2 * (pred * y).sum() / (pred.sum() + y.sum())).item()
    own = f1((predict(learn, data.valid_dl) > 0).float())
    assert last(learn)["valid_f1_micro"] == pytest.approx(own, abs=1e-6)
    assert own >= 0.58 > f1(prior) + 0.05
    assert last(learn)["valid_accuracy"] > 0.77


def test_yeast_with_missing_labels():
    df = pd.read_csv(DATA / "yeast.csv.gz")
    df.loc[df.index % 3 == 0, LABELS[:7]] = None
    data = DataModule.frame(df, target=LABELS)
    learn = Learner("mlp", data, metrics="f1_micro", lr=3e-3, seed=0).fit(3)
    assert data.has_missing
    assert math.isfinite(last(learn)["valid_loss"]) and last(learn)["valid_f1_micro"] > 0.5


def test_validation_rows_teach_nothing():
    "Other values in the validation rows change neither the training inputs nor the columns."
    df = pd.read_csv(DATA / "cars.csv")
    df["Maker"] = df["Name"].str.split().str[0].where(lambda s: s.isin(["ford", "buick", "honda"]), "other")
    data = DataModule.frame(df, target="Origin", seed=3)
    valid = df.index[data.split_rows()["valid"]]
    other = df.copy()
    other.loc[valid, "Horsepower"] = 1e6
    other.loc[valid, "Weight_in_lbs"] = None
    other.loc[valid, "Maker"] = "tesla"
    changed = DataModule.frame(other, target="Origin", seed=3)
    assert changed.columns == data.columns
    assert torch.equal(changed.train_dl.dataset.tensors[0], data.train_dl.dataset.tensors[0])
    makers = [i for i, c in enumerate(data.columns) if c.startswith("Maker=")]
    assert changed.valid_dl.dataset.tensors[0][:, makers].sum() == 0  # all 0 for what training does not have
    assert f"Maker in {len(valid)} rows: not in training, all 0" in repr(changed.summary())
    weight = data.columns.index("Weight_in_lbs")
    train = df["Weight_in_lbs"].drop(valid)
    median = (train.median() - train.mean()) / train.std(ddof=0)
    assert changed.valid_dl.dataset.tensors[0][:, weight].tolist() == pytest.approx([median] * len(valid), abs=1e-5)


def test_the_guess_on_cars_is_shown():
    data = DataModule.csv(DATA / "cars.csv", target="Origin", seed=0)
    text = repr(data) + repr(data.summary())
    assert repr(data).count("\n") == 0 and repr(data).startswith("cars: 325 training, 81 validation samples (")
    for part in ["9 numbers from 7 columns (6 number, 1 date)",
                 "Cylinders (5 different whole numbers, may be a category)", "Year (days)",
                 "Name (text, 311 different values in 406 rows)", "Origin is classes (3 different values)"]:
        assert part in text, part


def test_every_class_stays_in_training_and_seeds_split_anew():
    df = pd.DataFrame(dict(x=np.arange(50) * 1.5, y=["a"] * 30 + ["b"] * 19 + ["rare"]))
    splits = set()
    for seed in range(8):
        data = DataModule.frame(df, target="y", seed=seed, valid_share=0.3)
        assert data.classes == ["a", "b", "rare"]
        splits.add(tuple(data.split_rows()["valid"]))
    assert len(splits) == 8


def test_a_learner_seed_refits_the_columns():
    df = pd.DataFrame(dict(x=np.arange(40) ** 2.0, y=["a", "b"] * 20))
    data, given = DataModule.frame(df, target="y"), DataModule.frame(df, target="y", seed=7)
    data.take_seed(7)
    assert torch.equal(data.train_dl.dataset.tensors[0], given.train_dl.dataset.tensors[0])
    assert data.train_dl.dataset.tensors[0].mean().abs() < 1e-6


def test_tasks_come_in_whole_batches_and_by_workers():
    kw = dict(target=TASKS, seed=1, batch_size=100)
    here = list(DataModule.csv(DATA / "cars.csv", **kw).train_dl)
    there = list(DataModule.csv(DATA / "cars.csv", num_workers=1, **kw).train_dl)
    for (x, y), (x2, y2) in zip(here, there, strict=True):
        assert torch.equal(x, x2) and torch.equal(y["Origin"], y2["Origin"])
        assert torch.allclose(y["Miles_per_Gallon"], y2["Miles_per_Gallon"], equal_nan=True)


def test_balanced_task_loss():
    data = DataModule.csv(DATA / "cars.csv", target=TASKS)
    balanced = dict(name="ce", weight="balanced")
    learn = Learner("mlp", data, [dict(name="Origin", loss=balanced), dict(name="Miles_per_Gallon")])
    counts = torch.bincount(data.train_ds.y["Origin"]).float()
    assert torch.allclose(learn.loss_fn.losses[0].weight, counts.sum() / (3 * counts), rtol=1e-4)


def test_a_category_that_training_lacks_is_told_once_a_call():
    df = pd.DataFrame(dict(bill=np.arange(40) * 1.5, day=["Sat", "Sun"] * 20, tip=np.arange(40) / 7))
    learn = Learner("mlp", DataModule.frame(df, target="tip", seed=0), seed=0)
    with pytest.warns(UserWarning) as seen:
        out = predict(learn, df.head(3).assign(day=["Sunday", "Sat", "Mon"]))
    text = "training does not have 'Sunday' in column 'day' (row 0 and 1 more; did you mean 'Sun'"
    assert out.shape == (3, 1) and len(seen) == 1 and str(seen[0].message).startswith(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(learn, df.head(3))


def test_a_row_as_a_dictionary():
    df = pd.DataFrame(dict(bill=np.arange(40) * 1.5, day=["Sat", "Sun"] * 20, tip=np.arange(40) / 7))
    learn = Learner("mlp", DataModule.frame(df, target="tip", seed=0), seed=0)
    expected = predict(learn, df)
    assert torch.allclose(predict(learn, dict(bill=1.5, day="Sun")), expected[1:2], atol=1e-6)
    rows = [dict(bill=0.0, day="Sat"), dict(bill=1.5, day="Sun")]
    columns = dict(bill=np.array([0.0, 1.5]), day=["Sat", "Sun"])
    for given in (rows, columns, dict(input=learn.data.encode(df[:2]))):  # the last one by the name in forward
        assert torch.allclose(predict(learn, given), expected[:2], atol=1e-6)
    with pytest.raises(ValueError, match="all columns it was trained on: the table has no column 'day'"):
        predict(learn, dict(bill=1.5))
    with pytest.raises(TypeError, match="got a list of strs; a file is read by DataModule.csv"):
        predict(learn, "cars.csv")


CARS = str(DATA / "cars.csv")
WRONG = [
    (dict(target="origin"), ValueError, "target: the table has no column 'origin'; did you mean 'Origin'"),
    (dict(path=str(DATA / "car.csv")), FileNotFoundError, "did you mean 'cars.csv'"),
    (dict(path="/no/such/cars.csv"), FileNotFoundError, "there is no folder /no/such"),
    (dict(target="Name"), ValueError, "target 'Name' is text with 311 different values in 406 rows"),
    (dict(kinds={"Cylinder": "category"}), ValueError, "did you mean 'Cylinders'?"),
    (dict(kinds={"Cylinders": "class"}), ValueError, "give 'number', 'category' or 'date'"),
    (dict(kinds={"Name": "number"}), ValueError, "'chevrolet chevelle malibu' in row 0, and 405 more, which is no"),
    (dict(kinds={"Name": "date"}), ValueError, "no date such as 2024-02-17"),
    (dict(drop=["Nam"]), ValueError, "drop: the table has no column 'Nam'; did you mean 'Name'?"),
    (dict(split="Cylinders"), ValueError, "column 'Cylinders' has '8'; write 'train', 'valid' or 'test'"),
    (dict(valid_share=1.0), ValueError, "valid_share=1.0: give a share from 0 to below 1"),
    (dict(read=dict(sep=";")), ValueError, "target: the table has no column 'Origin'"),
    (dict(target_kind="klass"), ValueError, "target_kind='klass' for 'Origin': give 'classes' or 'number'"),
    (dict(target_kind="number"), ValueError, "column 'Origin' has 'USA' in row 0"),
    (dict(classes=["USA", "Japan"]), ValueError, "'Europe' in column 'Origin' of the training rows is none of the 2"),
    (dict(target=TASKS, multi_label=True), ValueError, "multi_label=True: column 'Origin' has 'USA' in row 0"),
    (dict(batchsize=3), TypeError, "did you mean 'batch_size'"),
    (dict(test=str(DATA / "sunspots.csv")), ValueError, "test: the table has no column 'Origin'; known names: SUN"),
]


@pytest.mark.parametrize("kwargs, kind, text", WRONG, ids=[text[:40] for _, _, text in WRONG])
def test_wrong_input(kwargs, kind, text):
    with pytest.raises(kind) as error:
        DataModule.csv(**dict(path=CARS, target="Origin") | kwargs).ready("fit")
    assert text in str(error.value)
