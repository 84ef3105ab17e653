"Schedules: what each name gives, when it moves, and what it waits for."
import io
import math
from functools import partial

import pytest
import torch
import torch.optim.lr_scheduler as lrs
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ptwrap.all import *
from ptwrap.callback import Callback

torch.set_num_threads(1)
X = torch.randn(20, 4, generator=torch.Generator().manual_seed(5))
Y = (X[:, 0] > 0).long()
N = 5  # batches an epoch


def learner(sched=None, opt="sgd", lr=0.1, valid=True, **kwargs) -> Learner:
    torch.manual_seed(0)
    dl, model = DataLoader(TensorDataset(X, Y), batch_size=4), nn.Linear(4, 2)
    opt = opt(model.parameters()) if callable(opt) else opt
    lr = lr if isinstance(opt, (str, dict)) else None
    sched = sched(opt) if getattr(sched, "__name__", "") == "ready" else sched
    learn = Learner(model, (dl, dl) if valid else dl, "ce", opt, lr=lr, sched=sched, device="cpu", **kwargs)
    learn.default_cbs = []
    return learn


def ready(make):
    "Marks a function of the optimizer whose result is given to the learner as a ready scheduler."
    def ready(opt):
        return make(opt)
    return ready


SGD = partial(torch.optim.SGD, lr=0.1)


def used(learn) -> list[float]:
    return list(learn.history.steps["lr"])


def by_hand(make, moves: int, lr=0.1, each=1) -> list[float]:
    "The rates of a raw loop with torch's own scheduler, `each` steps to a move."
    opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    sched, found = make(opt), []
    for i in range(moves):
        found += [opt.param_groups[0]["lr"]] * each
        opt.step()
        if i < moves - 1:
            sched.step()
    return found


ONE_CYCLE = lambda opt: lrs.OneCycleLR(opt, 0.1, total_steps=2 * N, cycle_momentum=False)
BY_STEP = dict(
    one_cycle=("one_cycle", ONE_CYCLE), alias=("1cycle", ONE_CYCLE), onecycle=("OneCycle", ONE_CYCLE),
    one_cycle_arguments=(dict(name="one_cycle", pct_start=0.5, div_factor=10, max_lr=0.3), lambda o: lrs.OneCycleLR(
        o, 0.3, total_steps=2 * N, pct_start=0.5, div_factor=10, cycle_momentum=False)),
    cosine=("cosine", lambda opt: lrs.CosineAnnealingLR(opt, 2 * N)),
    cosine_arguments=(dict(type="cosine", eta_min=0.01), lambda opt: lrs.CosineAnnealingLR(opt, 2 * N, 0.01)),
    linear=("linear", lambda opt: lrs.LinearLR(opt, 1.0, 0.0, 2 * N)),
    polynomial=(dict(name="polynomial", power=2), lambda opt: lrs.PolynomialLR(opt, 2 * N, 2)),
    constant=("constant", lambda opt: lrs.ConstantLR(opt, 1.0)),
    function=(lambda opt, total_steps: lrs.LinearLR(opt, 1.0, 0.5, total_steps),
              lambda opt: lrs.LinearLR(opt, 1.0, 0.5, 2 * N)),
    partial=(partial(lrs.OneCycleLR, max_lr=0.1, cycle_momentum=False), ONE_CYCLE),
    one_cycle_in_a_function=(ONE_CYCLE, ONE_CYCLE),
    cyclic=(lambda opt: lrs.CyclicLR(opt, 0.01, 0.1, 3, cycle_momentum=False),
            lambda opt: lrs.CyclicLR(opt, 0.01, 0.1, 3, cycle_momentum=False)),
    asked_for=(dict(name="step", step_size=4, per="step"), lambda opt: lrs.StepLR(opt, 4)),
    asked_for_alone=(dict(name="step", per="step"), lambda opt: lrs.StepLR(opt, 3)),
    a_class=(dict(name=lrs.StepLR, step_size=4, per="step"), lambda opt: lrs.StepLR(opt, 4)),
)
BY_EPOCH = dict(
    step=(dict(name="step", step_size=1, gamma=0.5), lambda opt: lrs.StepLR(opt, 1, 0.5)),
    step_alone=("step", lambda opt: lrs.StepLR(opt, 1)),
    multistep=(dict(name="multistep", milestones=[1]), lambda opt: lrs.MultiStepLR(opt, [1])),
    multistep_alone=("multistep", lambda opt: lrs.MultiStepLR(opt, [1, 2])),
    exponential=("exponential", lambda opt: lrs.ExponentialLR(opt, 0.9)),
    cosine_restarts=(dict(name="cosine_restarts", T_0=3, eta_min=0.01),
                     lambda opt: lrs.CosineAnnealingWarmRestarts(opt, 3, 1, 0.01)),
    cosine_restarts_alone=("cosine_restarts", lambda opt: lrs.CosineAnnealingWarmRestarts(opt, 2)),
    function=(lambda opt: lrs.StepLR(opt, 1), lambda opt: lrs.StepLR(opt, 1)),
    of_epochs=(lambda opt, total_epochs: lrs.LinearLR(opt, 1.0, 0.0, total_epochs),
               lambda opt: lrs.LinearLR(opt, 1.0, 0.0, 2)),
    of_epochs_too=(lambda opt, epochs: lrs.LinearLR(opt, 1.0, 0.0, epochs), lambda o: lrs.LinearLR(o, 1.0, 0.0, 2)),
    lambda_lr=(partial(lrs.LambdaLR, lr_lambda=lambda e: 0.5**e), lambda o: lrs.LambdaLR(o, lambda e: 0.5**e)),
    asked_for=(dict(name="cosine", per="epoch"), lambda opt: lrs.CosineAnnealingLR(opt, 2)),
    asked_for_more=(dict(name="cosine", per="epoch", total_steps=4), lambda opt: lrs.CosineAnnealingLR(opt, 4)),
)


