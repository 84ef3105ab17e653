"What goes wrong in training without a word, and what is right: by hand, or by plain PyTorch."
import io
import itertools
import math
import multiprocessing
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict, namedtuple
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from ptwrap.all import *
from ptwrap.runtime import to_device

Learner = partial(Learner, device="cpu")
Pair = namedtuple("Pair", "features targets")
Rich = namedtuple("Rich", "features targets names extra")


@dataclass
class Sample:
    x: Tensor
    y: Tensor
    names: list = field(default_factory=list)
    extra: object = None


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    y: Tensor


class Scale(nn.Module):
    "x times one weight, which starts at 1."

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x, other=None):
        return x * self.w


class Reader(nn.Module):
    "Takes the batch as a whole and remembers the last one."

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(3, 2), None

    def forward(self, batch):
        self.seen = batch
        return self.layer(batch.features)


class Stream(IterableDataset):
    "Rows of tensors one after the other; nobody knows how many."

    def __init__(self, *tensors: Tensor, endless: bool = False):
        self.tensors, self.endless, self.n_read = tensors, endless, 0

    def __iter__(self):
        for _ in itertools.count() if self.endless else range(1):
            for row in zip(*self.tensors):
                self.n_read += 1
                yield row


class Loader:
    "Batches, and a length that may be wrong."

    def __init__(self, batches, n: int):
        self.batches, self.n = batches, n

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return self.n


class Steps(Callback):
    "What each optimizer step used and gave."

    def __init__(self):
        self.weights, self.lrs = [], []

    def on_step_start(self, learn, out):
        self.lrs.append(learn.lr)

    def on_step_end(self, learn, out):
        self.weights.append(next(learn.model.parameters()).detach().flatten()[0].item())


class At(Callback):
    "Calls a function at one event, at its n-th time."

    def __init__(self, event: str, action, n: int = 1):
        self.event, self.action, self.n, self.counts = event, action, n, defaultdict(int)

    def _hear(self, event, learn):
        self.counts[event] += 1
        if event == self.event and self.counts[event] == self.n:
            self.action()

    def on_fit_start(self, learn): self._hear("fit_start", learn)
    def on_epoch_start(self, learn): self._hear("epoch_start", learn)
    def on_batch_start(self, learn, batch): self._hear("batch_start", learn)
    def on_backward_end(self, learn, out): self._hear("backward_end", learn)
    def on_step_end(self, learn, out): self._hear("step_end", learn)
    def on_validate_batch_end(self, learn, out): self._hear("validate_batch_end", learn)
    def on_epoch_end(self, learn, row): self._hear("epoch_end", learn)
    def on_exception(self, learn, exc): self._hear("exception", learn)
    def on_fit_end(self, learn): self._hear("fit_end", learn)


def ramp() -> list[list[Tensor]]:
    "x = 1..10 and y = 2x, in five batches of two."
    x = torch.arange(1.0, 11.0)[:, None]
    return [[a, 2 * a] for a in x.split(2)]


def line() -> nn.Linear:
    "One weight, 0."
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def by_hand(windows, lr: float) -> list[float]:
    "The weight of `line` after each window: the gradient of a window is the mean over its batches."
    w, seen = 0.0, []
    for window in windows:
        w -= lr * sum((2 * x * (w * x - y)).mean().item() for x, y in window) / len(window)
        seen.append(w)
    return seen


def toy(n: int = 22, batch_size: int = 4, **kwargs) -> tuple[nn.Module, DataLoader]:
    "A small classifier with batch norm and dropout, and shuffled data for it."
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    data = TensorDataset(torch.randn(n, 6), torch.arange(n) % 3)
    return model, DataLoader(data, batch_size, shuffle=True, **kwargs)


def interrupt():
    raise KeyboardInterrupt


def first_value(pred, target=None):
    "A loss that is whatever the data says."
    return pred.mean()


def logits_for(loss: float, n: int) -> Tensor:
    "(n, 3) logits for which the cross entropy of class 0 is this loss; class 1 has the highest."
    return torch.tensor([0.0, math.log(math.expm1(loss)), -40.0]).expand(n, 3)


# --- a last, partial accumulation window

RAMP_WEIGHTS = [0.03, 0.20139, 0.526938, 0.549034, 0.675268, 0.915045]


@pytest.mark.parametrize("kind, asked", [
    ("list", {}), ("loader", {}), ("in memory", {}), ("stream", {}), ("stream", dict(batches_per_epoch=5)),
    ("stream", dict(batches_per_epoch=6)), ("overstated", {}), ("loader", dict(batches_per_epoch=50)),
], ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())) or "plain")
def test_b09_last_window_is_divided_by_its_own_size(kind, asked):
    """Five batches in windows of two leave one alone. Dividing it by two makes its step too small, keeping it for the
    next epoch mixes two epochs. It is a window of one, also where the data ends before its announced length."""
    x, y = (torch.cat(part) for part in zip(*ramp()))
    data = {"list": ramp(), "loader": DataLoader(TensorDataset(x, y), 2),
            "in memory": InMemoryLoader(x, y, batch_size=2),
            "stream": DataLoader(Stream(x, y), 2), "overstated": Loader(ramp(), 6)}[kind]
    steps = Steps()
    learn = Learner(line(), data, "mse", "sgd", lr=0.001, accumulate=2, sched="constant", cbs=[steps])
    learn.fit(2, **asked)
    assert steps.weights == pytest.approx(RAMP_WEIGHTS, abs=1e-5)
    assert (learn.state.step, learn.sched.last_epoch) == (6, 6)
    assert list(learn.history.steps["stepped"]) == [0, 1, 0, 1, 1] * 2


def test_b09_schedule_moves_with_optimizer_steps():
    "A schedule that counts batches ends ten times too early. 160 batches in windows of ten are 16 steps for both."
    batches = [[torch.ones(1, 1), torch.ones(1, 1)]] * 160
    steps = Steps()
    learn = Learner(line(), batches, "mse", "sgd", lr=0.1, accumulate=10, sched="one_cycle", cbs=[steps]).fit(1)
    assert (learn.state.step, learn.sched.total_steps, learn.sched.last_epoch) == (16, 16, 16)
    opt = torch.optim.SGD(line().parameters(), lr=0.1)
    plan, expected = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=16, cycle_momentum=False), []
    for _ in range(16):
        expected.append(opt.param_groups[0]["lr"])
        opt.step()
        plan.step()
    assert steps.lrs == pytest.approx(expected)


@pytest.mark.parametrize("n, windows", [(3, [2, 1]), (4, [2, 2]), (1, [1])])
def test_b09_a_cut_epoch_closes_its_window(n, windows):
    "An epoch that is cut short by `batches_per_epoch` ends its last window there, and the next epoch starts a new one."
    steps, cut, batches = Steps(), [], iter(ramp()[:n])
    for size in windows:
        cut.append(list(itertools.islice(batches, size)))
    Learner(line(), ramp(), "mse", "sgd", lr=0.001, accumulate=2, cbs=[steps]).fit(2, batches_per_epoch=n)
    assert steps.weights == pytest.approx(by_hand(cut * 2, 0.001), abs=1e-6)


def test_b09_batches_of_unequal_size_share_a_window_equally():
    "4 + 4 + 2 samples in a window of three: the mean of the three batch means, as the plain loop with loss / 3 has it."
    x = torch.arange(1.0, 11.0)[:, None]
    batches, steps = [[a, 2 * a] for a in x.split(4)], Steps()
    Learner(line(), batches, "mse", "sgd", lr=0.001, accumulate=3, cbs=[steps]).fit(2)
    assert steps.weights == pytest.approx(by_hand([batches] * 2, 0.001), abs=1e-6)


