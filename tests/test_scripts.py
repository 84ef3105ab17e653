"Training from a file, in a process of its own: what is imported, what is printed, and how Ctrl-C ends it."
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time

import pytest

pytestmark = pytest.mark.slow

START = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ptwrap import Learner
torch.set_num_threads(1)
torch.manual_seed(0)
def learner(batches, **kwargs):
    data = TensorDataset(torch.randn(2 * batches, 4), torch.randint(0, 3, (2 * batches,)))
    valid = TensorDataset(*(t[:8] for t in data.tensors))
    return Learner(nn.Linear(4, 3), (DataLoader(data, batch_size=2, **kwargs), DataLoader(valid, batch_size=8)),
                   'cross_entropy', metrics='accuracy', device='cpu')
"""
WAIT = """
from ptwrap import Callback
class Ready(Callback):
    "Lets the test know that training runs, and gives it time."
    def on_batch_end(self, learn, out):
        if learn.state.step == 20: print('ready', flush=True)
        time.sleep(0.002)
"""
CLEAN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def command(code: str, start: str = START) -> list[str]:
    return [sys.executable, "-c", start + textwrap.dedent(code)]


def run(code: str, start: str = START) -> subprocess.CompletedProcess:
    done = subprocess.run(command(code, start), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_import_alone_is_light():
    heavy = "torch torchvision IPython ipywidgets anywidget matplotlib pandas numpy tqdm"
    out = run(f"""
        import sys, ptwrap
        print(ptwrap.__version__, [m for m in {heavy.split()} if m in sys.modules])
        """, start="").stdout
    assert out.split(maxsplit=1)[1].strip() == "[]"


def test_training_needs_no_notebook_package():
    out = run("""
        learn = learner(5).fit(1)
        assert learn.state.step == 5
        heavy = 'IPython ipykernel ipywidgets anywidget matplotlib plotly pandas torchvision timm'.split()
        print([m for m in heavy if m in sys.modules])
        """).stdout
    assert out.splitlines()[-1] == "[]"


def test_a_file_gets_few_lines_and_no_bar():
    done = run("learner(300).fit(3)")
    assert "\r" not in done.stdout + done.stderr
    assert CLEAN.search(done.stdout + done.stderr) is None
    lines = done.stdout.splitlines()
    assert 3 <= len(lines) <= 30
    assert [line.split()[0] for line in lines if line.split()[0].isdigit()] == ["1", "2", "3"]
    assert done.stderr == ""


def wait_for(process: subprocess.Popen, word: str) -> None:
    "Reads the output up to a line."
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"ended before {word!r}: {process.stderr.read()}")


@pytest.mark.parametrize("view", [True, False], ids=["view", "no view"])
def test_ctrl_c(view):
    start = START if view else START.replace("from ptwrap import Learner", "from ptwrap.learner import Learner")
    wait = WAIT if view else WAIT.replace("from ptwrap import", "from ptwrap.callback import")
    code = wait + "learner(300, num_workers=2).fit(10_000, cbs=[Ready()])\nprint('never here')\n"
    process = subprocess.Popen(command(code, start), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        wait_for(process, "ready")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert "never here" not in out
    told = [line for line in (out + err).splitlines() if "interrupted" in line]
    assert len(told) == view, out + err
    with pytest.raises(ProcessLookupError):  # nothing of the process group is left
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)


def in_terminal(code: str, until: str = "", width: int = 100) -> tuple[int, str]:
    "Runs a script on a pseudo-terminal; Ctrl-C is typed when `until` was printed. Returns exit code and raw output."
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    attributes = termios.tcgetattr(theirs)
    attributes[3] &= ~termios.ECHO  # no ^C in the output
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    process = subprocess.Popen(command(code), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                               env=os.environ | dict(TERM="xterm"),
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(theirs)
    raw = b""
    try:
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            raw += chunk
            if until and until.encode() in raw:
                until = ""
                os.write(ours, b"\x03")
        return process.wait(timeout=60), raw.decode()
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()


def screen(raw: str, width: int = 100) -> list[str]:
    "What a terminal shows in the end."
    rows, y, x = [[]], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|.", raw, re.DOTALL):
        if token == "\r":
            x = 0
        elif token == "\n":
            y += 1
        elif token in ("\x1b[A", "\x1b[1A"):
            y = max(0, y - 1)
        elif token in ("\x1b[K", "\x1b[0K"):
            rows[y] = rows[y][:x]
        elif token in ("\x1b[2K",):
            rows[y] = []
        elif not token.startswith("\x1b"):
            if x == width:
                y, x = y + 1, 0
            rows.extend([] for _ in range(y + 1 - len(rows)))
            rows[y].extend(" " * (x + 1 - len(rows[y])))
            rows[y][x] = token
            x += 1
        rows.extend([] for _ in range(y + 1 - len(rows)))
    return ["".join(row).rstrip() for row in rows]


def test_the_screen_can_tell_leftovers():
    assert screen("abc\rX\n") == ["Xbc", ""]
    assert screen("abc\r   \rX\r\n12345", width=4) == ["X", "1234", "5"]


def test_a_terminal_gets_a_bar_and_a_clean_table():
    code, raw = in_terminal("""
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 600
            def __getitem__(self, i):
                time.sleep(0.0005)
                return torch.ones(4), 1
        learn = learner(5)
        learn.train_dl = DataLoader(Slow(), batch_size=2)
        learn.fit(3)
        """)
    assert code == 0, raw
    assert raw.count("\r") > 10 and "%|" in raw and "epoch 2/3" in raw
    lines = screen(raw)
    text = "\n".join(lines)
    assert "%|" not in text and "batch/s" not in text and "\x1b" not in text
    shown = [line for line in lines if line]
    assert len(shown) == 5, text  # a heading, three epochs, the end
    heading, *rows, end = shown
    assert heading.split()[0] == "epoch" and "valid_accuracy" in heading
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert {len(row) for row in rows} == {len(heading)}
    assert end.startswith("done")


def test_ctrl_c_in_a_terminal_leaves_no_bar():
    code, raw = in_terminal(WAIT.replace("print('ready', flush=True)", "pass") +
                            "learner(300).fit(10_000, cbs=[Ready()])\n", until="epoch 2/")
    lines = [line for line in screen(raw) if line]
    assert code == 130, raw
    assert "%|" not in "\n".join(lines) and "Traceback" not in raw
    assert [line for line in lines if "interrupted" in line] == [lines[-1]]
