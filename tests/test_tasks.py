"Several losses at once: weights, missing targets, exact means of each part, metrics by task, views, and what is wrong."
import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ptwrap.all import Callback, Learner, LossError, NonFinite, TextView
from ptwrap.metrics import Accuracy
from ptwrap.tasks import MultiTask, make_tasks
from ptwrap.ui.feed import Feed
from ptwrap.ui.static import to_html, to_text

NAN = math.nan
CARS = [dict(name="origin", kind="classes", n=3, classes=["usa", "japan", "europe"]),
        dict(name="mpg", kind="number", n=1, classes=None)]
TASKS = [dict(name="origin", loss="ce"), dict(name="mpg", loss=dict(name="mse", missing=True), weight=0.1)]


class Net(nn.Module):
    "Two heads on one layer; gives a dict, or a tuple."

    def __init__(self, kind=dict):
        super().__init__()
        self.kind, self.body, self.origin, self.mpg = kind, nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x).relu()
        out = dict(origin=self.origin(h), mpg=self.mpg(h))
        return out if self.kind is dict else tuple(out.values())


class Data:
    "What a learner reads of a data module."

    def __init__(self, batches, tasks=CARS):
        self.train_dl = self.valid_dl = batches
        self.tasks = tasks


def cars(n=20, size=8, missing=True, as_tuple=False):
    "Batches of 8, 8 and 4; the first has no mpg at all, the last no origin."
    x, origin, mpg = torch.randn(n, 4), torch.randint(0, 3, (n,)), torch.randn(n, 1)
    if missing:
        origin[[1, 2, 9]], origin[16:], mpg[:8], mpg[13] = -100, -100, NAN, NAN
    rows = [(x[i:i + size], origin[i:i + size], mpg[i:i + size]) for i in range(0, n, size)]
    return [[a, (b, c) if as_tuple else dict(origin=b, mpg=c)] for a, b, c in rows]


def whole(model, batches):
    "Loss of each task over all targets that are there, by hand."
    x, o, m = (torch.cat(v) for v in zip(*[(b[0], b[1]["origin"], b[1]["mpg"]) for b in batches]))
    with torch.no_grad():
        out = model(x)
    return (F.cross_entropy(out["origin"][o >= 0], o[o >= 0]).item(),
            F.mse_loss(out["mpg"][~m.isnan()], m[~m.isnan()]).item())


# --- weights

@pytest.mark.parametrize("kind, as_tuple", [(dict, False), (tuple, False), (tuple, True), (dict, True)])
def test_weights_equal_those_of_a_raw_loop_to_the_bit(kind, as_tuple):
    "Three epochs of SGD with momentum, a model that gives a dict or a tuple, targets in a dict or a tuple."
    batches = cars(missing=False, as_tuple=as_tuple)
    model = Net(kind)
    twin = copy.deepcopy(model)
    opt = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for x, y in batches:
            out = twin(x)
            a, b = out.values() if kind is dict else out
            origin, mpg = y if as_tuple else y.values()
            (F.cross_entropy(a, origin) + 0.1 * F.mse_loss(b, mpg)).backward()
            opt.step()
            opt.zero_grad()
    Learner(model, batches, TASKS, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)).fit(3)
    for a, b in zip(model.parameters(), twin.parameters()):
        assert torch.equal(a, b)


def test_a_weighted_sum_by_hand():
    "Logits 0 over 3 classes: ln 3. Predictions 0 for 2 and 4: (4 + 16) / 2 = 10. 2 ln 3 + 0.5 * 10."
    loss_fn = MultiTask([dict(name="a", loss="ce", weight=2), dict(name="b", loss="mse", weight=0.5)])
    loss = loss_fn(dict(a=torch.zeros(2, 3), b=torch.zeros(2, 1)),
                   dict(a=torch.tensor([0, 2]), b=torch.tensor([[2.0], [4.0]])))
    assert loss.item() == pytest.approx(2 * math.log(3) + 5, abs=1e-6)
    assert {k: (w, round(v.item(), 4), n) for k, (w, v, n) in loss_fn.take_parts().items()} == \
        dict(a=(2, 1.0986, 2), b=(0.5, 10.0, 2))


