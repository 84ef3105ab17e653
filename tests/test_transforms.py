"Every name of a list of transforms, what is refused and in which words, seeds, caches, entries of albumentations."
import inspect
import pickle
import random
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.transforms import v2

from ptwrap import albu, pipeline
from ptwrap import transforms as T
from ptwrap.core import UnknownName, seed_all
from ptwrap.transforms import (STATS, FromAlbumentations, build_transforms, default_transforms, describe_transforms,
                               image_stats, is_random, split_fixed, transform_names)

X = torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
NEEDS = {  # arguments without which a name is refused
    "center_crop": dict(size=24), "resize": dict(size=24), "random_crop": dict(size=24),
    "random_resized_crop": dict(size=24), "pad": dict(padding=4),
    "random_resize": dict(min_size=20, max_size=30), "random_shortest_size": dict(min_size=24),
    "scale_jitter": dict(target_size=[32, 32]), "convert_bounding_box_format": dict(format="XYWH"),
    "set_clamping_mode": dict(clamping_mode="soft"), "random_apply": dict(transforms=["flip"]),
    "random_choice": dict(transforms=["flip", "random_rotation"]), "random_order": dict(transforms=["flip", "jpeg"]),
    "normalize": dict(stats="imagenet"),
}
WITH_BOXES = ["random_iou_crop", "sanitize_bounding_boxes", "sanitize_key_points"]  # run on samples that have them
SIZES = dict(center_crop=24, resize=24, random_crop=24, random_resized_crop=24, random_shortest_size=24, pad=48)


# -- names

@pytest.mark.parametrize("name", [n for n in transform_names() if n not in WITH_BOXES])
def test_every_name_runs_on_bytes_and_on_pil(name):
    camel = T.SHORT.get(name) or next(c for c in T._classes() if pipeline.snake(c) == name)
    pil = Image.fromarray(X.permute(1, 2, 0).numpy())
    outs = []
    for spelled, image in [(name, X), (camel, X), (name, pil), (name, X[:1])]:
        transform = build_transforms([{"name": spelled, **NEEDS.get(name, {})}])
        torch.manual_seed(3)
        outs.append(transform(image))
        assert isinstance(outs[-1], torch.Tensor) and outs[-1].dtype == torch.float32
        assert "\n" not in describe_transforms(transform)
    if name in SIZES:
        assert outs[0].shape == (3, SIZES[name], SIZES[name])
    assert torch.equal(outs[0], outs[1])
    if name != "gaussian_noise":  # its draws follow the memory order of the image, which PIL images have channels last
        assert torch.equal(outs[0], outs[2])
    if name != "normalize":
        assert 0 <= outs[0].min() and outs[0].max() <= 1


def test_the_names_are_those_of_torchvision():
    assert len(transform_names()) == len(T._classes()) - len(T.ELSEWHERE) + len(T.SHORT) >= 55
    assert all(cls in vars(v2) for cls in [*T.ELSEWHERE, *T.MILD, *pipeline._FIXED, *T.SHORT.values()])
    for cls, values in T.MILD.items():
        assert set(values) <= set(inspect.signature(getattr(v2, cls)).parameters), cls


@pytest.mark.parametrize("entry", [
    "random_horizontal_flip", "RandomHorizontalFlip", "flip", {"name": "flip"}, {"type": "RandomHorizontalFlip"},
    {"flip": None}, {"flip": {"p": 0.5}}, {"flip": 0.5}, {"RandomHorizontalFlip": {}}, v2.RandomHorizontalFlip(),
])
def test_an_entry_in_every_form(entry):
    torch.manual_seed(1)
    expected = v2.RandomHorizontalFlip()(X) * (1 / 255)
    for spec in (entry, [entry]):
        torch.manual_seed(1)
        out = build_transforms(spec)(X)
        assert torch.equal(out if out.is_floating_point() else out * (1 / 255), expected)


