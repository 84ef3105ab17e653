"`fit` gives the numbers of a loop written by hand in plain PyTorch, to the bit, and does exactly what was asked."
import copy
import math
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from ptwrap.callback import Callback
from ptwrap.core import EmptyLoader, LossError, NonFinite, rng_state, set_rng_state
from ptwrap.data import DataModule, InMemoryLoader
from ptwrap.learner import Learner

N, SIZE, BATCHES = 30, 4, 8  # samples, batch size and batches: the last batch has 2 samples
OPTS = dict(
    adamw=lambda params: torch.optim.AdamW(params, lr=0.01),
    sgd=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
)


def samples(n: int = N, seed: int = 5) -> TensorDataset:
    "Inputs (n, 6) and classes 0 to 2."
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g))


def loader(n: int = N, **kwargs) -> DataLoader:
    return DataLoader(samples(n), **(dict(batch_size=SIZE, shuffle=True) | kwargs))


def valid_loader(n: int = 10) -> DataLoader:
    return DataLoader(samples(n, seed=6), batch_size=SIZE)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def plain() -> nn.Sequential:
    "No dropout and no batch norm: for tests of what is counted, not of what is learnt."
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def tensors(obj, path: str = "") -> dict:
    "Every leaf of a state dict by its path."
    if isinstance(obj, dict):
        return {k: v for key, value in obj.items() for k, v in tensors(value, f"{path}.{key}").items()}
    if isinstance(obj, (list, tuple)):
        return {k: v for i, value in enumerate(obj) for k, v in tensors(value, f"{path}.{i}").items()}
    return {path: obj}


def assert_same(a, b) -> None:
    "Two modules, optimizers or state dicts hold equal numbers, to the bit."
    a, b = (tensors(x if isinstance(x, dict) else x.state_dict()) for x in (a, b))
    assert a.keys() == b.keys()
    differ = [k for k in a if not (torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k])]
    assert differ == []


def losses(learn) -> list[float]:
    return list(learn.history.steps["loss"])


class Watch(Callback):
    "Every event in order, and the learning rate of each optimizer step."

    def __init__(self):
        self.names, self.rates = [], []

    def count(self, name: str) -> int:
        return self.names.count(name)

    def on_step_start(self, learn, out):
        self.names.append("on_step_start")
        self.rates.append(float(learn.opt.param_groups[0]["lr"]))


def _seen(name):
    return lambda self, learn, *args: self.names.append(name)


for _name in [n for n in vars(Callback) if n.startswith("on_") and n != "on_step_start"]:
    setattr(Watch, _name, _seen(_name))


# The loop by hand


def by_hand(opt_fn, epochs=3, accumulate=1, clip_norm=None, clip_value=None, amp=None, scaler=None, validate=False,
            sched_fn=None):
    "What a user of plain PyTorch writes. Returns losses, model, optimizer and what else there is to compare."
    torch.manual_seed(1)
    model, batches, check = net(), loader(), valid_loader()
    opt, loss_fn = opt_fn(model.parameters()), nn.CrossEntropyLoss()
    sched = sched_fn(opt) if sched_fn else None
    scaler = torch.amp.GradScaler("cpu", **(scaler or {})) if amp == torch.float16 else None
    seen, valid, scales = [], [], []
    for _ in range(epochs):
        model.train()
        todo, window = len(batches), []
        for x, y in batches:
            if not window:  # a new window: how many batches it will have
                window = [min(accumulate, todo)] * min(accumulate, todo)
            todo -= 1
            with torch.autocast("cpu", amp, enabled=amp is not None):
                loss = loss_fn(model(x), y)
            seen.append(loss.item())
            part = loss / window.pop()
            (scaler.scale(part) if scaler else part).backward()
            if window:
                continue
            if scaler:
                scaler.unscale_(opt)
            if clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            if clip_value:
                nn.utils.clip_grad_value_(model.parameters(), clip_value)
            if scaler:
                scaler.step(opt)
                before = scaler.get_scale()
                scaler.update()
                scales.append(scaler.get_scale())
                real = scales[-1] >= before
            else:
                opt.step()
                real = True
            if sched and real:
                sched.step()
            opt.zero_grad()
        if validate:
            model.eval()
            with torch.no_grad(), torch.autocast("cpu", amp, enabled=amp is not None):
                found = [(loss_fn(model(x), y).item(), len(y)) for x, y in check]
            valid.append(sum(v * n for v, n in found) / sum(n for _, n in found))
    return seen, model, opt, dict(valid=valid, scales=scales, sched=sched, scaler=scaler)


def by_learner(opt_fn, epochs=3, validate=False, amp=None, sched_fn=None, cbs=(), **kwargs):
    "The same with a `Learner`."
    torch.manual_seed(1)
    model = net()
    data = (loader(), valid_loader()) if validate else loader()
    name = {torch.float16: "fp16", torch.bfloat16: "bf16", None: None}[amp]
    return Learner(model, data, nn.CrossEntropyLoss(), opt_fn(model.parameters()), amp=name, sched=sched_fn, cbs=cbs,
                   device="cpu", **kwargs).fit(epochs)


