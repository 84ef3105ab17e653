"Every test runs offline, on one thread and from the same seeds."
import os
import random

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch

from ptwrap import core

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeds():
    "The global generators of Python, NumPy and torch start every test from the same state."
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def names(monkeypatch):
    "What a test or a notebook registers is gone after it."
    for registry in vars(core).values():
        if isinstance(registry, core.Registry):
            registry.names()  # first, since it imports those of the package
            monkeypatch.setattr(registry, "_items", dict(registry._items))


@pytest.fixture(scope="module")  # not longer: while the browser is open no other event loop runs in this thread
def server():
    "One server and one browser for all tests of a file: they take seconds to start."
    in_ci = os.environ.get("CI") == "true"  # there, a browser that is missing is a failure
    if not in_ci:
        pytest.importorskip("playwright", reason="browser tests need playwright: make venv")
    from browser import CHROMIUM, Lab
    if not CHROMIUM:
        (pytest.fail if in_ci else pytest.skip)("browser tests need chromium or google-chrome: apt-get install chromium")
    with Lab() as lab:
        yield lab


@pytest.fixture
def lab(server):
    "Fails a test whose notebook asked for another machine or made an error in the page."
    server.blocked, server.errors = [], []
    yield server
    assert server.blocked == []
    assert server.errors == []
