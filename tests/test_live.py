"The live view, decoded as a page decodes it; how it ends, what happens when it fails, what stays in a notebook."
import itertools
import json
import math
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import ipywidgets
import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pages import *
from ptwrap.all import *
from ptwrap.ui import live, meter, screen
from ptwrap.ui.feed import Feed
from ptwrap.ui.static import to_html, to_text

class Stream(IterableDataset):
    def __iter__(self):
        return iter([(x, 1) for x in torch.randn(36, 4, generator=torch.Generator().manual_seed(3))])


class Poisoned(nn.CrossEntropyLoss):
    "Its loss is NaN in the 7th and the 12th batch; its gradient is good."
    seen = 0

    def forward(self, pred, target):
        self.seen += torch.is_grad_enabled()
        return super().forward(pred, target) + (math.nan if self.seen in (7, 12) and torch.is_grad_enabled() else 0)


def ignored():
    "The third and the last of ten batches have no target."
    return [(torch.randn(4, 4), torch.full((4,), -100) if i in (2, 9) else torch.arange(4) % 3) for i in range(10)]


def several():
    batch = torch.randn(8, 4), torch.arange(8) % 3
    return [batch] * 10, {"valid": [batch], "<b>new</b>": [batch] * 2}


KINDS = dict(  # arguments of the learner and of fit
    plain=({}, {}), one_cycle=(dict(sched="one_cycle", opt="adamw"), {}), accumulate=(dict(accumulate=3), {}),
    valid_every=({}, dict(valid_every=2)), valid_every_steps=({}, dict(valid_every_steps=4)),
    both=(dict(accumulate=3), dict(valid_every_steps=2)), several=(dict(data=several), {}),
    stream=(dict(data=lambda: (DataLoader(Stream(), 4), None)), {}), steps=({}, dict(steps=17)),
    nan=(dict(loss_fn=Poisoned, check_finite=False), {}), ignored=(dict(data=lambda: (ignored(), None)), {}))


def made(kind: str, clock, s=0.03, jitter=0.0):
    settings, spy = KINDS[kind][0], Spy(clock, s, jitter)
    return toy(cbs=[spy], **{k: v() if callable(v) else v for k, v in settings.items()}), spy, KINDS[kind][1]


def same(a, b) -> bool:
    return all(map(torch.equal, a.model.state_dict().values(), b.model.state_dict().values()))


def check(page: Page, learn, spy: Spy, first: int = 0, epoch: int = 0) -> None:
    "The page knows the history from a row and an epoch on, to the last float32."
    steps, p = learn.history.steps, page.parts
    assert p["meta"]["x0"] == first
    for name in ("loss", "grad_norm", "lr", "step"):
        np.testing.assert_array_equal(np.array(p["points"][name], "f4"), np.array(steps[name][first:], "f4"), name)
    valid = {k: [row for row in rows if row[0] > first] for k, rows in spy.valid.items()}
    np.testing.assert_equal(p["valid"], {k: rows for k, rows in valid.items() if rows})
    assert p["epochs"] == [e for e in spy.epochs if e[0] > epoch]
    assert [m["x"] for m in p["marks"] if m["kind"] == "nan"] == [x for x in spy.nan if x > first]
    keys, rows = [c["key"] for c in p["columns"]], learn.history.epochs[epoch:]
    sent = lambda v: "NaN" if isinstance(v, float) and math.isnan(v) else v
    assert list(p["rows"].values()) == [[sent(row.get(k)) for k in keys] for row in rows]
    assert {k for row in rows for k in row} == {*keys, "step"}
    assert p["best"] == (learn.state.best_epoch if learn.state.best_epoch in p["rows"] else None)


CASES = [(kind, 0.03, True) for kind in KINDS] + [(kind, 0.004, True) for kind in ("plain", "accumulate", "both")]