def test_b09_nothing_leaks_out_of_a_window_that_is_not_finished():
    "An interrupt inside a window throws its half gradient away; `stop` lets the window finish. The next fit is clean."
    learn = Learner(line(), ramp(), "mse", "sgd", lr=0.001, accumulate=2)
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1, cbs=[At("batch_start", interrupt, n=4)])
    assert learn.state.step == 1 and learn.model.weight.grad is None
    assert learn.model.weight.item() == pytest.approx(0.03)
    steps = Steps()
    learn = Learner(line(), ramp(), "mse", "sgd", lr=0.001, accumulate=2)
    learn.fit(1, cbs=[steps, At("batch_start", lambda: learn.stop("enough"), n=3)])
    assert steps.weights == pytest.approx(RAMP_WEIGHTS[:2], abs=1e-5)
    learn.fit(1, cbs=[steps])
    windows = [ramp()[:2], ramp()[2:4], ramp()[:2], ramp()[2:4], ramp()[4:]]
    assert steps.weights == pytest.approx(by_hand(windows, 0.001), abs=1e-5)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_b09_a_wrong_window_size_is_refused_at_once(value):
    "The message says what to give."
    with pytest.raises(ValueError, match="give a whole number of batches, 1 for none"):
        Learner(line(), ramp(), "mse", accumulate=value)


# --- clipping under mixed precision

class Vector(nn.Module):
    "Two zeros; the gradient of its output is the input."

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return (x * self.w).sum(-1)


def vector_learner(*gradients, opt="sgd", **kwargs):
    batches = [[torch.tensor([g]), torch.zeros(1)] for g in gradients]
    return Learner(Vector(), batches, first_value, opt, lr=1.0, **kwargs)


FP16 = dict(amp="fp16", scaler=dict(init_scale=65536.0))


@pytest.mark.parametrize("opt", ["sgd", partial(torch.optim.SGD, fused=False)], ids=["fused", "plain"])
@pytest.mark.parametrize("runtime", [{}, FP16], ids=["fp32", "fp16"])
def test_b10_gradients_are_unscaled_before_they_are_clipped(runtime, opt):
    "The norm of scaled gradients is 65,536 times too large: clipping by it freezes training. (3, 4) has norm 5."
    learn = vector_learner((3.0, 4.0), opt=opt, clip_norm=1.0, **runtime).fit(1)
    assert learn.model.w.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)
    assert learn.history.steps["grad_norm"][0] == pytest.approx(5.0, rel=1e-5)


CLIPS = [({}, (-3, -4)), (dict(clip_norm=10.0), (-3, -4)), (dict(clip_value=3.5), (-3, -3.5))]


@pytest.mark.parametrize("clip, w", CLIPS, ids=["none", "not reached", "value"])
def test_b10_the_norm_is_reported_before_clipping(clip, w):
    "Without a bound, below the bound, and with one on each value: the norm shown is that of the real gradient."
    learn = vector_learner((3.0, 4.0), **clip, **FP16).fit(1)
    assert learn.model.w.tolist() == pytest.approx(w, abs=1e-5)
    assert learn.history.steps["grad_norm"][0] == pytest.approx(5.0, rel=1e-5)


def test_b10_a_window_is_clipped_once_as_a_whole():
    "(3, 4) and (9, 12) make a mean of (6, 8): norm 10, clipped to 1."
    learn = vector_learner((3.0, 4.0), (9.0, 12.0), accumulate=2, clip_norm=1.0, **FP16).fit(1)
    assert learn.model.w.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)
    assert learn.history.steps["grad_norm"][1] == pytest.approx(10.0, rel=1e-5)


def test_b10_an_overflow_is_skipped_and_counted():
    "A scale that is too large is the scaler's normal work: no step, no move of the schedule, half the scale, no error."
    learn = vector_learner((3.0, 4.0), clip_norm=1.0, sched="constant", amp="fp16", scaler=dict(init_scale=2.0**127))
    learn.fit(1)
    assert learn.model.w.tolist() == [0, 0]
    assert (learn.state.step, learn.state.skipped, learn.sched.last_epoch) == (0, 1, 0)
    assert learn.runtime.scaler.get_scale() == 2.0**126


@pytest.mark.parametrize("kwargs, says", [
    (dict(clip_norm=1.0, clip_value=1.0), "not both"), (dict(clip_norm=-1.0), "None turns clipping off"),
    (dict(amp="fp16", scaler=dict(init_scal=1.0)), "did you mean 'init_scale'"),
    (dict(amp="bf16", scaler=dict(init_scale=1.0)), "settings are for amp='fp16'"),
    (dict(amp="half"), "give 'bf16', 'fp16'"),
])
def test_b10_a_wrong_setting_is_refused_at_once(kwargs, says):
    "Before any batch, and the message says what is right."
    with pytest.raises((ValueError, TypeError), match=says):
        vector_learner((3.0, 4.0), **kwargs)


# --- averages over unequal batches

def weighted_batches(make) -> list:
    "Batches of 8, 8 and 3 samples whose losses are 1, 2 and 5: the mean is 39 / 19."
    return [make(torch.full((n, 3), loss), torch.zeros(n)) for n, loss in ((8, 1.0), (8, 2.0), (3, 5.0))]


BATCHES = {
    "dict": lambda x, y: dict(x=x, y=y),
    "target first": lambda x, y: dict(y=y, x=x),
    "0-d tensor first": lambda x, y: dict(epoch=torch.tensor(3), x=x, y=y),
    "number first": lambda x, y: dict(epoch=3, x=x, y=y),
    "text first": lambda x, y: dict(split="train", x=x, y=y),
    "names first": lambda x, y: dict(names=[f"{i}.png" for i in range(len(x))], x=x, y=y),
    "class names first": lambda x, y: dict(classes=["cat", "dog"], x=x, y=y),
    "several inputs": lambda x, y: (x, x + 1, y),
    "list": lambda x, y: [x, y],
    "named tuple": lambda x, y: namedtuple("Batch", "x y")(x, y),
    "dataclass": lambda x, y: Sample(x, y, ["a", "b"]),
    "pair of targets": lambda x, y: (x, (y, y)),
    "dict of targets": lambda x, y: (x, dict(a=y, b=y)),
    "no target": lambda x, y: dict(x=x),
    "no target, class names first": lambda x, y: dict(classes=["cat", "dog"], x=x),
}


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_b14_epoch_loss_weighs_each_sample_once(make):
    "The mean of batch means would be 2.6667, and a batch size taken from the number of keys something else again."
    learn = Learner(Scale(), (weighted_batches(make),) * 2, first_value, "sgd", lr=0.0).fit(1)
    row = learn.history.epochs[0]
    assert row["train_loss"] == pytest.approx(39 / 19, abs=1e-6)
    assert row["valid_loss"] == pytest.approx(39 / 19, abs=1e-6)
    assert learn.state.samples == 19 and list(learn.history.steps["n"]) == [8, 8, 3]


@pytest.mark.parametrize("name", ["dict", "0-d tensor first", "names first", "class names first", "no target",
                                  "no target, class names first"])
@pytest.mark.parametrize("with_pred", [True, False])
def test_b14_the_models_own_loss_is_weighed_alike(name, with_pred):
    "A model that returns nothing but its loss leaves only the batch to count: its first tensor with a dimension."
    class Own(Scale):
        def forward(self, x):
            out = super().forward(x)
            return dict(loss=out.mean()) | (dict(logits=out) if with_pred else {})
    learn = Learner(Own(), (weighted_batches(BATCHES[name]),) * 2, None, "sgd", lr=0.0).fit(1)
    assert learn.history.epochs[0]["train_loss"] == pytest.approx(39 / 19, abs=1e-6)
    assert learn.history.epochs[0]["valid_loss"] == pytest.approx(39 / 19, abs=1e-6)


