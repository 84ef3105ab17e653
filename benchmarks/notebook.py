"""What progress costs in a notebook: `python benchmarks/notebook.py --peers all`. See README.md."""
import argparse
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from jupyter_client.manager import start_new_kernel

HERE = Path(__file__).resolve().parent
LIMITS = {"0.4 ms steps": 1.15, "10 ms steps": 1.02, "fixed ms": 150, "messages/s": 40, "KB/s": 50}
# Runs in the kernel; each prints one line of JSON, after a first fit that imports and warms up what it needs.
SETUP = """
import json, sys, time
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
import loop, peers
from loop import EPOCHS, Task, fixed_ms, once, ratios
EPOCHS["W3"] = EPOCHS["W2"]
fit = getattr(peers, {tool!r})
once(fit, Task("W1"), 3, True)
"""
# The raw loop takes turns with the tool, so the clock by which a view draws runs twice as fast: ours draws half as often.
SLOPE = """
if {tool!r} == "ptwrap":
    from ptwrap.all import LiveView
    LiveView.every_s *= 2
print('found', json.dumps(ratios({{'on': (fit, True)}}, {work!r}, {repeats})[0]['on']))
if {tool!r} == "ptwrap":
    LiveView.every_s /= 2
"""
WHOLE = """
least = lambda tool, on: min(once(tool, Task("W1"), 10, on)[0] for _ in range(5))
print('found', json.dumps(least(fit, True) / least(peers.raw, False)))
"""
FIXED = "print('found', json.dumps(fixed_ms(lambda *task: fit(*task[:2], True))))"
ONE = "_ = once(fit, Task('W1'), 10, True)"
RATE = """
task, start = Task('W1'), time.perf_counter()
if {pause}:  # an epoch of 50 ms, 300 of them
    kind = type(task.train_dl)
    def slow(loader):
        until = time.perf_counter() + 0.05
        yield from list(kind.__iter__(loader))[:1]
        time.sleep(max(0, until - time.perf_counter()))
    task.train_dl.__class__ = type(kind.__name__, (kind,), dict(__iter__=slow, __len__=lambda loader: 1))
_ = once(fit, task, {epochs}, True)
print('found', json.dumps(time.perf_counter() - start))
"""


class Kernel:
    "A kernel, and a front end that counts what it is sent and says hello to each widget that opens."

    def __init__(self, tool: str):
        self.manager, self.client = start_new_kernel(extra_arguments=["--log-level=ERROR"])
        self.opening = 0  # bytes of the last widget's opening message, which brings the code of the page
        self.run(SETUP.format(here=str(HERE), tool=tool))

    def run(self, code: str) -> tuple[float | None, int, int]:
        "Runs a cell: the number that it found, messages and bytes that it sends, without status and opening messages."
        found, messages, size, done = None, 0, 0, False
        request = self.client.execute(code)
        while not done:
            msg = self.client.get_iopub_msg(timeout=900)
            kind, content = msg["msg_type"], msg["content"]
            if kind == "status":
                done = content["execution_state"] == "idle" and msg["parent_header"].get("msg_id") == request
                continue
            messages += 1
            parts = [json.dumps(msg[k], default=str) for k in ("header", "parent_header", "metadata", "content")]
            size += sum(len(part) for part in [*parts, *msg["buffers"]])
            if kind == "comm_open":
                opening = sum(map(len, parts))
                size, self.opening = size - opening, max(self.opening, opening)
                hello = dict(comm_id=content["comm_id"], data=dict(method="custom", content=dict(type="hello")))
                self.client.shell_channel.send(self.client.session.msg("comm_msg", hello))
            elif kind == "stream":
                for line in content["text"].splitlines():
                    found = float(line.split()[1]) if line.startswith("found ") else found
            elif kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
        return found, messages, size

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def measure(tool: str, repeats: int) -> dict[str, float]:
    "All figures of one tool, in a kernel of its own."
    kernel, row = Kernel(tool), {}
    try:
        row["0.4 ms steps"] = kernel.run(SLOPE.format(tool=tool, work="W1", repeats=repeats))[0]
        row["10 ms steps"] = kernel.run(SLOPE.format(tool=tool, work="W3", repeats=repeats))[0]
        row["10 epochs"] = kernel.run(WHOLE)[0]
        row["messages"] = kernel.run(ONE)[1]
        row["fixed ms"] = kernel.run(FIXED)[0]
        rates = []
        for pause, epochs in ((0, 200), (1, 300)):
            seconds, messages, size = kernel.run(RATE.format(pause=pause, epochs=epochs))
            rates.append((messages / seconds, size / seconds / 1e3))
        row["messages/s"], row["KB/s"] = (max(r) for r in zip(*rates))
        row["KB opening"] = kernel.opening / 1e3
    finally:
        kernel.close()
    return row


def main() -> int:
    sys.path.insert(0, str(HERE))
    import peers
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="none", help="all, none or names with commas: " + ", ".join(peers.PEERS))
    parser.add_argument("--repeats", type=int, default=5, help="timed fits for the slopes")
    parser.add_argument("--gate", action="store_true", help="exit 1 if ptwrap is over a limit")
    args = parser.parse_args()
    wanted = {"all": list(peers.PEERS), "none": []}.get(args.peers, args.peers.split(","))
    rows = {}
    for tool in ["ptwrap", *(name for name in wanted if find_spec(name))]:
        start = time.perf_counter()
        rows[tool] = row = measure(tool, args.repeats)
        if tool == "ptwrap":
            print(f"{'':<10}" + "".join(f"{name:>14}" for name in row))
        print(f"{tool:<10}" + "".join(f"{v:>14.2f}" for v in row.values()) + f"  {time.perf_counter() - start:.0f} s", flush=True)
    over = [name for name, limit in LIMITS.items() if round(rows["ptwrap"][name], 2) > limit]
    print("limits:", LIMITS, "over:", over or "none")
    return int(bool(over) and args.gate)


if __name__ == "__main__":
    sys.exit(main())