@pytest.mark.parametrize("kind, s, answers", [*CASES, ("plain", 0.3, False), ("both", 0.3, False)])
def test_the_page_knows_the_history(notebook, clock, kind, s, answers):
    learn, spy, asked = made(kind, clock, s)
    learn.fit(3, cbs=[LiveView(), *([notebook.answer()] if answers else [])], **asked)
    check(notebook.pages[0], learn, spy)
    assert [m["kind"] for m in notebook.pages[0].parts["marks"]] == ["nan"] * (2 if kind == "nan" else 0)
    assert np.isnan(learn.history.steps["loss"]).sum() == dict(nan=2, ignored=6).get(kind, 0)
    if kind not in ("nan", "ignored"):
        n, epochs = len(learn.history), len(learn.history.epochs)
        learn.fit(2, cbs=[LiveView(), *([notebook.answer()] if answers else [])], **asked)
        check(notebook.pages[1], learn, spy, n, epochs)  # a page of its own, with the second fit only


def test_views_of_everything(notebook, clock, recwarn):
    "Opened before the first fit, in the middle of it, between fits: each knows all of it."
    learn, spy, _ = made("plain", clock)
    learn.ui()
    learn.fit(2, cbs=[at(15, lambda learn: learn.ui())])
    learn.ui()
    for page in notebook.pages:
        check(page, learn, spy)
    learn.fit(1, cbs=[at(3, lambda learn: learn.ui())])
    for page in notebook.pages[2:]:
        check(page, learn, spy)
        assert [(m["kind"], m["x"]) for m in page.parts["marks"]] == [("fit", 20)]
    assert len(notebook.pages) == 4 and learn.cbs == [spy]
    learn.ui()
    learn.validate()
    assert not recwarn.list


def test_a_view_opened_in_the_middle_knows_where_epoch_and_fit_began(notebook, clock):
    found, part = {}, lambda status: [status[k] for k in ("now", "x_end", "epoch")]

    def look(learn):
        learn.ui()
        for view in [v for v in learn.active if isinstance(v, LiveView)]:
            found[view.whole] = part(view.feed.status(view.feed.table()["columns"]))
    made("plain", clock)[0].fit(1).fit(2, cbs=[LiveView(), at(15, look)])
    assert found[True] == found[False]


def test_a_message_on_another_thread_is_answered_on_the_loops(notebook, clock):
    learn, spy, _ = made("plain", clock)
    counts = []

    def ask(learn):
        thread = threading.Thread(target=notebook.say, args=[HELLO])
        counts.append(len(notebook.pages[0].said))
        thread.start()
        thread.join()
        counts.append(len(notebook.pages[0].said))
    learn.fit(2, cbs=[LiveView(), at(12, ask)])
    said = notebook.pages[0].said
    assert counts[0] == counts[1] and said[counts[0]][1]["type"] == "full"
    assert {thread for *_, thread in said} == {threading.get_ident()}
    check(notebook.pages[0], learn, spy)


def test_after_a_partial_epoch_bars_start_at_zero(notebook, clock):
    made("plain", clock)[0].fit(2, cbs=[at(14, lambda learn: learn.stop())]).fit(1, cbs=[LiveView()])
    status = notebook.pages[0].said[0][1]["status"]
    assert (status["epoch"]["n"], status["batch"]["n"], status["now"][1], status["x_end"]) == (0, 0, None, 24)


def test_a_pause_after_the_last_step_shows_the_last_epoch(notebook, clock):
    seen, learn = [], made("plain", clock)[0]

    def look(learn):
        if learn.commands.paused:
            seen.append(notebook.pages[0].parts["status"]["epoch"]["text"])
            learn.commands.put("resume" if len(seen) == 30 else "pause")
    pause = at(6, lambda learn: learn.commands.put("pause"), "on_validate_batch_end")
    learn.fit(2, cbs=[LiveView(), notebook.answer(), pause, on("on_log", look)])
    assert seen[-1] == "2"


def test_a_view_that_was_added_shows_each_fit(notebook, clock):
    learn = made("plain", clock)[0]
    learn.add(LiveView())
    learn.fit(1).fit(1)
    assert len(notebook.pages) == 2


