"Parts that are replaced, added to, saved and shared, and what must follow from it."
import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ptwrap.callback import Callback
from ptwrap.data import DataModule, InMemoryLoader
from ptwrap.learner import Learner
from ptwrap.predict import predict
from ptwrap.runtime import to_device

X, Y = torch.randn(22, 4, generator=torch.Generator().manual_seed(0)), torch.arange(22) % 3


def loader(x=X, y=Y, **kw):
    return DataLoader(TensorDataset(x, y), batch_size=4, **kw)


def net(out: int = 3):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, out))


class Hears(Callback):
    def __init__(self):
        self.batches, self.ended = 0, 0

    def on_batch_end(self, learn, out):
        self.batches += 1

    def on_fit_end(self, learn):
        self.ended += 1


class OnceOnly(Callback):
    def on_batch_end(self, learn, out):
        learn.remove(self)
        learn.add(self.other)


def test_callbacks_added_and_removed_in_a_fit_silence_nobody():
    once, hears = OnceOnly(), Hears()
    once.other = Hears()
    learn = Learner(net(), loader(), "ce", cbs=[once])
    learn.fit(2, cbs=[hears])
    assert (hears.batches, hears.ended) == (12, 1)
    assert (once.other.batches, once.other.ended) == (11, 1)
    assert learn.cbs == [once.other]


class Saves(Callback):
    def __init__(self, event):
        self.event = event

    def on_batch_end(self, learn, out):
        if self.event == "middle" and learn.state.step == 3:
            self.saved = copy.deepcopy(learn.state_dict())

    def on_fit_end(self, learn):
        if self.event == "end":
            self.saved = copy.deepcopy(learn.state_dict())


@pytest.mark.parametrize("event", ["middle", "end"])
def test_a_state_saved_in_a_planned_schedule_starts_the_next_from_the_full_rate(event):
    saves = Saves(event)
    Learner(net(), loader(), "ce", "sgd", lr=0.1, sched="one_cycle", cbs=[saves]).fit(2)
    learn = Learner(net(), loader(), "ce", "sgd", lr=0.5, sched="one_cycle")
    learn.load_state_dict(saves.saved)
    assert learn.lr == 0.1
    learn.fit(2)
    assert max(list(learn.history.steps["lr"])[-12:]) == pytest.approx(0.1, rel=0.05)


class Weighted(nn.Module):
    "A loss with a parameter of its own."

    def __init__(self, model=None):
        super().__init__()
        self.scale, self.model = nn.Parameter(torch.ones(())), model

    def forward(self, pred, target):
        return nn.functional.cross_entropy(pred * self.scale, target)


def test_parameters_of_the_loss_are_trained_and_saved():
    learn = Learner(net(), loader(), Weighted(), "sgd", lr=0.1).fit(1)
    assert learn.loss_fn.scale.item() != 1
    other = Learner(net(), loader(), Weighted(), "sgd", lr=0.1)
    other.load_state_dict(learn.state_dict())
    assert other.loss_fn.scale.item() == learn.loss_fn.scale.item()


def test_a_loss_that_holds_the_model_moves_it_once():
    model = net()
    learn = Learner(model, loader(), Weighted(model), "sgd", lr=0.1)
    held = [p for group in learn.opt.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held}) == 5


def test_parameters_that_the_optimizer_lacks_are_told():
    model = net()
    learn = Learner(model, loader(), "ce", torch.optim.SGD(model[2].parameters(), lr=0.1)).fit(1)
    assert learn.plan.notes == ["2 parameters of the model are not in the optimizer and stay as they are"]


def test_named_metrics_read_targets_as_the_loss_does():
    x = torch.randn(40, 4)
    flag = (x[:, :1] > 0).float()
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    values = Learner(model, (None, [[x, flag]]), nn.BCELoss(), metrics="accuracy").validate()
    assert values["valid_accuracy"] == pytest.approx(((model(x) > 0.5) == flag.bool()).float().mean().item())

    model, y = net(), torch.arange(40) % 3
    soft = nn.functional.one_hot(y, 3).float()
    values = Learner(model, (None, [[x, soft]]), "ce", metrics="accuracy").validate()
    assert values["valid_accuracy"] == pytest.approx((model(x).argmax(1) == y).float().mean().item())

    y[::2] = 255
    kept = y != 255
    right = (model(x).argmax(1) == y)[kept].float().mean().item()
    loss_fn = nn.CrossEntropyLoss(ignore_index=255)
    learn = Learner(model, (None, [[x, y]]), "ce", metrics=dict(acc="accuracy"))
    learn.loss_fn = loss_fn  # set later: the metric follows
    assert learn.validate()["valid_acc"] == pytest.approx(right)


