"The live view of a fit, used as a person uses it: a real page, a real kernel, and the kernel busy with training."
import json
import math
import re
import time
from contextlib import nullcontext

import pytest
from kernels import kernel_python

pytestmark = pytest.mark.slow

SETUP = """
import json, os, threading, time
import ipywidgets, ptwrap.session, torch
from ptwrap.all import *
from ptwrap.ui import pump

torch.set_num_threads(1)
threads, obey = set(), ptwrap.session.obey
ptwrap.session.obey = lambda learn: (threads.add(threading.current_thread().name), obey(learn))
def digits(**kwargs):  # 90 batches an epoch
    return Learner('mlp', DataModule.digits(batch_size=16), metrics='accuracy', seed=0, **kwargs)
class Slow(Callback):  # each batch takes some time; one may raise an error
    def __init__(self, ms=8, step=None, exc=None):
        self.s, self.step, self.exc, self.at = ms / 1000, step, exc, []
    def on_batch_end(self, learn, out):
        time.sleep(self.s)
        self.at.append(time.time())
        if learn.state.step == self.step:
            raise self.exc
"""
BELL = """
import ipykernel.kernelbase
from tornado.ioloop import PeriodicCallback
if ipykernel.__version__.startswith('7.3'):  # a request that crosses a reply may wait for ever, without a fit too
    kernel = ipykernel.kernelbase.Kernel.instance()
    bell = PeriodicCallback(kernel.shell_stream.flush, 20)
    kernel.shell_channel_thread.io_loop.add_callback(bell.start)
"""


class Live:
    "A live view in the page: what it says, and its buttons."

    def __init__(self, lab, within):
        self.lab, self.node = lab, within.locator(".ptw-live")

    @property
    def points(self) -> int:
        "Batches that the chart has."
        return int(self.node.get_attribute("data-points"))

    def words(self, part: str) -> str:
        return self.node.locator(f".ptw-{part}").inner_text()

    def button(self, name: str, kind: str = "button"):
        return self.node.get_by_role(kind, name=name, exact=True)

    def press(self, name: str) -> None:
        self.button(name).click(timeout=5000)

    def wait(self, title: str) -> None:
        self.lab.wait(lambda: self.words("title") == title, 10)
        self.lab.shot(title)

    def wait_points(self, more_than: int) -> None:
        self.lab.wait(lambda: self.points > more_than, 10)

    def wait_start(self, more_than: int = 0, controls: str = "on") -> None:
        self.lab.wait(self.node.count)
        self.lab.wait(lambda: self.node.get_attribute("data-controls") == controls, 10)
        self.wait_points(more_than)


def ready(lab, *cells: str) -> Live:
    "A notebook with these cells, none of which runs yet, and a kernel with the imports; gives the view of the first."
    if lab.path != "live.ipynb" or not lab.page.evaluate("lab.idle()"):
        lab.open([SETUP], "live")
        lab.run()
        lab.wait_idle()
    lab.fill(cells)
    return Live(lab, lab.output(0))


def is_static(lab, i: int, state: str) -> None:
    "Waits until nothing runs; then the output of a cell is words, a table and a picture, and no widget."
    lab.wait_idle()
    output = lab.output(i)
    lab.wait_text(i, f"^.{state}")
    lab.shot(state)
    lab.wait(lambda: output.locator("img").count() == 1, 10)
    assert output.locator("img").evaluate("img => img.decode().then(() => img.naturalWidth)") > 300
    assert "train\u00a0loss" in output.locator("table").first.inner_text(timeout=5000)
    assert output.locator(".ptw-live").count() == 0


def early_live_late(lab, epochs: int) -> list[Live]:
    "A view that was opened before a fit, the view of the fit, which runs, and the place of one for afterwards."
    ready(lab, "learn = digits()\nlearn.ui()", f"learn.fit({epochs}, cbs=[Slow()])",
          "learn.ui()\nprint(len(learn.history))")
    views = [Live(lab, lab.output(i)) for i in range(3)]
    lab.run(0)
    views[0].wait("Not trained yet")
    lab.run(1)
    views[1].wait_start(90)
    return views