KINDS = dict(
    plain={},
    accumulate=dict(accumulate=3),
    clip_norm=dict(clip_norm=0.1),
    clip_value=dict(clip_value=0.01),
    bf16=dict(amp=torch.bfloat16),
    validate=dict(validate=True),
    all=dict(accumulate=3, clip_norm=0.1, amp=torch.bfloat16, validate=True),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opt", OPTS)
def test_fit_is_the_loop_by_hand(opt, kind):
    seen, model, hand_opt, more = by_hand(OPTS[opt], **KINDS[kind])
    learn = by_learner(OPTS[opt], **KINDS[kind])
    assert losses(learn) == seen
    assert_same(learn.model, model)
    assert_same(learn.opt, hand_opt)
    valid = [row["valid_loss"] for row in learn.history.epochs if "valid_loss" in row]
    assert valid == pytest.approx(more["valid"], rel=1e-7)  # summed in another order


def test_the_comparison_can_fail():
    seen, model, _, _ = by_hand(OPTS["sgd"], accumulate=3)
    learn = by_learner(OPTS["sgd"], accumulate=2)
    assert losses(learn) != seen
    with pytest.raises(AssertionError):
        assert_same(learn.model, model)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("opt", [*OPTS, "fused"])
def test_fp16_skips_steps_as_the_scaler_by_hand_does(opt, accumulate):
    opt_fn = OPTS.get(opt, lambda params: torch.optim.AdamW(params, lr=0.01, fused=True))
    halve = lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, 0.7)
    kw = dict(amp=torch.float16, scaler=dict(init_scale=2.0**26, growth_interval=4), sched_fn=halve,
              accumulate=accumulate)
    seen, model, hand_opt, more = by_hand(opt_fn, **kw)
    learn = by_learner(opt_fn, **kw | dict(sched_fn=dict(name=halve, per="step")))
    steps = 3 * math.ceil(BATCHES / accumulate)
    skipped = sum(b < a for a, b in zip([2.0**26, *more["scales"]], more["scales"]))
    assert skipped > 1
    assert (learn.state.skipped, learn.state.step) == (skipped, steps - skipped)
    assert learn.sched.last_epoch == more["sched"].last_epoch == steps - skipped
    assert learn.runtime.scaler.state_dict() == more["scaler"].state_dict()
    assert losses(learn) == seen
    assert_same(learn.model, model)
    assert_same(learn.opt.state_dict()["state"], hand_opt.state_dict()["state"])


class WithLoss(nn.Module):
    "Takes keywords and returns its loss, as language models do."

    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, inputs, labels, scale=1.0):
        logits = self.body(inputs) * scale
        return dict(loss=F.cross_entropy(logits, labels), logits=logits)


class Dicts(torch.utils.data.Dataset):
    def __init__(self, n: int = N):
        self.rows = samples(n)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        x, y = self.rows[i]
        return dict(name=f"sample {i}", inputs=x, labels=y)


def test_dict_batches_go_in_as_keywords():
    torch.manual_seed(1)
    model, batches, seen = WithLoss(), DataLoader(Dicts(), batch_size=SIZE, shuffle=True), []
    opt = OPTS["adamw"](model.parameters())
    for _ in range(2):
        for b in batches:
            loss = model(inputs=b["inputs"], labels=b["labels"])["loss"]
            loss.backward()
            opt.step()
            opt.zero_grad()
            seen.append(loss.item())
    torch.manual_seed(1)
    mine, data = WithLoss(), DataLoader(Dicts(), batch_size=SIZE, shuffle=True)
    learn = Learner(mine, data, opt=OPTS["adamw"](mine.parameters()), device="cpu").fit(2)
    assert losses(learn) == seen
    assert_same(mine, model)
    assert list(learn.history.steps["n"]) == [4] * 7 + [2] + [4] * 7 + [2]


# Schedules


@pytest.mark.parametrize("opt", OPTS)
def test_one_cycle_is_torchs(opt):
    hand = lambda o: torch.optim.lr_scheduler.OneCycleLR(o, o.param_groups[0]["lr"], total_steps=3 * BATCHES)
    rates = []
    seen, model, _, _ = by_hand(OPTS[opt], sched_fn=lambda o: Noted(hand(o), rates))
    learn = by_learner(OPTS[opt], sched_fn="one_cycle", cbs=[watch := Watch()])
    assert watch.rates == rates[:-1]  # the last one is for a step that never comes
    assert losses(learn) == seen
    assert_same(learn.model, model)


class Noted:
    "A scheduler that notes the rate for each step."

    def __init__(self, sched, rates):
        self.sched, self.rates = sched, rates
        rates.extend(sched.get_last_lr())

    def step(self):
        self.sched.step()
        self.rates.extend(self.sched.get_last_lr())


def test_history_has_the_rate_that_each_step_used():
    learn = by_learner(OPTS["sgd"], sched_fn="one_cycle", cbs=[watch := Watch()])
    assert list(learn.history.steps["lr"]) == watch.rates


def test_history_has_the_rate_that_a_callback_set():
    class Ramp(Callback):
        def on_batch_start(self, learn, batch):
            learn.lr = 0.01 * (learn.state.batch + 1)

    learn = new().fit(1, cbs=[Ramp(), watch := Watch()])
    assert list(learn.history.steps["lr"]) == watch.rates == [0.01 * (i + 1) for i in range(BATCHES)]


