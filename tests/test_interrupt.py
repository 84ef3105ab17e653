"Whatever ends a fit, and wherever: the session is as it was before, and the next fit is a clean one."
import _thread
import copy
import gc
import multiprocessing
import threading
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ptwrap.callback import EVENTS, Callback
from ptwrap.core import LossError, TrainingInterrupted
from ptwrap.learner import Learner

BATCHES, VALID_BATCHES, EPOCHS = 5, 2, 3
PER_BATCH = ["on_batch_start", "on_backward_end", "on_step_start", "on_step_end", "on_batch_end"]
PARTS = ["loader", "forward", "backward", "loss", "metric", "opt", "sched"]
FINISHED = dict(on_fit_start=0, on_fit_end=EPOCHS)  # epochs in the history after the bomb; everywhere else 1


class Bomb:
    "Raises at one place: `bomb(place)` is called everywhere and goes off at the second call in epoch 2 or later."

    def __init__(self, place: str, exc: BaseException):
        self.place, self.exc, self.left, self.epoch = place, exc, 2, 0

    def __call__(self, place: str) -> None:
        if place == self.place and self.epoch >= 1 and self.left:
            self.left -= 1
            if not self.left:
                raise self.exc


class Boom(Callback):
    "Goes off at its event: at the second batch of epoch 2, or where it is rarer, at the first chance after epoch 1."

    def __init__(self, event: str, act):
        self.event, self.act, self.left = event, act, 2 if event in PER_BATCH else 1

    def hear(self, event: str, learn) -> None:
        if event == self.event and (len(learn.history.epochs) >= 1 or event == "on_fit_start"):
            self.left -= 1
            if not self.left:
                self.act(learn)


class Counts(Callback):
    "How often each event was heard."

    def __init__(self):
        self.seen, self.places = dict.fromkeys(EVENTS, 0), []

    def hear(self, event: str, learn) -> None:
        self.seen[event] += 1
        if event in ("on_epoch_start", "on_batch_end"):
            self.places.append(learn.state.batch)


for _name in EVENTS:
    for _cls in (Boom, Counts):
        setattr(_cls, _name, lambda self, learn, *args, _name=_name: self.hear(_name, learn))


class Samples(Dataset):
    "4 samples a batch."

    def __init__(self, n: int, bomb=lambda place: None):
        g = torch.Generator().manual_seed(n)
        self.x, self.y = torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)
        self.bomb = bomb

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.bomb("loader")
        return self.x[i], self.y[i]


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bomb):
        ctx.bomb = bomb
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.bomb("backward")
        return grad, None


class Net(nn.Module):
    def __init__(self, bomb):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.head, self.bomb = nn.Linear(8, 3), bomb

    def forward(self, x):
        x = self.head(self.body(x))
        self.bomb("forward")
        return Backward.apply(x, self.bomb)


class Armed(Callback):
    "Tells the bomb how many epochs are done."

    def __init__(self, bomb):
        self.bomb = bomb

    def on_epoch_start(self, learn):
        self.bomb.epoch = learn.state.epoch


def build(bomb=lambda place: None, amp: str | None = None, workers: int = 0) -> Learner:
    "A learner with a bomb in each of its parts, a module in evaluation mode and a hook of the user's."
    torch.manual_seed(1)
    model = Net(bomb)
    model.body[1].eval()
    model.head.register_forward_hook(lambda *args: None)

    def loss_fn(pred, target):
        bomb("loss")
        return nn.functional.cross_entropy(pred, target)

    def error(pred, target):
        bomb("metric")
        return (pred.argmax(1) != target).float().mean()

    class Opt(torch.optim.SGD):
        def step(self, closure=None):
            bomb("opt")
            return super().step(closure)

    class Sched(torch.optim.lr_scheduler.StepLR):
        def step(self, epoch=None):
            bomb("sched")
            super().step()

    sched = dict(name=Sched, step_size=2, gamma=0.5, per="step")
    train = DataLoader(Samples(4 * BATCHES, bomb), batch_size=4, shuffle=True, num_workers=workers)
    opt = Opt(model.parameters(), lr=0.1, momentum=0.9)
    learn = Learner(model, (train, DataLoader(Samples(7), batch_size=4)), loss_fn, opt, error, sched=sched, amp=amp,
                    device="cpu")
    learn.history.flush_s = 0  # on_log comes after each batch, and at the end of an epoch
    return learn


