"JupyterLab or Notebook 7 in Chromium, driven from Python: a test reads what a person would see."
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import nbformat
import psutil
from playwright.sync_api import Locator, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
APPS = dict(lab=("jupyterlab", "lab/workspaces/{0}/tree/{0}.ipynb"), notebook=("notebook", "notebooks/{0}.ipynb"))
HOMES = dict(JUPYTER_CONFIG_DIR="config", JUPYTER_DATA_DIR="data", JUPYTER_RUNTIME_DIR="run", IPYTHONDIR="ipython")
SETTINGS = {
    "@jupyterlab/notebook-extension:tracker": dict(windowingMode="none"),  # cells below the edge are in the page too
    "@jupyterlab/apputils-extension:notification": dict(fetchNews="false", checkForUpdates=False),
}


def end(server: psutil.Popen) -> None:
    "Ends a server and the kernels that it started, each by its id."
    if server.poll() is None:
        started = [server, *server.children(recursive=True)]
        server.terminate()
        for process in psutil.wait_procs(started, timeout=15)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        server.wait()


class Lab(ExitStack):
    "A server and a browser. Notebooks are opened one after another in its page, each with a kernel of its own."

    def __init__(
        self,
        app: str = "lab",  # or "notebook"
        settings: dict[str, dict] | None = None,  # values of JupyterLab's settings, as in SETTINGS
        beside: "Lab | None" = None,  # shares its browser and its notebooks; a process can have one browser only
    ):
        super().__init__()
        self.app, self.settings, self.beside = app, SETTINGS | (settings or {}), beside
        self.blocked: list[str] = []  # addresses outside 127.0.0.1 that the open notebook asked for, in vain
        self.errors: list[str] = []  # console errors and uncaught exceptions of the open notebook
        self.path = ""  # of the open notebook

    def __enter__(self) -> "Lab":
        try:
            self.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)))
            self.home = Path(self.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            self.folder = self.beside.folder if self.beside else self.home / "notebooks"
            self._start_server()
            self._start_browser()
        except BaseException:
            self.close()
            raise
        return self

    def _start_server(self) -> None:
        self.folder.mkdir(exist_ok=True)
        for name, values in self.settings.items():
            path = self.home / f"config/lab/user-settings/{name.replace(':', '/')}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "IPYTHON"))}
        env |= {k: str(self.home / v) for k, v in HOMES.items()} | {"JUPYTER_PATH": str(self.folder.parent / "share")}
        args = ["--ip=127.0.0.1", "--port=0", "--no-browser", "--allow-root", f"--ServerApp.root_dir={self.folder}"]
        args += [f"--{app}.expose_app_in_browser=True" for app in ("LabApp", "JupyterNotebookApp")]
        self.log = self.home / "log"
        with self.log.open("w") as log:
            server = psutil.Popen([sys.executable, "-m", APPS[self.app][0], *args], env=env, stdout=log, stderr=log,
                                  cwd=self.home, start_new_session=True)
        self.callback(end, server)
        until, info = time.monotonic() + 90, self.home / f"run/jpserver-{server.pid}.json"
        while not info.exists() or not info.read_text():
            assert server.poll() is None and time.monotonic() < until, f"no server:\n{self.log.read_text()[-3000:]}"
            time.sleep(0.05)
        self.url, self.token = (json.loads(info.read_text())[k] for k in ("url", "token"))

    def _start_browser(self) -> None:
        self.browser = self.beside.browser if self.beside else self.enter_context(sync_playwright()).chromium.launch(
            executable_path=CHROMIUM, args=["--disable-gpu", "--disable-quic", "--disable-sync"],
            proxy=dict(server="http://127.0.0.1:9", bypass="127.0.0.1"))  # nobody listens there: the rest is cut off
        self.context = self.browser.new_context(viewport=dict(width=1280, height=1000))
        self.callback(self.context.close)
        self.context.add_init_script(path=Path(__file__).with_suffix(".js"))
        self.context.on("request", lambda request: self._note(url=request.url))
        self.context.on("console", lambda said: said.type == "error" and self._note(error=said.text))
        self.context.on("weberror", lambda raised: self._note(error=str(raised.error)))
        self.page = self.context.new_page()
        self.page.on("websocket", lambda socket: self._note(url=socket.url))

    def _note(self, url: str = "", error: str = "") -> None:
        self.blocked += re.findall(r"^(?:http|ws)s?://(?!127\.0\.0\.1[:/]).*", url)
        if error and "(reading 'schema')" not in error:  # Notebook 7.6 makes that one whenever it starts
            self.errors.append(error)

    def open(
        self,
        cells: Sequence[str] | None = None,  # sources of code cells; None opens the notebook that is there
        name: str = "test",  # <name>.ipynb in `folder`
        python: str | Path = sys.executable,  # of the kernel; it needs ipykernel
    ) -> None:
        "Opens a notebook in place of the one that was open, whose kernel is ended, and waits for its kernel."
        self.page.goto("about:blank")
        sessions, headers = f"{self.url}api/sessions", dict(Authorization=f"token {self.token}")
        for session in self.context.request.get(sessions, headers=headers).json():
            self.context.request.delete(f"{sessions}/{session['id']}", headers=headers)
        self.blocked, self.errors, self.path = [], [], f"{name}.ipynb"
        if cells is not None:
            nb = nbformat.v4.new_notebook(metadata=dict(kernelspec=self._kernel(os.path.abspath(python))))
            nb.cells = [nbformat.v4.new_code_cell(c) for c in cells]
            nbformat.write(nb, self.folder / self.path)
        self.page.goto(f"{self.url}{APPS[self.app][1].format(name)}?token={self.token}")
        self.wait("lab.shown(path) && lab.idle()")

    def _kernel(self, python: str) -> dict:
        spec = dict(display_name="Python", language="python")
        argv = [python, "-m", "ipykernel", "-f", "{connection_file}"]
        path = self.folder.parent / "share/kernels" / re.sub(r"\W+", "-", python[1:]).lower() / "kernel.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(spec | dict(argv=argv, env=dict(PYTHONPATH=str(Path(__file__).parents[1])))))
        return spec | dict(name=path.parent.name)

    def wait(self, get: str | Callable, timeout: float = 60):
        "Waits until a function, or JavaScript that knows the notebook's `path`, gives something true; gives that."
        until = time.monotonic() + timeout
        while not (value := get() if callable(get) else self.page.evaluate(f"path => {get}", self.path)):
            assert time.monotonic() < until, f"in vain for {timeout} s: {get}\n{self.page.inner_text('body')}\n" \
                f"{self.errors}\n{self.log.read_text()[-3000:]}"
            self.page.wait_for_timeout(50)
        return value

    def stranger(self) -> "Lab":
        "A second server, to be used with `with`: it has never seen the notebooks of this one and does not trust them."
        return Lab(self.app, self.settings, beside=self)

    def start(self, command: str, **args) -> None:
        "Starts a command of JupyterLab."
        self.page.evaluate("arg => lab.start(...arg)", [command, args])

    def fill(self, cells: Sequence[str]) -> None:
        "Puts other code cells into the open notebook, whose kernel goes on."
        self.page.evaluate("cells => lab.fill(cells)", cells)

    def run(self, *cells: int) -> None:
        "Starts cells (the first is 0) or queues them behind one that runs; without a number all cells."
        for i in cells or [None]:
            self.page.evaluate("i => lab.run(i)", i)

    def interrupt(self) -> None:
        "Does what the stop button of the toolbar does."
        self.start("notebook:interrupt-kernel")

    def busy(self) -> list[int]:
        "The cells with a star, which run or wait."
        return self.page.evaluate("lab.busy()")

    def wait_idle(self, timeout: float = 60) -> None:
        "Waits until nothing runs. What was just clicked in a widget may not have reached the kernel by then."
        self.wait("lab.idle()", timeout)

    def save(self) -> nbformat.NotebookNode:
        "Saves the notebook and reads its file."
        self.page.evaluate("lab.panel.context.save()")
        return nbformat.read(self.folder / self.path, as_version=4)

    def reload(self) -> None:
        "Loads the page again, as F5 does. The kernel goes on."
        self.page.reload()
        self.wait("lab.shown(path)")

    def theme(self, name: str) -> None:
        "Light or Dark, also for the notebooks that this server opens later."
        self.start("apputils:change-theme", theme=f"JupyterLab {name}")
        self.wait(f"document.body.dataset.jpThemeName.endsWith('{name}') && lab.shown(path)")

    def output(self, i: int) -> Locator:
        "Locator of what cell i shows below its code; `.screenshot(path=...)` takes its picture."
        return self.page.locator(".jp-Notebook .jp-Cell").nth(i).locator(".jp-Cell-outputArea")

    def text(self, i: int) -> str:
        "The words in the output of cell i."
        return "\n".join(self.output(i).locator("> .jp-OutputArea-child > .jp-OutputArea-output").all_inner_texts())

    def wait_text(self, i: int, pattern: str, timeout: float = 30) -> re.Match:
        "Waits until the output of cell i has the pattern, where ^ and $ are the ends of a line."
        return self.wait(lambda: re.search(pattern, self.text(i), re.M), timeout)

    def contrasts(self, parts: Locator) -> list[tuple[float, str]]:
        "How much each text among some elements stands out from what is behind it, the least first."
        return sorted(parts.evaluate_all("nodes => nodes.filter(lab.says).map(n => [lab.contrast(n), n.innerText])"))

    def shot(self, name: str) -> None:
        "Takes a picture of the page, where the environment names a folder for them: PTWRAP_SHOTS."
        if folder := os.environ.get("PTWRAP_SHOTS"):
            self.page.screenshot(path=f"{folder}/{re.match('[A-Za-z]+', name)[0].lower()}.png")

    def traffic(self) -> tuple[int, int]:
        "Messages and bytes that the page received through websockets."
        return tuple(self.page.evaluate("[lab.messages, lab.bytes]"))

    def heap(self) -> float:
        "MB of live JavaScript objects in the page."
        session = self.context.new_cdp_session(self.page)
        session.send("HeapProfiler.collectGarbage")
        return session.send("Runtime.getHeapUsage")["usedSize"] / 1e6