@pytest.mark.parametrize("opt", OPTS)
def test_settings_after_a_scheduled_fit_are_those_before(opt):
    model = net()
    learn = Learner(model, loader(), "ce", OPTS[opt](model.parameters()), sched="one_cycle", device="cpu")
    before = copy.deepcopy(learn.opt.state_dict()["param_groups"])
    for _ in range(2):
        learn.fit(1)
        groups = learn.opt.state_dict()["param_groups"]
        assert [{k: g[k] for k in b} for g, b in zip(groups, before)] == before
    with pytest.raises(RuntimeError):
        learn.fit(1, cbs=[fail_at("on_batch_end")])
    assert learn.lr == before[0]["lr"]


@pytest.mark.parametrize("sched", ["linear", "one_cycle"])
def test_a_rate_held_in_a_tensor(sched):
    runs = []
    for lr in (0.5, torch.tensor(0.5)):
        torch.manual_seed(0)
        model = plain()
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        learn = Learner(model, loader(), "ce", opt, sched=sched, device="cpu").fit(2, cbs=[watch := Watch()])
        assert learn.lr == 0.5
        assert list(learn.history.steps["lr"]) == watch.rates
        runs.append(watch.rates)
    assert runs[1] == pytest.approx(runs[0], rel=1e-5)


def test_a_schedule_over_a_stream_needs_its_length():
    learn = new(DataLoader(Stream(20), batch_size=SIZE), sched="one_cycle")
    with pytest.raises(ValueError, match="batches_per_epoch"):
        learn.fit(2)
    assert learn.fit(2, batches_per_epoch=5).state.step == 10


def test_a_replaced_schedule_is_used():
    learn = Learner(plain(), loader(), "ce", "sgd", lr=0.1, sched="one_cycle", device="cpu")
    learn.sched = torch.optim.lr_scheduler.ConstantLR(learn.opt, 1.0)
    learn.fit(1, cbs=[watch := Watch()])
    assert watch.rates == [0.1] * BATCHES


def test_a_schedule_of_another_optimizer_is_an_error():
    model = plain()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    learn = Learner(model, loader(), "ce", opt, sched=torch.optim.lr_scheduler.StepLR(opt, 2), device="cpu")
    learn.opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="sched"):
        learn.fit(1)


# Callbacks


class Quiet(Callback):
    def on_batch_end(self, learn, out):
        self.last = out.loss.item()

    def on_epoch_end(self, learn, row):
        self.row = row


def fail_at(name: str, exc=RuntimeError) -> Callback:
    "A callback that raises at one event."
    def listener(self, learn, *args):
        raise exc("on purpose")
    return type("Fail", (Callback,), {name: listener})()


def test_the_order_of_callbacks_does_not_matter():
    runs = []
    for order in (1, -1):
        cbs = [Watch(), Quiet(), Quiet()][::order]
        runs.append(by_learner(OPTS["adamw"], validate=True, cbs=cbs))
    assert losses(runs[0]) == losses(runs[1])
    assert_same(runs[0].model, runs[1].model)


@pytest.mark.parametrize("name", ["on_fit_start", "on_batch_start", "on_log", "on_validate_end", "on_fit_end"])
def test_a_callback_that_raises_is_named_and_the_others_end(name):
    first, last = Watch(), Watch()
    learn = Learner(plain(), (loader(), valid_loader()), "ce", "sgd", device="cpu", cbs=[first, fail_at(name), last])
    with pytest.raises(RuntimeError, match="on purpose") as e:
        learn.fit(2)
    assert any(f"Fail.{name}" in note for note in e.value.__notes__)
    assert (first.count("on_fit_end"), last.count("on_fit_end")) == (1, 1)


def test_an_error_at_the_end_is_told_beside_the_first():
    learn = Learner(plain(), loader(), "ce", "sgd", device="cpu", cbs=[fail_at("on_fit_end")])
    with pytest.raises(ValueError, match="on purpose") as e:
        learn.fit(1, cbs=[fail_at("on_batch_end", ValueError)])
    assert "Fail.on_fit_end" in "\n".join(e.value.__notes__)


def test_an_error_at_the_end_is_raised_inside_an_except_block_too():
    learn = Learner(plain(), loader(), "ce", "sgd", device="cpu", cbs=[fail_at("on_fit_end")])
    with pytest.raises(RuntimeError, match="on purpose"):
        try:
            raise OSError("handled by the caller")
        except OSError:
            learn.fit(1)


def test_a_fit_that_cannot_start_leaves_no_callback_behind():
    learn = Learner(plain(), (loader(), valid_loader()), "ce", "sgd", device="cpu", sched="one_cycle")
    with pytest.raises(ValueError):
        learn.fit(minutes=1, cbs=[watch := Watch()])
    learn.validate()
    assert watch.names == []


def test_a_callback_given_twice_hears_once():
    learn = Learner(plain(), loader(), "ce", "sgd", device="cpu", cbs=[watch := Watch()])
    learn.fit(1, cbs=[watch])
    assert watch.count("on_batch_end") == BATCHES


