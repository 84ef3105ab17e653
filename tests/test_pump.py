"Widget messages during a busy cell, on real kernels: handled at once, and what else the kernel does stays as it was."
import json
from unittest.mock import MagicMock

import pytest
from kernels import FrontEnd

from ptwrap.data import DataModule
from ptwrap.learner import Learner
from ptwrap.ui import pump as pump_module
from ptwrap.ui.pump import KernelPump, Pump, kernel_pump

SETUP = """
import asyncio, threading, time, warnings
import comm, ipykernel
from IPython import get_ipython
from ptwrap.ui.pump import KernelPump, kernel_pump

kernel = get_ipython().kernel
cell, heard, ran, fired = None, [], [], []
get_ipython().events.register('post_execute', lambda: fired.append(cell))

def hear(msg):
    data = msg['content']['data']
    heard.append([data, cell, threading.current_thread() is threading.main_thread()])
    if data == 'print': print('from the handler')
    if data == 'answer': wire.send('an answer')
    if data == 'fail': 1 / 0
    if data == 'pump':
        for _ in range(50): ran.append(kernel_pump().pump()); time.sleep(0.001)
    if data == 'hang':
        while True: time.sleep(0.02); print('tick', flush=True)

def new_wire():
    global cell, wire
    cell, wire = None, comm.create_comm(target_name='test')
    wire.on_msg(hear)
    for seen in (heard, ran, fired): seen.clear()

def got(what): return any(data == what for data, *_ in heard)

if ipykernel.__version__.startswith('7.3'):  # a request that crosses a reply may wait for ever, without a pump too
    from tornado.ioloop import PeriodicCallback
    bell = PeriodicCallback(kernel.shell_stream.flush, 20)
    kernel.shell_channel_thread.io_loop.add_callback(bell.start)

def train(name, until='go', pump=kernel_pump, s=60):
    "A busy cell: pumps until it has heard a word, for a minute at most."
    global cell
    cell, pump = name, pump()
    print('starts', flush=True)
    end = time.monotonic() + s
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            while not got(until) and time.monotonic() < end:
                pump.pump()
                time.sleep(0.001)
        return pump
    finally:
        cell = None
"""
OTHERS = [pytest.param(v, marks=pytest.mark.slow) for v in ("6.31.0", "7.3.0")]


@pytest.fixture(scope="module", params=[pytest.param(None, id="installed"), *OTHERS])
def kernel(request, tmp_path_factory):
    front = FrontEnd(tmp_path_factory.mktemp("kernel"), request.param)
    try:
        setup = front.run(SETUP)
        front.wait_idle(setup)
        assert front.status(setup) == "ok", front.reply(setup)
        yield front
    finally:
        front.close()


@pytest.fixture
def front(kernel):
    "A kernel with a new comm; afterwards it must be idle and answer."
    front = kernel
    front.wait_idle(front.run("new_wire()"))
    front.wire = front.value("wire.comm_id")
    yield front
    assert front.value("1 + 1") == 2


def start(front, code: str, **kwargs) -> str:
    "Runs a cell and waits until it is in its loop."
    request = front.run(code, **kwargs)
    front.wait_text(request, "starts")
    return request


def end(front, *requests: str) -> list[str]:
    "Tells the busy cell to end. Returns the states of the replies."
    go = front.say(front.wire, "go")
    front.wait_idle(go, *requests)
    return [front.status(r) for r in requests]


def test_it_is_on(front):
    on, why, version = front.value("[KernelPump().on, KernelPump().why, ipykernel.__version__]")
    assert (on, why) == (True, ""), version


def test_messages_are_handled_during_the_cell_on_the_main_thread(front):
    busy = start(front, "train('busy')")
    said = [front.say(front.wire, i) for i in range(3)]
    front.wait_idle(*said)  # while the cell is busy: only the next message ends it
    assert front.statuses(busy)[0] == "busy" and "idle" not in front.statuses(busy)
    assert end(front, busy) == ["ok"]
    owners = [m["parent_header"]["msg_id"] for m in front.messages if m["msg_type"] == "status"]
    assert [owner == busy for owner in owners[-4:]] == [False, False, True, True]  # busy is shown again before the end
    assert front.value("heard") == [[what, "busy", True] for what in (0, 1, 2, "go")]
    assert [front.statuses(r) for r in said] == [["busy", "idle"]] * 3


def test_without_the_pump_they_wait(front):
    busy = start(front, "train('busy', pump=lambda: KernelPump(object()), s=0.5)")
    assert end(front, busy) == ["ok"]
    assert front.value("heard") == [["go", None, True]]