def test_b14_metrics_weigh_each_sample_once():
    "Accuracies of 0.7, 0.8 and 0.9 on 256, 256 and 10 samples: 0.7529, where the mean of means is 0.8."
    values = itertools.cycle([0.7, 0.8, 0.9])
    def scripted(pred, target): return next(values)
    batches = [[torch.zeros(n, 1), torch.zeros(n, 1)] for n in (256, 256, 10)]
    values_seen = Learner(line(), (batches, batches), "mse", metrics=[scripted]).validate()
    assert values_seen["valid_scripted"] == pytest.approx(0.7528735632, abs=1e-9)


def test_b14_accuracy_counts_samples():
    "The same with real predictions, in batches of 10, 10 and 2: 7 + 8 + 2 of 22 are right."
    y = torch.zeros(22, dtype=torch.int64)
    wrong = torch.tensor([0, 1, 2, 10, 11])
    x = F.one_hot(y.index_fill(0, wrong, 1), 2).float()
    learn = Learner(Scale(), (None, [[a, b] for a, b in zip(x.split(10), y.split(10))]), "ce", metrics="accuracy")
    assert learn.validate()["valid_accuracy"] == pytest.approx(17 / 22, abs=1e-9)


def test_b14_one_input_model_says_what_it_cannot_take():
    "Of a dict that holds more tensors than the model has inputs nobody knows which to pass: the fields are named."
    batches = weighted_batches(lambda x, y: dict(epoch=torch.tensor(3), features=x, y=y[:, None]))
    with pytest.raises(TypeError, match="(?s)epoch.*features.*(compute|rename)"):
        Learner(nn.Sequential(nn.Linear(3, 1)), batches, "mse").fit(1)


# --- batches whose targets are all ignored

def ignored_batches(ignore: int = -100, layout: str = "N") -> list:
    "4 targets, all ignored; 4 with 2 that count, loss 1; 8 that count, loss 2. The mean over targets is 18 / 10."
    x = [logits_for(1.0, 4), logits_for(1.0, 4), logits_for(2.0, 8)]
    y = [torch.full((4,), ignore), torch.tensor([0, ignore, ignore, 0]), torch.zeros(8, dtype=torch.int64)]
    if layout != "N":
        x, y = [v.unflatten(0, (2, -1)) for v in x], [v.unflatten(0, (2, -1)) for v in y]
    return [[v.transpose(1, 2) if layout == "BCL" else v, t] for v, t in zip(x, y)]


def token_loss(pred, target, ignore_index=-100):
    return F.cross_entropy(pred.transpose(1, 2), target, ignore_index=ignore_index)


class TokenLoss(nn.Module):
    "A module of one's own around torch's loss."

    def __init__(self, ignore_index):
        super().__init__()
        self.ce = nn.CrossEntropyLoss(ignore_index=ignore_index)

    def forward(self, pred, target):
        return self.ce(pred.flatten(0, 1), target.flatten())


IGNORING = {
    "name": ("cross_entropy", -100, "N"),
    "function": (F.cross_entropy, -100, "N"),
    "tokens": ("cross_entropy", -100, "BCL"),
    "nll": (lambda pred, target: F.nll_loss(pred.log_softmax(1), target), -100, "N"),
    "index 255": (nn.CrossEntropyLoss(ignore_index=255), 255, "N"),
    "index 1": (partial(F.cross_entropy, ignore_index=1), 1, "BCL"),
    "own function with ignore_index": (token_loss, -100, "BLC"),
    "own function": (lambda pred, target: F.cross_entropy(pred.flatten(0, 1), target.flatten()), -100, "BLC"),
    "own module": (TokenLoss(-100), -100, "BLC"),
    "own module, index 1": (TokenLoss(1), 1, "BLC"),
}


@pytest.mark.parametrize("loss_fn, ignore, layout", IGNORING.values(), ids=IGNORING)
def test_b15_an_ignored_batch_has_no_weight(loss_fn, ignore, layout):
    "The mean of no target is NaN, and makes the epoch NaN. Such a batch weighs 0, the others weigh their targets: 1.8."
    batches = ignored_batches(ignore, layout)
    learn = Learner(Scale(), (batches, batches), loss_fn, "sgd", lr=0.0).fit(1)
    row = learn.history.epochs[0]
    assert row["train_loss"] == pytest.approx(1.8, abs=1e-6)
    assert row["valid_loss"] == pytest.approx(1.8, abs=1e-6)
    assert list(learn.history.steps["n"]) == [0, 2, 8]
    assert learn.state.best == pytest.approx(1.8, abs=1e-6)


def test_b15_a_models_own_loss_counts_its_targets():
    "A model that computes its loss ignores -100 as language models do, and is weighed by what is left."
    class Own(Scale):
        def forward(self, x, labels):
            logits = super().forward(x)
            return dict(loss=F.cross_entropy(logits.transpose(1, 2), labels), logits=logits)
    batches = [dict(x=x, labels=y) for x, y in ignored_batches(layout="BLC")]
    learn = Learner(Own(), (batches, batches), None, "sgd", metrics="accuracy", lr=0.0).fit(1)
    row = learn.history.epochs[0]
    assert row["train_loss"] == row["valid_loss"] == pytest.approx(1.8, abs=1e-6)
    assert row["valid_accuracy"] == 0


def test_b15_an_ignored_batch_moves_nothing():
    "Its loss is NaN and its gradient exactly 0: plain SGD leaves the weights, and the watch for NaN stays quiet."
    learn = Learner(Scale(), ignored_batches()[:1], "ce", "sgd", lr=0.1).fit(1)
    assert learn.model.w.item() == 1 and learn.state.step == 1
    assert math.isnan(learn.history.epochs[0]["train_loss"]) and learn.state.best is None


def test_b15_real_nan_is_still_caught():
    "NaN where targets count stops the run before the step, and so does NaN in the inputs of an ignored batch."
    for x, y in (ignored_batches()[1], ignored_batches()[0]):
        learn = Learner(Scale(), [[x * math.nan, y]], "ce", "sgd", lr=0.1)
        with pytest.raises(NonFinite, match="before optimizer step 1.*last good step"):
            learn.fit(1)
        assert learn.model.w.item() == 1 and learn.state.step == 0


@pytest.mark.parametrize("ignore", [-100, 255])
def test_b15_accuracy_leaves_out_what_the_loss_ignores(ignore):
    "Predictions 1, 2, 0, 1 for targets 1, ignored, 0, 2: two of three, whatever number the loss was told to ignore."
    pred = F.one_hot(torch.tensor([1, 2, 0, 1]), 3).float()
    target = torch.tensor([1, ignore, 0, 2])
    metric = Accuracy(ignore_index=ignore)
    metric.update(pred, target)
    assert metric.compute() == pytest.approx(2 / 3)
    learn = Learner(Scale(), (None, [[pred, target]]), nn.CrossEntropyLoss(ignore_index=ignore), metrics="accuracy")
    assert learn.validate()["valid_accuracy"] == pytest.approx(2 / 3)


# --- validation with fewer samples than a batch

def held_out(kind: str):
    "40 training and 10 validation samples, batches of 16, and the last partial batch of training left out."
    x, y = torch.randn(50, 6), torch.arange(50) % 3
    if kind == "data module":
        return DataModule.arrays(x, y, batch_size=16, drop_last=True, split=(range(40), range(40, 50))), x[40:], y[40:]
    make = InMemoryLoader if kind == "in memory" else lambda *t, **kw: DataLoader(TensorDataset(*t), **kw)
    train = make(x[:40], y[:40], batch_size=16, shuffle=True, drop_last=True)
    return (train, make(x[40:], y[40:], batch_size=16)), x[40:], y[40:]