def test_a_fit_inside_a_fit_is_an_error():
    class Again(Callback):
        def on_epoch_end(self, learn, row):
            learn.fit(1)

    watch = Watch()
    learn = Learner(plain(), loader(), "ce", "sgd", device="cpu")
    with pytest.raises(RuntimeError, match="fit"):
        learn.fit(1, cbs=[Again(), watch])
    assert (watch.count("on_fit_end"), len(learn.history.ends)) == (1, 1)


def test_a_process_that_exits_was_not_done():
    learn = Learner(plain(), loader(), "ce", "sgd", device="cpu")
    with pytest.raises(SystemExit):
        learn.fit(1, cbs=[fail_at("on_batch_end", SystemExit)])
    assert learn.history.ends[-1]["how"] != "done"


# How long a fit lasts


def test_fits_continue():
    whole = by_learner(OPTS["adamw"], 3, validate=True)
    parts = by_learner(OPTS["adamw"], 1, validate=True).fit(2)
    assert losses(parts) == losses(whole)
    assert_same(parts.model, whole.model)
    assert_same(parts.opt, whole.opt)
    assert [row["epoch"] for row in parts.history.epochs] == [1, 2, 3]
    drop = lambda rows: [{k: v for k, v in row.items() if k != "time_s"} for row in rows]
    assert drop(parts.history.epochs) == drop(whole.history.epochs)
    assert parts.history.validations == whole.history.validations
    assert [e["step"] for e in parts.history.ends] == [BATCHES, 3 * BATCHES]
    assert parts.state == whole.state


def new(data=None, **kwargs) -> Learner:
    return Learner(plain(), loader() if data is None else data, "ce", "sgd", lr=0.1, device="cpu", **kwargs)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps(accumulate):
    learn = new(accumulate=accumulate).fit(steps=7)
    assert (learn.state.step, learn.history.ends[-1]["how"]) == (7, "done")
    assert learn.fit(steps=1).state.step == 8
    assert sum(learn.history.steps["stepped"]) == 8


def test_steps_counts_real_steps():
    learn = new(amp="fp16", scaler=dict(init_scale=2.0**26), sched="one_cycle").fit(steps=7)
    assert learn.state.skipped > 1
    assert (learn.state.step, learn.sched.last_epoch) == (7, 7)


class Late(Callback):
    "Stops a fit that should have ended long ago."

    def on_fit_start(self, learn):
        self.end = time.perf_counter() + 3

    def on_batch_end(self, learn, out):
        if time.perf_counter() > self.end:
            learn.stop("too late")


def test_minutes():
    learn = new(cbs=[Late()]).fit(minutes=1e-9)
    assert learn.state.step == 1
    assert learn.history.ends[-1]["how"] == "done"
    learn = new(accumulate=3, cbs=[Late()]).fit(minutes=1e-9)
    assert (learn.state.step, len(learn.history)) == (1, 3)


@pytest.mark.parametrize("flush_s", [0.01, 0.1, 1.0])
def test_minutes_of_many_short_epochs(flush_s):
    learn = new(cbs=[Late()])
    learn.history.flush_s = flush_s
    for _ in range(2):
        started = time.perf_counter()
        learn.fit(minutes=0.3 / 60)
        assert learn.history.ends[-1]["how"] == "done"
        assert time.perf_counter() - started < 2


def test_batches_per_epoch():
    learn = new(accumulate=2).fit(2, batches_per_epoch=5)
    assert [row["step"] for row in learn.history.epochs] == [3, 6]
    assert len(learn.history) == 10
    assert new().fit(1, batches_per_epoch=100).state.step == BATCHES


def test_after_an_epoch_no_batch_of_the_next_is_done():
    seen = []

    class AtEnd(Callback):
        def on_epoch_end(self, learn, row):
            seen.append((learn.state.epoch, learn.state.batch))

    learn = new().fit(2, cbs=[AtEnd()])
    assert seen == [(1, 0), (2, 0)]
    assert learn.history.ends[-1]["batch"] == 0


@pytest.mark.parametrize("bad", [{}, dict(epochs=0), dict(epochs=1.5), dict(epochs=True), dict(steps=-1),
                                 dict(minutes=0)])
def test_what_cannot_be_asked(bad):
    learn = new()
    with pytest.raises((ValueError, TypeError), match="fit"):
        learn.fit(**bad)
    assert learn.state.step == 0


def validated(learn) -> list[int]:
    return [v["step"] for v in learn.history.validations]


def test_valid_every():
    data = (loader(), valid_loader())
    assert validated(new(data).fit(5, valid_every=2)) == [2 * BATCHES, 4 * BATCHES]
    learn = new(data).fit(3, valid_every=0)
    assert (validated(learn), "valid_loss" in learn.history.epochs[-1]) == ([], False)
    assert validated(new(data).fit(2, valid_every=0, valid_every_steps=3)) == [3, 6, 9, 12, 15]


def test_valid_every_steps_validates_no_weights_twice():
    learn = new((loader(), valid_loader())).fit(2, valid_every_steps=4)
    assert validated(learn) == [4, 8, 12, 16]