def test_outputs_belong_to_the_cell_or_to_the_message(front):
    busy = start(front, "train('busy', until='print'); print('after', flush=True); display('shown'); train('busy'); 42")
    front.wait_idle(said := front.say(front.wire, "print"))
    assert front.text(said) == "from the handler\n"
    end(front, busy)
    assert front.text(busy) == "starts\nafter\nstarts\n"
    shown = [m["content"]["data"]["text/plain"] for m in front.of(busy) if "data" in m["content"]]
    assert shown == ["'shown'", "42"]
    assert front.statuses(busy)[-1] == "idle"


def test_a_handled_message_is_not_the_end_of_a_cell(front):
    busy = start(front, "train('busy')")
    end(front, busy)
    assert "busy" not in front.value("fired")  # where matplotlib would show and close the cell's figure


def test_other_requests_wait_for_the_end_in_order(front):
    early = [front.run("train('busy')"), *(front.run(f"ran.append({i})") for i in range(3))]  # as Run All sends them
    front.wait_text(early[0], "starts")
    late = [front.run(f"ran.append({i})") for i in range(3, 6)]
    info = front.send("comm_info_request", {})
    front.wait_idle(front.say(front.wire, "hello"))
    assert not any(front.statuses(r) for r in [*early[1:], *late, info])
    assert end(front, *early, *late) == ["ok"] * 7
    front.wait_idle(info)
    assert front.value("ran") == list(range(6))
    assert front.wire in front.reply(info)["comms"]


@pytest.mark.parametrize("how", ["error", "interrupt"])
def test_queued_cells_are_aborted(front, how):
    code = "train('busy'); 1 / 0" if how == "error" else "train('busy', until='never')"
    early = [front.run(code), front.run("ran.append('early')")]
    front.wait_text(early[0], "starts")
    late = [front.run("ran.append('late')") for _ in range(3)]
    if how == "error":
        states = end(front, *early, *late)
    else:
        front.wait_idle(front.say(front.wire, "go"))
        front.interrupt()
        front.wait_idle(*early, *late)
        states = [front.status(r) for r in [*early, *late]]
    assert states == ["error"] + ["aborted"] * 4
    assert front.reply(early[0])["ename"] == ("ZeroDivisionError" if how == "error" else "KeyboardInterrupt")
    assert front.value("ran") == []


def test_a_caught_error_aborts_nothing(front):
    busy = start(front, "try:\n    train('busy'); 1 / 0\nexcept ZeroDivisionError: pass")
    late = front.run("ran.append('late')")
    assert end(front, busy, late) == ["ok", "ok"]
    assert front.value("ran") == ["late"]


def test_a_cell_may_ask_that_the_others_run(front):
    busy = start(front, "train('busy'); 1 / 0", stop_on_error=False)
    late = front.run("ran.append('late')")
    assert end(front, busy, late) == ["error", "ok"]
    assert front.value("ran") == ["late"]


def test_a_silent_cell(front):
    front.run("train('busy')", silent=True, store_history=False)
    late = front.run("ran.append('late')")
    front.wait_idle(hello := front.say(front.wire, "hello"))
    assert not front.statuses(late) and front.statuses(hello) == ["busy", "idle"]
    assert end(front, late) == ["ok"]


def test_two_loops_and_two_pumps_in_a_cell(front):
    busy = start(front, "first = train('busy', 'one'); second = train('again', pump=KernelPump)")
    late = front.run("ran.append('late')")
    front.say(front.wire, "one")
    front.wait_text(busy, "starts\n" * 2)
    front.wait_idle(front.say(front.wire, "two"))
    assert end(front, busy, late) == ["ok", "ok"]
    assert front.value("[where for _, where, _ in heard]") == ["busy", "again", "again"]
    assert front.value("[first is kernel_pump(), second is first, first.on, second.on]") == [True, False, True, True]


def test_an_error_in_a_handler_is_logged(front):
    busy = start(front, "train('busy')")
    front.wait_idle(failed := front.say(front.wire, "fail"))
    assert end(front, busy) == ["ok"]
    assert front.statuses(failed) == ["busy", "idle"]
    assert "ZeroDivisionError" in front.log.read_text() + front.text(failed)
    assert front.value("kernel_pump().on")


def test_a_handler_that_pumps(front):
    busy = start(front, "train('busy')")
    front.say(front.wire, "pump")
    assert end(front, busy) == ["ok"]
    assert front.value("[sum(ran), [data for data, *_ in heard]]") == [0, ["pump", "go"]]