def pause_step_resume(live: Live) -> None:
    "After an epoch. Half a second is time for 50 batches."
    live.wait_start(90)
    live.press("Pause")
    live.wait("Paused")
    n = live.points
    live.lab.page.wait_for_timeout(500)
    assert (live.points, live.words("line")) == (n, f"at step {n:,}")
    live.press("Step")
    live.wait_points(n)
    live.lab.page.wait_for_timeout(500)
    assert (live.points, live.words("line")) == (n + 1, f"at step {n + 1:,}")
    live.press("Resume")
    live.wait("Running")
    live.wait_points(n + 1)


def test_controls_act_while_the_cell_runs(lab):
    live = ready(lab, "learn = digits(sched='cosine')\nlearn.fit(8, cbs=[slow := Slow()])", "print('later')",
                 "print(json.dumps([learn.history.interventions, list(learn.history.steps['lr']), slow.at, "
                 "learn.plan.total_steps, *threads]))")
    lab.run()
    pause_step_resume(live)
    for _ in range(6):
        live.button("learning rate", "slider").press("ArrowLeft")
    pressed = time.time()
    lab.wait(lambda: "by hand" in live.words("facts") and "Setting" not in live.words("line"))
    live.press("follow schedule")
    lab.wait(lambda: "by hand" not in live.words("facts"))
    live.wait_points(live.points + 20)
    assert lab.busy() == [0, 1, 2]
    live.press("Stop")
    is_static(lab, 0, "Stopped by you")
    assert lab.text(1) == "later\n"
    changes, lrs, at, total, *threads = json.loads(lab.text(2))
    first, *_, last, back, end = [(row["step"], row["command"], row["value"]) for row in changes]
    assert [last[1:], back[1:], end[1:]] == [("lr", 0.5012), ("lr", 1.0), ("stop", None)]  # 6 stops: 10 ** -0.3
    factors = [lr / (0.0005 * (1 + math.cos(math.pi * step / total))) for step, lr in enumerate(lrs)]
    assert factors[:first[0]] + factors[back[0]:] == pytest.approx([1.0] * (first[0] + len(factors) - back[0]))
    assert factors[last[0]:back[0]] == pytest.approx([0.5012] * (back[0] - last[0]))
    print(f"lr by hand {at[last[0]] - pressed:.2f} s after the last key; changes at {first}, {last}, {back}, {end}")
    assert at[last[0]] - pressed < 1 and threads == ["MainThread"]


def test_an_interrupt_ends_the_fit_and_the_queue(lab):
    live = ready(lab, "learn = digits()\nlearn.fit(8, cbs=[Slow()])", "print('ran')", "learn.fit(1)")
    for pauses in (False, True):
        lab.run(0, 1)
        live.wait_start(90)
        if pauses:
            live.press("Pause")
            live.wait("Paused")
        assert lab.busy() == [0, 1]
        lab.interrupt()
        is_static(lab, 0, "Interrupted")
        errors = [line for line in lab.text(0).splitlines()[1:] if re.search("Error|Interrupt|Traceback", line)]
        assert len(errors) == 1 and errors[0].startswith("TrainingInterrupted: interrupted in epoch 2 after step ")
        assert lab.text(1) == ""
        lab.run(2)
        is_static(lab, 2, "Done")


def test_queued_cells_keep_their_order_and_an_error_ends_them(lab):
    live = ready(lab, "order = []\nlearn = digits()\nlearn.fit(2, cbs=[Slow()])\norder.append('fit')",
                 *(f"order.append({i})\nprint(order)" for i in (1, 2, 3)),
                 "digits().fit(2, cbs=[Slow(1, 100, RuntimeError('no loader'))])", "print('ran')", "print('answers')")
    lab.run(0)
    live.wait_start()
    lab.run(1, 2, 3)
    assert lab.busy() == [0, 1, 2, 3] and not lab.text(1)
    lab.wait_idle()
    assert [lab.text(i) for i in (1, 2, 3)] == ["['fit', 1]\n", "['fit', 1, 2]\n", "['fit', 1, 2, 3]\n"]
    lab.run(4, 5)
    is_static(lab, 4, "Error: RuntimeError")
    assert "\nRuntimeError: no loader" in lab.text(4) and (lab.text(5), lab.busy()) == ("", [])
    lab.run(6)
    lab.wait_text(6, "answers")