def test_validation_inside_an_epoch_goes_back_to_training():
    class Modes(Callback):
        def on_batch_start(self, learn, batch):
            assert all(m.training for m in learn.model.modules()) and torch.is_grad_enabled()

    learn = by_learner(OPTS["sgd"], 1, validate=True).fit(1, valid_every_steps=2, cbs=[Modes()])
    assert (len(learn.history), len(learn.history.validations) > 3) == (2 * BATCHES, True)


def test_best_is_never_a_training_loss_where_there_is_validation():
    learn = Learner(plain(), (loader(), valid_loader()), "ce", "sgd", lr=0.5, device="cpu").fit(8, valid_every=2)
    rows = {row["epoch"]: row["valid_loss"] for row in learn.history.epochs if "valid_loss" in row}
    assert learn.state.best_of == "valid_loss"
    assert (learn.state.best, learn.state.best_epoch) == min((v, e) for e, v in rows.items())


def test_several_validation_sets():
    learn = new((loader(), dict(near=valid_loader(), far=valid_loader(7))), metrics="accuracy").fit(1)
    names = {"valid_near_loss", "valid_far_loss", "valid_near_accuracy", "valid_far_accuracy"}
    assert names <= learn.history.epochs[-1].keys()
    assert learn.state.best == learn.history.epochs[-1][learn.state.best_of]
    assert learn.validate()["valid_far_loss"] == pytest.approx(learn.validate(valid_loader(7))["valid_loss"])


# Streams


class Stream(IterableDataset):
    "Samples without a length."

    def __init__(self, n: int):
        self.rows = samples(n)

    def __iter__(self):
        return iter([self.rows[i] for i in range(len(self.rows))])


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("cap", [None, 8, 20])
def test_a_stream_is_a_loader_without_length(accumulate, cap):
    known = new(DataLoader(samples(), batch_size=SIZE), accumulate=accumulate)
    torch.manual_seed(0)
    stream = new(DataLoader(Stream(N), batch_size=SIZE), accumulate=accumulate)
    stream.model.load_state_dict(known.model.state_dict())
    known.fit(3)
    stream.fit(3, batches_per_epoch=cap)
    assert losses(stream) == losses(known)
    assert_same(stream.model, known.model)
    assert stream.state.step == known.state.step


def test_a_list_and_a_generator_are_loaders():
    batches = [[x, y] for x, y in DataLoader(samples(), batch_size=SIZE)]
    assert new(batches).fit(2).state.step == 2 * BATCHES
    learn = new(b for b in batches)
    with pytest.raises(EmptyLoader, match="only once"):
        learn.fit(2)
    assert len(learn.history.epochs) == 1
    learn = new(b for b in batches).fit(2, batches_per_epoch=4)
    assert [row["step"] for row in learn.history.epochs] == [4, 8]


class Longer(list):
    "Batches that say they are two more than there are."

    def __len__(self):
        return super().__len__() + 2


class Fewer(DataLoader):
    "Leaves out one batch."

    def __iter__(self):
        return iter(list(super().__iter__())[1:])


@pytest.mark.parametrize("dl", [Longer([x, y] for x, y in loader()), Fewer(samples(), batch_size=SIZE)],
                         ids=["list", "DataLoader"])
def test_a_loader_that_gives_less_than_it_says_leaves_no_gradient_for_the_next_epoch(dl):
    class Clean(Callback):
        def on_epoch_start(self, learn):
            assert all(p.grad is None for p in learn.model.parameters())

    new(dl, accumulate=3).fit(2, cbs=[Clean()])


def test_a_validation_set_that_gives_nothing_is_an_error():
    batches = [[x, y] for x, y in valid_loader()]
    learn = new((loader(), (b for b in batches)))
    with pytest.raises(EmptyLoader):
        learn.fit(2)


# Saving and loading


@pytest.mark.parametrize("amp", [None, "fp16"])
def test_state_dict_continues(amp):
    def build():
        torch.manual_seed(1)
        dl = loader(generator=torch.Generator().manual_seed(3))
        model = net()
        kw = dict(amp=amp, scaler=dict(init_scale=2.0**22, growth_interval=5)) if amp else {}
        return Learner(model, (dl, valid_loader()), "ce", OPTS["adamw"](model.parameters()), device="cpu", **kw)

    whole = build().fit(2)
    first = build().fit(1)
    saved = copy.deepcopy(first.state_dict())
    order, rng = first.train_dl.generator.get_state(), rng_state()
    second = build()
    second.load_state_dict(saved)
    second.train_dl.generator.set_state(order)
    set_rng_state(rng)
    second.fit(1)
    assert losses(second) == losses(whole)
    assert_same(second.model, whole.model)
    assert_same(second.opt, whole.opt)
    assert second.runtime.state_dict() == whole.runtime.state_dict()
    assert second.state == whole.state