def test_messages_survive_interrupts(front):
    n = 0
    for i in range(5):
        busy = front.run("train('busy', 'never')" if i % 2 else
                         "cell = 'busy'; print('starts', flush=True); pump = kernel_pump()\nwhile True: pump.pump()")
        front.wait_text(busy, "starts")
        said = [front.say(front.wire, n + j) for j in range(30)]
        front.interrupt()
        said += [front.say(front.wire, n + j) for j in range(30, 40)]
        front.wait_idle(busy, *said)
        assert front.reply(busy)["ename"] == "KeyboardInterrupt"
        n += 40
    assert front.value("[data for data, *_ in heard]") == list(range(n))
    assert front.value("kernel_pump().on")


PRESS = """
import signal
owner = {owner}
real = owner.{name}
def press(*args, **kwargs):
    setattr(owner, '{name}', real)
    result = real(*args, **kwargs)
    signal.raise_signal(signal.SIGINT)
    return result
owner.{name} = press
train('busy', 'never')
"""


PLACES = ["kernel_pump().stream.socket.recv_multipart", "kernel_pump().take", "kernel_pump().give",
          "kernel.session.unpack", "kernel.set_parent", "kernel._publish_status"]


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_in_the_middle_of_a_message(front, place):
    owner, _, name = place.rpartition(".")
    busy = start(front, PRESS.format(owner=owner, name=name))
    said = front.say(front.wire, "hello")
    info = front.send("comm_info_request", {})
    front.wait_idle(busy, said, info)
    assert front.reply(busy)["ename"] == "KeyboardInterrupt"
    assert front.value("[[data for data, *_ in heard], kernel_pump().on]") == [["hello"], True]


def test_a_handler_that_hangs_is_broken_by_a_second_interrupt(front):
    busy = start(front, "train('busy', 'never')")
    hang = front.say(front.wire, "hang")
    front.wait_text(hang, "tick")
    late = front.run("ran.append('late')")
    front.interrupt()
    front.wait_text(hang, front.text(hang) + "tick\n" * 5)  # it goes on
    assert "idle" not in front.statuses(busy)
    front.interrupt()
    front.wait_idle(busy, hang, late)
    assert [front.status(busy), front.status(late)] == ["error", "aborted"]
    assert front.value("[kernel_pump().on, kernel_pump().active]") == [True, False]


def test_comms_of_the_front_end(front):
    front.wait_idle(front.run("""
        opened, closed = [], []
        def open_wire(wire, msg):
            opened.append([msg['content']['data'], cell])
            wire.on_msg(hear)
            wire.on_close(lambda msg: closed.append(cell))
        comm.get_comm_manager().register_target('theirs', open_wire)
        """))
    busy = start(front, "train('busy')")
    said = [front.send("comm_open", dict(comm_id="c1", target_name="theirs", data="hello")),
            front.say("c1", "through it"),
            front.send("comm_close", dict(comm_id="c1", data={})),
            front.say("c1", "nobody listens"),
            front.send("comm_msg", {})]  # a message without a comm
    front.wait_idle(*said)
    assert end(front, busy) == ["ok"]
    assert front.value("[opened, closed, heard]") == [
        [["hello", "busy"]], ["busy"], [["through it", "busy", True], ["go", "busy", True]]]


def test_an_async_cell(front):
    "Here the kernel's loop reads too. What it gets first it handles in its own way: before 7.4 after the cell."
    busy = start(front, """
        cell = 'busy'
        print('starts', flush=True)
        for _ in range(100):
            kernel_pump().pump()
            await asyncio.sleep(0.001)
        cell = None
        """)
    for i in range(5):
        front.say(front.wire, i)
    late = [front.run(f"ran.append({i})") for i in range(5)]
    front.wait_idle(busy, *late)
    assert [front.status(r) for r in (busy, *late)] == ["ok"] * 6
    front.wait_idle(front.run(""))  # and with it what was read before
    assert front.value("sorted(data for data, *_ in heard)") == list(range(5))
    assert front.value("[ran, all(on_main for *_, on_main in heard)]") == [[0, 1, 2, 3, 4], True]


def test_messages_for_a_subshell_that_come_to_the_main_shell_keep_coming_there(front):
    if front.value("ipykernel.__version__") < "7.4":
        pytest.skip("a subshell handles them on its own thread")
    request = front.send("create_subshell_request", {}, "control")
    subshell = front.client.get_control_msg(timeout=60)["content"]["subshell_id"]
    front.wait_idle(request)
    busy = start(front, "train('busy')")
    for what in ("answer", "answer", "go"):
        front.wait_idle(front.say(front.wire, what, subshell_id=subshell))
    front.wait_idle(busy)
    assert front.value("heard") == [[what, "busy", True] for what in ("answer", "answer", "go")]


