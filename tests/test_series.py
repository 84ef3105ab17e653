"Series: sunspots forecast from a file, no leak across the split in time, and texts of errors."
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from ptwrap.all import Learner
from ptwrap.data import DataModule
from ptwrap.predict import predict

DATA = Path(__file__).parent / "data"


def sunspots(**kwargs):
    return DataModule.series(pd.read_csv(DATA / "sunspots.csv"), time="YEAR", window=20, batch_size=32, **kwargs)


@pytest.mark.parametrize("model, lr, epochs", [("mlp", 3e-3, 25), ("gru", 1e-2, 12), ("lstm", 1e-2, 12)])
def test_sunspots(model, lr, epochs):
    data = sunspots()
    learn = Learner(model, data, metrics="mae", lr=lr, seed=0).fit(epochs)
    found = learn.history.to_frame().iloc[-1]
    y = pd.read_csv(DATA / "sunspots.csv")["SUNACTIVITY"].to_numpy()[-63:]
    naive = np.abs(np.diff(y)).mean()
    assert data.naive_mae() == pytest.approx(naive) == pytest.approx(25.44, abs=0.01)
    assert found["valid_mae"] <= 22
    assert (len(data.train_ds), len(data.valid_ds)) == (207, 62)
    out = predict(learn, data.valid_dl)
    assert (out[:, 0, 0] - torch.tensor(y[1:])).abs().mean().item() == pytest.approx(found["valid_mae"], rel=1e-5)
    assert predict(learn, pd.read_csv(DATA / "sunspots.csv")).shape == (1, 1, 1)  # of 2009


def test_sunspots_scaled_target_in_real_units():
    data = sunspots(scale_target=True, horizon=2)
    real = lambda pred, y: (data.unscale(pred) - data.unscale(y)).abs().mean()
    learn = Learner("mlp", data, metrics=dict(mae=real, scaled="mae"), lr=3e-3, seed=0).fit(25)
    found = learn.history.to_frame().iloc[-1]
    assert data.target_scale is None
    assert found["valid_mae"] == pytest.approx(found["valid_scaled"] * data.std.item(), rel=1e-4)
    assert found["valid_mae"] <= data.naive_mae()


def rows_of(ds) -> set[int]:
    "All rows whose values a part reads or foretells."
    return set(torch.cat(ds.places(slice(None)), 1).flatten().tolist())


@pytest.mark.parametrize("window", [1, 7, 30])
@pytest.mark.parametrize("horizon", [1, 5])
@pytest.mark.parametrize("stride", [1, 4])
def test_no_value_is_shared_across_the_split(window, horizon, stride):
    values = np.arange(500.0)
    data = DataModule.series([values, values[:300]], window=window, horizon=horizon, stride=stride, test_share=0.15)
    data.ready("fit")
    parts = [rows_of(ds) for ds in (data.train_ds, data.valid_ds, data.test_ds)]
    assert all(not a & b for i, a in enumerate(parts) for b in parts[:i])
    for ds in (data.train_ds, data.valid_ds, data.test_ds):
        places = torch.cat(ds.places(slice(None)), 1)
        assert ((places < 500) == (places[:, :1] < 500)).all()  # no window spans two series
        assert (places.diff(dim=1) == 1).all()
        x, y = ds.take(torch.arange(len(ds)))
        assert (data.unscale(x, inputs=True)[:, -1] + 1 - y[:, 0]).abs().max() < 1e-2


def test_scale_knows_only_training():
    values = np.random.default_rng(0).normal(size=(200, 3))
    data = DataModule.series(values, window=5)
    other = values.copy()
    other[155:] = 1e6  # validation targets begin at row 160 and their first window at 155
    changed = DataModule.series(other, window=5)
    assert torch.equal(data.mean, changed.mean) and torch.equal(data.std, changed.std)
    assert torch.equal(next(iter(data.valid_dl))[0][0], data.valid_ds[0][0])  # in order
    assert data.mean.tolist() == pytest.approx(values[:155].mean(0).tolist())


def test_windows_share_the_memory_of_the_values():
    data = DataModule.series(np.random.default_rng(0).normal(size=200_000), window=1000, batch_size=32)
    x, y = data.one_batch()
    assert (x.shape, y.shape) == ((32, 1000, 1), (32, 1, 1))
    assert data.train_ds.values.numel() == 200_000 and len(data.train_ds) == 158_000
    order = [data.train_ds.starts[i].item() for i in next(iter(data.train_dl.batch_sampler))]
    assert order != sorted(order)  # training is shuffled