def test_boxes_and_masks_move_with_their_image():
    box = tv_tensors.BoundingBoxes(torch.tensor([[4, 4, 12, 20]]), format="XYXY", canvas_size=(40, 40))
    mask = tv_tensors.Mask(torch.zeros(1, 40, 40, dtype=torch.uint8))
    mask[:, 4:20, 4:12] = 1
    flip = build_transforms([{"name": "flip", "p": 1.0}, "sanitize_bounding_boxes", {"resize": [20, 20]}])
    out, target = flip(X, {"boxes": box, "masks": mask, "labels": torch.tensor([7])})
    assert target["boxes"].tolist() == [[14, 2, 18, 10]] and target["labels"].tolist() == [7]
    assert target["masks"].shape == (1, 20, 20)
    assert target["masks"][0, 2:10, 14:18].all() and target["masks"].sum() == 32
    assert out.shape == (3, 20, 20) and out.dtype == torch.float32
    iou = build_transforms([{"name": "random_iou_crop", "sampler_options": [2.0]}])
    out, target = iou(X, {"boxes": box, "labels": torch.tensor([7])})
    assert out.shape == (3, 40, 40) and target["boxes"].tolist() == box.tolist()
    points = tv_tensors.KeyPoints(torch.tensor([[3, 5], [90, 1]]), canvas_size=(40, 40))
    assert build_transforms(["sanitize_key_points"])(X, {"points": points})[1]["points"].tolist() == [[3, 5]]


def test_a_label_beside_the_image_stays():
    image = Image.fromarray(X.permute(1, 2, 0).numpy())
    out, label = build_transforms(["flip", "normalize"], "imagenet")(image, torch.tensor(3))
    assert out.dtype == torch.float32 and label.dtype == torch.int64 and label == 3


# -- values

@pytest.mark.parametrize("entry, shown", [
    ("random_rotation", "random_rotation (-10, 10) interpolation=bilinear"),
    ({"random_rotation": 30}, "random_rotation (-30, 30) interpolation=bilinear"),
    ("random_affine", "random_affine (-5, 5) translate=(0.05, 0.05) scale=(0.95, 1.05) interpolation=bilinear"),
    ({"random_affine": 15}, "random_affine (-15, 15) interpolation=bilinear"),
    ("color_jitter", "color_jitter brightness=(0.8, 1.2) contrast=(0.8, 1.2) saturation=(0.8, 1.2) hue=(-0.02, 0.02)"),
    ({"color_jitter": {"brightness": 0.4}}, "color_jitter brightness=(0.6, 1.4)"),
    ({"random_resized_crop": 28}, "random_resized_crop 28 scale=(0.7, 1) ratio=(0.75, 1.333)"),
    ({"random_resized_crop": {"size": 28, "scale": [0.5, 1]}},
     "random_resized_crop 28 scale=(0.5, 1) ratio=(0.75, 1.333)"),
    ("gaussian_blur", "gaussian_blur 3 sigma=(0.1, 1)"),
    ("gaussian_noise", "gaussian_noise mean=0 sigma=0.03"),
    ("random_erasing", "random_erasing p=0.25 scale=(0.02, 0.1) ratio=(0.3, 3.3)"),
    ("random_perspective", "random_perspective distortion_scale=0.1 p=0.5"),
    ("rand_augment", "rand_augment num_ops=2 magnitude=5"),
    ("jpeg", "jpeg (70, 95)"),
    ("flip", "flip p=0.5"),
    ({"random_crop": {"size": [24, 28], "padding": 2}}, "random_crop (24, 28) padding=2"),
    ({"random_apply": ["flip", "jpeg"]}, "random_apply p=0.5 (flip p=0.5, jpeg (70, 95))"),
    (len, "len"),
])
def test_values_left_out_are_mild_and_shown(entry, shown):
    assert describe_transforms(build_transforms([entry])) == shown + " > float"


def test_a_line_for_a_pipeline_and_every_value_in_its_repr():
    pipeline = build_transforms([{"resize": 32}, {"random_crop": 28}, "flip", "normalize"], "imagenet")
    assert isinstance(pipeline, v2.Compose)
    assert describe_transforms(pipeline) == "resize 32 > random_crop 28 > flip p=0.5 > float > normalize imagenet"
    own = build_transforms([{"normalize": {"mean": 0.5, "std": 0.25}}])
    assert describe_transforms(own) == "float > normalize mean=0.5 std=0.25"
    text = repr(build_transforms(["random_rotation", {"random_resized_crop": 28}]))
    for part in ("degrees=[-10.0, 10.0]", "expand=False", "scale=(0.7, 1.0)", "antialias=True", "ToDtype(scale=True)"):
        assert part in text
    assert describe_transforms(v2.Identity()) == "as it is" and describe_transforms(lambda x: x) == "lambda"