def test_state_dict_is_plain(tmp_path):
    learn = by_learner(OPTS["adamw"], 1, validate=True, sched_fn="one_cycle", cbs=[Quiet()])
    torch.save(learn.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert_same(loaded["model"], learn.model)
    assert loaded["history"]["steps"]["loss"].tolist() == losses(learn)


# Seeds and loaders


def digits(seed, **kwargs) -> Learner:
    return Learner("cnn", DataModule.digits(batch_size=256, **kwargs), seed=seed, device="cpu").fit(1)


def test_a_seed_gives_the_same_run():
    first, again, other = digits(42), digits(42), digits(43)
    assert losses(first) == losses(again)
    assert_same(first.model, again.model)
    assert losses(first) != losses(other)


@pytest.mark.parametrize("data_seed", [None, 7])
def test_a_seed_gives_the_same_run_on_data_used_before(data_seed):
    data = DataModule.digits(batch_size=256, seed=data_seed)
    runs = [losses(Learner("mlp", data, seed=42, device="cpu").fit(1)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_learners_that_share_their_data_do_not_disturb_each_other():
    data = DataModule.digits(batch_size=256)
    other, learn = (Learner("mlp", data, seed=seed, device="cpu") for seed in (1, 2))
    learn.fit(1)
    other.fit(1)
    learn.fit(1)
    alone = Learner("mlp", DataModule.digits(batch_size=256), seed=2, device="cpu").fit(1).fit(1)
    assert losses(learn) == losses(alone)


def test_data_of_any_class_that_has_loaders():
    class Own:
        def setup(self, stage="fit"):
            self.train_dl, self.valid_dl = loader(), valid_loader()

    data = Own()
    data.setup()
    assert new(data, seed=3).fit(1).state.step == BATCHES


def test_a_look_at_the_data_does_not_change_a_seeded_run():
    first, looked = (Learner("mlp", DataModule.digits(batch_size=256), seed=42, device="cpu") for _ in range(2))
    next(iter(looked.train_dl))
    assert losses(looked.fit(1)) == losses(first.fit(1))


LOADERS = dict(
    shuffle=dict(shuffle=True),
    order=dict(shuffle=False),
    drop=dict(shuffle=True, drop_last=True),
    generator=lambda: dict(shuffle=True, generator=torch.Generator().manual_seed(4)),
    sampler=lambda: dict(sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), N)),
)


@pytest.mark.parametrize("kind", LOADERS)
def test_in_memory_loader_is_dataloader(kind):
    runs = []
    for make in (DataLoader, lambda data, **kw: InMemoryLoader(*data.tensors, **kw)):
        torch.manual_seed(1)
        kw = LOADERS[kind]
        dl = make(samples(), batch_size=SIZE, **(kw() if callable(kw) else kw))
        model = net()
        learn = Learner(model, (dl, valid_loader()), "ce", OPTS["adamw"](model.parameters()), device="cpu").fit(3)
        runs.append((losses(learn), learn.model, torch.get_rng_state()))
    assert runs[0][0] == runs[1][0]
    assert_same(runs[0][1], runs[1][1])
    assert torch.equal(runs[0][2], runs[1][2])


# Freezing, compiling, replacing


def test_frozen_parameters_stay():
    learn = Learner(net(), loader(), "ce", "adamw", lr=0.1, device="cpu").fit(1)
    learn.model[0].requires_grad_(False)
    before = copy.deepcopy(learn.model[0].state_dict())
    learn.fit(1)
    assert_same(learn.model[0], before)
    learn.model[0].requires_grad_(True)
    learn.fit(1)
    assert not torch.equal(learn.model[0].weight, before["weight"])


@pytest.mark.parametrize("n", [N, N + 3])  # the second leaves a last batch of one sample, which the model can take
def test_all_frozen_is_an_error(n):
    maps = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(6, 3))
    learn = Learner(maps.requires_grad_(False), loader(n), "ce", "adamw", device="cpu")
    with pytest.raises(LossError, match="frozen"):
        learn.fit(1)


@pytest.mark.filterwarnings("ignore:.*leave a last batch of 1")
def test_a_last_batch_of_one_is_left_out():
    learn = Learner(net(), loader(N + 3), "ce", "sgd", device="cpu")
    before, rng = copy.deepcopy(learn.model.state_dict()), torch.get_rng_state()
    with pytest.warns(UserWarning, match="last batch of 1"):
        learn.fit(1, cbs=[start := Start()])
    assert_same(start.model, before)
    assert torch.equal(start.rng, rng)
    assert learn.state.step == BATCHES


class Start(Callback):
    def on_fit_start(self, learn):
        self.model, self.rng = copy.deepcopy(learn.model.state_dict()), torch.get_rng_state()


def test_a_batch_that_is_never_reached_gives_no_warning(recwarn):
    Learner(net(), loader(N + 3), "ce", "sgd", device="cpu").fit(1, batches_per_epoch=2)
    assert [str(w.message) for w in recwarn if "last batch of 1" in str(w.message)] == []


def test_compile():
    plain_run = by_learner(OPTS["sgd"], 2)
    compiled = by_learner(OPTS["sgd"], 2, compile=dict(backend="eager"))
    assert losses(compiled) == losses(plain_run)
    assert list(compiled.model.state_dict()) == list(plain_run.model.state_dict())
    assert type(compiled.model) is nn.Sequential


