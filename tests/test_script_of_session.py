"A session becomes a script, and the script ends with the same weights, to the last bit."
import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ptwrap.all import *


def net() -> nn.Module:
    "With batch norm and dropout: what is drawn or counted once too often shows in the weights."
    layers = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def digits(data=None, **kwargs) -> Learner:
    "Four batches an epoch. Its validation draws nothing at random."
    settings = dict(model=net, loss_fn="ce", opt="adamw", lr=0.02, seed=3, device="cpu") | kwargs
    learn = Learner(data=data or DataModule.digits(batch_size=400), **settings)
    learn.default_cbs = []
    return learn


def loaders() -> Learner:
    "Four batches an epoch, by loaders that draw from torch's generator at each start."
    data = DataModule.digits()
    train, valid = (TensorDataset(data.x[rows], data.y[rows]) for rows in (slice(0, 160), slice(160, 240)))
    return digits((DataLoader(train, 40, shuffle=True), DataLoader(valid, 40)))


SETUP = "from test_script_of_session import loaders\nlearn = loaders()  # seed=3"


def replayed(learn: Learner, **kwargs) -> Learner:
    space = {}
    exec(compile(learn.to_script(**kwargs), "script", "exec"), space)
    return space["learn"]


def check(learn: Learner, **kwargs) -> None:
    other = replayed(learn, **kwargs)
    a, b = learn.model.state_dict(), other.model.state_dict()
    assert (other.state.step, other.state.epoch) == (learn.state.step, learn.state.epoch)
    assert [k for k in a if not torch.equal(a[k], b[k])] == []
    assert other.lr == learn.lr


def on(event: str, act) -> Callback:
    return type("On", (Callback,), dict(only_looks=True) | {event: lambda self, learn, *_: act(learn)})()


def at(step: int, act, event: str = "on_batch_end") -> Callback:
    "Acts at the first event after an optimizer step."
    done = []
    return on(event, lambda learn: learn.state.step == step and not done and (done.append(1), act(learn)))


def puts(*commands) -> list[Callback]:
    "Commands (step, command, value), each when its step is done; step 0: as the fit starts."
    put = lambda c: lambda learn: learn.commands.put(*c)
    return [at(step, put(c), "on_batch_end" if step else "on_fit_start") for step, *c in commands]


def interrupt(learn):
    raise KeyboardInterrupt


def fail(learn):
    raise RuntimeError("out of\nluck")


def fit(learn: Learner, *args, cbs=(), **kwargs) -> None:
    "A cell: what it raises ends it, and the next one runs."
    try:
        learn.fit(*args, cbs=cbs, **kwargs)
    except (TrainingInterrupted, RuntimeError):
        pass


def by_hand(learn: Learner) -> None:
    "Factors before the first step, reset, at an epoch's last step and at a fit's; rates between fits and after."
    fit(learn, 2, cbs=puts((0, "lr", 0.5), (2, "lr", 1), (3, "lr", 0.3), (4, "lr", 2.0), (7, "lr", 0.1), (8, "lr", 3)))
    learn.lr = 0.01
    learn.lr = 0.015
    fit(learn, 1, cbs=puts((learn.state.step + 1, "lr", 0.7)))
    fit(learn, steps=5)
    learn.lr = 0.005


SETTINGS = [dict(opt=opt, sched=sched, accumulate=n) for opt in ("sgd", "adamw")
            for sched in (None, "one_cycle", "cosine", "constant") for n in (1, 3)]
FP16 = dict(amp="fp16", scaler=dict(init_scale=2.0**20, growth_interval=3))
SETTINGS += [dict(clip_norm=0.5, metrics="accuracy"), FP16, FP16 | dict(scaler=dict(init_scale=2.0**30))]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_changes_by_hand(settings):
    learn = digits(**settings)
    by_hand(learn)
    assert bool(learn.state.skipped) == ("amp" in settings)
    check(learn)