def test_what_is_saved_reads_anywhere_and_no_widget_is_left(lab):
    count = "print(len(ipywidgets.widgets.widget._instances))"
    ready(lab, "learn = digits().fit(3)", count, *["learn.fit(1)"] * 2, "learn.fit(1, cbs=[Slow()])", count)
    lab.run()
    lab.wait_idle()
    print(f"widgets {lab.text(1).strip()} before three fits, {lab.text(5).strip()} after")
    assert lab.text(1) == lab.text(5)
    for name in ("without", "with"):  # without and with the state of widgets
        assert ("widgets" in lab.save().metadata) == (name == "with")
        (lab.folder / f"{name}.ipynb").write_bytes((lab.folder / lab.path).read_bytes())
        lab.start("@jupyter-widgets/jupyterlab-manager:saveWidgetState")
        lab.wait("lab.running === 0")
    lab.page.evaluate("lab.panel.content.model.deleteMetadata('widgets')")
    with lab.stranger() as other:
        for name in ("without", "with"):
            n_bytes = (lab.folder / f"{name}.ipynb").stat().st_size
            print(f"{n_bytes / 1000:.0f} KB {name} state")
            assert n_bytes < 300_000
            other.open(name=name)
            assert not other.page.evaluate("lab.panel.content.model.cells.get(0).trusted")
            for i in (0, 2, 3, 4):
                is_static(other, i, "Done")
            assert "Error displaying widget" not in other.page.inner_text("body")
            assert (other.blocked, other.errors) == ([], [])


def test_views_opened_early_late_and_twice_show_the_same(lab):
    early, live, late = early_live_late(lab, 8)
    again = Live(lab, lab.page.locator(".jp-LinkedOutputView"))
    lab.start("notebook:create-output-view")  # of the cell that was started last
    again.wait_start()
    again.press("Pause")
    for view in (early, live, again):
        view.wait("Paused")
    n = live.points
    assert n > 90 and (early.points, again.points) == (n, n)
    early.press("Resume")
    for view in (early, live, again):
        view.wait_points(n)
    live.press("Stop")
    lab.wait("!document.querySelector('.ptw-live')", 10)
    assert "Stopped by you" in lab.page.inner_text(".jp-LinkedOutputView")
    lab.page.get_by_role("tab", name="Output View").locator(".lm-TabBar-tabCloseIcon").click()
    is_static(lab, 0, "Stopped by you")
    is_static(lab, 1, "Stopped by you")
    lab.run(2)
    late.wait("Stopped by you")
    assert late.points == int(lab.text(2).split()[-1]) > n


def test_a_page_that_is_loaded_again_gets_the_view_back(lab):
    early, live, late = early_live_late(lab, 30)
    lab.save()
    before = live.points
    lab.reload()
    for view in (early, live):
        view.wait_start(before)
    live.press("Pause")
    for view in (early, live):
        view.wait("Paused")
    n = live.points
    assert early.points == n and live.words("line") == f"at step {n:,}"
    print(f"{before} points before the page was loaded again, {n} at a pause after that")
    live.press("Stop")
    lab.wait_idle()
    lab.run(2)
    late.wait("Stopped by you")
    assert late.points == int(lab.text(2).split()[-1]) == n