@pytest.mark.parametrize("sched, make", BY_STEP.values(), ids=BY_STEP)
def test_by_step(sched, make):
    learn = learner(sched).fit(2)
    assert used(learn) == by_hand(make, 2 * N)
    assert learn.lr == 0.1 and isinstance(learn.sched, lrs.LRScheduler)
    learn.fit(2)  # planned anew
    assert used(learn) == by_hand(make, 2 * N) * 2


@pytest.mark.parametrize("sched, make", BY_EPOCH.values(), ids=BY_EPOCH)
def test_by_epoch(sched, make):
    "One rate inside an epoch; the row of an epoch has the rate that was used in it."
    learn = learner(sched).fit(2)
    assert used(learn) == by_hand(make, 2, each=N)
    assert [row["lr"] for row in learn.history.epochs] == by_hand(make, 2)
    assert learn.lr == 0.1
    learn.fit(2)
    assert used(learn) == by_hand(make, 2, each=N) * 2


def test_every_name_is_in_the_table():
    tried = {str(s if isinstance(s, str) else s.get("name") or s["type"]).lower()
             for s, _ in [*BY_STEP.values(), *BY_EPOCH.values()] if isinstance(s, (str, dict))}
    assert set(SCHEDULES.names()) - tried == {"plateau"}


READY = dict(
    step=(lambda opt: lrs.StepLR(opt, 2), "epoch"), multistep=(lambda opt: lrs.MultiStepLR(opt, [2]), "epoch"),
    cosine=(lambda opt: lrs.CosineAnnealingLR(opt, 6), "epoch"),
    chain=(lambda opt: lrs.SequentialLR(opt, [lrs.LinearLR(opt), lrs.ExponentialLR(opt, 0.5)], [2]), "epoch"),
    chained=(lambda opt: lrs.ChainedScheduler([lrs.LinearLR(opt), lrs.ExponentialLR(opt, 0.5)]), "epoch"),
    one_cycle=(lambda opt: lrs.OneCycleLR(opt, 0.1, 20, cycle_momentum=False), "step"),
    chain_with_one_cycle=(lambda opt: lrs.SequentialLR(opt, [lrs.OneCycleLR(opt, 0.1, 20, cycle_momentum=False),
                                                             lrs.ExponentialLR(opt, 0.5)], [15]), "step"))


@pytest.mark.parametrize("make, per", READY.values(), ids=READY)
def test_a_ready_scheduler_goes_on_over_two_fits(make, per):
    learn = learner(ready(make), SGD).fit(2)
    kind = type(learn.sched).__name__
    when = "once an epoch; sched.per = 'step'" if per == "epoch" else "with each optimizer step; sched.per = 'epoch'"
    assert learn.plan.notes == [f"{kind} moves {when} changes that"]
    learn.fit(1)
    assert used(learn) == pytest.approx(by_hand(make, 3, each=N) if per == "epoch" else by_hand(make, 3 * N), rel=1e-12)


