"""What reading batches costs: `python benchmarks/loaders.py --fastai`. See README.md."""
import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

os.environ["CUDA_VISIBLE_DEVICES"] = ""
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from ptwrap.data import DataModule

LIMITS = {"in memory": 0.80, "folder, 0 workers": 1.05, "folder, 2 workers": 1.05, "folder, augmented, 0 workers": 1.05,
          "folder, augmented, 2 workers": 1.05}
BATCH = 64


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = np.load(ROOT / "ptwrap/assets/digits.npz")
    return torch.from_numpy(data["images"]), torch.from_numpy(data["labels"]).long()


def write_folder(root: Path, size: int = 28) -> None:
    "The digits as PNG files: train/<class>/<number>.png."
    images, labels = digits()
    for i, (image, label) in enumerate(zip(images.numpy(), labels.tolist())):
        path = root / "train" / str(label) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).resize((size, size)).save(path)
    first = next((root / "train" / "0").iterdir())
    for label in range(10):  # a validation set that nobody reads
        (root / "valid" / str(label)).mkdir(parents=True)
        (root / "valid" / str(label) / "0.png").write_bytes(first.read_bytes())


def plain_memory(_) -> DataLoader:
    x, y = digits()
    return DataLoader(TensorDataset(x[:, None].float() / 16, y), BATCH, shuffle=True)


def our_memory(_) -> DataLoader:
    x, y = digits()
    return DataModule.arrays(x[:, None].float() / 16, y, valid_share=0, batch_size=BATCH).train_dl


def plain_folder(root: Path, workers: int, augment: bool) -> DataLoader:
    "torchvision's data set with its transforms of today."
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [v2.Grayscale(), v2.ToImage()]
    steps += [v2.RandomCrop(28, padding=2), v2.RandomHorizontalFlip()] if augment else []
    data = ImageFolder(root / "train", v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True)]))
    return DataLoader(data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def our_folder(root: Path, workers: int, augment: bool) -> DataLoader:
    steps = [{"name": "random_crop", "size": 28, "padding": 2}, "random_horizontal_flip"] if augment else None
    return DataModule.folder(root, transforms=steps, batch_size=BATCH, num_workers=workers).train_dl


def fastai_folder(root: Path, workers: int, augment: bool):
    from fastai.vision.all import ImageDataLoaders, PILImageBW, RandomCrop, aug_transforms  # noqa: F401

    item = RandomCrop(28) if augment else None
    return ImageDataLoaders.from_folder(root, train="train", valid="valid", bs=BATCH, num_workers=workers, item_tfms=item,
                                        img_cls=PILImageBW, drop_last=False, device=torch.device("cpu")).train


def epoch(dl) -> float:
    "Seconds of one pass; wall clock, since the workers' time counts too."
    start = time.perf_counter()
    for batch in dl:
        batch[0].sum()
    return time.perf_counter() - start


def compare(make: dict[str, Callable], root: Path, repeats: int) -> dict[str, float]:
    "Seconds of an epoch for each loader, read in turn; the first pass, in which workers start, is left out."
    loaders = {name: f(root) for name, f in make.items()}
    for dl in loaders.values():
        epoch(dl)
    times = {name: [] for name in loaders}
    for _ in range(repeats):
        for name, dl in loaders.items():
            times[name].append(epoch(dl))
    base = times["plain"]
    ratios = {name: median(a / b for a, b in zip(ts, base)) for name, ts in times.items()}
    print(f"  {'plain':8} {1000 * min(base):8.1f} ms an epoch")
    for name in [n for n in loaders if n != "plain"]:
        print(f"  {name:8} {1000 * min(times[name]):8.1f} ms, {ratios[name]:.2f} x plain")
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--fastai", action="store_true", help="measure fastai's loader beside it")
    parser.add_argument("--gate", action="store_true", help="exit 1 if a ratio is over its limit")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with TemporaryDirectory() as tmp:
        root = Path(tmp)
        write_folder(root)
        print("in memory, 1,797 rows")
        found["in memory"] = compare(dict(plain=plain_memory, ptwrap=our_memory), root, 3 * args.repeats)["ptwrap"]
        for augment in (False, True):
            for workers in (0, 2):
                name = f"folder, {'augmented, ' * augment}{workers} workers"
                print(f"{name}: 1,797 PNG files")
                make = dict(plain=plain_folder, ptwrap=our_folder) | (dict(fastai=fastai_folder) if args.fastai else {})
                make = {k: (lambda root, f=f, w=workers, a=augment: f(root, w, a)) for k, f in make.items()}
                found[name] = compare(make, root, args.repeats)["ptwrap"]
    over = {name: ratio for name, ratio in found.items() if ratio > LIMITS[name]}
    print("\n".join(f"{name}: {ratio:.2f} (limit {LIMITS[name]:.2f})" for name, ratio in found.items()))
    return int(bool(over) and args.gate)


if __name__ == "__main__":
    raise SystemExit(main())