def test_a_change_by_hand_is_marked_where_it_acts(notebook, clock):
    asks = [at(n, lambda learn, n=n: learn.commands.put("lr", n)) for n in (2, 5, 8)]
    made("plain", clock, 0.01)[0].fit(1, valid_every_steps=1, cbs=[LiveView(), notebook.answer(), *asks])
    marks = [(m["kind"], m["x"], m["text"]) for m in notebook.pages[0].parts["marks"]]
    assert marks == [("lr", 2, "lr ×2"), ("lr", 5, "lr ×5"), ("lr", 8, "lr ×8")]


def long_run(n=1_000_000, epochs=1000, metrics=0):
    learn, random = toy(), np.random.rand
    steps = dict(step=np.arange(1, n + 1), loss=random(n), grad_norm=random(n), lr=np.full(n, 0.1), n=np.ones(n))
    for name, values in dict(steps, stepped=np.ones(n, "i1")).items():
        learn.history.steps[name].frombytes(values.tobytes())
    names = ["train_loss", "valid_loss", *(f"valid_metric_{i}" for i in range(metrics))]
    row = lambda i: dict(epoch=i, step=n // epochs * i, lr=0.1, time_s=12.3) | dict(zip(names, random(99).tolist()))
    learn.history.epochs += map(row, range(1, epochs + 1))
    learn.state.best, learn.state.best_epoch, learn.state.epoch = 0.01, epochs // 2, epochs
    return learn, Feed(learn, whole=True)


def test_a_million_rows(notebook):
    view, n, sizes, columns = screen.WidgetScreen(long_run()[1]), 1_000_000, [], {}
    view.widget.send = lambda m, buffers: (sizes.append([*map(len, buffers)]), columns.update(m["points"]["columns"]))
    tracemalloc.start()
    started = time.process_time()
    view.send_full()
    took, (left, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sizes == [[4 * n, 4 * n]] and (columns["lr"], columns["step"]) == (dict(value=0.1), {"from": 1})
    assert took < 2 and left < 2e6 and peak < 100e6, (took, left, peak)


def test_a_tick_costs_the_same_after_a_thousand_epochs(notebook):
    view, started = screen.WidgetScreen(long_run(10_000, metrics=12)[1]), time.process_time()
    for _ in range(20):
        view.tick()
    assert (time.process_time() - started) / 20 < 0.003


@pytest.mark.parametrize("epochs, metrics", [(300, 12), (3000, 2)])
def test_what_stays_is_small(epochs, metrics):
    learn, shown = long_run(30_000, epochs, metrics)
    assert len(to_html(shown.snapshot()).encode()) <= 60_000
    assert len(live.to_png(live.plot_history(learn.history))) <= 60_000


@pytest.mark.parametrize("every", [0, 1])
def test_how_often_a_page_is_told(notebook, clock, every):
    made("plain", clock, 0.02, 0.01)[0].fit(12, valid_every=every, cbs=[LiveView(), notebook.answer()])
    (first, second, *ticks), tables, facts = map(notebook.pages[0].times, ["tick"] * 3, ["", "table", "facts"])
    assert len(ticks) > 30 and min(np.diff([second, *ticks])) > 0.0999  # the first follows the opening at once
    assert len(tables) >= 3 and min(np.diff(tables[:-1])) > 0.999  # the last is told by the spy
    times = np.array(facts[1:-1])
    assert len(times) > 3 and min(times[2:] - times[:-2]) > 0.95 and len(notebook.pages[0].times("full")) == 1


@pytest.mark.parametrize("kind", ["plain", "nan"])
def test_nothing_is_sent_while_nothing_changes(notebook, clock, kind):
    counts = []

    def watch(learn):
        if learn.commands.paused:
            counts.append(len(notebook.pages[0].said))
            if len(counts) == 400:
                learn.commands.put("resume")
    pause = at(8, lambda learn: learn.commands.put("pause"))
    made(kind, clock)[0].fit(1, cbs=[LiveView(), notebook.answer(), pause, on("on_log", watch)])
    assert len(counts) == 400 and counts[-1] == counts[60] <= counts[0] + 3


FACTORS = (math.nan, math.inf, -1, 0, "0.3", None, [1], {}, True, 10**400)
FACTORS = [COMMAND | dict(command="lr", value=v) for v in FACTORS]
WORDS = [COMMAND | dict(command=v) for v in ("explode", ["stop"], {"stop": 1}, None)]
TYPES = [{}, COMMAND, dict(type=["command"], command="stop"), dict(type={}), [], ["lr", 2], "stop", None]
BAD = TYPES + WORDS + FACTORS


def test_what_our_page_would_not_send_changes_nothing(notebook, clock):
    (learn, spy, _), asked = made("plain", clock), []
    one = lambda message: asked.append((notebook.say(message), list(learn.commands.queue)))
    learn.fit(2, cbs=[LiveView(), at(5, lambda learn: [one(message) for message in BAD])])
    assert asked == [(None, [])] * len(BAD) and learn.history.interventions == []
    check(notebook.pages[0], learn, spy)


def test_controls(notebook, clock):
    learn, seen = made("plain", clock, 0.5)[0], []
    sees = on("on_batch_end", lambda learn: seen.append(notebook.pages[-1].parts["status"]["controls"]))
    learn.fit(1, cbs=[LiveView(), sees]).fit(1, cbs=[LiveView(), at(3, lambda learn: notebook.say(HERE)), sees])
    learn.ui()
    notebook.say(HELLO)
    assert notebook.pages[-1].parts["status"]["controls"] == "none" and len(notebook.pages[-1].times("full")) == 2
    learn.fit(1, cbs=[sees])  # the view that was open asks anew
    assert seen == (["wait"] * 6 + ["off"] * 4) + (["wait"] * 3 + ["on"] * 7) + (["wait"] * 6 + ["off"] * 4)


# ---- failures

PLACES = dict(creation=("send", 0), tick=("send", 3), end=("end", 0))


def interrupt(*_):
    raise KeyboardInterrupt


def failing(place: str, exc: BaseException):
    "A message cannot be sent, or the static view cannot take the place of the widget."
    def fails(where, n):
        if (where, n) == PLACES[place]:
            raise exc
    return fails


@pytest.mark.parametrize("place", PLACES)
def test_a_view_that_fails_goes_on_as_text(notebook, clock, capsys, place):
    before, notebook.fails = set(WIDGETS), failing(place, OSError("the front end is gone"))
    learn = made("one_cycle", clock, 0.1)[0]
    with pytest.warns(UserWarning, match="the front end is gone.*training goes on") as found:
        learn.fit(3, cbs=[LiveView()])
    lines = capsys.readouterr().out.splitlines()
    assert len(found) == 1 and learn.history.ends[-1]["how"] == "done" and set(WIDGETS) == before
    assert [line.split()[0] for line in lines] == ([] if place == "end" else "epoch 1 2 3".split()) + ["done:"]
    assert re.match(r"done: 30 steps in [45]\.\ds", lines[-1])
    assert same(learn, made("one_cycle", clock)[0].fit(3))


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_inside_the_view_interrupts(notebook, clock, place):
    before, notebook.fails = set(WIDGETS), failing(place, KeyboardInterrupt())
    with pytest.raises(TrainingInterrupted):
        made("plain", clock)[0].fit(2, cbs=[LiveView()])
    assert set(WIDGETS) == before


@pytest.mark.parametrize("draw", [lambda picture: 1 / 0, interrupt])
def test_the_table_stays_if_the_picture_fails(notebook, clock, monkeypatch, draw):
    before = set(WIDGETS)
    monkeypatch.setattr(live, "to_png", draw)
    ends = pytest.raises(TrainingInterrupted) if draw is interrupt else pytest.warns(UserWarning, match="ZeroDivision")
    with ends:
        made("plain", clock)[0].fit(2, cbs=[LiveView()])
    assert set(WIDGETS) == before and "accuracy" in notebook.outputs[0]["text/plain"]


# ---- ends

def fail(learn):
    raise ValueError("a <b>bold</b> claim\nof two lines")


ENDS = dict(  # what is done at which event, and the title
    done=(99, len, "", "Done"), command=(14, lambda learn: learn.commands.put("stop"), "", "Stopped by you"),
    early=(14, lambda learn: learn.stop("too <i>"), "", "Stopped: too <i>"), error=(14, fail, "", "Error: ValueError"),
    batch=(14, interrupt, "", "Interrupted"), validation=(5, interrupt, "on_validate_batch_end", "Interrupted"),
    callback=(1, interrupt, "on_epoch_end", "Interrupted"), nan=(99, len, "", "Error: NonFinite"))
OURS = set("div span table colgroup col tbody tr th td b br details summary img".split())
OURS |= {f"{name}=" for name in "style align width cellpadding title alt src".split()}


def check_ended(bundle, *words) -> None:
    "Html of our tags and attributes only, and the words in html and text."
    parser, found, texts = HTMLParser(), set(), []
    parser.handle_starttag = lambda tag, attrs: found.update([tag], (f"{name}=" for name, _ in attrs))
    parser.handle_data = lambda text: texts.append(text.replace("\xa0", " "))
    parser.feed(bundle["text/html"])
    assert set(bundle) == {"text/html", "text/plain"} and found <= OURS
    for word in words:
        assert any(word in text for text in texts) and word in bundle["text/plain"]


def fit_to_its_end(learn, cb) -> LiveView:
    view = LiveView()
    try:
        learn.fit(2, cbs=[view, cb])
    except (TrainingInterrupted, ValueError, NonFinite):
        pass
    return view


@pytest.mark.parametrize("kind", ["widgets", "html"])
@pytest.mark.parametrize("end", ENDS)
def test_ends(notebook, clock, end, kind):
    before, notebook.kind, (n, act, event, title) = set(WIDGETS), kind, ENDS[end]
    learn = made("nan" if end == "nan" else "plain", clock)[0]
    learn.runtime.check_finite = True
    shot = fit_to_its_end(learn, at(n, act, event or "on_batch_end")).feed.snapshot()
    assert set(WIDGETS) == before and len(notebook.outputs) == 2
    check_ended(notebook.outputs[0], title, *(["a <b>bold</b> claim"] if end == "error" else []))
    assert notebook.outputs[0] == {"text/html": to_html(shot), "text/plain": to_text(shot)}
    assert set(notebook.outputs[1]) == {"image/png", "text/plain"}
    learn.loss_fn = "ce"
    learn.fit(1, cbs=[LiveView()])  # a second fit has one view of its own
    assert set(WIDGETS) == before and len(notebook.outputs) == 4
    check_ended(notebook.outputs[2], "Done")


def test_three_fits_and_open_views_leave_no_widget(notebook, clock):
    before, (learn, spy, _) = set(WIDGETS), made("plain", clock)
    for _ in range(3):
        learn.fit(1, cbs=[LiveView()])
    learn.ui()
    learn.ui()
    assert len(WIDGETS) == len(before) + 4  # each with its layout
    learn.fit(1, cbs=[LiveView()])
    assert set(WIDGETS) == before and learn.cbs == [spy]


EVIL = '<img src=x onerror=alert(1)> & "a\'> $x$'


@pytest.mark.parametrize("kind", ["widgets", "html"])
def test_b30_no_tag_comes_from_names(notebook, clock, monkeypatch, kind):
    "A class, a metric, a data set, a validation set, a model, an error and its kind."
    for name, function in DRAWN.items():
        monkeypatch.setattr(live, name, function)
    notebook.kind, x, y = kind, torch.randn(40, 4), torch.arange(40) % 3
    data = DataModule.arrays(x, y, batch_size=4, name=EVIL, classes=[EVIL, "b", "c"])
    model, error = type(EVIL, (nn.Sequential,), {})(nn.Linear(4, 3)), type(EVIL, (ValueError,), {})
    learn = toy(model=model, data=data, metrics={EVIL: lambda pred, target: pred.mean()}, cbs=[Spy(clock, 0.3)])
    learn.valid_dl = {"valid": [(x, y)], EVIL: [(x, y)]}

    def fail(learn):
        raise error(EVIL)
    learn.ui()
    fit_to_its_end(learn, at(12, fail))
    shown = [b for b in [*notebook.outputs, *notebook.updates] if isinstance(b, dict) and "text/html" in b]
    assert len(shown) >= 4
    for bundle in shown:
        check_ended(bundle, f"{EVIL} on {EVIL}")
    check_ended(notebook.outputs[0], EVIL, f"Error: {EVIL}")


def test_the_loop_is_the_same_with_a_view(notebook, clock):
    "With messages of the page at each batch, too."
    def run(*make):
        learn = toy(opt="adamw", sched="one_cycle", lr=0.02, accumulate=2, cbs=[Spy(clock, 0.05)])
        learn.fit(3, cbs=[cb() for cb in make])
        return learn.fit(2, valid_every_steps=3, cbs=[cb() for cb in make])
    talks = on("on_batch_end", lambda learn: notebook.say([HELLO, HERE, COMMAND][learn.state.step % 3]))
    a, b = run(LiveView, lambda: talks), run()
    assert same(a, b) and str(a.history.steps) == str(b.history.steps)


def test_what_the_package_does_not_use():
    "The widget that captures output, and pyplot with its global state."
    for path in Path(live.__file__).parents[1].rglob("*.py"):
        assert not re.search(r"\bOutput\(|import pyplot|matplotlib\.pyplot", path.read_text(encoding="utf-8")), path


# ---- in a kernel

SETUP = """
import sys, time, torch
from torch import nn
from ptwrap.all import *
torch.set_num_threads(1)
def make(n=40):
    x = torch.randn(n, 4)
    data = DataModule.arrays(x, (x[:, 0] > 0).long(), batch_size=4, valid_share=0)
    dl = data.train_dl
    return Learner(nn.Linear(4, 2), (dl, dl), 'ce', 'sgd', metrics='accuracy', lr=0.1, device='cpu')
class Does(Callback):
    def __init__(self, exc=None): self.exc = exc
    def on_batch_end(self, learn, out): time.sleep(0 if self.exc else 0.05)
    def on_epoch_end(self, learn, row):
        if self.exc: raise self.exc
"""
CELLS = dict(
    setup=SETUP, fit="learn = make()\nlearn.fit(2)", later="learn", before="make()",
    several="for _ in range(3): learn.fit(1)", interrupted="learn.fit(2, cbs=Does(KeyboardInterrupt()))",
    again="learn.fit(1)", error="make().fit(2, cbs=Does(ValueError('<b>')))", big="make(4000).fit(3)",
    left="import ipywidgets\nprint('matplotlib.pyplot' in sys.modules, len(ipywidgets.widgets.widget._instances))",
    pyplot="from matplotlib import pyplot as p\n_ = p.figure()\nlearn.fit(1)\nprint(p.get_fignums())\np.close()",
    html="sys.modules['anywidget'] = sys.modules['ipywidgets'] = None\nmake().fit(3, cbs=Does())")
VIEW = ["text/html text/plain", "image/png text/plain"]


class Counting(NotebookClient):
    "Remembers which messages came, and when."

    def process_message(self, msg, cell, index):
        self.seen = [*getattr(self, "seen", []), (index, msg["msg_type"], time.monotonic())]
        return super().process_message(msg, cell, index)


@pytest.fixture(scope="module")
def ran():
    "One notebook, run without a browser; its outputs and the kinds and times of messages, by name of the cell."
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS.values()])
    client = Counting(nb, timeout=120, allow_errors=True, kernel_name="python3", extra_arguments=["--log-level=ERROR"])
    client.execute()
    seen = {name: [(kind, at) for index, kind, at in client.seen if index == i] for i, name in enumerate(CELLS)}
    return nb, seen, {name: c.outputs for name, c in zip(CELLS, nb.cells)}