def session(learn) -> dict:
    "What a fit must put back."
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return dict(
        modes=[m.training for m in learn.model.modules()],
        grad=torch.is_grad_enabled(),
        hooks=[len(getattr(m, h)) for m in learn.model.modules() for h in hooks],
        grads=[n for n, p in learn.model.named_parameters() if p.grad is not None],
        param_hooks=[len(p._backward_hooks or ()) for p in learn.model.parameters()],
        lr=learn.lr,
        listeners=sum(map(len, learn.events.lists.values())),
        autocast=torch.is_autocast_enabled("cpu"),
    )


def assert_next_fit_is_clean(learn, amp: str | None = None) -> None:
    "One more epoch: each event once a batch, and the numbers of a new learner that starts from the same state."
    twin = build(amp=amp)
    twin.load_state_dict(copy.deepcopy(learn.state_dict()))
    epochs, steps = len(learn.history.epochs), learn.state.step
    runs = []
    for one in (learn, twin):
        torch.manual_seed(2)
        one.fit(1, cbs=[counts := Counts()])
        runs.append((one.model.state_dict(), list(one.history.steps["loss"])))
    expected = dict.fromkeys(EVENTS, 1) | dict.fromkeys(PER_BATCH, BATCHES) | dict(
        on_validate_batch_end=VALID_BATCHES, on_exception=0, on_log=BATCHES + 1)
    assert counts.seen == expected
    assert counts.places == list(range(BATCHES + 1))
    assert runs[0][1] == runs[1][1]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][0].values(), runs[1][0].values()))
    assert (len(learn.history.epochs), learn.state.step) == (epochs + 1, steps + BATCHES)
    mean = sum(list(learn.history.steps["loss"])[-BATCHES:]) / BATCHES
    assert learn.history.epochs[-1]["train_loss"] == pytest.approx(mean)
    assert learn.history.ends[-1]["how"] == "done"


def assert_only_finished_epochs(learn, n: int) -> None:
    rows = learn.history.epochs
    assert (learn.state.epoch, [row["epoch"] for row in rows]) == (n, list(range(1, n + 1)))
    assert all({"train_loss", "valid_loss", "valid_error"} <= row.keys() for row in rows)
    assert learn.state.step - sum(learn.history.steps["stepped"]) in (0, 1)  # the row comes after the step


def raiser(exc):
    def act(learn):
        raise exc
    return act


def ended(place: str, exc: BaseException) -> str:
    "What the history should say about the end."
    if place == "on_fit_end":
        return "done"
    return "interrupted" if isinstance(exc, KeyboardInterrupt) else f"{type(exc).__name__}: {exc}"


def break_at(place: str, exc: BaseException, amp: str | None = None):
    "A fit that breaks at a place. Returns the learner, the error, the session before, and the counts around the bomb."
    bomb = Bomb(place, exc)
    learn, around = build(bomb, amp), [Counts(), Counts()]
    before = session(learn)
    cbs = [around[0], Armed(bomb), Boom(place, raiser(exc)), around[1]]
    if place == "on_exception":
        cbs.insert(1, Boom("on_batch_end", raiser(ValueError("first"))))
    with pytest.raises(BaseException) as e:
        learn.fit(EPOCHS, cbs=cbs)
    return learn, e.value, before, around


def check(place: str, exc: BaseException, amp: str | None = None) -> tuple[Learner, BaseException]:
    learn, raised, before, around = break_at(place, exc, amp)
    assert session(learn) == before
    assert_only_finished_epochs(learn, FINISHED.get(place, 1))
    assert len(learn.history.ends) == 1
    for counts in around:
        assert counts.seen["on_fit_end"] == 1
        assert counts.seen["on_exception"] == (place != "on_fit_end")
    return learn, raised


@pytest.mark.parametrize("place", [e for e in EVENTS if e != "on_exception"] + PARTS)
def test_an_interrupt(place):
    learn, raised = check(place, exc := KeyboardInterrupt())
    assert learn.history.ends[-1]["how"] == ended(place, exc)
    assert_next_fit_is_clean(learn)
    assert isinstance(raised, TrainingInterrupted)
    assert "\n" not in str(raised)