@pytest.mark.parametrize("kind", ["data module", "in memory", "loader"])
def test_b16_validation_sees_everything(kind, capsys):
    "Validation that inherits drop-last has no batch at all here. It sees all 10; training sees 32 of 40, and says so."
    data, x, y = held_out(kind)
    model, seen = toy()[0], []
    def n_seen(pred, target):
        seen.append(len(target))
        return 0.0
    learn = Learner(model, data, "ce", metrics=[n_seen]).fit(2)
    with torch.no_grad():
        expected = F.cross_entropy(model.eval()(x), y).item()
    assert seen == [10, 10] and learn.state.samples == 64
    assert learn.history.epochs[-1]["valid_loss"] == pytest.approx(expected, abs=1e-6)
    assert any("8 of 40" in note for note in learn.plan.notes)
    assert "8 of 40" in capsys.readouterr().out


def test_b16_the_note_counts_what_the_sampler_draws():
    "Of 100 samples the sampler draws 40: 8 of these 40 are left out."
    loader = DataLoader(TensorDataset(torch.randn(100, 6), torch.arange(100) % 3), 16,
                        sampler=SubsetRandomSampler(range(40)), drop_last=True)
    learn = Learner(toy()[0], loader, "ce").fit(1)
    assert learn.state.samples == 32
    assert any("8 of 40" in note for note in learn.plan.notes)


def test_b16_validation_that_leaves_samples_out_is_named():
    "A validation loader made with drop_last=True scores 16 of 20 samples: the start of the fit tells."
    model, train = toy()
    valid = DataLoader(TensorDataset(torch.randn(20, 6), torch.arange(20) % 3), 16, drop_last=True)
    learn = Learner(model, (train, valid), "ce").fit(1)
    assert any("4 of 20" in note and "valid" in note for note in learn.plan.notes)


def test_b16_no_batch_at_all_is_an_error_before_training():
    "For training and for validation: the message has the numbers and both ways out."
    model, train = toy()
    none = DataLoader(TensorDataset(torch.randn(10, 6), torch.arange(10) % 3), 16, drop_last=True)
    empty = DataLoader(TensorDataset(torch.randn(0, 6), torch.arange(0)), 16)
    cases = [((none, train), "train_dl"), ((train, none), "valid_dl"), ((train, dict(a=train, b=none)), "'b'")]
    for data, name in cases:
        learn = Learner(model, data, "ce")
        says = f"{name}.* 10 samples .*batch_size=16.*use drop_last=False or batch_size=10"
        with pytest.raises(EmptyLoader, match=says):
            learn.fit(1)
        assert learn.state.samples == 0 and not learn.history.ends
    with pytest.raises(EmptyLoader, match="valid_dl gives no batch: its dataset has 0 samples; check the path"):
        Learner(model, (train, empty), "ce").fit(1)
    with pytest.raises(EmptyLoader, match=r"no validation data: give validate\(dl\)"):
        Learner(model, train, "ce").validate()


# --- batches and outputs of every kind

def pairs(make, n: int = 2) -> list:
    return [make(torch.randn(4, 3), torch.arange(4) % 2) for _ in range(n)]


def test_b17_a_named_tuple_reaches_the_model_as_it_is():
    "A batch that is rebuilt as a plain tuple on its way to the device loses its field names. Type and names stay."
    learn = Learner(Reader(), (pairs(Pair), pairs(Pair)), "ce", metrics="accuracy").fit(1)
    assert type(learn.model.seen) is Pair and learn.model.seen._fields == ("features", "targets")
    assert set(learn.history.epochs[0]) >= {"train_loss", "valid_loss", "valid_accuracy"}


def test_b17_default_collation_keeps_named_tuples():
    "The same from a DataLoader over named tuples, with its own collation."
    rows = [Pair(torch.randn(3), i % 2) for i in range(8)]
    learn = Learner(Reader(), DataLoader(rows, 4), "ce").fit(1)
    assert type(learn.model.seen) is Pair and learn.model.seen.features.shape == (4, 3)


def test_b17_text_and_none_pass_through():
    "Names and an empty field belong to no device: the model gets them unchanged."
    names = ["a", "b", "c", "d"]
    learn = Learner(Reader(), (pairs(lambda x, y: Rich(x, y, names, None)),) * 2, "ce", metrics="accuracy").fit(1)
    assert type(learn.model.seen) is Rich
    assert learn.model.seen.names is names and learn.model.seen.extra is None


class Odd(dict):
    "A dict of one's own."


MOVED = {
    "named tuple": Rich(torch.ones(2), torch.ones(2), ["a", "b"], None),
    "dataclass": Sample(torch.ones(2), torch.ones(2), ["a", "b"], None),
    "frozen dataclass": Frozen(torch.ones(2), torch.ones(2)),
    "nested": dict(a=[torch.ones(2), ("x", torch.ones(2))], b=Pair(torch.ones(2), dict(c=torch.ones(2))), n=3, z=None),
    "own dict": Odd(x=torch.ones(2), y="text"),
    "defaultdict": defaultdict(list, x=torch.ones(2), names=["a"]),
    "object": SimpleNamespace(x="left alone"),
}


def sketch(v):
    "The structure with its types, and for each tensor its device."
    if isinstance(v, Tensor):
        return v.device.type
    if isinstance(v, dict):
        return type(v).__name__, [(k, sketch(x)) for k, x in v.items()]
    if isinstance(v, (list, tuple)):
        return type(v).__name__, [sketch(x) for x in v]
    return (type(v).__name__, sketch(vars(v))) if isinstance(v, (Sample, Frozen)) else v


@pytest.mark.parametrize("batch", MOVED.values(), ids=MOVED)
def test_b17_moving_keeps_structure_and_types(batch):
    "Every tensor arrives on the device; types, names, text, numbers and None stay. The given batch is not changed."
    before = str(sketch(batch))
    moved = to_device(batch, torch.device("meta"))
    assert str(sketch(moved)) == before.replace("cpu", "meta")
    assert str(sketch(batch)) == before


def test_b17_packed_sequences_move_by_their_own_rule():
    "A packed sequence is a named tuple whose batch sizes have to stay on the CPU."
    moved = to_device(pack_sequence([torch.ones(3), torch.ones(2)]), torch.device("meta"))
    assert moved.data.device.type == "meta" and moved.batch_sizes.device.type == "cpu"


class Whole(nn.Module):
    "Takes a dataclass as a whole, by its annotation."

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, sample: Sample):
        assert isinstance(sample, Sample)
        return self.layer(sample.x)


class WholeAsText(Whole):
    "The same where annotations are text, as after `from __future__ import annotations`."

    def forward(self, sample: "Sample"):
        return super().forward(sample)


class Fields(Whole):
    def forward(self, x, extra=None):
        assert extra is None
        return self.layer(x)


@pytest.mark.parametrize("model", [Whole, WholeAsText, Fields])
def test_b17_dataclass_batches(model):
    "By its annotation the model gets the whole batch, by the names of its parameters the fields."
    batches = pairs(lambda x, y: Sample(x, y, ["a"] * 4))
    learn = Learner(model(), (batches, batches), "ce", metrics="accuracy").fit(1)
    assert learn.state.samples == 8 and 0 <= learn.history.epochs[0]["valid_accuracy"] <= 1


def test_b17_fields_without_a_known_name():
    "A plain layer gets the fields of a named tuple one by one; the last one is the target."
    learn = Learner(nn.Linear(3, 2), pairs(namedtuple("Two", "image category")), "ce").fit(1)
    assert learn.state.samples == 8


@dataclass
class Out:
    loss: Tensor
    logits: Tensor


@pytest.mark.parametrize("wrap", [dict, SimpleNamespace, Out, namedtuple("Out", "loss logits")],
                         ids=["dict", "object", "dataclass", "named tuple"])