@pytest.mark.parametrize("name", STATS)
def test_known_statistics(name):
    mean, std = image_stats(name)
    x = X[: len(mean)]
    expected = (x * (1 / 255) - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    own = {"name": "normalize", "mean": mean, "std": std}
    named = {"name": "normalize", "stats": name}
    ways = [("normalize", name), ([{"normalize": name}],), (named,), (own,), (None, name)]
    for transform in (*(build_transforms(*way) for way in ways), default_transforms(True, stats=name)):
        torch.testing.assert_close(torch.Tensor(transform(x)), expected, rtol=0, atol=1e-6)


# -- order

@pytest.mark.parametrize("spec, line", [
    (["flip"], "flip p=0.5 > float"),
    ([], "float"),
    (["to_tensor", "flip"], "float > flip p=0.5"),
    (["flip", "normalize", "random_erasing"],
     "flip p=0.5 > float > normalize mnist > random_erasing p=0.25 scale=(0.02, 0.1) ratio=(0.3, 3.3)"),
    (["to_image", "normalize"], "float > normalize mnist"),
    (["float", "normalize", {"to_dtype": "float16"}], "float > normalize mnist > to_dtype float16 scale=True"),
    ([{"to_dtype": {"dtype": "uint8"}}, "normalize"], "to_dtype uint8 scale=True > float > normalize mnist"),
])
def test_the_change_to_float_is_added_once_and_in_its_place(spec, line):
    transform = build_transforms(spec, "mnist")
    assert describe_transforms(transform) == line
    assert isinstance(transform.transforms[0], v2.ToImage) and transform(X[:1]).is_floating_point()


def test_old_torchvision_objects_take_tensors_too():
    from torchvision import transforms as v1
    out = build_transforms([v1.ToTensor(), v1.Normalize([0.5], [0.5])])(X)
    torch.testing.assert_close(torch.Tensor(out), X / 255 * 2 - 1, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="normalize comes before to_tensor"):
        build_transforms([v1.Normalize([0.5], [0.5]), v1.ToTensor()])


def test_digits_know_how_they_are_normalised():
    from ptwrap.data import DataModule
    kw = dict(seed=1, num_workers=0)
    raw = DataModule.digits(**kw)
    for data in (DataModule.digits(transforms=["normalize"], **kw), DataModule.digits(stats="digits", **kw),
                 DataModule.digits(transforms=["random_affine", dict(name="normalize", stats="digits")], **kw)):
        assert "valid transforms  float > normalize digits" in repr(data.summary())
        mean = torch.cat([x for x, _ in data.valid_dl]).mean()
        assert torch.isclose(mean, (torch.cat([x for x, _ in raw.valid_dl]).mean() - 0.3053) / 0.3760, atol=1e-4)
        assert abs(torch.cat([x for x, _ in data.train_dl]).mean() - mean) < 0.1
    own = DataModule.digits(transforms=["normalize"], stats="mnist", **kw)
    assert "normalize mnist" in repr(own.summary())


@pytest.mark.parametrize("name,meant", [("rotate", "random_rotation"), ("blur", "gaussian_blur"), ("crop", "random_crop")])
def test_a_word_of_the_name_is_enough(name, meant):
    with pytest.raises(UnknownName, match=f"unknown transform '{name}'; did you mean .*'{meant}'"):
        build_transforms([name])


def test_a_callable_comes_back_as_it_is():
    for f in (len, v2.Resize(3), v2.Compose([v2.Resize(3)])):
        assert build_transforms(f) is f


# -- what is refused

@pytest.mark.parametrize("spec, kind, text", [
    ("random_corp", UnknownName, "unknown transform 'random_corp'; did you mean 'random_crop'"),
    ("RandomHorizontalFlipp", UnknownName, "did you mean 'random_horizontal_flip'"),
    ("zzz", UnknownName, "known names: aug_mix, auto_augment"),
    ({"name": "resise", "size": 3}, UnknownName, "did you mean 'resize'"),
    ("random_crop", TypeError, "transform 'random_crop' needs size: write {'name': 'random_crop', 'size': 32}"),
    ("Resize", TypeError, "transform 'Resize' needs size: write {'name': 'Resize', 'size': 32}"),
    ("center_crop", TypeError, "needs size"),
    ("random_resized_crop", TypeError, "needs size"),
    ("random_resize", TypeError, "needs min_size and max_size: write"),
    ("pad", TypeError, "needs padding: write {'name': 'pad', 'padding': 4}"),
    ({"name": "random_crop", "sise": 32}, TypeError, "has no argument 'sise'; did you mean 'size'?"),
    ({"random_rotation": {"degree": 5}}, TypeError, "has no argument 'degree'; did you mean 'degrees'?"),
    ({"resize": "32"}, ValueError, "'resize': size='32'; give whole numbers of pixels, 32 or [height, width]"),
    ({"resize": 0}, ValueError, "size=0; give whole numbers of pixels"),
    ({"random_crop": [1, 2, 3]}, ValueError, "size=[1, 2, 3]; give whole numbers"),
    ({"scale_jitter": 32}, ValueError, "target_size=32; give [height, width]"),
    ({"flip": {"p": 2}}, ValueError, "transform 'flip' with p=2: `p` should be"),
    ({"flip": "0.5"}, TypeError, "transform 'flip': p='0.5' is a string; give a number"),
    ({"gaussian_blur": 4}, ValueError, "transform 'gaussian_blur' with kernel_size=4, sigma=(0.1, 1.0): Kernel size"),
    ({"color_jitter": {"hue": 0.7}}, ValueError, "transform 'color_jitter' with hue=0.7"),
    ({"random_rotation": {"interpolation": "bilinaer"}}, ValueError,
     "interpolation='bilinaer'; did you mean 'bilinear'?"),
    ({"auto_augment": "imagnet"}, ValueError, "policy='imagnet'; did you mean 'imagenet'?"),
    ({"to_dtype": "float23"}, ValueError, "dtype='float23'; did you mean 'float32'"),
    ({"to_tensor": 3}, TypeError, "transform 'to_tensor' takes no value, got 3"),
    ({"name": "to_tensor", "scale": True}, TypeError, "transform 'to_tensor' has no argument 'scale'"),
    ("mixup", ValueError, "transform 'mixup' is no entry of a list; it mixes whole batches: call it on a batch"),
    ("Compose", ValueError, "give a list"),
    ("ToPILImage", ValueError, "the result is a tensor: leave it out"),
    ("normalize", ValueError, "needs mean and std: {'name': 'normalize', 'stats': 'imagenet'} (known: mnist"),
    ({"normalize": "imagnet"}, UnknownName,
     "no statistics are known for 'imagnet' (other data: give mean= and std=); did you mean 'imagenet'?"),
    ({"normalize": {"mean": [0.5, 0.5, 0.5]}}, ValueError, "normalize needs mean and std, as numbers"),
    ({"normalize": {"mean": [float("nan")], "std": [0.5]}}, ValueError, "normalize: mean=[nan] and std=[0.5]; both need"),
    ({"normalize": {"mean": [0.5] * 3, "std": [0.5]}}, ValueError, "both need one number a channel"),
    ({"normalize": {"mean": 0.5, "std": 0}}, ValueError, "std above 0"),
    ({"normalize": {"mean": [123.7, 116.3], "std": [58.4, 57.1]}}, ValueError, "divide mean and std by 255"),
    ({"normalize": {"mean": 0.5, "std": 0.5, "stats": "mnist"}}, TypeError, "give one of the two"),
    ({"normalize": {"mena": 0.5}}, TypeError, "no argument 'mena'; did you mean 'mean'?"),
    (["flip", {"normalize": "mnist"}, "to_tensor"], ValueError, "normalize comes before to_tensor, but it needs images "
     "in 0..1; put to_tensor before normalize, or leave it out"),
    ([{"normalize": "mnist"}, {"to_dtype": "float32"}], ValueError, "normalize comes before to_dtype"),
    ([{"random_apply": [{"normalize": "mnist"}]}, "to_tensor"], ValueError, "put to_tensor before normalize"),
    ([32], TypeError, "an entry is 32 (int); give a name"),
    (3.5, TypeError, "an entry is 3.5 (float)"),
    ([["flip"]], TypeError, "an entry is ['flip'] (list)"),
    ([None], TypeError, "an entry is None"),
    ([v2.RandomHorizontalFlip], TypeError, "an entry is the class RandomHorizontalFlip"),
    (v2.RandomHorizontalFlip, TypeError, "an entry is the class RandomHorizontalFlip"),
    ({"train": ["flip"], "valid": []}, TypeError, "a dictionary needs one key 'name' beside the arguments"),
    ({"name": "flip", "type": "flip"}, TypeError, "both name and type"),
    ({"random_choice": ["flipp"]}, UnknownName, "unknown transform 'flipp'; did you mean 'flip'?"),
])
def test_wrong_input_is_refused_with_advice(spec, kind, text):
    with pytest.raises(kind) as caught:
        build_transforms(spec)
    assert text in str(caught.value)


def test_wrong_defaults_are_refused():
    with pytest.raises(UnknownName, match="unknown augment 'mlid' .or give a list.; did you mean 'mild'"):
        default_transforms(True, augment="mlid")
    with pytest.raises(ValueError, match="transform 'resize': size='a'"):
        default_transforms(True, size="a")


# -- random numbers

RANDOM = [{"random_resized_crop": 24}, "flip", "random_affine", "color_jitter", "gaussian_blur", "trivial_augment_wide",
          "random_erasing"]


class Samples(torch.utils.data.Dataset):
    "Each sample from its own seed, as a data module does it."

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 6

    def __getitem__(self, i):
        seed_all(100 + i)
        return self.transform(X)


def test_the_same_seed_gives_the_same_image_for_any_number_of_workers():
    samples = Samples(build_transforms(RANDOM, "imagenet"))
    once, again = (torch.stack([samples[i] for i in range(6)]) for _ in range(2))
    assert torch.equal(once, again) and len({x.sum().item() for x in once}) == 6
    batches = list(DataLoader(samples, batch_size=3, num_workers=2))
    assert torch.equal(torch.cat(batches), once) and all(type(b) is torch.Tensor for b in batches)


def test_a_pipeline_can_be_sent_to_another_process():
    transform = build_transforms(RANDOM)
    for t in (transform, pickle.loads(pickle.dumps(transform))):
        seed_all(5)
        out = t(X)
        assert out.shape == (3, 24, 24)
        seed_all(5)
        assert torch.equal(transform(X), out)


def test_validation_is_fixed_and_training_is_not():
    train, valid = (default_transforms(is_train, augment="mild") for is_train in (True, False))
    assert torch.equal(valid(X), valid(X)) and torch.equal(valid(X), X * (1 / 255))
    assert not torch.equal(train(X), train(X))
    assert is_random(train) and not is_random(valid) and not is_random(default_transforms(True, 24, "imagenet"))


@pytest.mark.parametrize("args, line", [
    (dict(train=True), "float"),
    (dict(train=True, size=24), "resize 24 > center_crop 24 > float"),
    (dict(train=False, size=(24, 30), stats="imagenet"), "resize (24, 30) > float > normalize imagenet"),
    (dict(train=True, size=24, augment="mild"),
     "random_resized_crop 24 scale=(0.7, 1) ratio=(0.75, 1.333) > "
     "color_jitter brightness=(0.8, 1.2) contrast=(0.8, 1.2) > float"),
    (dict(train=True, size=24, augment=["flip"]), "resize 24 > center_crop 24 > flip p=0.5 > float"),
    (dict(train=False, size=24, augment=["flip"]), "resize 24 > center_crop 24 > float"),
])
def test_defaults(args, line):
    assert describe_transforms(default_transforms(**args)) == line


# -- what a cache may keep

@pytest.mark.parametrize("spec, fixed, rest", [
    ([{"resize": 32}, {"random_crop": 28}, "flip", "normalize"], "resize 32",
     "random_crop 28 > flip p=0.5 > float > normalize imagenet"),
    ([{"resize": 32}, {"center_crop": 28}, "normalize"], "resize 32 > center_crop 28", "float > normalize imagenet"),
    ([{"pad": 2}, "grayscale", "rgb", "flip"], "pad 2 > grayscale num_output_channels=1 > rgb", "flip p=0.5 > float"),
    (["flip", {"resize": 32}], "as it is", "flip p=0.5 > resize 32 > float"),
    (["to_tensor", {"resize": 32}], "as it is", "float > resize 32"),
    ([{"resize": 32}, v2.Compose([v2.CenterCrop(20), v2.RandomHorizontalFlip()])], "resize 32 > center_crop 20",
     "flip p=0.5 > float"),
    ([{"resize": 32}, len], "resize 32", "len > float"),
    ([{"random_apply": [{"resize": 32}]}], "as it is", "random_apply p=0.5 (resize 32) > float"),
])
def test_split_fixed(spec, fixed, rest):
    whole = build_transforms(spec, "imagenet")
    parts = split_fixed(whole)
    assert [describe_transforms(p) for p in parts] == [fixed, rest]
    if len not in spec:
        kept = parts[0](X)
        assert kept.dtype == torch.uint8 and torch.equal(kept, parts[0](X))
        seed_all(1)
        out = parts[1](kept)
        seed_all(1)
        assert torch.equal(out, whole(X))


def test_who_counts_as_random():
    class Mine(v2.Resize):
        "Of its own making: who knows what it does."

    def fixed(x):
        return x

    assert [is_random(t) for t in (None, v2.Resize(3), v2.Compose([v2.Resize(3)]))] == [False] * 3
    maybe = v2.RandomCrop(3), Mine(3), fixed, v2.RandomApply([v2.Resize(3)]), [fixed]
    assert [is_random(t) for t in maybe] == [True] * 5
    fixed.is_random = False
    assert is_random(fixed) is False
    assert [type(t) for t in split_fixed(None)] == [v2.Identity] * 2
    assert [type(t) for t in split_fixed(fixed)] == [v2.Compose, v2.Identity]


# -- albumentations

@pytest.fixture(params=["stand-in", "package"])
def albumentations(request, monkeypatch):
    "The package where it is installed, and a stand-in with the same interface."
    if request.param == "package":
        return pytest.importorskip("albumentations", reason="albumentations 2.0.8 is not installed")
    A = types.ModuleType("albumentations")
    A.__version__, A.BasicTransform, A.HorizontalFlip, A.RandomCrop = "2.0.8", Stand, HorizontalFlip, RandomCrop
    monkeypatch.setitem(sys.modules, "albumentations", A)
    return A


class Stand:
    def __init__(self, p=0.5):
        if not isinstance(p, (int, float)):
            raise ValueError("p: Input should be a valid number")
        self.p = p

    def set_random_state(self, random_generator, py_random):
        self.random_generator, self.py_random = random_generator, py_random

    def __call__(self, **data):
        if self.py_random.random() >= self.p:
            return data
        cut = self.cut(data["image"])
        return {"image": data["image"][cut]} | ({"masks": [m[cut] for m in data["masks"]]} if "masks" in data else {})

    def __repr__(self):
        return f"{type(self).__name__}(p={self.p})"


class HorizontalFlip(Stand):
    def cut(self, image):
        return np.s_[:, ::-1]


class RandomCrop(Stand):
    def __init__(self, height, width, p=1.0):
        super().__init__(p)
        self.height, self.width = height, width

    def cut(self, image):
        top = int(self.random_generator.integers(image.shape[0] - self.height + 1))
        left = int(self.random_generator.integers(image.shape[1] - self.width + 1))
        return np.s_[top:top + self.height, left:left + self.width]


CROP = {"name": "A.RandomCrop", "height": 24, "width": 28}


@pytest.mark.parametrize("name", ["albumentations/HorizontalFlip", "A.HorizontalFlip", "A/horizontal_flip"])
def test_albumentations_flip(albumentations, name):
    flip = build_transforms([{"name": name, "p": 1.0}])
    for image in (X, X[:1], tv_tensors.Image(X), Image.fromarray(X.permute(1, 2, 0).numpy())):
        expected = X[:1] if getattr(image, "shape", (3,))[0] == 1 else X
        assert torch.equal(flip(image), expected.flip(-1) * (1 / 255))
    assert describe_transforms(flip).startswith("albumentations/HorizontalFlip(p=1.0") and is_random(flip)
    alone = FromAlbumentations(albumentations.HorizontalFlip(p=1.0))(X)
    assert type(alone) is torch.Tensor and torch.equal(alone, X.flip(-1))


def test_albumentations_takes_masks_and_leaves_labels(albumentations):
    t = build_transforms([{"name": "A.HorizontalFlip", "p": 1.0}, CROP])
    for mask in (X[:2] > 128, X[0]):
        out, m, label = t(tv_tensors.Image(X), tv_tensors.Mask(mask), torch.tensor(3))
        image = (out * 255).round().to(torch.uint8)
        expected = image[:2] > 128 if mask.ndim == 3 else image[0]
        assert isinstance(m, tv_tensors.Mask) and torch.equal(m, expected) and label == 3
    boxes = tv_tensors.BoundingBoxes(torch.tensor([[4, 4, 12, 20]]), format="XYXY", canvas_size=(40, 40))
    with pytest.raises(TypeError, match="boxes and points need torchvision's transforms"):
        t(X, boxes)
    with pytest.raises(TypeError, match="need an image, a tensor .C, H, W. or a PIL image; got int"):
        FromAlbumentations(albumentations.HorizontalFlip())(3)


def test_albumentations_follows_the_seed_of_torch(albumentations):
    samples = Samples(build_transforms([CROP, "A.HorizontalFlip"]))
    once = torch.stack([samples[i] for i in range(6)])
    assert len({x.sum().item() for x in once}) == 6
    sent = Samples(pickle.loads(pickle.dumps(samples.transform)))
    assert torch.equal(torch.cat(list(DataLoader(sent, batch_size=3, num_workers=2))), once)
    torch.manual_seed(102)
    random.seed(8)
    assert torch.equal(samples.transform(X), once[2])


@pytest.mark.parametrize("spec, kind, text", [
    ("A.HorizontalFlp", UnknownName,
     "unknown transform 'A.HorizontalFlp'; did you mean 'albumentations/horizontal_flip'"),
    ({"name": "A.HorizontalFlip", "pp": 1}, TypeError, "'A.HorizontalFlip' has no argument 'pp'; did you mean 'p'?"),
    ({"name": "A.HorizontalFlip", "p": "x"}, ValueError,
     "transform 'A.HorizontalFlip' with p='x': p: Input should be a valid number"),
    ("A.RandomCrop", (TypeError, ValueError), "transform 'A.RandomCrop' with no arguments: "),
    ({"A.RandomCrop": 28}, TypeError, "28 needs a name"),
    ("Albumentations/horizontal_flp", UnknownName, "did you mean 'albumentations/horizontal_flip'"),
    ("albumentation.HorizontalFlp", UnknownName, "did you mean 'albumentations/horizontal_flip'"),
    ("albumentations/ToTensorV2", ValueError,
     "is not needed: entries of albumentations give tensors back; leave it out"),
])
def test_albumentations_refusals(albumentations, spec, kind, text):
    with pytest.raises(kind) as caught:
        build_transforms([spec])
    assert text in str(caught.value)


def test_albumentations_objects_and_fixed_ones():
    A = pytest.importorskip("albumentations", reason="albumentations 2.0.8 is not installed")
    both = A.Compose([A.HorizontalFlip(p=1.0), A.OneOf([A.Blur(p=1.0), A.MedianBlur(p=1.0)])])
    for name in ("A.OneOf", "A.Compose"):
        with pytest.raises(ValueError, match=rf"transform '{name}' holds other transforms; give the object: {name}"):
            build_transforms([name])
    for spec in (both, [both]):
        out = build_transforms(spec)(X)
        assert out.shape == X.shape and out.dtype == torch.float32
    assert "\n" not in describe_transforms(build_transforms(both))
    resize = {"name": "A.Resize", "height": 20, "width": 24}
    fixed, rest = split_fixed(build_transforms([resize, "flip", {"name": "A.Normalize"}]))
    assert fixed(X).shape == (3, 20, 24) and fixed(X).dtype == torch.uint8 and rest(fixed(X)).dtype == torch.float32
    torch.testing.assert_close(torch.Tensor(build_transforms([{"name": "A.Normalize"}])(X)),
                               torch.Tensor(build_transforms("normalize", "imagenet")(X)), rtol=0, atol=1e-5)


def test_albumentations_missing_or_of_another_kind(monkeypatch):
    monkeypatch.setitem(sys.modules, "albumentations", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs albumentations: pip install 'ptwrap\[albumentations\]'"):
        build_transforms(["albumentations/HorizontalFlip"])
    A = types.ModuleType("albumentations")
    A.BasicTransform, A.HorizontalFlip, A.__version__ = Stand, HorizontalFlip, "2.5.1"
    monkeypatch.setitem(sys.modules, "albumentations", A)
    with pytest.raises(ImportError, match="albumentations 2.5.1 is installed.*entries need 2.0.x: pip uninstall"):
        build_transforms(["A.HorizontalFlip"])
    A.__version__ = "2.0.9"
    monkeypatch.setattr(albu.importlib.metadata, "version", lambda name: "2.0.9")
    with pytest.raises(ImportError, match="albumentationsx 2.0.9 is installed.*pip uninstall albumentationsx;"):
        build_transforms(["A.HorizontalFlip"])