def paused(learn: Learner) -> None:
    looks = iter(["step", "step", "resume"])
    more = on("on_log", lambda learn: learn.commands.paused and learn.commands.put(next(looks)))
    fit(learn, 2, cbs=[*puts((3, "pause")), more])
    assert next(looks, None) is None


def stop(learn):
    learn.commands.put("stop")


def time_is_up(learn):
    learn.plan.deadline = 0.0


SESSIONS = dict(  # each is followed by a fit that shows whether order and dropout go on as they did
    paused=paused,
    stopped_inside=lambda learn: fit(learn, 3, cbs=puts((6, "stop"))),
    stopped_at_the_last_batch=lambda learn: fit(learn, 3, cbs=puts((8, "stop"))),
    stopped_in_validation=lambda learn: fit(learn, 3, cbs=[at(8, stop, "on_validate_start")]),
    stopped_and_changed=lambda learn: fit(learn, 3, cbs=puts((6, "lr", 0.5), (6, "stop"))),
    no_progress=lambda learn: fit(learn, 5, cbs=[at(8, lambda learn: learn.stop("no progress"), "on_epoch_end")]),
    stop_in_a_batch=lambda learn: fit(learn, 5, cbs=[at(6, lambda learn: learn.stop("enough"))]),
    interrupted=lambda learn: fit(learn, 3, cbs=[at(6, interrupt)]),
    interrupted_at_an_epochs_end=lambda learn: fit(learn, 3, cbs=[at(8, interrupt, "on_epoch_end")]),
    interrupted_twice=lambda learn: (fit(learn, 3, cbs=[at(2, interrupt)]), fit(learn, 3, cbs=[at(5, interrupt)])),
    failed=lambda learn: fit(learn, 3, cbs=[at(6, fail)]),
    refused=lambda learn: fit(learn, 2, cbs=[at(0, fail, "on_fit_start")]),
    steps=lambda learn: (fit(learn, steps=6), fit(learn, steps=3)),
    short_epochs=lambda learn: fit(learn, 2, batches_per_epoch=3, valid_every=2),
    validated_often=lambda learn: fit(learn, 2, valid_every_steps=3),
    minutes=lambda learn: fit(learn, minutes=9, cbs=[at(6, time_is_up)]),
    minutes_that_end_with_an_epoch=lambda learn: fit(learn, 5, minutes=9, cbs=[at(8, time_is_up)]),
    minutes_that_end_inside=lambda learn: fit(learn, 5, minutes=9, cbs=[at(6, time_is_up)]),
    minutes_and_steps=lambda learn: fit(learn, steps=5, minutes=9),
    minutes_and_a_stop=lambda learn: fit(learn, minutes=9, cbs=puts((6, "stop"))),
)


@pytest.mark.parametrize("make", [digits, loaders])
@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_sessions(make, session):
    learn = make()
    session(learn)
    learn.lr = 0.01
    fit(learn, 1)
    check(learn, **(dict(setup=SETUP) if make is loaders else {}))


BROKEN = dict(  # what was drawn at random after the last step is not drawn again
    inside_a_batch=lambda learn: fit(learn, 3, cbs=[at(5, interrupt, "on_backward_end")]),
    inside_the_first_batch=lambda learn: fit(learn, 3, cbs=[at(0, fail, "on_backward_end")]),
    inside_a_validation=lambda learn: fit(learn, 3, cbs=[at(8, interrupt, "on_validate_start")]),
    without_a_step=lambda learn: (fit(learn, 1), fit(learn, 1, cbs=[at(4, interrupt, "on_batch_start")])))


@pytest.mark.parametrize("session", BROKEN.values(), ids=BROKEN)
def test_a_fit_that_breaks_off_inside_a_batch_is_named(session):
    learn = digits()
    session(learn)
    learn.fit(1)
    assert "# that fit broke off inside a batch" in learn.to_script()
    assert replayed(learn).state.step == learn.state.step


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("name", ["inside_a_batch", "inside_the_first_batch"])
def test_an_unfinished_batch_leaves_nothing_behind(name, more):
    learn = digits()
    BROKEN[name](learn)
    for _ in range(more):
        learn.fit(1)
    check(learn)