@pytest.mark.slow
def test_what_stays_in_a_notebook(ran):
    nb, _, outputs = ran
    kind = lambda out: " ".join(sorted(out.get("data", {}))) or out.output_type
    kinds = {name: [kind(out) for out in found] for name, found in outputs.items()}
    assert kinds == dict(
        setup=[], fit=VIEW, later=["text/plain"], before=["text/plain"], several=VIEW, interrupted=[*VIEW, "error"], again=VIEW,
        error=[*VIEW, "error"], big=VIEW, left=["stream"], pyplot=[*VIEW, "stream"], html=VIEW)
    text = {name: out[0].data["text/plain"] for name, out in outputs.items() if kinds[name][:2] == VIEW}
    titles = dict(interrupted="Interrupted", error="Error: ValueError")
    assert {name: t.split(" · ")[0] for name, t in text.items()} == dict.fromkeys(text, "Done") | titles
    assert re.findall(r"^ +(\d+) .* ms", text["several"], re.M) == ["3", "4", "5"]  # fits of one cell share a view
    words = outputs["later"][0].data["text/plain"]
    assert words.startswith("Learner\n") and "trained    2 epochs" in words
    assert outputs["left"][0].text == "False 0\n" and outputs["pyplot"][2].text == "[1]\n"


@pytest.mark.slow
def test_b21_a_notebook_stays_small(ran):
    "Three epochs of a thousand batches; and html for a kernel without widgets."
    nb, seen, outputs = ran
    updates = lambda name: sum(kind in ("comm_msg", "update_display_data") for kind, _ in seen[name])
    assert 3 <= updates("big") <= 5 + 10 * (seen["big"][-1][1] - seen["big"][0][1])
    assert len(json.dumps(outputs["big"])) < 90_000
    fits = sum(kind == "comm_open" for said in seen.values() for kind, _ in said) / 2
    assert len(json.dumps(nb.metadata.get("widgets", {}))) < 5_000 * fits
    assert 3 <= updates("html") <= 6 and not [kind for kind, _ in seen["html"] if kind.startswith("comm")]