@pytest.mark.parametrize("place", [e for e in EVENTS if e != "on_exception"] + PARTS)
def test_an_error(place):
    learn, raised = check(place, exc := RuntimeError("bomb"))
    seen = raised.__cause__ if place == "loss" else raised
    assert seen is exc
    if place in EVENTS:
        assert f"raised in callback Boom.{place}" in exc.__notes__
    if place == "loss":
        assert isinstance(raised, LossError)
    assert learn.history.ends[-1]["how"] == ended(place, raised)
    assert_next_fit_is_clean(learn)


@pytest.mark.parametrize("exc", [KeyboardInterrupt("bomb"), RuntimeError("bomb")], ids=["interrupt", "error"])
def test_a_second_fault_while_the_first_is_told(exc):
    learn, raised = check("on_exception", exc)
    assert "first" in str(raised)
    assert "bomb" in "\n".join(raised.__notes__)
    assert learn.history.ends[-1]["how"] == "ValueError: first"
    assert_next_fit_is_clean(learn)


def test_an_interrupt_stays_one_when_the_end_fails():
    learn = build()
    cbs = [Boom("on_batch_end", raiser(KeyboardInterrupt())), Boom("on_fit_end", raiser(RuntimeError("bomb")))]
    with pytest.raises(TrainingInterrupted) as e:
        learn.fit(EPOCHS, cbs=cbs)
    assert "bomb" in "\n".join(e.value.__notes__)
    assert learn.history.ends[-1]["how"] == "interrupted"


@pytest.mark.parametrize("exc", [KeyboardInterrupt(), RuntimeError("bomb")], ids=["interrupt", "error"])
@pytest.mark.parametrize("place", ["on_backward_end", "on_step_start", "on_step_end", "backward", "opt", "sched"])
def test_fp16(place, exc):
    learn, _ = check(place, exc, amp="fp16")
    assert_next_fit_is_clean(learn, amp="fp16")


@pytest.mark.parametrize("place", PER_BATCH)
def test_accumulation(place):
    learn = build()
    learn.accumulate = 2
    before = session(learn)
    with pytest.raises(TrainingInterrupted):
        learn.fit(EPOCHS, cbs=[Boom(place, raiser(KeyboardInterrupt()))])
    learn.accumulate = 1
    assert session(learn) == before
    assert_next_fit_is_clean(learn)


@pytest.mark.parametrize("place", [e for e in EVENTS if e not in ("on_exception", "on_fit_end")])
def test_stop(place):
    learn = build()
    before = session(learn)
    learn.fit(EPOCHS, cbs=[counts := Counts(), Boom(place, lambda learn: learn.stop("enough"))])
    assert session(learn) == before
    whole = dict.fromkeys([*PER_BATCH, "on_epoch_start", "on_epoch_end", "on_log"], 1) | dict(on_fit_start=0)
    assert_only_finished_epochs(learn, whole.get(place, 2))
    assert learn.history.ends[-1]["how"] == "stopped: enough"
    assert (counts.seen["on_fit_end"], counts.seen["on_exception"]) == (1, 0)
    if place in PER_BATCH:  # the second batch of epoch 2 is the last
        assert learn.state.step == BATCHES + 2
    assert_next_fit_is_clean(learn)


def test_a_second_interrupt_while_the_fit_ends():
    learn = build()
    real = learn.runtime.reset
    learn.runtime.reset = lambda: raiser(KeyboardInterrupt())(learn)
    with pytest.raises(KeyboardInterrupt):
        learn.fit(EPOCHS, cbs=[Boom("on_batch_end", raiser(KeyboardInterrupt()))])
    learn.runtime.reset = real
    assert_next_fit_is_clean(learn)


def test_an_interrupt_before_the_fit_starts():
    learn = build()
    learn.zero_grad = lambda: raiser(KeyboardInterrupt())(learn)
    before = session(learn)
    with pytest.raises(KeyboardInterrupt):
        learn.fit(EPOCHS, cbs=[Counts()])
    del learn.zero_grad
    assert session(learn) == before
    assert_next_fit_is_clean(learn)


def test_stop_waits_for_the_end_of_the_window():
    learn = build()
    learn.accumulate = 3
    learn.fit(EPOCHS, cbs=[Boom("on_batch_start", lambda learn: learn.stop())])  # the second of three
    assert (learn.state.step, len(learn.history)) == (2 + 1, BATCHES + 3)
    assert learn.history.ends[-1]["how"] == "stopped: by hand"


