"Each notebook is a test: it runs from top to bottom, in this process, and leaves torch as it was."
import signal
from pathlib import Path

import pytest
import torch
from nbdev import test as nbtest  # `test_nb` imported by its name would be collected as a test
from nbdev.config import get_config
from nbdev.doclinks import nbglob

CONFIG = get_config(Path(__file__).parent)
NOTEBOOKS = sorted(nbglob(CONFIG.nbs_path, as_path=True))


def settings() -> dict:
    "What a notebook might change for those that run after it."
    return dict(threads=torch.get_num_threads(), dtype=torch.get_default_dtype(), grad=torch.is_grad_enabled())


@pytest.fixture
def kept_settings(monkeypatch):
    "Puts torch's settings and Ctrl-C back after a notebook, and fails if it left other settings behind."
    monkeypatch.setattr(nbtest, "_int_handler", signal.default_int_handler)  # nbdev's own ends the whole process
    before, on_interrupt = settings(), signal.getsignal(signal.SIGINT)
    yield
    after = settings()
    signal.signal(signal.SIGINT, on_interrupt)
    torch.set_num_threads(before["threads"])
    torch.set_default_dtype(before["dtype"])
    torch.set_grad_enabled(before["grad"])
    assert after == before


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(CONFIG.nbs_path).as_posix())
def test_notebook(path, kept_settings):
    passed, _ = nbtest.test_nb(path, skip_flags=CONFIG.tst_flags.split())
    assert passed, f"{path.name} failed: its traceback is in the captured stderr"
