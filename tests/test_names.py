"Every name is built and used once, and wrong inputs give errors that say what to do."
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from ptwrap.all import *
from ptwrap.core import DATASETS
from ptwrap.transforms import build_transforms, transform_names

DATA = Path(__file__).parent / "data"
N, C = 6, 3
scores, classes = torch.randn(N, C, generator=torch.Generator().manual_seed(0)), torch.arange(N) % C
zero_one, numbers = (scores > 0).float(), scores.flip(0)


def digits(**kw):
    return DataModule.digits(batch_size=512, **kw)


def fit(model="mlp", data=None, **kw):
    return Learner(model, data or digits(), device="cpu", seed=0, **kw).fit(1)


MODEL_SHAPES = dict(cnn=(1, 8, 8), gru=(5, 2), lstm=(5, 2), mlp=(4, 2), unet_tiny=(1, 16, 16), resnet18=(1, 32, 32))


def a_model(name):
    if name == "text_lstm":
        return build_model(name, vocab_size=9, num_classes=C)(torch.tensor([[1, 2, 0], [3, 4, 5]])).shape
    shape = MODEL_SHAPES[name.rpartition("/")[2].replace("18.a1_in1k", "18")]
    known = dict(sample_shape=shape) if name in ("cnn", "gru", "lstm", "mlp") else dict(in_chans=shape[0])
    model = build_model(name, num_classes=C, **known)
    return model.eval()(torch.zeros(2, *shape)).shape[:2]


LOSS_INPUTS = {  # name -> arguments, inputs; without an entry: scores and class numbers
    **dict.fromkeys(("bce", "bce_with_logits", "binary", "multi_label_soft_margin", "dice"), ({}, (scores, zero_one))),
    **dict.fromkeys(("mse", "l1", "mae", "smooth_l1", "huber", "poisson_nll", "MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss"),
                    ({}, (scores, numbers))),
    **dict.fromkeys(("soft_margin", "hinge_embedding"), ({}, (scores, zero_one * 2 - 1))),
    "giou": ({}, (torch.tensor([[0., 0, 2, 2]]), torch.tensor([[1., 1, 3, 3]]))),
    "kl_div": (dict(reduction="batchmean"), (scores.log_softmax(1), scores.flip(0).softmax(1))),
    "distillation": ({}, (dict(student=scores, teacher=scores.flip(0)), classes)),
    "LinearCrossEntropyLoss": (dict(in_features=C, num_classes=C), (scores, classes)),
    "BCELoss": ({}, (scores.sigmoid(), zero_one)),
    "multi_label_margin": ({}, (scores, torch.full((N, C), -1).index_fill(1, torch.tensor(0), 1))),
    "nll": ({}, (scores.log_softmax(1), classes)),
}
OTHER_LOSSES = ("ctc", "cosine_embedding", "gaussian_nll", "margin_ranking", "triplet_margin", "triplet_margin_with_distance")


def a_loss(name):
    if name != name.lower():  # torch's name of a class has one in snake case beside it
        name = next((n for n in LOSSES.names() if n == n.lower() and LOSSES[n] is LOSSES[name]), name)
    if name == "multi_task":
        return type(LOSSES.build(dict(name=name, tasks=[dict(name="a", loss="mse")]))).__name__
    kwargs, inputs = LOSS_INPUTS.get(name, ({}, (scores, classes)))
    loss = LOSSES.build(dict(name=name, **kwargs))
    if name not in OTHER_LOSSES:  # these take three inputs: they are for a `compute` of one's own
        value = loss(*inputs)
        assert value.ndim == 0 and value.isfinite()
    return type(loss).__name__


def an_optimizer(name):
    learn = fit(opt=name, lr=1e-3) if name not in ("lbfgs", "sparseadam") else Learner("mlp", digits(), opt=name)
    return type(learn.opt).__name__


SCHEDULE_ARGUMENTS = dict(step=dict(step_size=1), multistep=dict(milestones=[1]), plateau=dict(patience=0))


def a_schedule(name):
    learn = fit(sched=dict(name=name, warmup=1, **SCHEDULE_ARGUMENTS.get(name, {})), opt="sgd", lr=0.1)
    assert len(learn.history.steps["lr"]) == 3
    return type(learn.sched).__name__


def a_metric(name):
    target = zero_one if name in ("dice", "iou", "average_precision", "ap", "auroc") else numbers if name in (
        "mae", "r2", "rmse") else classes
    metric = METRICS.build(name)
    metric.update(scores.repeat(1, 2) if name == "top5" else scores, target)
    return np.isfinite(np.asarray(metric.compute(), dtype=float)).all()


def a_transform(name):
    args = {k: v for k, v in TRANSFORM_ARGUMENTS.items() if k == name}
    image = torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    try:
        return build_transforms([{name: args[name]} if args else name])(image).shape[0]
    except (TypeError, ValueError) as exc:  # of boxes and key points: nothing of theirs is in a picture
        return str(exc)