def test_weight_0_switches_a_task_off_and_its_loss_is_still_shown():
    batches = cars()
    learn = Learner(Net(), batches, [dict(TASKS[0], weight=0), TASKS[1]], "sgd", lr=0.1)
    before = learn.model.origin.weight.clone()
    row = learn.fit(1).history.epochs[0]
    assert torch.equal(learn.model.origin.weight, before) and row["train_loss_origin"] > 0.5
    assert row["train_loss"] == pytest.approx(0.1 * row["train_loss_mpg"], abs=1e-6)


# --- missing targets

def test_the_means_of_an_epoch_are_exact():
    "Each part over its own targets, in training and validation; the whole is their weighted sum. Best by the whole."
    batches = cars()
    learn = Learner(Net(), (batches, batches), TASKS, "sgd", lr=0.0).fit(1)
    origin, mpg = whole(learn.model, batches)
    row = learn.history.epochs[0]
    for name in ("train", "valid"):
        assert row[f"{name}_loss_origin"] == pytest.approx(origin, abs=1e-6)
        assert row[f"{name}_loss_mpg"] == pytest.approx(mpg, abs=1e-6)
        assert row[f"{name}_loss"] == pytest.approx(origin + 0.1 * mpg, abs=1e-6)
    assert learn.state.best == row["valid_loss"]
    assert learn.history.validations[0]["valid_loss_mpg"] == row["valid_loss_mpg"]
    assert list(row) == ["epoch", "step", "train_loss", "train_loss_origin", "train_loss_mpg", "valid_loss",
                         "valid_loss_origin",
                         "valid_loss_mpg", "lr", "time_s"]


def test_the_size_of_the_batches_does_not_matter():
    torch.manual_seed(1)
    data = cars(n=24, size=24)[0]
    cut = lambda size: [[data[0][i:i + size], {k: v[i:i + size] for k, v in data[1].items()}]
                        for i in range(0, 24, size)]
    model, rows = Net(), []
    for size in (24, 8, 5, 1):
        rows.append(Learner(model, cut(size), TASKS, "sgd", lr=0.0).fit(1).history.epochs[0])
    for row in rows[1:]:
        for key in ("train_loss", "train_loss_origin", "train_loss_mpg"):
            assert row[key] == pytest.approx(rows[0][key], abs=1e-6)


def test_a_batch_without_any_target_weighs_nothing_and_moves_nothing():
    batches = cars()
    empty = [batches[0][0], dict(origin=batches[0][1]["origin"] * 0 - 100, mpg=batches[0][1]["mpg"] * NAN)]
    learn = Learner(Net(), [empty], TASKS, "sgd", lr=0.1)
    before = copy.deepcopy(learn.model.state_dict())
    learn.fit(1)
    assert all(torch.equal(v, before[k]) for k, v in learn.model.state_dict().items())
    row = learn.history.epochs[0]
    assert list(learn.history.steps["n"]) == [0] and list(learn.history.steps["loss"]) == [0]
    assert all(math.isnan(row[k]) for k in ("train_loss", "train_loss_origin", "train_loss_mpg"))
    learn = Learner(learn.model, [*batches, empty], TASKS, "sgd", lr=0.0).fit(1)
    origin, mpg = whole(learn.model, batches)
    assert learn.history.epochs[0]["train_loss"] == pytest.approx(origin + 0.1 * mpg, abs=1e-6)
    assert list(learn.history.steps["n"]) == [8, 8, 4, 0]


def test_a_task_that_has_no_target_in_an_epoch_is_nan_and_the_rest_goes_on():
    batches = cars()
    for _, y in batches:
        y["mpg"].fill_(NAN)
    row = Learner(Net(), (batches, batches), TASKS, "sgd", lr=0.0).fit(1).history.epochs[0]
    assert math.isnan(row["train_loss_mpg"]) and math.isnan(row["valid_loss_mpg"])
    assert row["train_loss"] == pytest.approx(row["train_loss_origin"], abs=1e-6)


def test_real_nan_still_stops_the_run():
    batches = cars()
    batches[1][0][3] = NAN
    learn = Learner(Net(), batches, TASKS, "sgd", lr=0.1)
    with pytest.raises(NonFinite, match="batch 2"):
        learn.fit(1)
    plain = [TASKS[0], dict(name="mpg", loss="mse")]
    with pytest.raises(NonFinite, match="the target has 8 NaN; missing=True"):
        Learner(Net(), cars(), plain, "sgd", lr=0.1).fit(1)


