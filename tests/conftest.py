"Every test runs offline, on one thread and from the same seeds."
import os
import random

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeds():
    "The global generators of Python, NumPy and torch start every test from the same state."
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