@pytest.mark.parametrize("loss_fn", [None, "mse"])
def test_b17_the_models_loss_is_the_one_used(wrap, loss_fn):
    "A model that returns loss and logits: its loss is used whatever loss_fn says, and metrics see the logits."
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, input, labels):
            logits = self.layer(input)
            return wrap(loss=F.cross_entropy(logits, labels), logits=logits)

    model, batches = Own(), pairs(lambda x, y: dict(input=x, labels=y))
    with torch.no_grad():
        logits = [model.layer(b["input"]) for b in batches]
    losses = [F.cross_entropy(p, b["labels"]).item() for p, b in zip(logits, batches)]
    right = sum((p.argmax(1) == b["labels"]).sum().item() for p, b in zip(logits, batches))
    learn = Learner(model, (batches, batches), loss_fn, "sgd", metrics="accuracy", lr=0.0).fit(1)
    assert list(learn.history.steps["loss"]) == pytest.approx(losses, abs=1e-7)
    assert learn.history.epochs[0]["valid_loss"] == pytest.approx(sum(losses) / 2, abs=1e-7)
    assert learn.history.epochs[0]["valid_accuracy"] == right / 8


def test_b17_a_model_that_takes_any_keyword_gets_the_labels():
    "forward(**batch) computes its own loss from the labels, so they have to be among the keywords."
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, **batch):
            logits = self.layer(batch["input"])
            return dict(loss=F.cross_entropy(logits, batch["labels"]), logits=logits)

    learn = Learner(Own(), pairs(lambda x, y: dict(input=x, labels=y)), None, metrics="accuracy").fit(1)
    assert learn.state.samples == 8


def test_b17_outputs_without_a_loss():
    "An object whose loss is None, a dict with one entry, a tuple with extras: loss_fn gets the scores."
    wraps = [lambda p: SimpleNamespace(loss=None, logits=p), lambda p: dict(scores=p),
             lambda p: dict(logits=p, hidden=p + 1),
             lambda p: (p, p + 1)]
    batches = pairs(lambda x, y: [x, y])
    for wrap in wraps:
        class Own(nn.Linear):
            def forward(self, x):
                return wrap(super().forward(x))  # noqa: B023
        learn = Learner(Own(3, 2), (batches, batches), "ce", metrics="accuracy").fit(1)
        assert "valid_accuracy" in learn.history.epochs[0]


@pytest.mark.parametrize("batch, model, loss_fn, error, says", [
    ("text", nn.Linear(3, 2), "ce", TypeError, "batch of type str.*override Learner.forward"),
    (SimpleNamespace(x=1), nn.Linear(3, 2), "ce", TypeError, "batch of type SimpleNamespace.*override Learner.forward"),
    (dict(x=torch.ones(4, 3)), nn.Linear(3, 2), "ce", LossError, "target NoneType.*override Learner.forward"),
    ((torch.ones(4, 3), ["a", "b"]), nn.Linear(3, 2), "ce", LossError, "target list.*override Learner.forward"),
    ((torch.ones(4, 3), torch.ones(4)), nn.Linear(3, 2), None, LossError, "give loss_fn=.*return dict.loss="),
], ids=["text", "object", "no target", "target of text", "no loss"])
def test_b17_what_cannot_be_split_is_named(batch, model, loss_fn, error, says):
    "The type of what came, and what to do."
    with pytest.raises(error, match=f"(?s){says}"):
        Learner(model, [batch], loss_fn).fit(1)


# --- a last batch of one sample

class Iterates(DataLoader):
    "A loader with an `__iter__` of its own."

    def __iter__(self):
        yield from super().__iter__()


def sixty_five(kind: str, *shape: int):
    x, y = torch.randn(65, *shape), torch.arange(65) % 3
    data = TensorDataset(x, y)
    return {"loader": lambda: DataLoader(data, 64), "shuffled": lambda: DataLoader(data, 64, shuffle=True),
            "in memory": lambda: InMemoryLoader(x, y, batch_size=64), "own loader": lambda: Iterates(list(data), 64),
            "batch sampler": lambda: DataLoader(data, batch_sampler=BatchSampler(range(65), 64, False)),
            "list": lambda: [[x[:64], y[:64]], [x[64:], y[64:]]]}[kind]()


LOADERS = ["loader", "shuffled", "in memory", "own loader", "batch sampler", "list"]


@pytest.mark.parametrize("kind", LOADERS)
def test_b18_a_single_last_sample_is_left_out_with_a_warning(kind):
    "Batch norm refuses a batch of one, after minutes, at the end of epoch 1. A warning comes first, with the numbers."
    valid = InMemoryLoader(torch.randn(65, 6), torch.arange(65) % 3, batch_size=64)
    seen = []
    def n_seen(pred, target):
        seen.append(len(target))
        return 0.0
    learn = Learner(toy()[0], (sixty_five(kind, 6), valid), "ce", metrics=[n_seen])
    with pytest.warns(UserWarning, match="65 .*64 .*BatchNorm1d.*drop_last=True"):
        learn.fit(2)
    assert (learn.state.samples, learn.state.step, learn.state.epoch) == (128, 2, 2)
    assert seen == [64, 1, 64, 1]
    assert any("BatchNorm1d" in note for note in learn.plan.notes)


def test_b18_looking_leaves_no_trace():
    "The trial with one sample changes no statistics and draws no random number: the run is the plain loop over 64."
    loader, model = sixty_five("loader", 6), toy()[0]
    plain = toy()[0]
    plain.load_state_dict(model.state_dict())
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="BatchNorm1d"):
        Learner(model, loader, "ce", "sgd", lr=0.1).fit(1)
    torch.manual_seed(1)
    opt = torch.optim.SGD(plain.parameters(), lr=0.1)
    x, y = next(iter(loader))
    F.cross_entropy(plain(x), y).backward()
    opt.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


def conv(*tail: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *tail,
                         nn.Linear(4, 3))


@pytest.mark.parametrize("kind", LOADERS)
def test_b18_convolutions_take_a_single_sample(kind):
    "An 8x8 map has 64 values a channel even for one sample: nothing is left out and nothing is said."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn = Learner(conv(), sixty_five(kind, 1, 8, 8), "ce").fit(1)
    assert learn.state.samples == 65 and not learn.plan.notes


def test_b18_it_is_the_model_that_decides():
    "Batch norm after pooling refuses a single sample; batch norm that is kept in evaluation mode does not."
    class FrozenNorm(nn.BatchNorm1d):
        def train(self, mode: bool = True):
            return super().train(False)
    with pytest.warns(UserWarning, match="BatchNorm"):
        assert Learner(conv(nn.BatchNorm1d(4)), sixty_five("loader", 1, 8, 8), "ce").fit(1).state.samples == 64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Learner(conv(FrozenNorm(4).eval()), sixty_five("loader", 1, 8, 8), "ce").fit(1).state.samples == 65


def test_b18_the_named_layer_is_the_one_that_refuses():
    "A model with several batch norms: the 2d one is fine with a single map, the 1d one at the end is not."
    with pytest.warns(UserWarning, match="BatchNorm1d"):
        Learner(conv(nn.BatchNorm1d(4)), sixty_five("loader", 1, 8, 8), "ce").fit(1)