def test_what_does_not_change_training_leaves_no_trace():
    learn = digits()
    paused(learn)
    text = learn.to_script()
    assert "learn.fit(2)\n" in text and "Replay" not in text and "pause" not in text
    assert text.count("learn.fit") == 1 and "0 changes by hand" in text


@pytest.mark.slow
def test_in_a_process_of_its_own(tmp_path):
    learn = digits(opt="sgd", sched="one_cycle")
    by_hand(learn)
    text = learn.to_script(tmp_path / "session.py")
    assert (tmp_path / "session.py").read_text(encoding="utf-8") == text
    code = "import runpy, torch\nlearn = runpy.run_path('session.py')['learn']\n"
    code += "torch.save(learn.model.state_dict(), 'weights')"
    env = os.environ | dict(PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), os.getcwd()]))
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True, timeout=60)
    weights = torch.load(tmp_path / "weights")
    assert all(map(torch.equal, weights.values(), learn.model.state_dict().values()))


def test_what_cannot_be_written_is_named():
    local = lambda: net()
    learn = digits(model=local, metrics={"mine": lambda pred, target: pred.mean()}, loss_fn=nn.CrossEntropyLoss())
    learn.fit(1)
    with pytest.raises(ValueError) as found:
        learn.to_script()
    for words in ("model is a function", "loss_fn is a CrossEntropyLoss", "metrics is a function", "setup="):
        assert words in str(found.value)
    assert "data" not in str(found.value).partition("Give")[0]
    for data in ({1, 2}, torch.zeros(2)):
        learn.given = dict(model="mlp", data=data)
        with pytest.raises(ValueError, match=f"data is a {type(data).__name__}"):
            learn.to_script()


def test_without_a_seed_it_warns():
    with pytest.warns(UserWarning, match=r"no seed.*Learner\(seed="):
        digits(seed=None).to_script()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "learn = Learner(" in digits().to_script()
        assert SETUP in digits(seed=None).to_script(setup=SETUP)


VALUES = [
    dict(lr=np.float64(0.01)), dict(clip_norm=float("inf")), dict(opt=partial(torch.optim.SGD, momentum=0.9)),
    dict(opt=torch.optim.RMSprop, metrics=["accuracy", "f1"]), dict(model=partial(mlp, hidden=[8]), clip_value=1e-3),
    dict(model="mlp", sched=partial(torch.optim.lr_scheduler.StepLR, step_size=2), loss_fn=nn.functional.cross_entropy)]


@pytest.mark.parametrize("settings", VALUES, ids=str)
def test_values(settings):
    check(digits(**settings).fit(1))


def test_numbers_from_numpy():
    learn = digits()
    learn.lr = np.logspace(-4, -2, 3)[1]
    check(learn.fit(steps=np.int64(3)))


def test_a_class_of_the_session_is_named():
    class Own(Learner):
        pass

    learn = digits()
    learn.__class__ = Own
    with pytest.raises(ValueError, match="its class Own is a type made in this session"):
        learn.to_script()


def test_a_history_without_notes():
    learn = digits().fit(1)
    del learn.history.ends[0]["asked"]
    with pytest.raises(ValueError, match="older version"):
        learn.to_script()


def test_settings_that_code_changes_between_fits():
    learn = digits().fit(1)
    learn.accumulate, learn.clip_norm = 2, 0.1
    check(learn.fit(1))
    assert "learn.accumulate = 2\nlearn.clip_norm = 0.1\n" in learn.to_script()
    learn.opt = "sgd"
    learn.fit(1)
    with pytest.warns(UserWarning, match="see its comments"):
        assert "# not in this script, which may end otherwise: another opt" in learn.to_script()