def test_a_penalty_in_compute_is_part_of_the_whole():
    class Penalised(Learner):
        def compute(self, batch):
            out = super().compute(batch)
            out.loss = out.loss + 2.0
            return out
    batches = cars()
    row = Penalised(Net(), (batches, batches), TASKS, "sgd", lr=0.0).fit(1).history.epochs[0]
    for name in ("train", "valid"):
        parts = row[f"{name}_loss_origin"] + 0.1 * row[f"{name}_loss_mpg"]
        assert row[f"{name}_loss"] == pytest.approx(parts + 2, abs=1e-6)


def test_each_epoch_starts_anew_and_validation_inside_one_does_not_mix_in():
    batches = cars()
    learn = Learner(Net(), (batches, batches), TASKS, "sgd", lr=0.0).fit(3, valid_every_steps=2)
    rows = learn.history.epochs
    assert len(learn.history.validations) > 3
    for row in rows[1:]:
        assert all(row[k] == rows[0][k] for k in row if "loss" in k)


# --- two losses on one output

def test_two_losses_on_one_mask():
    "Cross entropy plus Dice: the model gives one tensor, the batch one target; plain metrics see both."
    x, y = torch.randn(4, 3, 6, 6), torch.randint(0, 3, (4, 6, 6))
    batches = [[x, y]]
    learn = Learner(nn.Conv2d(3, 3, 1), (batches, batches),
                    [dict(name="pixel", loss="ce"), dict(name="overlap", loss="dice")],
                    "sgd", metrics="iou", lr=0.0).fit(1)
    row, out = learn.history.epochs[0], learn.predict(x)
    assert row["train_loss_pixel"] == pytest.approx(F.cross_entropy(out, y).item(), abs=1e-6)
    assert row["train_loss"] == pytest.approx(row["train_loss_pixel"] + row["train_loss_overlap"], abs=1e-6)
    assert 0 < row["valid_iou"] < 1 and row["valid_loss_overlap"] == pytest.approx(row["train_loss_overlap"], abs=1e-6)


def test_two_tasks_may_read_one_head_and_one_target():
    tasks = [dict(name="origin", loss="ce"),
             dict(name="hard", loss="focal", head="origin", target="origin", weight=0.5)]
    batches = cars()
    row = Learner(Net(), batches, tasks, "sgd", lr=0.0).fit(1).history.epochs[0]
    assert row["train_loss_hard"] < row["train_loss_origin"]


# --- the data knows its tasks

def test_the_loss_comes_from_the_kinds_of_the_targets():
    tags = CARS + [dict(name="type", kind="labels", n=2, classes=["a", "b"])]  # a name that torch modules have, too
    loss_fn = make_tasks(None, tags)
    assert repr(loss_fn) == ("MultiTask(origin: CrossEntropyLoss(), mpg: MSELoss(missing=True), "
                             "type: BinaryCrossEntropy(missing=True))")
    labels = torch.tensor([[1.0, NAN], [0, 1]])
    pred = dict(origin=torch.zeros(2, 3), mpg=torch.zeros(2, 1), type=torch.zeros(2, 2))
    loss_fn(pred, dict(origin=torch.tensor([0, -100]), mpg=torch.tensor([[NAN], [3.0]]), type=labels))
    parts = {k: (round(v.item(), 6), n) for k, (_, v, n) in loss_fn.take_parts().items()}
    assert parts == dict(origin=(1.098612, 1), mpg=(9.0, 1), type=(0.693147, 3))