def test_stop_at_the_last_batch_ends_the_epoch():
    class Last(Callback):
        def on_batch_end(self, learn, out):
            if learn.state.batch == BATCHES:
                learn.stop("enough")

    learn = build().fit(EPOCHS, cbs=[Last()])
    assert_only_finished_epochs(learn, 1)


def test_grad_mode_is_put_back():
    learn = build()
    with torch.no_grad():
        learn.fit(1)
        assert not torch.is_grad_enabled()
        with pytest.raises(TrainingInterrupted):
            learn.fit(2, cbs=[Boom("on_batch_end", raiser(KeyboardInterrupt()))])
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert len(learn.history.epochs) == 1


@pytest.mark.parametrize("place", ["forward", "loss", "metric", "on_validate_batch_end"])
def test_validate_alone(place):
    exc = KeyboardInterrupt()
    bomb = Bomb(place, exc)
    learn = build(bomb)
    bomb.epoch, before = 1, session(learn)
    if place == "on_validate_batch_end":
        learn.add(Boom(place, raiser(exc)))
        learn.history.epochs.append(dict(epoch=1))
        before = session(learn)
    with pytest.raises(KeyboardInterrupt):
        learn.validate()
    assert session(learn) == before
    assert learn.history.validations == []


def test_the_message_says_where():
    learn = build()
    with pytest.raises(TrainingInterrupted, match="in epoch 2 after step 7;"):
        learn.fit(EPOCHS, cbs=[Boom("on_batch_end", raiser(KeyboardInterrupt()))])
    assert learn.history.ends[-1].items() >= dict(how="interrupted", epoch=1, batch=2, step=7).items()


def test_the_message_after_a_finished_epoch_does_not_name_the_next():
    with pytest.raises(TrainingInterrupted) as e:
        build().fit(EPOCHS, cbs=[Boom("on_epoch_end", raiser(KeyboardInterrupt()))])
    assert "in epoch 2" not in str(e.value)


def test_an_interrupt_keeps_nothing_alive():
    bomb = Bomb("forward", KeyboardInterrupt())
    learn = build(bomb)
    try:
        learn.fit(EPOCHS, cbs=[Armed(bomb)])
    except TrainingInterrupted as exc:
        chain = [exc.__cause__, exc.__context__]
    assert chain == [None, None]


# Worker processes


class InWorkers(Samples):
    "For one sample it raises, for another it takes its time."

    def __init__(self, bad: int | None = None, slow: int | None = None):
        super().__init__(40)
        self.bad, self.slow = bad, slow

    def __getitem__(self, i):
        if i == self.bad:
            raise RuntimeError("bad sample")
        if i == self.slow:
            time.sleep(3)
        return super().__getitem__(i)


class At(Callback):
    "Does something after batch 2."

    def __init__(self, act):
        self.act = act

    def on_batch_end(self, learn, out):
        if learn.state.batch == 2:
            self.n_workers = len(multiprocessing.active_children())
            self.act(learn)


def left_over(seconds: float = 10) -> list:
    "Worker processes that are still there after so many seconds; they are ended then."
    end = time.monotonic() + seconds
    while (alive := multiprocessing.active_children()) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    for process in alive:
        process.terminate()
    return alive


WAYS = dict(
    interrupt=raiser(KeyboardInterrupt()),
    waiting=lambda learn: threading.Timer(0.5, _thread.interrupt_main).start(),  # while the loop waits for a batch
    error=raiser(RuntimeError("bomb")),
    stop=lambda learn: learn.stop(),
    sample=lambda learn: None,
)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_no_worker_outlives_the_fit(way):
    learn, error = build(), None
    data = InWorkers(bad=17 if way == "sample" else None, slow=17 if way == "waiting" else None)
    learn.train_dl = DataLoader(data, batch_size=4, num_workers=2)
    try:
        learn.fit(1, cbs=[at := At(WAYS[way])])
    except (TrainingInterrupted, RuntimeError) as exc:
        error = exc  # kept, as a notebook keeps the last error
    assert at.n_workers == 2
    assert left_over() == []
    assert (error is None) == (way == "stop")