@pytest.mark.slow
def test_a_script_without_widgets_prints_text(tmp_path):
    code = "import sys\nsys.modules['ipywidgets'] = sys.modules['anywidget'] = None\n" + SETUP + "make().fit(2).ui()"
    with open(tmp_path / "log", "wb") as log:
        done = subprocess.run([sys.executable, "-c", code], stdout=log, stderr=subprocess.STDOUT, timeout=60)
    text = (tmp_path / "log").read_bytes().decode()
    assert done.returncode == 0 and "\r" not in text and "\x1b" not in text, text
    assert [line.split()[0] for line in text.splitlines()[:5]] == ["epoch", "1", "2", "done:", "Done"]


def test_columns_that_come_later_bring_all_rows_anew(notebook, clock):
    learn = made("plain", clock, 0.2)[0].fit(4, valid_every=2, cbs=[LiveView()])
    page = notebook.pages[0].parts
    keys = [c["key"] for c in page["columns"]]
    for row in learn.history.epochs:
        assert page["rows"][row["epoch"]] == [row.get(key) for key in keys]


def test_a_view_that_stays_open_keeps_no_learner_alive(notebook, clock):
    import copy
    import gc
    import pickle
    import weakref
    learn = made("plain", clock)[0].fit(1)
    learn.ui()
    model, widget = weakref.ref(learn.model), notebook.widgets[-1]
    view = [cb for cb in learn.cbs if isinstance(cb, LiveView)][0]
    assert copy.deepcopy(view).screen is None and pickle.loads(pickle.dumps(view)).feed is None
    del learn, view
    gc.collect()
    assert model() is None and widget.comm is None