def test_a_replaced_model_needs_a_new_optimizer():
    learn = new((loader(), valid_loader()))
    learn.model = plain()
    with pytest.raises(ValueError, match="optimizer"):
        learn.fit(1)
    learn.opt = torch.optim.SGD(learn.model.parameters(), lr=0.1)
    before = copy.deepcopy(learn.model.state_dict())
    assert not torch.equal(learn.fit(1).model[0].weight, before["0.weight"])


def test_a_replaced_model_is_the_one_validated():
    learn = new((loader(), valid_loader()))
    learn.model = plain()
    x, y = valid_loader().dataset.tensors
    with torch.no_grad():
        wanted = F.cross_entropy(learn.model(x), y).item()
    assert learn.validate()["valid_loss"] == pytest.approx(wanted)


def test_replaced_parts_are_used():
    learn = new().fit(1)
    learn.loss_fn = lambda pred, target: F.cross_entropy(pred, target) * 0 + pred.sum() * 0 + 7
    learn.train_dl = loader(12)
    learn.opt = torch.optim.AdamW(learn.model.parameters(), lr=0.25)
    learn.fit(1)
    assert losses(learn)[BATCHES:] == [7.0] * 3
    assert learn.lr == learn.history.epochs[-1]["lr"] == 0.25
    assert len(learn.opt.state) == 4


def test_an_optimizer_of_some_parameters_leaves_no_gradient_on_the_others():
    model = plain()
    Learner(model, loader(), "ce", torch.optim.SGD(model[2].parameters(), lr=0.1), device="cpu").fit(1)
    assert [n for n, p in model.named_parameters() if p.grad is not None] == []


def test_outputs_hold_no_graph_after_backward():
    class Graph(Callback):
        def on_batch_end(self, learn, out):
            assert out.loss.grad_fn is None
            assert out.pred.grad_fn is None

    new().fit(1, cbs=[Graph()])


# Metrics


def test_validate_reports_what_the_outputs_give():
    model = net()
    far = lambda pred, target: (pred.argmax(1) - target).abs().float().mean()
    learn = Learner(model, (loader(), valid_loader(11)), "ce", "adamw", metrics=["accuracy", "f1", far], device="cpu")
    learn.fit(1)
    x, y = valid_loader(11).dataset.tensors
    model.eval()
    with torch.no_grad():
        logits = model(x)
    classes = logits.argmax(1)
    f1 = []
    for c in range(3):
        hit = ((classes == c) & (y == c)).sum().item()
        either = (classes == c).sum().item() + (y == c).sum().item()
        f1 += [2 * hit / either] if either else []
    got = learn.validate()
    assert got["valid_loss"] == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-6)
    assert got["valid_accuracy"] == pytest.approx((classes == y).float().mean().item())
    assert got["valid_f1"] == pytest.approx(sum(f1) / len(f1))
    assert got["valid_metric"] == pytest.approx((classes - y).abs().float().mean().item())
    row = learn.history.epochs[-1]
    assert {k: row[k] for k in got} == got


def test_train_loss_weighs_batches_by_their_size():
    learn = new().fit(1)
    n = [SIZE] * 7 + [2]
    assert learn.history.epochs[0]["train_loss"] == pytest.approx(sum(a * b for a, b in zip(losses(learn), n)) / N)


def test_a_batch_whose_targets_are_all_ignored_does_not_count():
    x, y = samples().tensors
    y = y.clone()
    y[8:12] = -100
    learn = new(DataLoader(TensorDataset(x, y), batch_size=SIZE)).fit(1)
    seen = losses(learn)
    assert math.isnan(seen[2]) and learn.state.step == BATCHES
    n = [4, 4, 0, 4, 4, 4, 4, 2]
    assert learn.history.epochs[0]["train_loss"] == pytest.approx(sum(a * b for a, b in zip(seen, n) if b) / 26)


# What is not finite


class Inf(torch.autograd.Function):
    "The identity, with a gradient that is infinite, NaN, or huge."

    @staticmethod
    def forward(ctx, x, value):
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.full_like(grad, ctx.value), None


class Fragile(nn.Module):
    "Its forward call number `at` (from 1) gives a NaN loss or a bad gradient of one parameter."

    def __init__(self, at: int, value: float = math.inf, loss: bool = False):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.last = nn.Linear(16, 3)
        self.calls, self.at, self.value, self.loss = 0, at, value, loss
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += self.training
        x = self.drop(self.norm(self.first(x)).relu())
        self.seen += 1
        bad = self.training and self.calls == self.at
        if bad and self.loss:
            return self.last(x) * math.nan
        weight = Inf.apply(self.last.weight, self.value) if bad else self.last.weight
        return F.linear(x, weight, self.last.bias)


class Before(Callback):
    "What there is before each batch."

    def __init__(self):
        self.kept = []

    def on_batch_start(self, learn, batch):
        model = {k: v.clone() for k, v in learn.model.state_dict().items()}
        self.kept.append(dict(model=model, opt=copy.deepcopy(learn.opt.state_dict()), rng=torch.get_rng_state()))