@pytest.mark.parametrize("fit, steps", [("fit(300, batches_per_epoch=5, cbs=[Slow()])", 200), ("fit(300)", 5000)])
def test_messages_and_memory_stay_small(lab, fit, steps):
    live = ready(lab, f"digits().{fit}")
    lab.run()
    live.wait_start(steps // 10)
    n, heap, start, before = live.points, lab.heap(), time.monotonic(), lab.traffic()
    lab.wait(lambda: time.monotonic() > start + 4 and live.points >= n + steps)
    messages, n_bytes = ((b - a) / (time.monotonic() - start) for a, b in zip(before, lab.traffic()))
    n, grown = live.points - n, lab.heap() - heap
    print(f"{n} steps: {messages:.1f} messages/s, {n_bytes / 1000:.1f} KB/s, heap {grown:+.2f} MB")
    assert messages <= 40 and n_bytes <= 50_000 and grown < 5
    live.press("Stop")
    lab.wait_idle()


def test_what_changes_only_the_view_works_while_the_kernel_is_deaf(lab):
    live = ready(lab, """
class Sleeps(Callback):
    def on_epoch_end(self, learn, row):
        if row['epoch'] == 100:
            print('asleep', flush=True)
            while not os.path.exists('wake'):
                time.sleep(0.1)

learn = digits()
learn.fit(110, batches_per_epoch=2, cbs=[Slow(), Sleeps()])
""")
    lab.run()
    lab.wait_text(0, "asleep")
    n, rows, smoothing = live.points, live.node.locator("tbody tr"), live.button("smoothing", "slider")
    n_rows = rows.count()
    smoothing.press("ArrowRight")
    for name in ("log", "valid"):
        live.press(name)
    live.node.get_by_role("button", name="show all").click(timeout=5000)
    assert smoothing.get_attribute("aria-valuetext") == "0.98"
    pressed = [live.button(name).get_attribute("aria-pressed") for name in ("train", "valid", "linear", "log")]
    assert pressed == ["true", "false", "false", "true"]
    assert rows.count() > n_rows + 20 and live.points == n
    (lab.folder / "wake").touch()
    is_static(lab, 0, "Done")


def test_an_unknown_kernel_gets_a_view_without_controls(lab):
    live = ready(lab, "known, pump._ON_KERNEL = pump._ON_KERNEL, ('nope',)\npump._pump_of.cache_clear()\n"
                 "digits().fit(8, cbs=[Slow()])",
                 "pump._ON_KERNEL = known\npump._pump_of.cache_clear()\nprint(pump.kernel_pump().on)")
    lab.run(0)
    live.wait_start(90, controls="off")
    live.wait_points(live.points)
    assert live.words("hint") == "Use the stop button of the notebook to stop."
    controls = live.button("Pause"), live.button("Step"), live.button("Stop"), live.button("learning rate", "slider")
    assert [control.count() for control in controls] == [0] * 4
    lab.interrupt()
    is_static(lab, 0, "Interrupted")
    lab.run(1)
    lab.wait_text(1, "True")


def test_names_and_messages_are_text_and_never_html(lab):
    image, metric, model = "<img src=x onerror=alert(1)>", "<b>m</b>", "<i>Net</i>"
    valid, kind, message = "<s>v</s>", "<u>Odd</u>", "<script>alert(2)</script><u>no</u>"
    live = ready(lab, f"""
d = DataModule.digits(batch_size=16, name={image!r}, classes=[{image!r} + c for c in '0123456789'])
net = type({model!r}, (torch.nn.Sequential,), {{}})(torch.nn.Flatten(), torch.nn.Linear(64, 10))
learn = Learner(net, d, metrics={{{metric!r}: 'accuracy'}}, seed=0)
learn.valid_dl = {{'valid': d.valid_dl, {valid!r}: d.valid_dl}}
learn.sched = torch.optim.lr_scheduler.StepLR(learn.opt, 9)
learn.fit(8, cbs=[Slow(8, 250, type({kind!r}, (Exception,), {{}})({message!r}))])
""")
    elements = lab.output(0).locator("img[src=x], :is(th, td) b, i i, :is(span, div) > i, s, u, script")
    lab.page.evaluate("() => { window.alert = console.error; }")  # an error in the page fails the test
    lab.run()
    live.wait_start()
    lab.wait(lambda: live.button(valid).count() == 1)
    names = [th.get_attribute("aria-label") or th.inner_text() for th in live.node.locator("th").all()]
    assert live.words("notes") == "note: StepLR moves once an epoch; sched.per = 'step' changes that"
    assert f"{model} on {image}" in live.words("line") and {metric, f"{valid}_{metric}"} <= {*names}
    assert elements.count() == 0
    lab.wait_text(0, f"Error: {kind}")
    lab.wait_idle()
    for words in ("note: StepLR moves once an epoch", f"{message}. The traceback is below.",
                  f"{model} on {image}",
                  f"\t{metric}\t"):
        assert words in lab.text(0)
    assert elements.count() == 0


def test_the_dark_theme_is_readable(lab):
    live = ready(lab, "digits().fit(8, cbs=[Slow()])")
    lab.theme("Dark")
    try:
        lab.run()
        live.wait_start(90)
        for name, state in (("Pause", "Paused"), ("Resume", "Running")):
            live.press(name)
            live.wait(state)
            seen = lab.contrasts(live.node.locator(".ptw-head *, .ptw-facts *, table *"))
            print(f"{len(seen)} texts when {state}; least contrast {seen[0]}")
            assert len(seen) > 15 and seen[0][0] >= 4.5
        live.press("Stop")
        is_static(lab, 0, "Stopped by you")
        seen = lab.contrasts(lab.output(0).locator("*"))
        print(f"{len(seen)} texts at the end; least contrast {seen[0]}")
        assert len(seen) > 15 and seen[0][0] >= 4.5
    finally:
        lab.theme("Light")


def test_commands_from_another_thread_leave_the_weights_as_they_are(lab):
    ready(lab, """
one, two, taps = digits(), digits(), []
def tap():
    while two.state.epoch < 2:
        for command, value in (('pause', None), ('step', None), ('resume', None), ('lr', 1)):
            two.commands.put(command, value)
        taps.append(two.running)
        time.sleep(0.01)
""", "one.fit(2)", "threading.Thread(target=tap, daemon=True).start()\ntwo.fit(2, cbs=[Slow(2)])", """
flat = lambda learn: torch.cat([p.flatten() for p in learn.model.parameters()])
print(json.dumps([torch.equal(flat(one), flat(two)), sum(taps), *threads]))""")
    lab.run()
    lab.wait_idle()
    same, n_taps, *threads = json.loads(lab.text(3))
    print(f"{n_taps} times four commands")
    assert (same, n_taps > 20, threads) == (True, True, ["MainThread"])


@pytest.mark.parametrize("app, version", [("lab", "6.31.0"), ("lab", "7.3.0"), ("notebook", None)])
def test_controls_elsewhere(lab, app, version):
    from browser import Lab
    startup = lab.home / "ipython/profile_default/startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "bell.py").write_text(BELL)
    with nullcontext(lab) if app == "lab" else Lab(app, beside=lab) as page:
        page.open([SETUP, "digits().fit(8, cbs=[Slow()])", "print('later', *threads)"], "there", kernel_python(version))
        page.run()
        live = Live(page, page.output(1))
        pause_step_resume(live)
        live.press("Stop")
        is_static(page, 1, "Stopped by you")
        assert page.text(2) == "later MainThread\n"
        assert (page.blocked, page.errors) == ([], [])


def test_a_loss_that_is_not_finite_is_marked_and_the_chart_goes_on(lab):
    live = ready(lab, """
    class Poisoned(torch.nn.CrossEntropyLoss):
        n = 0
        def forward(self, pred, target):
            self.n += torch.is_grad_enabled()
            return super().forward(pred, target) + (float('nan') if self.n in (60, 120) and torch.is_grad_enabled() else 0)
    digits(loss_fn=Poisoned(), check_finite=False).fit(3, cbs=[Slow()])
    """)
    lab.run()
    live.wait_start(150)
    red, blue = live.node.locator("canvas").first.evaluate("""canvas => {
        const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height), n = [0, 0];
        for (let i = 0; i < data.length; i += 4) {
            if (data[i + 3] < 200) continue;
            n[0] += data[i] > 150 && data[i + 1] < 90 && data[i + 2] < 90;
            n[1] += data[i] < 90 && data[i + 2] > 150;
        }
        return n;
    }""")
    assert red > 50 and blue > 200  # two marks and a line
    is_static(lab, 0, "Done")