BREAK = """
def broken(*args, **kwargs):
    setattr(kernel, '{name}', real)
    raise RuntimeError('moved')
broken_pump, real = KernelPump(), kernel.{name}
kernel.{name} = broken
train('busy', pump=lambda: broken_pump, s=1)
"""


@pytest.mark.parametrize("name", ["set_parent", "_publish_status"])
def test_what_fails_later_turns_it_off_and_loses_nothing(front, name):
    busy = start(front, BREAK.format(name=name))
    late = front.run("ran.append('late')")
    said = front.say(front.wire, "hello")
    assert end(front, busy, late) == ["ok", "ok"]
    front.wait_idle(said)
    on, why = front.value("[broken_pump.on, broken_pump.why]")
    assert (on, why) == (False, "reading messages failed (RuntimeError: moved)")
    assert front.value("[heard, ran]") == [[["hello", None, True], ["go", None, True]], ["late"]]


FIT = """
import torch
from ptwrap.data import DataModule
from ptwrap.learner import Learner
from ptwrap.ui.pump import Pump
torch.set_num_threads(1)
learn = Learner('mlp', DataModule.digits(seed=0), lr=1e-2, seed=0)
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, i):
        global cell
        if i == 5: cell = 'valid'; print('validates', flush=True)
        return torch.ones(64), 1
"""


def test_a_fit_is_stopped_by_a_message(front):
    front.wait_idle(front.run(FIT))
    busy = front.run("print('starts', flush=True); wire.on_msg(lambda msg: learn.stop('asked')); "
                     "learn.fit(100_000, cbs=[Pump()]); learn.fit(1, cbs=[Pump()])")
    front.wait_text(busy, "starts")
    late = front.run("ran.append('late')")
    assert end(front, busy, late) == ["ok", "ok"]
    assert front.value("[[e['how'] for e in learn.history.ends], ran]") == [["stopped: asked", "done"], ["late"]]


def test_a_message_during_validation(front):
    front.wait_idle(front.run(FIT))
    busy = front.run("learn.valid_dl = torch.utils.data.DataLoader(Slow(), batch_size=2); learn.fit(1, cbs=[Pump()])")
    front.wait_text(busy, "validates")
    assert end(front, busy) == ["ok"]
    assert front.value("heard") == [["go", "valid", True]]


def test_in_another_thread_it_does_nothing(front):
    front.wait_idle(front.run("""
        def work():
            while not got('go') and not stop: counts.append(kernel_pump().pump()); time.sleep(0.01)
        counts, stop = [], []
        thread = threading.Thread(target=work)
        thread.start()
        """))
    front.wait_idle(front.say(front.wire, "go"))
    front.wait_idle(front.run("thread.join()"))
    assert front.value("[heard, sum(counts), kernel_pump().on]") == [[["go", None, True]], 0, True]


# Where there is nothing to pump


@pytest.fixture
def pretended(monkeypatch):
    "Pretends that a kernel runs here which has all that the pump needs."
    kernel = MagicMock(_supports_kernel_subshells=False)
    kernel.shell_stream.io_loop, kernel.shell_stream._recv_copy = kernel.io_loop, False
    monkeypatch.setattr(pump_module, "running_kernel", lambda: kernel)
    return kernel


@pytest.mark.parametrize("name", ["shell_stream", "_publish_status", "set_parent", "shell_stream._recv_callback",
                                  "shell_stream.socket.recv_multipart", "shell.events.trigger"])
def test_an_unknown_kernel_is_left_alone(name, pretended):
    assert KernelPump().on
    owner, _, attribute = f"kernel.{name}".rpartition(".")
    delattr(eval(owner, dict(kernel=pretended)), attribute)
    pump = kernel_pump()
    assert (pump.on, pump.pump()) == (False, 0)
    assert pump.why == f"this kernel is of an unknown kind (AttributeError: {attribute})"
    learn = Learner("mlp", DataModule.digits(seed=0), lr=1e-2, seed=0).fit(1, cbs=[cb := Pump()])
    assert (learn.state.epoch, cb.failed, cb.pump) == (1, False, pump)


def test_a_kernel_that_reads_in_another_way_is_left_alone(pretended):
    async def handler(*args):
        pass

    pretended.shell_handlers = dict.fromkeys(["comm_open", "comm_msg", "comm_close"], handler)
    assert "handles widget messages in another way" in kernel_pump().why
    pretended.shell_stream.io_loop = None
    assert "reads messages in another way" in KernelPump().why


def test_without_a_kernel():
    assert (KernelPump().on, KernelPump().why) == (False, "no Jupyter kernel runs here")