@pytest.mark.parametrize("given", ["attribute", "dict"])
def test_per_of_a_ready_scheduler(given):
    model = nn.Linear(4, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sched = lrs.StepLR(opt, 3)
    if given == "attribute":
        sched.per = "step"
    sched = sched if given == "attribute" else dict(name=sched, per="step")
    dl = DataLoader(TensorDataset(X, Y), batch_size=4)
    learn = Learner(model, dl, "ce", opt, sched=sched, device="cpu")
    assert used(learn.fit(2)) == by_hand(lambda opt: lrs.StepLR(opt, 3), 10)
    assert learn.plan.notes == ["StepLR moves with each optimizer step"]


def test_an_epoch_that_is_cut_by_stop_does_not_move_it_one_that_is_cut_by_steps_does():
    class Stops(Callback):
        def on_batch_end(self, learn, out):
            if learn.state.step == 7:
                learn.stop("enough")

    learn = learner(ready(lambda opt: lrs.StepLR(opt, 1)), SGD).fit(3, cbs=[Stops()])
    assert (learn.sched.last_epoch, len(learn.history.epochs), learn.lr) == (1, 1, pytest.approx(0.01))
    learn.fit(steps=7)
    assert (learn.sched.last_epoch, len(learn.history.epochs)) == (3, 3)
    assert used(learn) == pytest.approx([0.1] * 5 + [0.01] * 7 + [0.001] * 2)


def test_epochs_of_a_fit_in_steps():
    "Twelve steps are three epochs of five batches, so `step` takes a third of three."
    assert used(learner("step").fit(steps=12)) == pytest.approx([0.1] * 5 + [0.01] * 5 + [0.001] * 2)
    learn = learner("step", accumulate=2).fit(steps=6)  # three steps an epoch, so two epochs
    assert [row["lr"] for row in learn.history.epochs] == pytest.approx([0.1, 0.01])
    assert learn.plan.total_epochs == 2


def test_a_callback_sees_the_moved_schedule_at_the_end_of_an_epoch():
    "What it saves there is the state after the epoch."
    seen = []

    class Saves(Callback):
        def on_epoch_end(self, learn, row):
            seen.append((row["lr"], learn.sched.last_epoch, learn.lr))

    learner("step", cbs=[Saves()]).fit(3)
    assert [v for row in seen for v in row] == pytest.approx([0.1, 1, 0.01, 0.01, 2, 0.001, 0.001, 3, 0.0001])


# --- warm-up

WARM = {"steps": (4, 4), "share": (0.4, 4)}


@pytest.mark.parametrize("warmup, n", WARM.values(), ids=WARM)
def test_warm_up_before_a_schedule_of_steps(warmup, n):
    "The rest of the fit is the whole schedule; the first steps rise to where it starts."
    learn = learner(dict(name="cosine", warmup=warmup, warmup_start=0.2)).fit(2)
    rise = by_hand(lambda opt: lrs.LinearLR(opt, 0.2, 1.0, n), n + 1)[:n]
    fall = by_hand(lambda opt: lrs.CosineAnnealingLR(opt, 10 - n), 10 - n)
    assert used(learn) == pytest.approx(rise + fall, rel=1e-9)
    assert learn.lr == 0.1


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_warm_up_before_any_name(name):
    "The factors are 0.01, 0.34, 0.67; then the schedule has its own rates."
    warm, plain = (used(learner(dict(name=name) | kw).fit(2)) for kw in (dict(warmup=3), {}))
    assert [w / plain[0] for w in warm[:3]] == pytest.approx([0.01, 0.34, 0.67])
    by_epoch = name in ("step", "multistep", "exponential", "cosine_restarts", "plateau")
    assert warm[3:] == plain[3:] if by_epoch else warm[3] == plain[0]


def test_a_warm_up_across_epochs_under_a_schedule_of_epochs():
    learn = learner(dict(name="step", step_size=1, gamma=0.5, warmup=8, warmup_start=0.2)).fit(3)
    plan = [0.1] * 5 + [0.05] * 5 + [0.025] * 5
    factors = [0.2 + 0.1 * i for i in range(8)] + [1.0] * 7
    assert used(learn) == pytest.approx([a * b for a, b in zip(plan, factors)])
    assert learn.lr == 0.1


def test_a_warm_up_that_is_longer_than_the_fit_is_told():
    learn = learner(dict(name="one_cycle", warmup=20)).fit(1)
    assert learn.plan.notes == ["the warm-up takes 20 steps and this fit 5"] and learn.lr == 0.1


class Puts(Callback):
    def __init__(self, at):
        self.at = at

    def on_batch_end(self, learn, out):
        if learn.state.step in self.at:
            learn.commands.put("lr", self.at[learn.state.step])


NAMES_AND_MORE = [*SCHEDULES.names(), dict(name="cosine", warmup=4), dict(name="step", step_size=1, warmup=7),
                  dict(name="plateau", patience=0, threshold=10.0, warmup=7),
                  dict(name="plateau", patience=0, threshold=10.0)]


@pytest.mark.parametrize("sched", NAMES_AND_MORE, ids=str)
def test_every_rate_is_the_factor_by_hand_times_the_schedule(sched):
    factors = {2: 0.5, 5: 0.25, 12: 1.0}
    learn, plain = learner(sched, cbs=[Puts(factors)]).fit(3), learner(sched).fit(3)
    factor = [1.0] * 2 + [0.5] * 3 + [0.25] * 7 + [1.0] * 3
    assert used(learn) == pytest.approx([a * b for a, b in zip(used(plain), factor)], rel=1e-12)
    assert learn.lr == 0.1


def test_a_factor_over_a_ready_plateau():
    make = ready(lambda opt: lrs.ReduceLROnPlateau(opt, patience=0, threshold=10.0))
    learn = learner(make, SGD, cbs=[Puts({2: 0.5})]).fit(3)
    assert used(learn) == pytest.approx([0.1] * 2 + [0.05] * 3 + [0.005] * 5 + [0.0005] * 5)
    assert learn.lr == pytest.approx(0.0001)  # lowered once more at the end; the factor went with the fit


# --- B11: a plateau and its value

def scripted(*values):
    "A metric that says these, one a validation."
    left = iter(values)

    class Scripted:
        name = "scripted_loss"
        def reset(self): pass
        def update(self, pred, target): pass
        def compute(self): return next(left)

    return Scripted()


PLATEAU = dict(name="plateau", monitor="valid_scripted_loss", patience=0, factor=0.1)


def test_b11_without_its_value_it_is_an_error_before_the_first_batch():
    learn = learner(dict(name="plateau", monitor="val_loss"), valid=False)
    with pytest.raises(ValueError) as found:
        learn.fit(1)
    assert str(found.value) == ("the schedule watches 'val_loss', which this fit without validation does not give; its "
                                "epochs give train_loss; did you mean 'train_loss'?")
    assert learn.state.step == 0 and learn.history.ends == [] and learn.lr == 0.1
    assert learner("plateau", valid=False, metrics="accuracy").sched is None
    learn = learner(dict(name="plateau", monitor="valid_acuracy", mode="max"), metrics="accuracy")
    with pytest.raises(ValueError, match="epochs give train_loss, valid_loss, valid_accuracy; did you mean 'valid_acc"):
        learn.fit(1)
    with pytest.raises(ValueError, match="'valid_loss', which this fit without validation does not give"):
        learner("plateau").fit(1, valid_every=0)
    with pytest.raises(ValueError, match="'valid_loss', which this fit without validation"):
        learner(ready(lambda opt: lrs.ReduceLROnPlateau(opt)), SGD, valid=False).fit(1)


def test_b11_it_is_asked_where_an_epoch_validates():
    learn = learner(PLATEAU, metrics=[scripted(1.0, 2.0)]).fit(4, valid_every=2)
    assert learn.sched.last_epoch == 2 and learn.pace.moves == 4 and learn.sched.num_bad_epochs == 0
    assert [row["lr"] for row in learn.history.epochs] == [0.1] * 4
    assert learn.sched.get_last_lr() == pytest.approx([0.01])


def test_b11_nan_is_not_better():
    "As in torch: 1.0, then two NaN. The best stays 1.0, the rate falls twice."
    learn = learner(PLATEAU, metrics=[scripted(1.0, math.nan, math.nan)]).fit(3)
    assert [row["lr"] for row in learn.history.epochs] == pytest.approx([0.1, 0.1, 0.01])
    assert learn.sched.best == 1.0 and learn.sched.get_last_lr() == pytest.approx([0.001])
    assert learn.lr == 0.1  # planned for this fit; a ready one keeps what it reached:
    make = ready(lambda opt: vars(s := lrs.ReduceLROnPlateau(opt, patience=0)).update(monitor="val/scripted_loss") or s)
    learn = learner(make, SGD, metrics=[scripted(1.0, math.nan, math.nan)]).fit(3)
    assert learn.lr == pytest.approx(0.001)
    assert learn.plan.notes == ["ReduceLROnPlateau moves once an epoch, with valid_scripted_loss"]


@pytest.mark.parametrize("monitor", ["valid_loss", "val_loss", "val/loss", "valid/loss", "validation_loss", None])
def test_names_of_the_validation_loss(monitor):
    learn = learner(dict(name="plateau", monitor=monitor)).fit(1)
    assert learn.sched.best == learn.history.epochs[0]["valid_loss"] and learn.sched.mode == "min"


@pytest.mark.parametrize("monitor, mode", [("valid_accuracy", "max"), ("valid/f1", "max"), ("val_loss", "min"),
                                           ("train_loss", "min"), ("valid_mine_rmse", "min")])
def test_the_mode_is_that_of_the_name(monitor, mode):
    mine = {"mine_rmse": lambda pred, target: pred.mean(), "accuracy": "accuracy", "f1": "f1"}
    assert learner(dict(name="plateau", monitor=monitor), metrics=mine).fit(1).sched.mode == mode


def test_every_metric_with_a_number_has_a_known_direction():
    from ptwrap.schedule import better
    modes = {name: better(f"valid_{name}") for name in METRICS.names() if name != "confusion_matrix"}
    assert {name for name, mode in modes.items() if mode == "min"} >= {"mae", "rmse"}
    assert {"accuracy", "f1", "r2", "auroc", "top3", "ap", "iou", "dice"} <= {n for n, m in modes.items() if m == "max"}


def test_several_validation_sets():
    dl = DataLoader(TensorDataset(X, Y), batch_size=4)
    learn = learner("plateau")
    learn.valid_dl = dict(near=dl, far=dl)
    assert learn.fit(1).sched.best == learn.history.epochs[0]["valid_near_loss"]
    learn.sched = dict(name="plateau", monitor="valid_far_loss")
    assert learn.fit(1).sched.best == learn.history.epochs[1]["valid_far_loss"]


def test_a_fit_too_short_to_validate_says_so():
    learn = learner("plateau").fit(1, valid_every=5)
    assert learn.plan.notes == ["the schedule watches valid_loss, and no epoch of this fit validates: it stays"]


def test_a_value_that_is_no_number():
    learn = learner(dict(name="plateau", monitor="valid_confusion_matrix", mode="min"), metrics="confusion_matrix")
    with pytest.raises(ValueError, match="'valid_confusion_matrix', which is not in the epoch's row; it has the "
                                         "numbers train_loss, valid_loss"):
        learn.fit(1)


def test_a_validation_of_ones_own_may_give_more():
    class Own(Learner):
        def validate(self, dl=None):
            return super().validate(dl) | dict(valid_fid=3.0)

    dl = DataLoader(TensorDataset(X, Y), batch_size=4)
    learn = Own(nn.Linear(4, 2), (dl, dl), "ce", "sgd", sched=dict(name="plateau", monitor="valid_fid", mode="min"))
    assert learn.fit(1).sched.best == 3.0


# --- B01: the rate after a stop

def through_a_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def test_b01_a_schedule_of_epochs_goes_on():
    "Down at epochs 2 and 4; stopped after 3, continued in a new learner."
    make = lambda: learner(ready(lambda opt: lrs.MultiStepLR(opt, [2, 4])), SGD)
    first, second = make().fit(3), make()
    second.load_state_dict(through_a_file(first.state_dict()))
    second.fit(3)
    assert [row["lr"] for row in second.history.epochs] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert used(second) == used(make().fit(6))


def test_b01_one_cycle_goes_on():
    "Ten steps, stopped after six."
    make = lambda: learner(ready(lambda opt: lrs.OneCycleLR(opt, 0.1, total_steps=10, cycle_momentum=False)), SGD)
    first, second = make().fit(steps=6), make()
    second.load_state_dict(through_a_file(first.state_dict()))
    second.fit(steps=4)
    assert used(second)[6:] == pytest.approx([0.0388742, 0.01882583, 0.00495194, 4e-07], rel=1e-6)
    assert used(second) == used(make().fit(2))


def test_b01_a_fit_beyond_the_end_of_one_cycle_is_an_error_at_its_start():
    learn = learner(ready(lambda opt: lrs.OneCycleLR(opt, 0.1, total_steps=10, cycle_momentum=False)), SGD).fit(steps=6)
    with pytest.raises(ValueError, match="OneCycleLR has 4 of its 10 steps left, and this fit takes 5: fit less, make "
                                         "a new scheduler, or give sched='one_cycle', planned anew for each fit"):
        learn.fit(1)
    assert learn.state.step == 6
    learn.fit(minutes=0.2 / 60)  # of unknown length: it stays at its end
    assert learn.state.step > 10 and learn.lr == pytest.approx(4e-7)


# --- scripts

GROUPS = [dict(match="^1", lr_mult=0.1)]
SPECS = [dict(opt=dict(name="adamw", weight_decay=0.1, groups=GROUPS), sched=dict(name="step", gamma=0.5)),
         dict(opt=dict(type="sgd", momentum=0.9), sched=dict(name="cosine", warmup=3)),
         dict(opt="lion", sched=dict(name="plateau", monitor="val_loss", patience=0))]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_script_has_the_dictionaries(spec):
    learn = Learner("mlp", DataModule.digits(batch_size=400), lr=0.01, seed=1, device="cpu", **spec)
    learn.default_cbs = []
    learn.fit(2).fit(1)
    space = {}
    exec(text := learn.to_script(), space)
    assert f"opt={spec['opt']!r}" in text and f"sched={spec['sched']!r}" in text
    assert all(map(torch.equal, learn.model.state_dict().values(), space["learn"].model.state_dict().values()))


def test_the_learner_tells_its_schedule():
    row = lambda learn: next(line for line in repr(learn).splitlines() if "optimizer" in line)
    assert row(learner(dict(name="step", step_size=2))).endswith("SGD, lr 0.1, schedule step")
    assert row(learner(partial(lrs.StepLR, step_size=2))).endswith("schedule StepLR")


def test_a_scheduler_set_by_a_callback_at_the_start():
    class Sets(Callback):
        def on_fit_start(self, learn):
            learn.sched = lrs.StepLR(learn.opt, 1)

    assert used(learner(cbs=[Sets()]).fit(2)) == pytest.approx([0.1] * 5 + [0.01] * 5)


# --- wrong inputs

@pytest.mark.parametrize("sched, error, text", [
    ("cosin", LookupError, "unknown schedule 'cosin'; did you mean 'cosine'"),
    ("torch.optim.lr_scheduler.StepLR", LookupError, "StepLR'; did you mean 'step'"),
    ("cosine_aneal", LookupError, "unknown schedule 'cosine_aneal'; did you mean 'cosine"),
    (dict(name="CosineAnnealingLR", T_max=9), TypeError,
     "schedule 'cosine' has no argument 'T_max'; a fit knows its own length: leave it out"),
    (dict(name="LinearLR", end_factor=0.1), TypeError, "schedule 'linear' has no argument 'end_factor'; use end="),
    (dict(name="PolynomialLR", total_iters=5), TypeError, "no argument 'total_iters'; a fit knows its own length"),
    (dict(name="cosine", min_lr=0.1), TypeError, "schedule 'cosine' has no argument 'min_lr'; use eta_min="),
    (dict(name="cosine", warmup_epochs=1), TypeError, "no argument 'warmup_epochs'; use warmup="),
    (dict(name="StepLR", last_epoch=3), TypeError, "no argument 'last_epoch'; leave it out"),
    (dict(name="step", stepsize=2), TypeError, "schedule 'step' has no argument 'stepsize'; did you mean 'step_size'?"),
    (dict(name="cosine", monitor="valid_loss"), TypeError, "schedule 'cosine' has no argument 'monitor'"),
    (dict(step_size=2), TypeError,
     "schedule: a dictionary needs one key 'name' beside the arguments, this has the keys 'step_size'"),
    (dict(name="one_cycle", warm_up=5), TypeError, "did you mean 'warmup'"),
    (dict(name="cosine", warmup=-1), ValueError,
     "schedule 'cosine': warmup=-1; give a number of optimizer steps, or a share of the fit below 1"),
    (dict(name="cosine", warmup="5"), ValueError, "warmup='5'; give a number of optimizer steps"),
    (dict(name="cosine", warmup=2.5), ValueError, "warmup=2.5; give a number of optimizer steps"),
    (dict(name="cosine", warmup=5, warmup_start=2), ValueError, "warmup_start=2; give a factor above 0 and at most 1"),
    (dict(name="cosine", per="batch"), ValueError, "schedule 'cosine': per='batch'; give 'step' or 'epoch'"),
    (dict(name=partial(lrs.StepLR, step_size=2), stepsize=3), TypeError,
     "has no argument 'stepsize'; did you mean 'step_size'?"),
    (dict(name="step", step_size=0), ValueError,
     "schedule 'step': step_size=0, expected a whole number of epochs, 1 or more"),
    (dict(name="step", gamma="0.1"), TypeError, "schedule 'step': gamma='0.1', expected a number of 0 or more"),
    (dict(name="multistep", milestones=30), TypeError, "milestones=30, expected a list of epochs, such as [30, 60]"),
    (dict(name="plateau", per="step"), ValueError,
     "ReduceLROnPlateau waits for a value of the epoch: per='step' is not possible"),
    (dict(name="plateau", monitor="valid_fid"), ValueError, "give mode='min' or mode='max'"),
    (dict(name="plateau", mode="lower"), ValueError, "plateau: mode='lower'; give 'min' or 'max'"),
    (dict(name="plateau", patience=1.5), ValueError, "patience=1.5, expected a whole number of epochs, 0 or more"),
    (dict(name="plateau", cooldown=-1), ValueError, "cooldown=-1, expected a whole number of epochs, 0 or more"),
    (dict(name="plateau", threshold="x"), TypeError, "threshold='x', expected a number of 0 or more"),
    (dict(name="plateau", min_lr="x"), TypeError, "schedule 'plateau': min_lr='x', expected a number of 0 or more"),
    (dict(name="plateau", factor=2), ValueError, "schedule 'plateau' with factor=2: Factor should be < 1.0."),
    (dict(name="one_cycle", max_lr=-1), TypeError, "schedule 'one_cycle': max_lr=-1, expected a number above 0"),
    (dict(name="one_cycle", max_lr="0.1"), TypeError, "max_lr='0.1', expected a number above 0"),
    (dict(name="one_cycle", max_lr=[0.1, 0.2]), ValueError, "schedule 'one_cycle' with max_lr=[0.1, 0.2]: max_lr"),
    (dict(name="one_cycle", pct_start="0.3"), TypeError, "pct_start='0.3', expected a number of 0 or more"),
    (dict(name="one_cycle", pct_start=30), ValueError, "schedule 'one_cycle' with pct_start=30: Expected float between"),
    (dict(name="one_cycle", div_factor=0), TypeError, "div_factor=0, expected a number above 0"),
    (dict(name="one_cycle", anneal_strategy="cosine"), ValueError, "with anneal_strategy='cosine': anneal_strategy must"),
    (dict(name="cosine", eta_min=float("nan")), TypeError, "eta_min=nan, expected a number of 0 or more"),
    (dict(name="cosine", total_steps=0), ValueError, "total_steps=0; give a whole number, 1 or more"),
    (dict(name="cosine", total_steps="9"), ValueError, "total_steps='9'; give a whole number, 1 or more"),
    (dict(name="cosine", warmup=1.0), ValueError, "warmup=1.0; give a number of optimizer steps, or a share"),
    (dict(name="cosine", warmup=float("inf")), ValueError, "warmup=inf; give a number of optimizer steps"),
    (dict(name=None, warmup=3), TypeError, "a warm-up alone is dict(name='constant', warmup=100)"),
    (lrs.StepLR, TypeError, "the schedule StepLR needs step_size: dict(name=..., step_size=...)"),
    (dict(name=lrs.MultiStepLR, gamma=0.1), TypeError, "the schedule MultiStepLR needs milestones: "),
    (lambda opt, n: None, TypeError, "the schedule <lambda> needs n: dict(name=..., n=...); a fit gives the optimizer"),
    (lambda: None, TypeError, "the schedule <lambda> takes no argument; it should be a function of (opt)"),
    (3, TypeError, "sched is a int; give a name, a torch scheduler or a function of (opt)"),
], ids=str)
def test_wrong_inputs_at_once(sched, error, text):
    with pytest.raises(error) as found:
        learner(sched)
    assert text in str(found.value)


@pytest.mark.parametrize("sched, error, text", [
    (lambda opt: None, TypeError, "made a NoneType, expected a scheduler of torch"),
    (lambda opt: torch.optim.SGD(opt.param_groups[0]["params"]), TypeError,
     "made a SGD, expected a scheduler of torch"),
], ids=str)
def test_wrong_inputs_at_the_start_of_a_fit(sched, error, text):
    learn = learner(sched)
    with pytest.raises(error) as found:
        learn.fit(1)
    assert text in str(found.value) and learn.state.step == 0 and learn.lr == 0.1


@pytest.mark.parametrize("sched", [dict(name="cosine", eta_min=0.2), dict(name="cosine_restarts", eta_min=0.2),
                                   dict(name="plateau", min_lr=0.2)], ids=str)
def test_an_end_above_the_rate_is_an_error_at_the_start_of_a_fit(sched):
    "The rate would rise to it, or never fall."
    learn = learner(sched)
    with pytest.raises(ValueError, match="=0.2 is above the learning rate 0.1, which would not fall"):
        learn.fit(1)
    learn.lr = 0.3
    learn.fit(1)


def test_the_highest_rate_of_one_cycle_keeps_the_ratios_of_groups():
    opt = dict(name="sgd", groups=[dict(match="bias", lr_mult=0.1)])
    for max_lr, tops in {0.5: [0.5, 0.05], (0.5, 0.2): [0.5, 0.2], None: [0.1, 0.01]}.items():
        learn = learner(dict(name="one_cycle", max_lr=max_lr), opt).fit(2)
        assert used(learn) == by_hand(partial(lrs.OneCycleLR, max_lr=tops[0], total_steps=10, cycle_momentum=False), 10)
        assert learn.sched.get_last_lr() == pytest.approx([top / 25e4 for top in tops])


@pytest.mark.parametrize("warmup, rates", [(0, [0.08117449]), (1, [0.0008117449])])
def test_one_cycle_over_one_step_trains(warmup, rates):
    assert used(learner(dict(name="one_cycle", warmup=warmup)).fit(steps=1)) == pytest.approx(rates)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(TensorDataset(X, Y))


@pytest.mark.parametrize("sched, text", [
    ("polynomial", "the schedule polynomial needs the number of steps, which is unknown here: give fit(epochs), with "
                   "batches_per_epoch=... for a stream, or fit(steps=...)"),
    (dict(name="step", warmup=0.1, step_size=1), "warmup of the schedule step needs the number of steps"),
    (lambda opt, total_steps: None, "needs the number of steps"),
])
def test_a_stream_of_unknown_length(sched, text):
    learn = learner(sched, valid=False)
    learn.train_dl = DataLoader(Stream(), batch_size=4)
    with pytest.raises(ValueError) as found:
        learn.fit(2)
    assert text in str(found.value)


def test_epochs_are_known_where_steps_are_not():
    learn = learner("step", valid=False)
    learn.train_dl = DataLoader(Stream(), batch_size=4)
    assert used(learn.fit(2)) == pytest.approx([0.1] * 5 + [0.01] * 5)
    for sched in ("step", lambda opt, total_epochs: None):
        learn.sched = sched
        with pytest.raises(ValueError, match="schedule 'step' needs step_size=|needs the number of epochs"):
            learn.fit(minutes=1)


# --- names of torch and others

OTHER_NAMES = {
    "CosineAnnealingLR": "cosine", "cosineannealinglr": "cosine", "cosine_annealing": "cosine", "COSINE": "cosine",
    "CosineAnnealingWarmRestarts": "cosine_restarts", "cosine_with_restarts": "cosine_restarts", "CosineDecay": "cosine",
    "ReduceLROnPlateau": "plateau", "reduce_lr_on_plateau": "plateau", "ReduceOnPlateau": "plateau", "StepLR": "step",
    "step_lr": "step", "MultiStepLR": "multistep", "multi_step": "multistep", "ExponentialLR": "exponential",
    "exp": "exponential", "poly": "polynomial", "PolynomialLR": "polynomial", "LinearLR": "linear",
    "ConstantLR": "constant", "OneCycleLR": "one_cycle", "1Cycle": "one_cycle", "one-cycle": "one_cycle"}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_mean_ours(name):
    "The rates of two epochs are those of our own name."
    of = OTHER_NAMES[name]
    assert used(learner(name).fit(2)) == used(learner(of).fit(2))
    assert learner(dict(name=name)).sched_fn.make is SCHEDULES[of]


@pytest.mark.parametrize("name", ["none", "None", dict(name="none")], ids=str)
def test_none_is_no_schedule(name):
    learn = learner(name).fit(1)
    assert learn.sched is None and used(learn) == [0.1] * N
    assert used(learner(dict(name="none", warmup=2, warmup_start=0.5)).fit(1)) == pytest.approx([0.05, 0.075, 0.1, 0.1, 0.1])


def test_an_own_name_goes_before_the_others():
    @SCHEDULES.register("poly")
    def half(opt, total_steps):
        return lrs.LambdaLR(opt, lambda step: 0.5)
    try:
        assert used(learner("poly").fit(1)) == [0.05] * N
    finally:
        del SCHEDULES._items["poly"]