def fragile(at: int, accumulate: int = 1, value: float = math.inf, loss: bool = False, **kwargs):
    model = Fragile(at, value, loss)
    opt = OPTS["adamw"](model.parameters())
    return Learner(model, loader(), "ce", opt, accumulate=accumulate, device="cpu", **kwargs), Before()


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("at", [1, 5, 8, 10])
@pytest.mark.parametrize("loss", [True, False])
def test_a_bad_batch_leaves_nothing_behind(loss, at, accumulate):
    bad = at if loss or accumulate == 1 else {1: 3, 5: 6, 8: 8, 10: 11}[at]  # where the gradients are looked at
    learn, before = fragile(at, accumulate, loss=loss)
    with pytest.raises(NonFinite) as e:
        learn.fit(3, cbs=[before])
    place = (at - 1) % BATCHES
    start = at - place + place // accumulate * accumulate  # the first batch of the window
    kept, told = before.kept[start - 1], str(e.value)
    assert_same(learn.model, kept["model"])
    assert_same(learn.opt, kept["opt"])
    assert torch.equal(torch.get_rng_state(), kept["rng"])
    assert all(p.grad is None for p in learn.model.parameters())
    assert f"epoch {1 + (at - 1) // BATCHES}, batch {1 + (bad - 1) % BATCHES}," in told
    assert "the loss is nan" in told if loss else "last.weight" in told
    assert learn.history.ends[-1]["how"].startswith("NonFinite: ")
    assert len(learn.history.epochs) == (at - 1) // BATCHES
    learn.fit(1)
    assert all(v.isfinite().all() for v in learn.model.state_dict().values())


@pytest.mark.parametrize("clip", [dict(clip_norm=1.0), dict(clip_value=1.0)])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_clipping_hides_no_bad_gradient(value, clip):
    learn, before = fragile(5, value=value, **clip)
    with pytest.raises(NonFinite) as e:
        learn.fit(1, cbs=[before])
    assert "the gradient of last.weight is not finite" in str(e.value)
    assert_same(learn.model, before.kept[4]["model"])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_huge_gradients_do_not_stop_the_run(accumulate):
    model = Fragile(4, value=1e30)
    learn = Learner(model, loader(), "ce", "sgd", lr=1e-36, accumulate=accumulate, device="cpu").fit(1)
    norms = list(learn.history.steps["grad_norm"])
    assert math.inf in norms and learn.state.epoch == 1


def test_buffers_that_the_model_replaces_go_back():
    class Counts(Fragile):
        def forward(self, x):
            self.seen = self.seen + 10
            return super().forward(x)

    model = Counts(5, loss=True)
    learn = Learner(model, loader(), "ce", "sgd", device="cpu")
    with pytest.raises(NonFinite):
        learn.fit(1, cbs=[before := Before()])
    assert_same(model, before.kept[4]["model"])


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_buffer_goes_back_too(layout):
    model = Fragile(3, loss=True)
    model.register_buffer("graph", torch.eye(3).to_sparse(layout=layout))
    with pytest.raises(NonFinite, match="batch 3"):
        Learner(model, loader(), "ce", "sgd", device="cpu").fit(1, cbs=[before := Before()])
    saved = {k: v for k, v in before.kept[2]["model"].items() if k != "graph"}
    assert_same({k: v for k, v in model.state_dict().items() if k != "graph"}, saved)


def test_a_buffer_that_shares_its_memory_hides_no_bad_batch():
    model = Fragile(3, loss=True)
    model.register_buffer("mask", torch.ones(3).expand(4, 3))
    with pytest.raises(NonFinite, match="batch 3"):
        Learner(model, loader(), "ce", "sgd", device="cpu").fit(1)


class Words(nn.Module):
    "An embedding with sparse gradients; those of call number 3 are infinite."

    def __init__(self):
        super().__init__()
        self.table, self.last, self.calls = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3), 0

    def forward(self, i):
        self.calls += 1
        x = self.table(i)
        return self.last(Inf.apply(x, math.inf) if self.calls == 3 else x)


@pytest.mark.parametrize("clip", [{}, dict(clip_norm=1.0)])
def test_a_bad_sparse_gradient_is_named(clip):
    model, y = Words(), samples().tensors[1]
    dl = DataLoader(TensorDataset(torch.arange(N) % 10, y), batch_size=SIZE)
    learn = Learner(model, dl, "ce", torch.optim.SGD(model.parameters(), lr=0.1), device="cpu", **clip)
    with pytest.raises(NonFinite, match=r"table\.weight is not finite in epoch 1, batch 3"):
        learn.fit(1)


def test_a_small_loss_scale_is_no_error():
    learn = Learner(net(), loader(), "ce", "sgd", amp="fp16", scaler=dict(init_scale=0.5), device="cpu").fit(1)
    assert (learn.state.step, learn.state.skipped) == (BATCHES, 0)


def test_fp16_that_overflows_at_every_scale_stops():
    learn, before = fragile(1, amp="fp16", scaler=dict(init_scale=4.0))
    first, last = learn.model.first, learn.model.last
    learn.model.forward = lambda x: last(Inf.apply(first(x), math.inf))
    with pytest.raises(NonFinite, match="scale fell"):
        learn.fit(3, cbs=[before])
    assert_same(learn.model, before.kept[0]["model"])
    assert learn.state.step == 0
