"""What a training toolkit adds to a hand-written loop: `python benchmarks/loop.py --peers all`. See README.md."""
import argparse
import gc
import io
import os
import random
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from statistics import median

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the comparison is about one CPU thread: no tool may move to a GPU
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np
import peers
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

LIMITS = {"calls a step": 500, "W1 off": 1.10, "W1 on": 1.12, "W1m off": 0.80, "W2 off": 1.03, "fixed ms": 10,
          "import s": 0.3, "memory MB": 2, "dispatch us": 5}
EPOCHS = {"W1": (19, 3), "W1m": (19, 3), "W2": (5, 1)}  # of a timed fit, and how many make one turn


class Task:
    "A fresh copy of a workload: the same first weights and the same order of batches each time."

    def __init__(self, work: str):
        torch.manual_seed(0)
        self.x, self.y, self.model, self.lr, batch_size = self.cnn() if work in ("W2", "W3") else self.digits()
        batch_size = 48 if work == "W3" else batch_size
        self.opt = torch.optim.SGD(self.model.parameters(), lr=self.lr)
        self.loss_fn = nn.CrossEntropyLoss()
        if work == "one step":
            self.x, self.y = self.x[:batch_size], self.y[:batch_size]
        order, data = torch.Generator().manual_seed(0), TensorDataset(self.x, self.y)
        if work == "W1m":
            from ptwrap.data import DataModule
            self.train_dl = DataModule.arrays(self.x.numpy(), self.y.numpy(), batch_size=batch_size).train_dl
        elif work == "20,000 steps":  # in one epoch
            sampler = RandomSampler(data, replacement=True, num_samples=20_000 * batch_size, generator=order)
            self.train_dl = DataLoader(data, batch_size, sampler=sampler)
        else:
            self.train_dl = DataLoader(data, batch_size, shuffle=True, generator=order)

    def digits(self):
        data = np.load(ROOT / "ptwrap/assets/digits.npz")
        x, y = data["images"][:1437].reshape(-1, 64) / np.float32(16), data["labels"][:1437].astype(np.int64)
        mlp = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        return torch.from_numpy(x), torch.from_numpy(y), mlp, 0.1, 32

    def cnn(self):
        y = torch.randint(10, (600,))
        x = torch.randn(600, 1, 28, 28) + y.view(-1, 1, 1, 1) / 3  # the class is the brightness: something to learn
        conv = lambda n_in, n_out: [nn.Conv2d(n_in, n_out, 3), nn.ReLU(), nn.MaxPool2d(2)]
        return x, y, nn.Sequential(*conv(1, 16), *conv(16, 32), nn.Flatten(), nn.Linear(800, 10)), 0.02, 128

    @torch.no_grad()
    def loss(self) -> float:
        self.model.eval()
        return self.loss_fn(self.model(self.x), self.y).item()


class Terminal(io.StringIO):
    "Swallows output and says it is a terminal, so that progress bars behave as they do for a user."
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def once(fit, task: Task, epochs: int, on: bool = False) -> tuple[float, str]:
    "CPU seconds of one fit and what it wrote."
    out = Terminal()
    gc.collect()
    with redirect_stdout(out), redirect_stderr(out):
        start = time.process_time()
        fit(task, epochs, on)
        return time.process_time() - start, out.getvalue()


def turns(fit, work: str, on: bool) -> tuple[list[float], list[float]]:
    """One fit that takes turns with the raw loop: before each of its epochs the raw loop trains a twin for one epoch.

    Returns the tool's CPU seconds a step from epoch to epoch, which hold all but the fixed cost of a fit, and the
    raw loop's just before and after, so that a busy machine slows both alike.
    """
    task, twin, marks = Task(work), Task("W1" if work == "W1m" else work), []
    kind, epochs = type(task.train_dl), EPOCHS[work][0]

    def __iter__(loader):
        start = time.process_time()
        peers.raw(twin, 1)
        marks.append((start, time.process_time()))
        return kind.__iter__(loader)
    task.train_dl.__class__ = type(kind.__name__, (kind,), {"__iter__": __iter__})
    once(fit, task, epochs, on)
    del marks[:-epochs]  # a look at a batch before the first epoch is no epoch
    tool = [(end - start) / len(task.train_dl) for (_, start), (end, _) in zip(marks, marks[1:])]
    base = [(end - start) / len(twin.train_dl) for start, end in marks]
    return tool, [(a + b) / 2 for a, b in zip(base, base[1:])]


def ratios(runs: dict, work: str, repeats: int) -> tuple[dict, float]:
    "For each run `(fit, on)` its time a step over the raw loop's, median of all turns; and the raw loop's least us."
    found, least, n = {key: [] for key in runs}, [], EPOCHS[work][1]
    gc.freeze()  # what imports left is nobody's garbage: collections in the timed part do not walk it
    for _ in range(repeats):
        for key, (fit, on) in random.sample(list(runs.items()), len(runs)):
            tool, base = turns(fit, work, on)
            found[key] += [sum(tool[i:i + n]) / sum(base[i:i + n]) for i in range(0, len(tool), n)]
            least.append(min(base))
    return {key: median(values) for key, values in found.items()}, 1e6 * min(least)