@pytest.mark.parametrize("size", [2, 5, 22])
def test_class_weights_give_the_same_mean_for_every_batch_size(size):
    loss_fn, model = nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.5])), net()
    dl = DataLoader(TensorDataset(X, Y), batch_size=size)
    assert Learner(model, (None, dl), loss_fn).validate()["valid_loss"] == pytest.approx(loss_fn(model(X), Y).item(), rel=1e-5)


def test_a_replaced_loader_and_a_seed():
    learn = Learner("mlp", DataModule.digits(batch_size=256), seed=0)
    learn.train_dl = [[batch[0], batch[1]] for batch in learn.train_dl][:2]
    assert learn.fit(1).state.step == 2


def test_data_that_is_split_anew_is_told():
    data = DataModule.digits(batch_size=256)
    Learner("mlp", data, seed=1)
    with pytest.warns(UserWarning, match="split with seed 1 and now anew with seed 2"):
        Learner("mlp", data, seed=2)


class Numbers(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return ((torch.full((4,), float(i)), i % 3) for i in range(self.n))


class Firsts(Callback):
    def __init__(self):
        self.seen = []

    def on_batch_start(self, learn, batch):
        self.seen.append(int(batch[0][0, 0]))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_stream_that_is_cut_reads_on(accumulate):
    learn = Learner(net(), DataLoader(Numbers(20), batch_size=2), "ce", "sgd", lr=1e-4, accumulate=accumulate)
    learn.fit(3, batches_per_epoch=4, cbs=[firsts := Firsts()])
    assert firsts.seen == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]  # 20 samples are 10 batches: the third epoch has two
    learn.fit(3, batches_per_epoch=5, cbs=[firsts := Firsts()])
    assert firsts.seen == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 0, 2, 4, 6, 8]  # from the start where it has ended


def test_predict_reads_what_fit_reads_and_moves_no_order():
    learn = Learner(net(), DataModule.arrays(X, Y, batch_size=4, seed=1), seed=1)
    expected = learn.model(X).detach()
    torch.testing.assert_close(predict(learn, [[X[:10], Y[:10]], [X[10:], Y[10:]]]), expected)
    before = learn.train_dl.generator.get_state()
    predict(learn, learn.train_dl)
    assert torch.equal(learn.train_dl.generator.get_state(), before)
    learn.model.double()
    assert predict(learn, X.double()).dtype == torch.float64


def test_predict_follows_an_overridden_forward():
    class Scaled(Learner):
        def forward(self, batch):
            return super().forward([batch[0] * 10, *batch[1:]] if isinstance(batch, list) else batch * 10)

    learn = Scaled(net(), loader(), "ce")
    torch.testing.assert_close(predict(learn, X), learn.model(X * 10).detach())


def test_copies_to_the_cpu_are_awaited(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **kw: seen.append(kw) or self)
    to_device([torch.ones(1)], torch.device("cpu"))
    to_device([torch.ones(1)], torch.device("cuda"))
    assert [kw["non_blocking"] for kw in seen] == [False, True]


def test_a_validation_inside_a_validation_is_refused():
    class Again(Callback):
        def on_validate_end(self, learn, values):
            raise AssertionError("reached")

        def on_validate_batch_end(self, learn, out):
            learn.validate()

    learn = Learner(net(), (loader(), loader()), "ce", cbs=[Again()])
    with pytest.raises(RuntimeError, match="a validation is running"):
        learn.validate()
    assert learn.remove(Again).validate()["valid_loss"] > 0


