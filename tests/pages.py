"Stands for the front end: a page that decodes messages, a notebook that keeps outputs, a clock that is moved by hand."
import itertools
import json
import threading
import time
from types import SimpleNamespace

import ipywidgets
import numpy as np
import pytest
import torch
from IPython import display as ipython_display
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ptwrap.all import *
from ptwrap.ui import live, meter, screen

WIDGETS = ipywidgets.widgets.widget._instances
DRAWN = dict(plot_history=live.plot_history, to_png=live.to_png)
HERE, HELLO, COMMAND = dict(type="here"), dict(type="hello"), dict(type="command")


class Page:
    "What a page knows: a full message starts it anew, a tick adds to it."

    def __init__(self):
        self.parts, self.said = {}, []  # said: (time, message, thread)

    def hear(self, msg: dict, buffers: list | None) -> None:
        msg = json.loads(json.dumps(msg, allow_nan=False))  # plain JSON, or it raises
        self.said.append((time.perf_counter(), msg, threading.get_ident()))
        if msg["type"] == "full":
            self.parts = dict.fromkeys(("epochs", "marks", "columns"), []) | dict(best=None)
            self.parts |= dict(meta={}, points={}, valid={}, rows={}, status={})
        assert msg["type"] in ("full", "tick") and self.parts
        p, points, table = self.parts, msg.get("points", dict(n=0, columns={})), dict(msg.get("table", {}))
        for name, column in points["columns"].items():
            p["points"].setdefault(name, []).extend(self.decoded(column, points["n"], buffers))
        for name, more in msg.get("valid", {}).items():
            p["valid"].setdefault(name, []).extend([x, float(np.array(v, float)), epoch] for x, v, epoch in more)
        for name, kind in dict(meta={}, status={}, epochs=[], marks=[]).items():
            p[name] = p[name] | msg.get(name, kind) if kind == {} else p[name] + msg.get(name, kind)
        p["rows"] |= {row[0]: row for row in table.pop("rows", [])}
        p.update(table)

    def decoded(self, column: dict, n: int, buffers: list) -> np.ndarray:
        if "buffer" in column:
            return np.frombuffer(buffers[column["buffer"]], dict(f4="<f4", i4="<i4")[column["dtype"]], n)
        return column["from"] + np.arange(n) if "from" in column else np.full(n, np.array(column["value"], float))

    def times(self, kind: str, part: str = "") -> list[float]:
        "Of messages of a kind that hold a part, or a part of the status."
        return [at for at, m, _ in self.said if m["type"] == kind and (not part or part in m | m.get("status", {}))]


class Notebook:
    "Stands for the front end: its pages, and what its outputs show in the end."

    def __init__(self):
        self.kind, self.pages, self.widgets, self.outputs, self.updates = "widgets", [], [], [], []
        self.fails = lambda place, n: None  # called before each message; may raise

    def display(self, shown, **kwargs):
        at = len(self.outputs)
        self.outputs.append(shown)
        return SimpleNamespace(update=lambda bundle, **kwargs: self.update(at, bundle))

    def update(self, at: int, bundle) -> None:
        self.fails("end", 0)
        self.outputs[at] = bundle
        self.updates.append(bundle)

    def say(self, content) -> None:
        "A message of the last page reaches the kernel."
        for hear in self.widgets[-1]._msg_callbacks.callbacks:
            hear(self.widgets[-1], content, [])

    def answer(self) -> Callback:
        return at(1, lambda learn: self.say(HERE))


@pytest.fixture
def notebook(monkeypatch):
    book, before = Notebook(), set(WIDGETS)

    class Recorder(screen.widget_class()):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.page = Page()
            book.pages.append(self.page)
            book.widgets.append(self)

        def send(self, content, buffers=None):
            book.fails("send", len(self.page.said))
            self.page.hear(content, buffers)

    drawn = dict(plot_history=lambda *args, **kwargs: None, to_png=lambda picture: bytes(24))  # drawing takes long
    for name, value in dict(display_kind=lambda: book.kind, **drawn).items():
        monkeypatch.setattr(live, name, value)
    monkeypatch.setattr(screen, "widget_class", lambda: Recorder)
    monkeypatch.setattr(ipython_display, "display", book.display)
    yield book
    for widget in [w for i, w in WIDGETS.items() if i not in before]:
        widget.close()


@pytest.fixture
def clock(monkeypatch):
    "A clock that only `sleep` and `Spy` move."
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(meter, "memory", lambda device: "1 GB")
    return now


def on(event: str, act) -> Callback:
    return type("On", (Callback,), dict(only_looks=True) | {event: lambda self, learn, *_: act(learn)})()


def at(n: int, act, event: str = "on_batch_end") -> Callback:
    "Acts once, at the nth event."
    count = itertools.count(1)
    return on(event, lambda learn: act(learn) if next(count) == n else None)


class Spy(Callback):
    "Lets time pass, counts for itself what the page must show, and lets the views tell the rest before they end."

    def __init__(self, clock, s=0.03, jitter=0.0):
        self.clock, self.s, self.jitter = clock, s, jitter
        self.beats, self.batches, self.epochs, self.valid, self.nan = 0, 0, [], {}, []

    def on_batch_start(self, learn, batch):
        self.beats += 1
        self.clock[0] += self.s + self.jitter * (self.beats % 7)

    def on_validate_batch_end(self, learn, out):
        self.on_batch_start(learn, None)

    def on_batch_end(self, learn, out):
        self.batches += 1
        if not out.loss.isfinite() and out.n > 0:
            self.nan.append(self.batches)

    def on_validate_end(self, learn, values):
        for key in [k for k in values if k.endswith("loss")]:
            name = key.removeprefix("valid_").removesuffix("loss").strip("_") or "valid"
            self.valid.setdefault(name, []).append([self.batches, values[key], learn.state.epoch + 1])

    def on_epoch_end(self, learn, row):
        self.epochs.append([row["epoch"], self.batches])

    def on_fit_end(self, learn):
        self.clock[0] += 2
        for view in [cb for cb in learn.active if isinstance(cb, LiveView)]:
            view.tick(learn, now=True)


def toy(**kwargs):
    "Ten training batches and three validation batches an epoch."
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    train = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    data = train, DataLoader(TensorDataset(x[:10], y[:10]), 4)
    settings = dict(model=net, data=data, loss_fn="ce", opt="sgd", lr=0.1, metrics="accuracy", device="cpu") | kwargs
    learn = Learner(**settings)
    learn.default_cbs = []
    return learn
