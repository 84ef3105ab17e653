"What needs an accelerator; skipped where there is none."
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ptwrap.core import DeviceError, NonFinite
from ptwrap.data import DataModule
from ptwrap.learner import Learner
from ptwrap.predict import predict

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator")]
GPU = torch.accelerator.current_accelerator(check_available=True)


def data() -> DataModule:
    return DataModule.digits(seed=0, batch_size=32)


def test_learns_and_everything_is_on_the_device():
    learn = Learner("cnn", data(), metrics=["accuracy", "f1"], lr=0.01, sched="one_cycle", seed=0).fit(5)
    assert all(p.device.type == GPU.type for p in learn.model.parameters())
    assert learn.history.epochs[-1]["valid_accuracy"] >= 0.96
    assert len(learn.history) == learn.state.step and not any(map(math.isnan, learn.history.steps["grad_norm"]))
    assert predict(learn, learn.data.valid_dl).device.type == "cpu"


def test_losses_are_those_of_the_cpu_to_rounding():
    runs = []
    for device in ("cpu", str(GPU)):
        learn = Learner("mlp", data(), opt="sgd", lr=0.1, seed=0, device=device).fit(2)
        runs.append(list(learn.history.steps["loss"]))
    assert runs[0] == pytest.approx(runs[1], rel=1e-3)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_mixed_precision(amp, accumulate):
    learn = Learner("cnn", data(), metrics="accuracy", lr=0.01, seed=0, amp=amp, clip_norm=1.0, accumulate=accumulate).fit(5)
    assert learn.history.epochs[-1]["valid_accuracy"] >= 0.95
    assert learn.state.step + learn.state.skipped == 5 * math.ceil(len(learn.train_dl) / accumulate)


def test_a_bad_batch_leaves_nothing_behind():
    x, y = torch.randn(32, 4), torch.arange(32) % 3
    x[20] = math.nan
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
    learn = Learner(model, DataLoader(TensorDataset(x, y), batch_size=8), "ce")
    with pytest.raises(NonFinite, match="batch 3"):
        learn.fit(1)
    assert learn.state.step == 2 and model[1].num_batches_tracked.item() == 2
    assert all(v.isfinite().all() for v in model.state_dict().values())


def test_ignored_targets_are_counted_on_the_device():
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    y[:4] = -100
    y[4:6] = -100
    learn = Learner(nn.Linear(4, 3), DataLoader(TensorDataset(x, y), batch_size=4), "ce", "sgd", lr=0.0).fit(1)
    assert list(learn.history.steps["n"]) == [0, 2, 4]
    kept = y >= 0
    expected = nn.functional.cross_entropy(learn.model(x.to(GPU))[kept], y[kept].to(GPU)).item()
    assert learn.history.epochs[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_model_that_was_moved_away_is_named():
    learn = Learner("mlp", data(), seed=0).fit(1)
    learn.model.cpu()
    with pytest.raises(DeviceError, match="learn.model.to"):
        learn.fit(1)


def test_class_weights_weigh_on_the_device():
    x, y, loss_fn = torch.randn(12, 4), torch.arange(12) % 3, nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.5]))
    learn = Learner(nn.Linear(4, 3), (None, DataLoader(TensorDataset(x, y), batch_size=5)), loss_fn)
    expected = loss_fn(learn.model(x.to(GPU)), y.to(GPU)).item()
    assert learn.validate()["valid_loss"] == pytest.approx(expected, rel=1e-4)