TRANSFORM_ARGUMENTS = dict(normalize=dict(stats="imagenet"), **dict.fromkeys(
    ("resize", "center_crop", "random_crop", "random_resized_crop"), dict(size=32)))


def a_set(name):
    if name == "digits":  # it ships with the package
        return len(DataModule.named(name).train_dl.dataset) == 1438
    if name == "fashion_mnist" and Path("/usr/share/datasets/fashion-mnist").exists():  # Debian's package is found
        return len(DataModule.named(name, root="/nowhere").train_dl.dataset) == 60_000
    with pytest.raises(FileNotFoundError, match=f"(?s){name}.*download=True"):
        DataModule.named(name, root="/nowhere").train_dl  # noqa: B018
    return True


def png(path, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)).save(path)
    return path


def constructors(tmp_path):
    for part in ("train", "valid"):
        for label in "ab":
            for i in range(3):
                png(tmp_path / part / label / f"{i}.png")
    pd.DataFrame(dict(path=[f"{label}/{i}.png" for label in "ab" for i in range(3)], label=list("aaabbb"))).to_csv(
        tmp_path / "train" / "labels.csv", index=False)
    cars = pd.read_csv(DATA / "cars.csv")
    target = [c for c in cars.columns if c.lower() == "origin"][0]
    kw = dict(num_workers=0)
    pairs = [(torch.randn(4), i % 2) for i in range(10)]
    return {
        "digits": DataModule.digits(), "folder": DataModule.folder(tmp_path, **kw),
        "csv": DataModule.csv(DATA / "cars.csv", target=target), "frame": DataModule.frame(cars, target=target),
        "image_csv": DataModule.image_csv(tmp_path / "train" / "labels.csv", **kw),
        "arrays": DataModule.arrays(torch.randn(20, 4), classes.repeat(4)[:20]),
        "datasets": DataModule.datasets(pairs, pairs, classes=["even", "odd"], **kw),
        "series": DataModule.series(torch.sin(torch.arange(200) / 5), window=8),
        "text": DataModule.text(["a good one", "a bad one"] * 10, ["good", "bad"] * 10),
    }


NAMES = ([("model", a_model, n) for n in [*MODELS.names(), "resnet18", "timm/resnet18", "torchvision/resnet18"]]
         + [("loss", a_loss, n) for n in LOSSES.names()] + [("optimizer", an_optimizer, n) for n in OPTIMS.names()]
         + [("schedule", a_schedule, n) for n in SCHEDULES.names()] + [("metric", a_metric, n) for n in METRICS.names()]
         + [("transform", a_transform, n) for n in transform_names()] + [("set", a_set, n) for n in DATASETS.names()])