def test_what_the_next_fit_starts_from_is_said_right(notebook, clock):
    learn = made("one_cycle", clock)[0]
    learn.fit(1, cbs=[LiveView(), at(6, lambda learn: learn.commands.put("lr", 0.5))])
    assert "the next fit starts from lr 1.00e−1 again; learn.lr = 0.05 keeps the change" in notebook.outputs[0]["text/plain"]
    assert learn.lr == 0.1


def test_values_that_a_callback_adds_to_a_row(notebook, clock):
    class Adds(Callback):
        def on_epoch_end(self, learn, row):
            row |= dict(note="<b>good</b>", small=np.float32(0.5), tensor=torch.tensor(2.0))

    made("plain", clock)[0].fit(2, cbs=[Adds(), LiveView()])
    text = notebook.outputs[0]["text/plain"]
    assert "<b>good</b>" in text and "0.5000" in text and "2.0000" in text


def test_a_page_that_was_loaded_again_keeps_its_view(notebook, clock):
    opens = at(5, lambda learn: [notebook.say(HELLO | dict(opens=True)) for _ in range(2)])
    learn = made("plain", clock)[0].fit(1, cbs=[LiveView(), opens])
    assert learn.state.step == 10
    assert notebook.pages[0].parts["status"]["title"] == "Done" and notebook.widgets[0].comm is not None