def test_the_in_memory_loader_takes_a_collate_function():
    double = lambda rows: [torch.stack([r[0] for r in rows]) * 2, torch.stack([r[1] for r in rows])]
    x, _ = next(iter(InMemoryLoader(X, Y, batch_size=4, collate_fn=double)))
    assert torch.equal(x, X[:4] * 2)


class Longer(list):
    def __len__(self):
        return super().__len__() - 2


def test_a_loader_longer_than_it_says_leaves_the_schedule_at_its_end():
    learn = Learner(net(), Longer([x, y] for x, y in loader()), "ce", "sgd", lr=0.1, sched="cosine").fit(1)
    rates = list(learn.history.steps["lr"])
    assert len(rates) == 6 and rates[4:] == [pytest.approx(0, abs=1e-9)] * 2


def test_a_train_step_without_an_optimizer_step_is_an_error():
    class Forgets(Learner):
        def optimizer_step(self, out):
            self.opt.step()

    with pytest.raises(RuntimeError, match="must call self.optimizer_step"):
        Forgets(net(), loader(), "ce").fit(steps=5)


@pytest.mark.parametrize("wrong, meant", [("callbacks", "cbs"), ("optimizer", "opt"), ("metric", "metrics"), ("loss", "loss_fn"),
                                          ("clip_nrm", "clip_norm"), ("schd", "sched")])
def test_a_wrong_argument_is_named(wrong, meant):
    with pytest.raises(TypeError, match=f"Learner has no argument '{wrong}'; did you mean '{meant}'"):
        Learner(net(), loader(), **{wrong: 1})


def test_regression_by_names_alone():
    for y in (X.sum(1), X[:, :2], X.sum(1).double().numpy()):
        learn = Learner("mlp", DataModule.arrays(X, y, batch_size=8), lr=0.01, seed=0).fit(5)
        assert learn.history.epochs[-1]["train_loss"] < learn.history.epochs[0]["train_loss"]


def test_parts_given_by_name_later():
    learn = Learner(net(), (loader(), loader()), "ce")
    learn.metrics, learn.opt, learn.sched, learn.lr = ["accuracy", "f1"], "sgd", "linear", 0.2
    row = learn.fit(1).history.epochs[0]
    assert {"valid_accuracy", "valid_f1"} <= row.keys() and learn.lr == pytest.approx(0.2)
    learn.sched = None
    assert "schedule" not in repr(learn)


def test_a_ready_schedule_says_how_it_moves():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    learn = Learner(model, loader(), "ce", opt, sched=torch.optim.lr_scheduler.StepLR(opt, 2)).fit(1)
    assert learn.plan.notes == ["StepLR moves once an epoch; sched.per = 'step' changes that"]
    assert learn.sched.last_epoch == 1


def test_sparse_embeddings_with_an_optimizer_by_name():
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    dl = DataLoader(TensorDataset(torch.arange(40).view(20, 2) % 10, torch.arange(20) % 3), batch_size=4)
    assert Learner(model, dl, "ce", "sgd", lr=0.1).fit(1).state.step == 5


def test_a_skipped_fp16_step_leaves_no_nan_in_batch_norm():
    x = X.clone()
    x[9] = math.nan
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    learn = Learner(model, loader(x), "ce", "sgd", lr=0.1, amp="fp16", scaler=dict(init_scale=8.0),
                    device="cpu")
    learn.runtime.moves = True  # as on a device, where the loss is not read at each step
    learn.fit(1)
    assert learn.state.skipped == 1
    assert all(v.isfinite().all() for v in model.state_dict().values())


def test_the_look_for_nan_can_be_turned_off():
    x = X.clone()
    x[9] = math.nan
    learn = Learner(net(), loader(x), "ce", "sgd", lr=0.1, check_finite=False, device="cpu").fit(1)
    assert learn.state.step == 6 and math.isnan(learn.history.steps["grad_norm"][-1])
    assert not learn.model[0].weight.isfinite().any()


def test_class_weights_are_those_that_moved_to_the_device():
    learn = Learner(net(), loader(), "ce", device="cpu")
    learn.runtime.device = torch.device("meta")  # stands in for a GPU
    learn.loss_fn = nn.CrossEntropyLoss(torch.ones(3))
    assert learn.class_weight is learn.loss_fn.weight and learn.class_weight.device.type == "meta"