def test_a_learner_takes_the_loss_from_the_data_and_metrics_by_task():
    batches = cars()
    learn = Learner(Net(), Data(batches), None, "sgd", metrics=dict(origin="accuracy", mpg=["r2", "mae"]),
                    lr=0.0).fit(1)
    x, o, m = (torch.cat(v) for v in zip(*[(b[0], b[1]["origin"], b[1]["mpg"]) for b in batches]))
    out, seen = learn.predict(x), ~m.isnan()
    row = learn.history.epochs[0]
    assert row["valid_origin_accuracy"] == pytest.approx((out["origin"].argmax(1) == o)[o >= 0].float().mean().item(),
                                                         abs=1e-6)
    d = (out["mpg"] - m)[seen]
    assert row["valid_mpg_mae"] == pytest.approx(d.abs().mean().item(), abs=1e-6)
    spread = (m[seen] - m[seen].mean()).square().sum()
    assert row["valid_mpg_r2"] == pytest.approx(1 - (d.square().sum() / spread).item(), abs=1e-5)
    assert "loss       MultiTask(origin: CrossEntropyLoss(), mpg: MSELoss(missing=True)); metrics origin" in repr(learn)


def test_metrics_follow_a_model_that_gives_a_tuple_and_another_loss():
    batches = cars()
    learn = Learner(Net(tuple), (None, batches), TASKS,
                    metrics=dict(mpg="mae", origin=["accuracy", Accuracy(name="mine")]))
    first = learn.validate()
    learn.loss_fn = [TASKS[0], dict(name="mpg", loss=dict(name="l1", missing=True))]
    second = learn.validate()
    assert second["valid_mpg_mae"] == pytest.approx(second["valid_loss_mpg"], abs=1e-6) == first["valid_mpg_mae"]
    assert first["valid_origin_accuracy"] == first["valid_origin_mine"]


def test_a_task_weighs_classes_by_the_counts_of_the_data():
    known = [dict(CARS[0], class_counts=[10, 20, 30]), CARS[1]]
    loss_fn = make_tasks([dict(name="origin", loss=dict(name="ce", weight="balanced"))], known)
    assert loss_fn.losses[0].weight.tolist() == pytest.approx([2.0, 1.0, 2 / 3])
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, -100])
    loss = loss_fn(dict(origin=x), dict(origin=y))
    assert loss.item() == pytest.approx(F.cross_entropy(x, y, loss_fn.losses[0].weight).item(), abs=1e-6)
    assert loss_fn.take_parts()["origin"][2] == pytest.approx(2 + 1 + 2 / 3)


# --- what is shown and saved

def test_views_show_each_part(capsys):
    "Columns before the first epoch and after, in one order; text and html."
    class Looks(Callback):
        only_looks = True

        def on_fit_start(self, learn):
            self.feed = Feed(learn)
            self.early = self.feed.table()["columns"]
    looks, batches = Looks(), cars()
    learn = Learner(Net(), (batches, batches), TASKS, "sgd", metrics=dict(origin="accuracy"), lr=0.1)
    learn.default_cbs = [TextView]
    learn.fit(2, cbs=looks)
    table = looks.feed.table()
    over = ["", "", "", "origin", "origin", "origin", "mpg", "mpg", "", ""]
    names = ["epoch", "train loss", "valid loss", "train loss", "valid loss", "accuracy", "train loss", "valid loss",
             "lr", "time"]
    assert [c["name"] for c in looks.early] == [c["name"] for c in table["columns"]] == names
    assert [c.get("over", "") for c in looks.early] == [c.get("over", "") for c in table["columns"]] == over
    assert table["rows"][1][6] == learn.history.epochs[1]["train_loss_mpg"]
    html = to_html(looks.feed.snapshot()).replace("\u00a0", " ")
    assert all(f'{o}</span><br>{name}' in html for o, name in zip(over, names) if o)
    lines = to_text(looks.feed.snapshot()).splitlines()
    assert [line.split() for line in lines[2:4]] == [over[3:8], " ".join(names).split()]
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("note")]
    assert [line.split() for line in lines[:2]] == [over[3:8], [
        "epoch", "train_loss", "valid_loss", "train_loss", "valid_loss", "valid_accuracy", "train_loss", "valid_loss",
        "lr", "time"]]
    assert f"{learn.history.epochs[1]['train_loss_mpg']:.4f}" == lines[3].split()[6]
    assert lines[0].index("mpg") + 3 == lines[1].index("train_loss", lines[0].index("mpg") - 10) + 10  # ends align
    assert list(learn.history.to_frame().columns[:5]) == ["epoch", "step", "train_loss", "train_loss_origin",
                                                          "train_loss_mpg"]