def test_b18_windows_and_drop_last():
    "65 samples in batches of 16 and windows of 3: 3 + 1 batches. With drop_last there is nothing to warn about."
    data = TensorDataset(torch.randn(65, 6), torch.arange(65) % 3)
    with pytest.warns(UserWarning, match="65 .*16 "):
        learn = Learner(toy()[0], DataLoader(data, 16), "ce", accumulate=3).fit(1)
    assert (learn.state.samples, learn.state.step) == (64, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn = Learner(toy()[0], DataLoader(data, 64, drop_last=True), "ce").fit(1)
    assert learn.state.samples == 64 and "1 of 65" in learn.plan.notes[0]


# --- data without a length

def stream(**kwargs) -> tuple[Stream, DataLoader]:
    x = torch.randn(16, 1)
    data = Stream(x, 2 * x, **kwargs)
    return data, DataLoader(data, batch_size=4)


class SizedStream(Stream):
    "A stream that says its length."

    def __len__(self):
        return len(self.tensors[0])


def test_b19_a_stream_trains():
    "16 samples in batches of 4, twice: 8 steps. The bar counts batches and claims no total."
    out = io.StringIO()
    learn = Learner(line(), stream()[1], "mse", "sgd", lr=0.01, sched="constant", cbs=[TextView(out, bar=True)])
    learn.history.flush_s = 0
    learn.fit(2)
    assert (learn.state.step, learn.state.epoch, learn.state.samples) == (8, 2, 32)
    first_epoch = out.getvalue().split("epoch 2/2")[0]
    assert "batch" in first_epoch and "?" not in first_epoch.replace("?batch/s", "") and "/4" not in first_epoch
    assert "%" not in first_epoch


def test_b19_training_and_validation_may_both_be_streams():
    "Validation reads its stream to the end: the mean is over all 16."
    data, loader = stream()
    learn = Learner(line(), (loader, loader), "mse", "sgd", lr=0.0).fit(1)
    expected = F.mse_loss(torch.zeros(16, 1), data.tensors[1]).item()
    assert learn.history.epochs[0]["valid_loss"] == pytest.approx(expected, rel=1e-6)
    assert data.n_read == 32


@pytest.mark.parametrize("sched", ["one_cycle", "cosine", "linear"])
def test_b19_a_schedule_without_a_length_is_an_error_at_once(sched):
    "Before the first batch is read, and the message names the option that is missing."
    data, loader = stream()
    learn = Learner(line(), loader, "mse", "sgd", lr=0.1, sched=sched)
    with pytest.raises(ValueError, match=f"{sched} needs the number of steps.*batches_per_epoch=.*steps="):
        learn.fit(2)
    assert data.n_read == 0 and learn.state.step == 0 and learn.lr == 0.1
    learn.fit(steps=3)
    assert learn.state.step == 3


def one_cycle_plan(n: int, lr: float = 0.1) -> list[float]:
    "The learning rates of torch's schedule, step by step."
    opt = torch.optim.SGD(line().parameters(), lr=lr)
    sched, lrs = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=n, cycle_momentum=False), []
    for _ in range(n):
        lrs.append(opt.param_groups[0]["lr"])
        opt.step()
        sched.step()
    return lrs


@pytest.mark.parametrize("asked", [dict(epochs=2, batches_per_epoch=4), dict(steps=8)], ids=["4 an epoch", "8 steps"])
def test_b19_a_schedule_over_a_stream_follows_its_plan(asked):
    "With the length given, the eight steps use the eight learning rates of the schedule."
    steps = Steps()
    learn = Learner(line(), stream()[1], "mse", "sgd", lr=0.1, sched="one_cycle", cbs=[steps]).fit(**asked)
    assert learn.state.step == 8
    assert steps.lrs == pytest.approx(one_cycle_plan(8))


def test_b19_history_has_the_learning_rate_that_each_step_used():
    "Not that of the step after it, which for the last lies beyond the plan; an epoch's row has that of its last step."
    learn = Learner(line(), stream()[1], "mse", "sgd", lr=0.1, sched="one_cycle").fit(2, batches_per_epoch=4)
    plan = one_cycle_plan(8)
    assert list(learn.history.steps["lr"]) == pytest.approx(plan)
    assert [row["lr"] for row in learn.history.epochs] == pytest.approx([plan[3], plan[7]])


def test_b19_an_endless_stream_ends_where_it_is_cut():
    "Five batches an epoch, two epochs: 10 steps. By steps alone it ends as well."
    learn = Learner(line(), stream(endless=True)[1], "mse", "sgd", lr=0.01).fit(2, batches_per_epoch=5)
    assert (learn.state.step, learn.state.epoch) == (10, 2)
    learn.fit(steps=3)
    assert learn.state.step == 13


def test_b19_what_a_stream_says_about_its_length_is_an_estimate():
    "A dataset that says 16 and gives 16: nothing is lost, and with windows of three the last one has one batch."
    x = torch.randn(16, 1)
    learn = Learner(line(), DataLoader(SizedStream(x, 2 * x), 4), "mse", "sgd", lr=0.01, accumulate=3).fit(2)
    assert (learn.state.step, learn.state.samples) == (4, 32)


def test_b19_a_generator_that_is_used_up_says_so():
    "The second epoch finds nothing: an error with the way out, not an epoch of zero batches."
    learn = Learner(line(), (batch for batch in ramp()), "mse", "sgd", lr=0.001)
    with pytest.raises(EmptyLoader, match="a generator can be read only once: give a DataLoader or a list"):
        learn.fit(2)
    assert (learn.state.epoch, learn.state.step, len(learn.history.epochs)) == (1, 5, 1)


# --- interrupts

def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def n_hooks(model: nn.Module) -> int:
    return sum(len(h) for m in model.modules() for name, h in vars(m).items() if name.endswith("hooks"))


WHERE = [("fit_start", 1, 0), ("epoch_start", 2, 1), ("batch_start", 9, 1), ("backward_end", 9, 1), ("step_end", 9, 1),
         ("validate_batch_end", 8, 1), ("epoch_end", 1, 1)]


@pytest.mark.parametrize("event, n, finished", WHERE, ids=[w[0] for w in WHERE])
@pytest.mark.parametrize("action", [interrupt, ctrl_c])
def test_b20_an_interrupt_leaves_everything_in_order(event, n, finished, action, capsys):
    "Modes, gradients, hooks and history are as before, and a second fit runs once, not twice."
    model, loader = toy()
    model[1].eval()
    flags, hooks, counter = [m.training for m in model.modules()], n_hooks(model), At(None, None)
    learn = Learner(model, (loader, loader), "ce", "adam", "accuracy", sched="one_cycle", lr=0.01, cbs=[counter])
    with pytest.raises(TrainingInterrupted, match="interrupted in epoch .* after step"):
        learn.fit(3, cbs=[At(event, action, n)])
    assert [m.training for m in model.modules()] == flags and n_hooks(model) == hooks
    assert torch.is_grad_enabled() and learn.lr == pytest.approx(0.01)
    assert all(p.grad is None for p in model.parameters())
    assert [row["epoch"] for row in learn.history.epochs] == list(range(1, finished + 1))
    assert learn.state.epoch == finished
    assert learn.history.ends[-1]["how"] == "interrupted"
    assert (counter.counts["exception"], counter.counts["fit_end"]) == (1, 1)
    done = learn.state.step
    capsys.readouterr()

    counter.counts.clear()
    learn.fit(2)
    assert counter.counts == dict(fit_start=1, epoch_start=2, batch_start=12, backward_end=12, step_end=12, epoch_end=2,
                                  validate_batch_end=12, fit_end=1)
    assert [row["epoch"] for row in learn.history.epochs] == list(range(1, finished + 3))
    assert learn.state.step == done + 12 and learn.history.ends[-1]["how"] == "done"
    assert capsys.readouterr().out.count("train_loss") == 1


def in_model(model):
    model.register_forward_pre_hook(lambda *_: interrupt())
    return model


def test_b20_an_interrupt_inside_model_loss_or_data():
    "The stop button hits where most time goes: in the forward pass, in the loss function, in the dataset."
    class Data(TensorDataset):
        def __getitem__(self, i):
            interrupt()
    def loss(pred, target): interrupt()
    model, loader = toy()
    broken = DataLoader(Data(*loader.dataset.tensors), 4)
    for parts in ((in_model(toy()[0]), loader, "ce"), (model, loader, loss), (model, broken, "ce")):
        learn = Learner(*parts)
        flags = [m.training for m in learn.model.modules()]
        with pytest.raises(TrainingInterrupted):
            learn.fit(1)
        assert learn.history.ends[-1].items() >= dict(how="interrupted", epoch=0, batch=0, step=0).items()
        assert [m.training for m in learn.model.modules()] == flags and torch.is_grad_enabled()