def count_calls(fit, task: Task, epochs: int) -> int:
    "Python and C functions called by a fit, in the thread that trains."
    n = 0

    def tick(frame, event, arg):
        nonlocal n
        n += event in ("call", "c_call")

    def profiled(*args):
        sys.setprofile(tick)
        try:
            fit(*args)
        finally:
            sys.setprofile(None)
    once(profiled, task, epochs)
    return n


def table(work: str, tools: dict, repeats: int) -> dict[str, dict]:
    "Measures one workload and prints it; the row `raw` is the raw loop against itself, twice."
    tools, rows = {"raw": peers.raw} | tools, {}
    for name, fit in tools.items():  # also the warm-up
        task = Task(work)
        off, on = once(fit, task, 3)[1], once(fit, Task(work), 3, on=True)[1]
        calls = count_calls(fit, Task(work), 3) - count_calls(fit, Task(work), 1)
        rows[name] = dict(calls=calls / (2 * len(task.train_dl)), loss=task.loss(),
                          note="off wrote text" * bool(off) or "on wrote nothing" * (not on and name != "raw"))
    found, us = ratios({(name, on): (fit, on) for name, fit in tools.items() for on in (False, True)}, work, repeats)
    print(f"\n{work:<12}{'us/step':>9}{'off':>7}{'on':>7}{'calls/step':>12}{'loss':>8}  from {Task(work).loss():.3f}")
    for name, row in rows.items():
        row |= dict(name=name, off=found[name, False], on=found[name, True], us=found[name, False] * us)
        print("{name:<12}{us:>9.0f}{off:>7.2f}{on:>7.2f}{calls:>12.1f}{loss:>8.3f}  {note}".format(**row), flush=True)
    return rows


def fixed_ms(fit) -> float:
    "CPU milliseconds of building the tool's objects and fitting one step, over the raw loop's: the least of seven."
    least = lambda fit: min(once(fit, Task("one step"), 1)[0] for _ in range(7))
    return 1e3 * (least(fit) - least(peers.raw))


def python(*args: str) -> float:
    "The number that a fresh Python process prints last."
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    out = subprocess.run([sys.executable, *args], capture_output=True, text=True, check=True, env=env).stdout
    return float(out.split()[-1])


def import_s(statement: str) -> float:
    "CPU seconds of an import in a process that has imported torch: the least of three."
    code = f"import torch, time; t = time.process_time()\n{statement}\nprint('', time.process_time() - t)"
    return min(python("-c", code) for _ in range(3))


def memory_mb(fit) -> float:
    "Growth of this process over one epoch of 20,000 steps after a warm-up; what the fit returns stays alive."
    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    once(fit, Task("W1"), 40)
    task, before = Task("20,000 steps"), resident()
    task.kept = fit(task, 1)
    return resident() - before


def gate(found: dict[str, float]) -> bool:
    "Prints what was found beside the limits; whether all are kept."
    for name, limit in LIMITS.items():
        print(f"{name:<14}{found[name]:>9.3f}  limit {limit:<5} {'ok' if found[name] <= limit else 'TOO MUCH'}")
    return all(found[name] <= limit for name, limit in LIMITS.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="none", help="all, none or names with commas: " + ", ".join(peers.PEERS))
    parser.add_argument("--repeats", type=int, default=7, help="timed fits of each tool and mode")
    parser.add_argument("--gate", action="store_true", help="exit 1 if ptwrap is over a limit")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        print(memory_mb(getattr(peers, args.memory)))
        return 0
    wanted = {"all": list(peers.PEERS), "none": []}.get(args.peers, args.peers.split(","))
    tools = {"ptwrap": peers.ptwrap} | {name: peers.PEERS[name] for name in wanted if find_spec(name)}
    print(f"torch {torch.__version__}, CPU time, one thread;", "not installed:", [n for n in wanted if n not in tools])
    works = {"W1": tools, "W2": tools, "W1m": {"ptwrap": peers.ptwrap}}
    tables = {work: table(work, members, args.repeats) for work, members in works.items()}
    print(f"\n{'':<12}{'fixed ms':>9}{'import s':>10}{'MB in 20,000 steps':>20}")
    print(f"{'raw':<12}{'':>19}{python(__file__, '--memory', 'raw'):>20.1f}")
    costs = {}
    for name, fit in tools.items():
        costs[name] = fixed_ms(fit), import_s(peers.IMPORTS[name]), python(__file__, "--memory", name)
        print("{:<12}{:>9.1f}{:>10.2f}{:>20.1f}".format(name, *costs[name]), flush=True)
    found = {f"{work} {mode}": rows["ptwrap"][mode] for work, rows in tables.items() for mode in ("off", "on")}
    found |= dict(zip(("fixed ms", "import s", "memory MB"), costs["ptwrap"]))
    found["calls a step"] = tables["W1"]["ptwrap"]["calls"]
    found["dispatch us"] = peers.ptwrap_dispatch_us(Task("one step"))
    print()
    return int(not gate(found) and args.gate)


if __name__ == "__main__":
    sys.exit(main())