def test_a_list_of_tasks_is_written_to_the_script():
    from ptwrap.all import DataModule
    data = DataModule.digits(seed=0)
    tasks = [dict(name="hard", loss=dict(name="focal", gamma=3)), dict(name="all", loss="cross_entropy", weight=0.5)]
    learn = Learner("mlp", data, tasks, seed=0, device="cpu").fit(steps=2)
    script = learn.to_script()
    assert "loss_fn=[{'name': 'hard', 'loss': {'name': 'focal', 'gamma': 3}}, {'name': 'all'" in script
    space = {}
    exec(script, space)
    assert list(space["learn"].history.steps["loss"]) == list(learn.history.steps["loss"])
    by_name = Learner("mlp", data, dict(name="multi_task", tasks=tasks), device="cpu")
    shown = "MultiTask(hard: FocalLoss(gamma=3), all: 0.5 * CrossEntropyLoss())"
    assert repr(by_name.loss_fn) == repr(learn.loss_fn) == shown


def test_state_goes_on_and_class_weights_are_part_of_it():
    batches = cars()
    tasks = [dict(name="origin", loss=dict(name="ce", weight=[1, 2, 3])), TASKS[1]]
    make = lambda: Learner(Net(), (batches, batches), tasks, "sgd", metrics=dict(origin="accuracy"), lr=0.1)
    first, second = make().fit(1), make()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    first.fit(1), second.fit(1)
    different = ("time_s",)
    for a, b in zip(first.history.epochs, second.history.epochs):
        assert {k: v for k, v in a.items() if k not in different} == {k: v for k, v in b.items() if k not in different}
    assert any("weight" in k for k in first.state_dict()["loss_fn"])


def test_single_losses_have_no_parts():
    batches = [[torch.randn(4, 2), torch.tensor([0, 1, 1, 0])]]
    learn = Learner(nn.Linear(2, 2), (batches, batches), "ce", "sgd").fit(1)
    assert list(learn.history.epochs[0]) == ["epoch", "step", "train_loss", "valid_loss", "lr", "time_s"]
    assert learn.compute(batches[0]).parts is None


def test_many_tasks_keep_their_names_whole():
    "Four tasks with long names: none is cut, in html and text."
    names = ["passenger_class", "survived_or_not", "age", "fare_in_pounds"]
    batches = [[torch.randn(4, 4), {name: torch.arange(4) % 2 for name in names}]]
    model = nn.Linear(4, 8)
    model.forward = lambda x: dict(zip(names, F.linear(x, model.weight, model.bias).split(2, 1)))
    learn = Learner(model, (batches, batches), [dict(name=n, loss="ce") for n in names], "sgd", lr=0.1, device="cpu",
                    metrics=dict.fromkeys(names, "accuracy"))
    feed = Feed(learn)
    learn.fit(2)
    for shown in (to_text(feed.snapshot()), to_html(feed.snapshot())):
        assert "…" not in shown and all(shown.count(name) >= 3 for name in names)


# --- what is wrong

def test_a_loss_on_classes_is_refused_for_a_task_that_is_a_number():
    data = Data(cars())
    for tasks, text in [
        ([dict(name="mpg", loss="ce")], "CrossEntropyLoss is for class numbers and the target 'mpg' is a number: use 'mse'"),
        ([dict(name="mpg", loss=nn.NLLLoss())], "NLLLoss is for class numbers and the target 'mpg' is a number"),
        ([dict(name="a", target="mpg", loss="ce")], "the target 'mpg' is a number"),
        ([dict(name="origin", loss="mse")], "MSELoss is for numbers and the target 'origin' holds class numbers: use 'cross_"),
    ]:
        with pytest.raises(LossError) as info:
            Learner(Net(), data, tasks)
        assert text in str(info.value)
    batches = [[x, dict(y, mpg=y["mpg"].nan_to_num())] for x, y in cars()]
    with pytest.raises(LossError, match="task 'mpg': cross entropy over one class is always 0"):
        Learner(Net(), batches, [TASKS[0], dict(name="mpg", loss="ce")], "sgd").fit(1)