def test_b20_validate_alone_puts_everything_back():
    "Interrupted outside a fit, validation leaves modes and gradients as they were."
    model, loader = toy()
    learn = Learner(model, (loader, loader), "ce").add(At("validate_batch_end", interrupt, 2))
    with pytest.raises(KeyboardInterrupt):
        learn.validate()
    assert all(m.training for m in model.modules()) and torch.is_grad_enabled()
    assert not learn.history.validations
    assert learn.validate()["valid_loss"] > 0


@pytest.mark.parametrize("event", ["exception", "fit_end"])
def test_b20_a_second_interrupt_while_ending(event):
    "An impatient second Ctrl-C reaches a callback that is closing: the others are closed too, and the state is whole."
    model, loader = toy()
    later = At(None, None)
    learn = Learner(model, loader, "ce", sched="one_cycle", lr=0.01)
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1, cbs=[At("batch_start", interrupt, 3), At(event, interrupt), later])
    assert later.counts["fit_end"] == 1 and learn.lr == pytest.approx(0.01)
    assert all(m.training for m in model.modules()) and torch.is_grad_enabled()
    learn.fit(1)
    assert learn.history.ends[-1]["how"] == "done"


def test_b20_an_error_is_put_right_too():
    "A callback that fails is named, and everything is put back as after an interrupt."
    def fail(): raise RuntimeError("disk full")
    model, loader = toy()
    learn = Learner(model, loader, "ce", sched="one_cycle", lr=0.01)
    with pytest.raises(RuntimeError, match="disk full") as info:
        learn.fit(1, cbs=[At("step_end", fail, 2)])
    assert "raised in callback At.on_step_end" in info.value.__notes__
    assert all(m.training for m in model.modules()) and learn.lr == pytest.approx(0.01)
    assert learn.history.ends[-1]["how"] == "RuntimeError: disk full"
    assert learn.fit(1).history.ends[-1]["how"] == "done"


def test_b20_a_plan_that_is_refused_leaves_no_callback_behind():
    "An error before the first batch is no fit: no end in the history, and callbacks of that fit hear nothing later."
    model, loader = toy()
    learn, of_this_fit = Learner(model, (stream()[1], loader), "ce", sched="one_cycle", lr=0.01), At(None, None)
    with pytest.raises(ValueError, match="batches_per_epoch"):
        learn.fit(1, cbs=[of_this_fit])
    assert not learn.history.ends
    assert all(m.training for m in model.modules()) and torch.is_grad_enabled()
    learn.validate()
    assert not of_this_fit.counts


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("event, n", [("batch_start", 3), ("validate_batch_end", 2), ("epoch_end", 1)])
def test_b20_no_worker_process_is_left(event, n, persistent):
    "Two workers a loader: none of them is alive ten seconds after the interrupt, and the next fit starts new ones."
    model, loader = toy(num_workers=2, persistent_workers=persistent)
    learn, before = Learner(model, (loader, loader), "ce"), set(multiprocessing.active_children())
    try:
        with pytest.raises(TrainingInterrupted):
            learn.fit(2, cbs=[At(event, interrupt, n)])
        until = time.monotonic() + 10
        while (left := set(multiprocessing.active_children()) - before) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left
        assert learn.fit(1).history.ends[-1]["how"] == "done"
    finally:
        loader._iterator = None  # ends persistent workers


CTRL_C = """
import multiprocessing, os, signal, sys, time
import torch
from ptwrap.all import *

torch.set_num_threads(1)
kind, again = sys.argv[1], sys.argv[2] == "again"
x, y = torch.randn(22, 6), torch.arange(22) % 3
if kind == "module":
    data = DataModule.arrays(x, y, batch_size=4, num_workers=2)
else:
    from torch.utils.data import DataLoader, TensorDataset
    data = DataLoader(TensorDataset(x, y), 4, num_workers=2)

class CtrlC(Callback):
    "What a terminal does: the signal goes to the workers as well."
    def on_batch_start(self, learn, batch):
        if learn.state.batch == 2:
            os.killpg(os.getpgrp(), signal.SIGINT)
            time.sleep(0.5)

learn = Learner("mlp" if kind == "module" else torch.nn.Linear(6, 3), data, "ce", device="cpu")
if not again:
    learn.fit(2, cbs=[CtrlC()])
try:
    learn.fit(2, cbs=[CtrlC()])
except KeyboardInterrupt:
    print("caught")
until = time.monotonic() + 10
while multiprocessing.active_children() and time.monotonic() < until:
    time.sleep(0.05)
print("children", len(multiprocessing.active_children()))
print("epochs", learn.fit(2).state.epoch)
"""


def run_script(*args) -> subprocess.CompletedProcess:
    "A Python script in a process group of its own, with everything it prints."
    command = [sys.executable, "-c", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loader", "module"])
def test_b20_ctrl_c_in_a_terminal_ends_a_script_quietly(kind):
    "Ctrl-C reaches the workers too. Exit code 130, and no traceback of the script or of a worker."
    done = run_script(CTRL_C, kind, "once")
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loader", "module"])
def test_b20_after_ctrl_c_no_worker_is_left_and_a_second_fit_works(kind):
    "The interrupt ended the workers as well: they are gone, and the next fit starts new ones."
    done = run_script(CTRL_C, kind, "again")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "epochs 2"
    assert "caught" in done.stdout and "children 0" in done.stdout, done.stdout


# --- progress in a file

LOGGED = """
import torch
from ptwrap.all import *

torch.set_num_threads(1)
batches = [[torch.ones(2, 1), torch.ones(2, 1)]] * 1000
Learner(torch.nn.Linear(1, 1), (batches, batches[:10]), "mse", "sgd", lr=0.01, device="cpu").fit(3)
"""


@pytest.mark.slow
def test_b21_a_log_file_stays_short(tmp_path):
    "Three epochs of a thousand batches, both streams in a file: at most ten lines an epoch and no carriage return."
    with (tmp_path / "log").open("wb") as f:
        subprocess.run([sys.executable, "-c", LOGGED], stdout=f, stderr=subprocess.STDOUT, check=True, timeout=60)
    log = (tmp_path / "log").read_bytes()
    assert b"\r" not in log and b"\x1b" not in log
    lines = log.decode().splitlines()
    assert 3 <= len(lines) <= 3 * 10
    assert sum(row.split()[0] in "123" for row in lines if row.strip()) == 3 and "3,000 steps" in lines[-1]


@pytest.mark.parametrize("seconds", [4.0, 60.0])
def test_b21_slow_batches_do_not_make_it_longer(seconds, monkeypatch):
    "A batch of four seconds, or of a minute: there are signs of life inside an epoch, and still at most ten lines."
    now, out = [0.0], io.StringIO()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Clock(Callback):
        def on_batch_start(self, learn, batch):
            now[0] += seconds

    batches = [[torch.ones(2, 1), torch.ones(2, 1)]] * 1000
    Learner(line(), batches, "mse", "sgd", lr=0.01, cbs=[Clock(), TextView(out)]).fit(3)
    lines = out.getvalue().splitlines()
    row = next(i for i, text in enumerate(lines) if text.split()[0] == "1")
    assert 1 <= sum("batch" in text for text in lines[:row])
    assert "\r" not in out.getvalue()
    assert row <= 10 and len(lines) <= 30


# --- binary and class targets as tables have them

class Zeros(nn.Module):
    "Logits that are 0, in a shape."

    def __init__(self, *shape: int):
        super().__init__()
        self.shape, self.w = shape, nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return (x * self.w).sum(1).reshape(self.shape)


DTYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64]


