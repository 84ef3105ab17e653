"Real kernels, of the installed ipykernel or another version of it, and a front end made by hand."
import fcntl
import json
import os
import queue
import shutil
import subprocess
import sys
import time
import venv
from importlib import metadata
from pathlib import Path

from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager

KERNELS = Path(__file__).parent.parent / ".venv/kernels"
NEEDS = {"6.31.0": ["nest-asyncio"]}  # what a version needs beyond what the installed one brings
WAIT_S = 20  # for a message that must come


def kernel_python(version: str | None = None) -> Path:
    "The Python of a kernel. For another version than the installed one it is an environment, made once and then kept."
    if version in (None, metadata.version("ipykernel")):
        return Path(sys.executable)
    home = KERNELS / version
    python, done = home / "bin/python", home / "done"
    KERNELS.mkdir(parents=True, exist_ok=True)
    with open(KERNELS / f"{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel runs wait here
        if not done.exists():
            shutil.rmtree(home, ignore_errors=True)
            venv.create(home, with_pip=False)
            own = next(home.glob("lib/python*/site-packages"))
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(own)]
            subprocess.run([*pip, f"ipykernel=={version}", *NEEDS.get(version, [])], check=True)
            rest = Path(metadata.distribution("ipykernel").locate_file(""))
            (own / "rest.pth").write_text(f"import site; site.addsitedir({str(rest)!r})\n")
            done.touch()
    return python


class FrontEnd:
    "A kernel and what a notebook does with it: sends requests, collects what comes back."

    def __init__(self, folder: Path, version: str | None = None):
        spec = dict(argv=[str(kernel_python(version)), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                    display_name="test", language="python", interrupt_mode="signal")
        (folder / "kernels/test").mkdir(parents=True)
        (folder / "kernels/test/kernel.json").write_text(json.dumps(spec))
        specs = KernelSpecManager(kernel_dirs=[str(folder / "kernels")])
        env = os.environ | dict(IPYTHONDIR=str(folder / "ipython"), PYTHONWARNINGS="default", OMP_NUM_THREADS="1")
        self.log = folder / "log"
        self.manager = KernelManager(kernel_spec_manager=specs, kernel_name="test")
        self.messages: list[dict] = []  # all that came on iopub, in order
        self.replies: dict[str, dict] = {}  # by the id of the request
        with open(self.log, "w") as log:
            self.manager.start_kernel(env=env, stderr=log, stdout=log)
        try:
            self.client = self.manager.client()
            self.client.start_channels()
            self.client.wait_for_ready(timeout=WAIT_S)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    # Requests; each returns its id

    def send(self, kind: str, content: dict, channel: str = "shell", **header) -> str:
        msg = self.client.session.msg(kind, content)
        msg["header"] |= header
        getattr(self.client, f"{channel}_channel").send(msg)
        return msg["header"]["msg_id"]

    def run(self, code: str, **kwargs) -> str:
        content = dict(code=code, silent=False, store_history=True, user_expressions={}, allow_stdin=False,
                       stop_on_error=True)
        return self.send("execute_request", content | kwargs)

    def say(self, comm_id: str, data, **header) -> str:
        return self.send("comm_msg", dict(comm_id=comm_id, data=data), **header)

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    # What comes back

    def read_until(self, ready, what: str) -> None:
        "Collects what comes on iopub until it is enough."
        end = time.monotonic() + WAIT_S
        while not ready():
            left = end - time.monotonic()
            try:
                self.messages.append(self.client.get_iopub_msg(timeout=max(left, 0)))
            except queue.Empty:
                raise AssertionError(f"{what} did not come within {WAIT_S} s; the kernel says: "
                                     f"{self.log.read_text()[-2000:]}") from None
            assert left > 0, f"{what} did not come within {WAIT_S} s, other messages did"

    def of(self, request: str) -> list[dict]:
        return [m for m in self.messages if m["parent_header"].get("msg_id") == request]

    def statuses(self, request: str) -> list[str]:
        return [m["content"]["execution_state"] for m in self.of(request) if m["msg_type"] == "status"]

    def wait_idle(self, *requests: str) -> None:
        "Until each request is done. A cell that shows [*] for ever fails here."
        self.read_until(lambda: all("idle" in self.statuses(r) for r in requests), "an idle status")

    def wait_text(self, request: str, text: str) -> None:
        self.read_until(lambda: text in self.text(request), repr(text))

    def text(self, request: str) -> str:
        "What a request printed."
        return "".join(m["content"]["text"] for m in self.of(request) if m["msg_type"] == "stream")

    def reply(self, request: str) -> dict:
        "The content of the reply on the shell channel."
        end = time.monotonic() + WAIT_S
        while request not in self.replies and time.monotonic() < end:
            try:
                msg = self.client.get_shell_msg(timeout=1)
            except queue.Empty:
                continue
            self.replies[msg["parent_header"]["msg_id"]] = msg["content"]
        return self.replies[request]

    def status(self, request: str) -> str:
        return self.reply(request)["status"]

    def value(self, code: str):
        "What a kernel's variable holds, by JSON."
        request = self.run("", user_expressions=dict(v=f"__import__('json').dumps({code})"))
        self.wait_idle(request)
        result = self.reply(request)["user_expressions"]["v"]
        assert result["status"] == "ok", result
        return json.loads(eval(result["data"]["text/plain"]))  # the repr of a string