@pytest.mark.parametrize("loss_fn", ["mse", dict(name="mse"), nn.MSELoss(), nn.MSELoss, F.mse_loss, "focal"], ids=str)
def test_one_loss_for_several_targets_is_refused_with_the_list(loss_fn):
    with pytest.raises(LossError) as info:
        Learner(Net(), Data(cars()), loss_fn)
    assert "is one loss and the data has 2 targets, origin (classes), mpg (number): give loss_fn=[" \
        "dict(name='origin', loss='cross_entropy'), dict(name='mpg', loss='mse')]" in str(info.value)


def test_a_function_of_your_own_may_read_all_targets():
    own = lambda pred, target: F.mse_loss(pred["mpg"], target["mpg"])
    learn = Learner(Net(), Data(cars(missing=False)), own, "sgd", lr=0.0).fit(1)
    assert learn.history.epochs[0]["train_loss"] > 0


@pytest.mark.parametrize("data", [Data(cars()), cars()], ids=["known", "unknown"])
def test_a_dictionary_by_task_is_a_list_of_tasks(data):
    given = dict(origin="ce", mpg=dict(name="mse", missing=True))
    learn = Learner(Net(), data, given, "sgd", device="cpu")
    assert repr(learn.loss_fn) == "MultiTask(origin: CrossEntropyLoss(), mpg: MSELoss(missing=True))"
    row = learn.fit(1).history.epochs[0]
    assert row["train_loss"] == pytest.approx(row["train_loss_origin"] + row["train_loss_mpg"], rel=0.5)
    learn.loss_fn = dict(origin="ce", mpg=dict(loss=dict(name="l1", missing=True), weight=0.5))
    assert repr(learn.loss_fn) == "MultiTask(origin: CrossEntropyLoss(), mpg: 0.5 * L1Loss(missing=True))"


def test_a_dictionary_by_task_with_a_wrong_name():
    with pytest.raises(ValueError, match="the data has no task 'orgin'; did you mean 'origin'?"):
        Learner(Net(), Data(cars()), dict(orgin="ce", mpg="mse"))


WRONG = {
    "empty": ([], TypeError, "tasks is []; give a list: [dict(name='origin', loss='cross_entropy'), ...]"),
    "no dict": (["ce"], TypeError, "tasks[0] is a str; give dict(name='origin', loss='cross_entropy', weight=1.0)"),
    "no name": ([dict(loss="ce")], TypeError, "tasks[0] has no name"),
    "key": ([dict(name="origin", loss="ce", wieght=2)], TypeError,
            "tasks[0] has no argument 'wieght'; did you mean 'weight'?"),
    "no loss": ([dict(name="origin")], TypeError, "task 'origin' has no loss, and the data does not say"),
    "weight": ([dict(name="origin", loss="ce", weight="1")], ValueError,
               "task 'origin': weight='1'; give a number of 0 or more"),
    "negative": ([dict(name="origin", loss="ce", weight=-1)], ValueError, "weight=-1; give a number of 0 or more"),
    "infinite": ([dict(name="origin", loss="ce", weight=math.inf)], ValueError, "weight=inf; give a number"),
    "twice": ([TASKS[0], TASKS[0]], ValueError, "two tasks are named 'origin'; to put two losses on one output"),
    "name of a loss": ([dict(name="origin", loss="cros_entropy")], LookupError, "did you mean 'cross_entropy'"),
    "argument of a loss": ([dict(name="origin", loss=dict(name="ce", wait=1))], TypeError,
                           "loss 'ce' has no argument 'wait'"),
    "a number as loss": ([dict(name="origin", loss=3)], TypeError, "loss_fn is a int; give a name"),
}


@pytest.mark.parametrize("tasks, error, text", WRONG.values(), ids=WRONG)
def test_wrong_tasks_are_refused_when_they_are_made(tasks, error, text):
    with pytest.raises(error) as info:
        Learner(Net(), cars(), tasks)
    assert text in str(info.value)


def test_an_error_in_the_loss_of_a_task_names_the_task():
    with pytest.raises(TypeError) as info:
        Learner(Net(), cars(), [TASKS[0], dict(name="mpg", loss=dict(name="huber", delt=1))])
    assert info.value.__notes__ == ["in task 'mpg'"]