# --- what a fit says of itself at its start

NOTE = "StepLR moves once an epoch; sched.per = 'step' changes that"


def noted(**kwargs):
    learn = toy(**kwargs)
    learn.sched = torch.optim.lr_scheduler.StepLR(learn.opt, 2)
    return learn


def test_the_notes_of_a_fit_reach_the_page_once(notebook, clock):
    learn = noted(cbs=[Spy(clock)])
    learn.fit(2, cbs=[LiveView(), notebook.answer()])
    page = notebook.pages[0]
    assert page.parts["status"]["notes"] == [NOTE] == learn.plan.notes
    told = [m["type"] for _, m, _ in page.said if "notes" in m.get("status", {})]
    assert told == ["full"] * len(told)  # a tick tells only what changed


def test_the_notes_stay_in_html_and_text(notebook, clock):
    learn = noted(cbs=[Spy(clock)])
    learn.fit(1, cbs=[LiveView(), notebook.answer()])
    learn.plan.notes.append("<b>odd</b>")
    shot = Feed(learn, whole=True).snapshot()
    html = to_html(shot)
    assert "note: StepLR moves once an epoch; sched.per = &#x27;step&#x27; changes that · &lt;b&gt;odd" in html
    assert "<b>odd" not in html and "overflow-wrap:anywhere" in html
    assert [line for line in to_text(shot).splitlines() if line.startswith("note")] == [f"note: {NOTE}", "note: <b>odd</b>"]
    assert any("note: StepLR moves once an epoch" in str(output) for output in notebook.outputs)
    assert "note" not in to_html(Feed(toy(cbs=[Spy(clock)]).fit(1), whole=True).snapshot())


# --- the head

def test_the_head_names_a_model_in_the_same_words_however_it_was_given():
    from ptwrap.ui.words import line
    data = DataModule.digits(seed=0)
    given = ["cnn", dict(name="cnn"), dict(type="cnn", widths=(8, 8))]
    assert [line(Learner(model, data, device="cpu")).split(" · ")[0] for model in given] == ["cnn on digits"] * 3
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert line(Learner(net, data, device="cpu")).startswith("Sequential on digits")
    assert line(Learner(lambda: net, data, device="cpu")).startswith("Sequential on digits")
    learn = Learner("cnn", data, device="cpu")
    learn.model = net
    assert line(learn).startswith("Sequential on digits")