@pytest.mark.parametrize("n", [4, 1])
@pytest.mark.parametrize("pred, target", [((-1, 1), (-1,)), ((-1, 1), (-1, 1)), ((-1,), (-1,)), ((-1,), (-1, 1))])
def test_b29_binary_takes_labels_as_tables_have_them(pred, target, n):
    "Logits 0 for labels 0, 1, 1, 0 of any number type: loss ln 2 and half of them right, also in a batch of one."
    for dtype in DTYPES:
        batches = [[torch.randn(n, 2), torch.tensor([0, 1, 1, 0])[:n].to(dtype).reshape(target)]]
        learn = Learner(Zeros(*pred), (batches, batches), "binary", "sgd", metrics="accuracy", lr=0.0).fit(1)
        row = learn.history.epochs[0]
        assert row["train_loss"] == row["valid_loss"] == pytest.approx(0.693147, abs=1e-6)
        assert row["valid_accuracy"] == (0.5 if n == 4 else 1.0)


def test_b29_binary_with_a_last_batch_of_one():
    "Five samples in batches of four: the last (1, 1) logits and (1,) label are one value a sample like all the others."
    loader = InMemoryLoader(torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1]), batch_size=4)
    learn = Learner(nn.Linear(2, 1), loader, "binary")
    assert learn.fit(1).state.samples == 5


@pytest.mark.parametrize("labels", [(1, 2, 2, 1), (-1, 1, 1, -1)])
def test_b29_binary_refuses_other_numbers(labels):
    "Labels 1 and 2, or -1 and 1, make the loss fall below 0 without end: the message says which numbers are right."
    learn = Learner(nn.Linear(2, 1), [[torch.randn(4, 2), torch.tensor(labels)]], "binary")
    with pytest.raises(LossError, match=f"0 and 1.*{min(labels)}|{min(labels)}.*0 and 1"):
        learn.fit(1)


def test_b29_class_weights_and_float_labels_work_once_fixed():
    "What the messages below advise is right: the same data trains after the advised change."
    x, y = torch.randn(4, 2), torch.tensor([0.0, 1.0, 1.0, 0.0])
    weight = torch.tensor([1.0, 2.0], dtype=torch.float64)
    Learner(nn.Linear(2, 2), [[x, y.long()]], nn.CrossEntropyLoss(weight.float())).fit(1)
    Learner(nn.Linear(2, 1), [[x, y[:, None]]], "mse").fit(1)


Y = torch.tensor([0, 1, 1, 0])
REFUSED = {
    "float labels": (2, Y.float(), "ce", "(4, 2) float32", "(4,) float32", "use target.long()"),
    "double labels": (2, Y.double(), "ce", "(4, 2) float32", "(4,) float64", "use target.long()"),
    "int32 labels": (2, Y.int(), "ce", "(4, 2) float32", "(4,) int32", "use target.long()"),
    "int16 labels": (2, Y.short(), "ce", "(4, 2) float32", "(4,) int16", "use target.long()"),
    "bool labels": (2, Y.bool(), "ce", "(4, 2) float32", "(4,) bool", "use target.long()"),
    "labels (N, 1)": (2, Y[:, None], "ce", "(4, 2) float32", "(4, 1) int64", "use target.squeeze(1)"),
    "float labels (N, 1)": (2, Y[:, None].float(), "ce", "(4, 2) float32", "(4, 1) float32", "squeeze(1).long()"),
    "class too high": (2, Y + 1, "ce", "(4, 2) float32", "(4,) int64", "it needs 3"),
    "class below 0": (2, Y - 1, "ce", "(4, 2) float32", "(4,) int64", "-1"),
    "one output": (1, Y, "ce", "(4, 1) float32", "(4,) int64", "it needs 2"),
    "double weights": (2, Y, nn.CrossEntropyLoss(torch.ones(2).double()), "float64", "float32", "use weight.float()"),
    "three weights": (2, Y, nn.CrossEntropyLoss(torch.ones(3)), "(4, 2) float32", "(4,) int64", "2 classes"),
    "binary, two outputs": (2, Y, "binary", "(4, 2)", "(4,)", "a last layer with 1 output"),
    "bce, flat": (1, Y.float(), "bce_with_logits", "(4, 1) float32", "(4,) float32", "target.reshape((4, 1))"),
    "bce, integers": (1, Y[:, None], "bce_with_logits", "(4, 1) float32", "(4, 1) int64", "loss_fn='binary'"),
    "bce, flat integers": (1, Y, "bce_with_logits", "(4, 1) float32", "(4,) int64", "loss_fn='binary'"),
    "mse, flat": (1, Y.float(), "mse", "(4, 1) float32", "(4,) float32", "target.reshape((4, 1))"),
    "l1, flat": (1, Y.float(), "l1", "(4, 1) float32", "(4,) float32", "target.reshape((4, 1))"),
    "huber, flat": (1, Y.float(), "huber", "(4, 1) float32", "(4,) float32", "target.reshape((4, 1))"),
    "smooth_l1, flat": (1, Y.float(), "smooth_l1", "(4, 1) float32", "(4,) float32", "target.reshape((4, 1))"),
    "not reduced": (2, Y, nn.CrossEntropyLoss(reduction="none"), "(4, 2) float32", "(4,) int64", "add .mean()"),
    "detached": (2, Y, lambda p, t: F.cross_entropy(p.detach(), t), "(4, 2) float32", "(4,) int64", ".detach()"),
    "a number": (2, Y, lambda p, t: F.cross_entropy(p, t).item(), "(4, 2) float32", "(4,) int64", "not call .item()"),
}


@pytest.mark.parametrize("n_out, target, loss_fn, pred_is, target_is, says", REFUSED.values(), ids=REFUSED)
def test_b29_what_a_loss_refuses_is_explained(n_out, target, loss_fn, pred_is, target_is, says):
    "One error at the first batch, with shapes, dtypes and the change that helps; nothing is broadcast in silence."
    learn = Learner(nn.Linear(2, n_out), [[torch.randn(4, 2), target]], loss_fn)
    with pytest.raises(LossError) as info:
        learn.fit(1)
    for part in (pred_is, target_is, says):
        assert part in str(info.value)
    if loss_fn == "ce" or isinstance(loss_fn, nn.CrossEntropyLoss):
        assert "target.float()" not in str(info.value), "class numbers are integers"
    assert learn.state.step == 0


def test_b29_scores_with_the_classes_last_are_explained():
    "Sequence models give (B, L, C), torch's cross entropy wants (B, C, L): the message says to transpose."
    batch = [torch.randn(2, 5, 3), torch.randint(0, 7, (2, 5))]
    with pytest.raises(LossError, match=r"\(2, 5, 7\).*\(2, 5\)(?s:.*)transpose"):
        Learner(nn.Linear(3, 7), [batch], "ce").fit(1)


def test_b29_validation_is_looked_at_as_well():
    "Training targets are (N, 1), validation targets (N,): 4 x 4 pairs in silence would be a wrong validation loss."
    x, y = torch.randn(4, 2), Y.float()
    learn = Learner(nn.Linear(2, 1), ([[x, y[:, None]]], [[x, y]]), "mse")
    with pytest.raises(LossError, match=r"target.reshape\(\(4, 1\)\)"):
        learn.fit(1)


def test_b29_a_later_batch_is_explained_too():
    "The first batch is fine and a later one has a class too many: the message is as good as for the first."
    batches = [[torch.randn(4, 2), Y], [torch.randn(4, 2), Y + 1]]
    with pytest.raises(LossError, match="it needs 3"):
        Learner(nn.Linear(2, 2), batches, "ce").fit(1)