def test_tasks_and_metrics_that_the_data_does_not_have():
    data = Data(cars())
    for tasks, metrics, error, text in [
        ([dict(name="mpq")], (), ValueError, "the data has no task 'mpq'; did you mean 'mpg'?"),
        (None, dict(orgin="accuracy"), ValueError, "metrics: there is no task 'orgin'; did you mean 'origin'?"),
        (None, "accuracy", TypeError,
         "metrics='accuracy' does not say for which task: give metrics=dict(origin='accuracy', ...)"),
        (None, dict(origin="acuracy"), LookupError, "unknown metric 'acuracy'"),
        (None, dict(origin=dict(name="f1", averag="micro")), TypeError, "metric 'f1' has no argument 'averag'"),
    ]:
        with pytest.raises(error) as info:
            Learner(Net(), data, tasks, metrics=metrics)
        assert text in str(info.value)


class Gives(nn.Module):
    "Returns what the test says."

    def __init__(self, make):
        super().__init__()
        self.make, self.w = make, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.make(x * self.w)


REFUSED = {
    "one tensor": (lambda x: x[:, :3], None,
                   "the model gives one tensor (8, 3) float32 and there are targets for 2 tasks"),
    "output missing": (lambda x: dict(origin=x[:, :3], mgp=x[:, :1]), None,
                       "task 'mpg': the model gives no 'mpg'; did you mean 'mgp'?"),
    "short tuple": (lambda x: (x[:, :3],), None,
                    "task 'mpg': the model gives 1 values for 2 tasks; give one a task, in the order"),
    "target missing": (lambda x: dict(origin=x[:, :3], mpg=x[:, :1]), lambda y: dict(origin=y["origin"]),
                       "task 'mpg': the batch has no 'mpg'"),
    "flat numbers": (lambda x: dict(origin=x[:, :3], mpg=x[:, :1]), lambda y: dict(y, mpg=y["mpg"][:, 0]),
                     "task 'mpg': MSELoss: prediction (8, 1) and target (8,); use target.reshape((8, 1))"),
    "float classes": (lambda x: dict(origin=x[:, :3], mpg=x[:, :1]), lambda y: dict(y, origin=y["origin"].float()),
                      "task 'origin': CrossEntropyLoss failed on prediction (8, 3) float32 and target (8,) float32"),
    "too few classes": (lambda x: dict(origin=x[:, :2], mpg=x[:, :1]),
                        lambda y: dict(y, origin=y["origin"].clamp(min=2)),
                        "Targets go up to 2, but the model has 2 outputs: it needs 3"),
}


@pytest.mark.parametrize("make, change, text", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_names_the_task(make, change, text):
    batches = [[x, y if change is None else change(y)] for x, y in cars()]
    learn = Learner(Gives(make), batches, TASKS, "sgd")
    with pytest.raises(LossError) as info:
        learn.fit(1)
    assert text in str(info.value) and learn.state.step == 0


def test_numbers_are_never_broadcast():
    "torch only warns where (N,) meets (N, 1), once: here it is an error in training and in validation."
    tasks = [TASKS[0], dict(name="mpg", loss="mse")]
    good = cars(missing=False)
    bad = [[x, dict(y, mpg=y["mpg"][:, 0])] for x, y in good]
    for data in ((bad, None), (good, bad)):
        with pytest.raises(LossError,
                           match=r"task 'mpg': MSELoss failed on prediction .*(?s:.*)target.reshape\(\(8, 1\)\)"):
            Learner(Net(), data, tasks, "sgd").fit(1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator")
def test_on_an_accelerator_the_numbers_are_those_of_the_cpu():
    batches, rows = cars(), []
    empty = [batches[0][0], dict(origin=batches[0][1]["origin"] * 0 - 100, mpg=batches[0][1]["mpg"] * NAN)]
    tasks = [dict(name="origin", loss=dict(name="ce", weight=[1, 2, 3])), TASKS[1]]
    model = Net()
    for device in ("cpu", "auto"):
        data = [*batches, empty]
        learn = Learner(copy.deepcopy(model), (data, data), tasks, "sgd", metrics=dict(origin="accuracy", mpg="mae"),
                        lr=0.1,
                        device=device).fit(2)
        rows.append((learn.history.epochs[-1], list(learn.history.steps["n"])))
    assert rows[0][1] == rows[1][1]
    for key, value in rows[0][0].items():
        if key != "time_s":
            assert rows[1][0][key] == pytest.approx(value, abs=1e-5)