@pytest.mark.parametrize("kind, build, name", NAMES, ids=[f"{kind}-{name}" for kind, _, name in NAMES])
def test_every_name_is_built_and_used(kind, build, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert build(name)


def test_every_constructor_gives_batches_and_a_summary(tmp_path):
    for name, data in constructors(tmp_path).items():
        batch = data.one_batch()
        assert len(batch) == 2 and len(data.valid_dl.dataset), name
        assert "train" in repr(data.summary()) and data.n_outputs, name
        first = next(iter(data.train_dl))
        assert torch.equal(first[0], batch[0]), name


WRONG = {
    # names
    "a model": (lambda: build_model("resnet81"), "did you mean", "resnet18"),
    "a loss": (lambda: Learner("mlp", digits(), "cross_entropi"), "did you mean 'cross_entropy'"),
    "an optimizer": (lambda: Learner("mlp", digits(), opt="adamv"), "did you mean 'adam"),
    "a schedule": (lambda: Learner("mlp", digits(), sched="cosin"), "did you mean 'cosine'"),
    "a metric": (lambda: Learner("mlp", digits(), metrics="acuracy"), "did you mean 'accuracy'"),
    "a transform": (lambda: DataModule.digits(transforms=["random_croop"]), "did you mean", "random_crop"),
    "a set": (lambda: DataModule.named("mnst"), "did you mean 'mnist'"),
    # arguments
    "of a model": (lambda: build_model(dict(name="mlp", sample_shape=(4,), hiden=(8,))), "did you mean 'hidden'"),
    "of a loss": (lambda: Learner("mlp", digits(), dict(name="focal", gama=2)), "did you mean 'gamma'"),
    "of an optimizer": (lambda: Learner("mlp", digits(), opt=dict(name="sgd", momentun=0.9)), "did you mean 'momentum'"),
    "of a schedule": (lambda: Learner("mlp", digits(), sched=dict(name="step", gama=0.1)), "did you mean 'gamma'"),
    "of a transform": (lambda: build_transforms([dict(name="random_rotation", degree=3)]), "did you mean 'degrees'"),
    "of a loader": (lambda: DataModule.digits(num_worker=2), "did you mean 'num_workers'"),
    "of the learner": (lambda: Learner("mlp", digits(), loss="mse"), "did you mean 'loss_fn'"),
    "of a series": (lambda: DataModule.series(torch.zeros(50), window=8, horizn=2), "did you mean 'horizon'"),
    "no name": (lambda: Learner("mlp", digits(), opt=dict(lr=0.1)), "a dictionary needs one key 'name'"),
    # types
    "a number as a model": (lambda: build_model(3), "model is a int"),
    "text as a learning rate": (lambda: Learner("mlp", digits(), lr="fast"), "lr='fast': give a number"),
    "a dataset as data": (lambda: Learner("mlp", torch.utils.data.TensorDataset(scores)), "give DataLoader(dataset"),
    "a loader as a dataset": (lambda: DataModule(digits().train_dl), "loaders go to the Learner as they are"),
    "a frame as data": (lambda: Learner("mlp", pd.DataFrame(scores.numpy())), "DataModule.arrays(x, y)"),
    "a dotted function": (lambda: build_model("os:system"), "os:system"),
    # shapes
    "lengths": (lambda: DataModule.arrays(scores, classes[:3]), "x has 6 samples and y has 3"),
    "a flat cnn": (lambda: build_model("cnn", sample_shape=(30,), num_classes=2), "take 'mlp' for flat data"),
    "binary scores": (lambda: LOSSES.build("binary")(torch.zeros(4, 2), torch.zeros(4)), "one value a sample"),
    "dice shapes": (lambda: LOSSES.build("dice")(torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 5, 5)), "dice loss"),
    "boxes": (lambda: LOSSES.build("giou")(torch.zeros(2, 3), torch.zeros(2, 3)), "giou"),
    "a class too many": (lambda: fit(nn.Sequential(nn.Flatten(), nn.Linear(64, 9))), "it needs 10"),
    "a short series": (lambda: DataModule.series(torch.zeros(5), window=8).train_dl, "window"),
    "images of two sizes": (lambda: list(DataModule.datasets(
        [(torch.zeros(3, 4, 4), 0), (torch.zeros(3, 5, 4), 1)] * 2, classes=["a", "b"], num_workers=0).train_dl), "resize"),
    # values
    "a share": (lambda: DataModule.digits(valid_share=1.2), "valid_share=1.2: give a share"),
    "a batch size": (lambda: DataModule.digits(batch_size=0).train_dl, "batch_size=0: give a whole number"),
    "sizes": (lambda: DataModule.digits(sizes=[]).train_dl, "give the image sizes to draw from"),
    "weights": (lambda: DataModule.digits(weighted=[1, 2]).train_dl, "one number from 0 on for each of the 1438 samples"),
    "on_bad": (lambda: DataModule.digits(transforms="random_affine", on_bad="drop").train_dl, "give 'raise' or 'skip'"),
    "normalised bytes": (lambda: build_transforms([dict(name="normalize", stats="imagenet"), "to_tensor"]), "before"),
    "unknown statistics": (lambda: build_transforms([dict(name="normalize", stats="imagnet")]), "did you mean 'imagenet'"),
    "a size that lacks": (lambda: build_transforms(["random_crop"]), "size"),
    "classes with gaps": (lambda: DataModule.arrays(scores, [0, 3, 1, 2, 0, 9], classes=["a", "b"]), "classes has 2 names"),
    "labels of validation": (lambda: Labels.of(["cat"]).encode(["dog"]), "none of the 1 training classes"),
    "freeze": (lambda: Learner("mlp", digits()).freeze("layer4"), "layer4"),
    "groups": (lambda: Learner("mlp", digits(), opt=dict(name="sgd", groups=[dict(match="head", lr=1)])), "head"),
    "plateau without validation": (lambda: fit(data=digits(valid_share=0), sched="plateau"), "valid_loss"),
    "steps unknown": (lambda: Learner(nn.Linear(64, 10), ((b for b in [digits().one_batch()]), None), "ce",
                                      sched="one_cycle").fit(1), "the number of steps"),
    # files
    "a folder": (lambda: DataModule.folder("/nowhere/pictures"), "there is no folder /nowhere"),
    "a table": (lambda: DataModule.csv("/nowhere/cars.csv", target="mpg"), "/nowhere/cars.csv"),
    "a target": (lambda: DataModule.csv(DATA / "cars.csv", target="orign"), "did you mean"),
    "weights of a model": (lambda: build_model("mlp", sample_shape=(4,), weights_file="/nowhere/w.pt"), "/nowhere/w.pt"),
    "files of a set": (lambda: DataModule.named("cifar10", root="/nowhere").train_dl, "download=True"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_say_what_to_do(case):
    call, *texts = WRONG[case]
    with pytest.raises(Exception) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
    message = str(caught.value)
    assert all(text in message for text in texts), message
    assert isinstance(caught.value, (LookupError, TypeError, ValueError, OSError, RuntimeError)), type(caught.value)


def test_there_are_forty():
    assert len(WRONG) >= 40