def test_batches_equal_those_of_workers():
    make = lambda **kw: DataModule.series(np.arange(100.0), window=4, seed=3, batch_size=16, **kw).train_dl
    for (x, y), (x2, y2) in zip(make(), make(num_workers=1), strict=True):
        assert torch.equal(x, x2) and torch.equal(y, y2)


def test_channels_of_a_frame():
    t = np.arange(300)
    hours = pd.date_range("2024-01-01", periods=300, freq="h")
    df = pd.DataFrame(dict(load=np.sin(t / 9), heat=np.cos(t / 9), hour=t % 24), index=hours)
    data = DataModule.series(df, window=12, horizon=3, target=["heat", "load"])
    x, y = data.one_batch()
    assert (x.shape, y.shape, data.n_outputs) == ((64, 12, 3), (64, 3, 2), 6)
    data.ready("fit")
    assert torch.allclose(data.valid_ds[0][1], torch.tensor(df[["heat", "load"]].to_numpy()[240:243].copy()).float())
    learn = Learner("gru", data, lr=1e-2, seed=0).fit(2)
    assert predict(learn, df).shape == (1, 3, 2)
    assert "2024-01-01 to 2024-01-13 11:00:00 in steps of 1 hour" in repr(data.summary())


T = np.arange(60.0)
HOLES = np.where((T == 7) | (T == 20), np.nan, T)
DAYS = dict(window=5, time="day")
FRAME = pd.DataFrame(dict(day=pd.date_range("2024-01-01", periods=60), sold=T, town="x"))
WRONG = [
    (HOLES, dict(window=5), ValueError, "the series has 2 values that are NaN or infinite, the first in row 7"),
    (HOLES[7:], dict(window=5, fill="ffill"), ValueError, "the first in row 0, before any value: drop those rows"),
    (T, dict(window=5, fill="bfill"), ValueError, "fill='bfill': give 'ffill'"),
    (T[:20], dict(window=10), ValueError, "the series has 20 rows, too few for a window of 10: training has "
                                            "no row left for targets"),
    ([T, T[:12]], dict(window=8), ValueError, "series 1 has 12 rows, too few"),
    (T, dict(window=5, horizon=0), ValueError, "horizon=0: give a whole number of rows from 1 on"),
    (T, dict(window=5, stride=2.0), ValueError, "stride=2.0"),
    (T, dict(window=5, valid_share=0.9, test_share=0.2), ValueError, "validation and test together stay below 1"),
    (T, dict(window=5, gap=1.5), ValueError, "gap=1.5: give a whole number"),
    (T, dict(window=5, scale="minmax"), ValueError, "scale='minmax': give 'standard' or None"),
    (FRAME, dict(window=5), TypeError, "column 'day' holds no numbers; time='day' if it says when"),
    (FRAME, DAYS, TypeError, "column 'town' holds no numbers"),
    (FRAME[["day", "sold"]], dict(window=5, time="dya"), ValueError, "did you mean 'day'?"),
    (FRAME[["day", "sold"]], DAYS | dict(target="slod"), ValueError, "no channel of the 1; did you mean 'sold'?"),
    (FRAME[["day", "sold"]][::-1], DAYS, ValueError, "is not after the row before"),
    (np.zeros((4, 4, 4)), dict(window=2), ValueError, "has shape (4, 4, 4): give (T,), or (T, C)"),
    ("sunspots.csv", dict(window=2), TypeError, "the series holds no numbers"),
    (T, dict(window=5, batchsize=3), TypeError, "did you mean 'batch_size'"),
]


@pytest.mark.parametrize("values, kwargs, kind, text", WRONG, ids=[text[:40] for *_, text in WRONG])
def test_wrong_input(values, kwargs, kind, text):
    with pytest.raises(kind) as error:
        DataModule.series(values, **kwargs)
    assert text in str(error.value)


@pytest.mark.parametrize("freq, words", [("D", "1 day"), ("90min", "1 hour 30 minutes"), ("7D", "7 days")])
def test_steps_in_words(freq, words):
    data = DataModule.series(pd.Series(T, index=pd.date_range("2024-01-01", periods=60, freq=freq), name="u"), window=5)
    assert data.rows()["time"].endswith(f"in steps of {words}") and "60 rows, 1 channel (u)" in repr(data.summary())


def test_holes_are_filled_from_the_past():
    data = DataModule.series(HOLES, window=5, fill="ffill", scale=None)
    assert data.series[0].values[[7, 20], 0].tolist() == [6, 19]
    assert data.encode(HOLES)[0, :, 0].tolist() == [55, 56, 57, 58, 59]
