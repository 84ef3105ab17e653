"Losses by name: equal to plain formulas, from logits, without missing targets; errors when they are made."
import math
import pickle
from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ptwrap.all import Learner, LossError, UnknownName
from ptwrap.batch import count, ignored_index
from ptwrap.core import LOSSES
from ptwrap.criteria import DiceLoss, FocalLoss
from ptwrap.distill import DistillationLoss, WithTeacher
from ptwrap.tasks import build_loss

NAN = math.nan


def close(a, b, tol=1e-6):
    a, b = (x.item() if isinstance(x, torch.Tensor) else x for x in (a, b))
    assert a == pytest.approx(b, abs=tol, rel=tol)


def log_p(logits):
    "log softmax over dimension 1, written out."
    return logits - logits.exp().sum(1, keepdim=True).log()


def of_class(values, y):
    "values[i, y[i]]"
    return values[torch.arange(len(y)), y]


def data(n=12, c=4):
    return torch.randn(n, c), torch.randint(0, c, (n,)), torch.randn(n, c), torch.randint(0, 2, (n, c))


def xy(spec, pred, target):
    return build_loss(spec)(pred, target)


# --- values: each formula is written here, in plain tensor arithmetic

def formulas():
    logits, y, numbers, labels = data()
    w = torch.tensor([1.0, 2.0, 3.0, 0.5])
    d, p = logits - numbers, logits.sigmoid()
    a, b = d.abs(), labels.float()
    nll, right = -of_class(log_p(logits), y), of_class(log_p(logits), y).exp()
    p_t, a_t = p * b + (1 - p) * (1 - b), 0.25 * b + 0.75 * (1 - b)
    probs = numbers.softmax(1)
    smooth = -(0.9 * of_class(log_p(logits), y) + 0.1 * log_p(logits).mean(1)).mean()
    return {
        "cross_entropy": ("cross_entropy", logits, y, nll.mean()),
        "ce, weights": (dict(name="ce", weight=w.tolist()), logits, y, (w[y] * nll).sum() / w[y].sum()),
        "ce, float64 weights": (dict(name="ce", weight=w.double()), logits, y, (w[y] * nll).sum() / w[y].sum()),
        "ce, smoothing": (dict(name="ce", label_smoothing=0.1), logits, y, smooth),
        "ce, ignore": (dict(name="ce", ignore_index=1), logits, y, nll[y != 1].mean()),
        "ce, sum": (dict(name="ce", reduction="sum"), logits, y, nll.sum()),
        "bce": ("bce", logits, labels, -(b * p.log() + (1 - b) * (1 - p).log()).mean()),
        "bce, pos_weight": (dict(name="bce", pos_weight=3), logits, labels,
                            -(3 * b * p.log() + (1 - b) * (1 - p).log()).mean()),
        "bce, a weight a label": (dict(name="bce", pos_weight=w.tolist()), logits, labels,
                                  -(w * b * p.log() + (1 - b) * (1 - p).log()).mean()),
        "focal": ("focal", logits, y, ((1 - right) ** 2 * nll).mean()),
        "focal, gamma 0.5": (dict(name="focal", gamma=0.5), logits, y, ((1 - right).sqrt() * nll).mean()),
        "focal, alpha": (dict(name="focal", alpha=w.tolist()), logits, y, (w[y] * (1 - right) ** 2 * nll).mean()),
        "focal, labels": (dict(name="focal", gamma=2, alpha=0.25), logits, labels,
                          -(a_t * (1 - p_t) ** 2 * p_t.log()).mean()),
        "mse": ("mse", logits, numbers, (d * d).mean()),
        "l1": ("l1", logits, numbers, a.mean()),
        "mae": ("mae", logits, numbers, a.mean()),
        "smooth_l1": (dict(name="smooth_l1", beta=0.5), logits, numbers, torch.where(a < 0.5, d * d, a - 0.25).mean()),
        "huber": (dict(name="huber", delta=0.5), logits, numbers,
                  torch.where(a < 0.5, d * d / 2, 0.5 * (a - 0.25)).mean()),
        "nll": ("nll", log_p(logits), y, nll.mean()),
        "kl_div": (dict(name="kl_div", reduction="batchmean"), log_p(logits), probs,
                   (probs * (probs.log() - log_p(logits))).sum() / 12),
        "poisson_nll": ("poisson_nll", logits, numbers.abs(), (logits.exp() - numbers.abs() * logits).mean()),
        "SoftMarginLoss": ("SoftMarginLoss", logits, 2 * b - 1, (1 + (-(2 * b - 1) * logits).exp()).log().mean()),
        "multi_margin": ("multi_margin", logits, y,
                         ((1 - of_class(logits, y)[:, None] + logits).clamp(min=0).sum(1) - 1).mean() / 4),
    }


@pytest.mark.parametrize("name", list(formulas()))
def test_a_loss_equals_its_formula(name):
    spec, pred, target, expected = formulas()[name]
    close(xy(spec, pred, target), expected)


@pytest.mark.parametrize("name", LOSSES.names())
def test_every_name_builds_a_loss(name):
    "By name alone, except for the one of torch that needs sizes."
    if name == "LinearCrossEntropyLoss":
        with pytest.raises(TypeError, match="needs in_features"):
            build_loss(name)
        return
    spec = dict(name=name, tasks=[dict(name="a", loss="mse")]) if name == "multi_task" else name
    loss_fn = build_loss(spec)
    assert isinstance(loss_fn, nn.Module)
    assert repr(deepcopy(loss_fn)) == repr(pickle.loads(pickle.dumps(loss_fn))) == repr(loss_fn)


@pytest.mark.parametrize("shape", [(8, 5), (8, 5, 7), (2, 5, 4, 4)])
def test_focal_with_gamma_0_is_cross_entropy(shape):
    "Value and gradient, with classes in dimension 1 and ignored targets."
    logits, y = torch.randn(shape, requires_grad=True), torch.randint(0, 5, shape[:1] + shape[2:])
    y.view(-1)[::3] = -100
    for loss in (FocalLoss(gamma=0)(logits, y), F.cross_entropy(logits, y)):
        loss.backward()
    both = FocalLoss(gamma=0)(logits, y), F.cross_entropy(logits, y)
    close(*both)
    grads = [torch.autograd.grad(loss, logits)[0] for loss in both]
    assert torch.allclose(*grads, atol=1e-7)


@pytest.mark.parametrize("pred, target", [((8, 1), (8,)), ((8,), (8,)), ((8, 3), (8, 3)), ((2, 1, 4, 4), (2, 1, 4, 4))])
def test_focal_with_gamma_0_is_binary_cross_entropy(pred, target):
    logits, y = torch.randn(pred), torch.randint(0, 2, target)
    close(FocalLoss(gamma=0)(logits, y), F.binary_cross_entropy_with_logits(logits, y.float().reshape(pred)))


def test_focal_is_that_of_torchvision_and_its_gradient_is_finite():
    from torchvision.ops import sigmoid_focal_loss
    logits, y = torch.randn(6, 3), torch.randint(0, 2, (6, 3)).float()
    close(FocalLoss(2, 0.25)(logits, y), sigmoid_focal_loss(logits, y, 0.25, 2, "mean"))
    sure = torch.tensor([[60.0, -60.0], [-200.0, 200.0]], requires_grad=True)  # p is 1 in float32
    for gamma in (0, 0.5, 1, 2):
        grad, = torch.autograd.grad(FocalLoss(gamma)(sure, torch.tensor([0, 1])), sure)
        assert grad.isfinite().all() and grad.abs().max() < 1e-6


def test_focal_balanced_takes_the_counts_of_the_data():
    loss_fn = build_loss(dict(name="focal", alpha="balanced"), class_counts=torch.tensor([90, 10]))
    assert loss_fn.alpha.tolist() == pytest.approx([100 / 180, 5.0])


def soft_dice(p, t, smooth=1.0):
    return 1 - (2 * (p * t).sum() + smooth) / (p.sum() + t.sum() + smooth)


def test_dice_by_hand():
    "Classes, yes-or-no masks of both shapes, and labels: one number for each sample and class, averaged."
    logits, y = torch.randn(3, 4, 5, 6), torch.randint(0, 4, (3, 5, 6))
    p = logits.softmax(1)
    close(xy("dice", logits, y),
          torch.stack([soft_dice(p[i, c], (y[i] == c).float()) for i in range(3) for c in range(4)]).mean())
    p, mask = logits[:, 0].sigmoid(), y > 1
    expected = torch.stack([soft_dice(p[i], mask[i].float(), 2.0) for i in range(3)]).mean()
    for pred, target in [(logits[:, :1], mask), (logits[:, 0], mask), (logits[:, :1], mask[:, None].float()),
                         (logits[:, 0], mask.long())]:
        close(xy(dict(name="dice", smooth=2.0), pred, target), expected)
    many = torch.stack([y == c for c in range(4)], 1).float()
    p = logits.sigmoid()
    close(xy("dice", logits, many),
          torch.stack([soft_dice(p[i, c], many[i, c]) for i in range(3) for c in range(4)]).mean())
    assert xy("dice", (2 * many - 1) * 100, many) < 1e-6 and xy("dice", (1 - 2 * many) * 100, many) > 0.6


def test_dice_leaves_out_ignored_pixels():
    logits, y = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    y[0, :2] = 255
    p, keep = logits.softmax(1), y != 255
    expected = torch.stack([soft_dice(p[i, c][keep[i]],
                                      (y[i] == c).float()[keep[i]]) for i in range(2) for c in range(3)]).mean()
    close(xy(dict(name="dice", ignore_index=255), logits, y), expected)


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4)])
def test_giou_is_that_of_torchvision(shape):
    from torchvision.ops import box_convert, generalized_box_iou_loss
    a, b = (torch.cat([torch.rand(shape[:-1] + (2,)) * 4, torch.rand(shape[:-1] + (2,)) + 0.1], -1) for _ in range(2))
    corners = [box_convert(x, "cxcywh", "xyxy").requires_grad_() for x in (a, b)]
    theirs = generalized_box_iou_loss(*corners, reduction="mean")
    close(xy(dict(name="giou", boxes="cxcywh"), a, b), theirs)
    ours = xy("giou", *corners)
    close(ours, theirs)
    assert torch.allclose(*(torch.autograd.grad(loss, corners[0])[0] for loss in (ours, theirs)), atol=1e-6)


def test_distillation_by_hand():
    student, teacher, y, t = torch.randn(5, 3), torch.randn(5, 3), torch.tensor([0, 2, -100, 1, 1]), 3.0
    p = (teacher / t).softmax(1)
    soft = (p * (p.log() - log_p(student / t))).sum(1).mean()
    keep = y != -100
    hard = -of_class(log_p(student[keep]), y[keep]).mean()
    loss_fn = build_loss(dict(name="distillation", temperature=t, alpha=0.7))
    close(loss_fn(student, (y, teacher)), 0.7 * t * t * soft + 0.3 * hard)
    close(loss_fn(dict(student=student, teacher=teacher), y), 0.7 * t * t * soft + 0.3 * hard)
    close(loss_fn(student, y), hard)


def test_a_student_trains_with_its_teacher():
    "The teacher keeps its weights and its mode, is in no checkpoint, and metrics and predictions are the student's."
    teacher, student = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), nn.Linear(4, 3)
    before = deepcopy(teacher.state_dict())
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    batches = [[x[:8], y[:8]], [x[8:], y[8:]]]
    model = WithTeacher(student, teacher)
    learn = Learner(model, (batches, batches), "distillation", "sgd", metrics="accuracy", lr=0.1)
    with torch.no_grad():
        first = DistillationLoss()(dict(student=student(x[:8]), teacher=teacher.eval()(x[:8])), y[:8])
    learn.fit(2)
    close(learn.history.steps["loss"][0], first)
    assert all(torch.equal(v, teacher.state_dict()[k]) for k, v in before.items()) and not teacher.training
    assert list(model.state_dict()) == ["student.weight", "student.bias"]
    assert learn.predict(x).shape == (16, 3) and 0 <= learn.history.epochs[-1]["valid_accuracy"] <= 1
    assert next(model.to(torch.float64).hidden[0].parameters()).dtype is torch.float64, "the teacher moves along"


# --- missing targets

MISSING = {"mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss, "huber": F.huber_loss,
           "bce": F.binary_cross_entropy_with_logits}


@pytest.mark.parametrize("name", [*MISSING, "giou", "focal"])
def test_missing_targets_have_no_part_in_value_and_gradient(name):
    "The same as without them; where nothing is missing the same as without `missing`, to the bit; where all is, 0."
    pred = torch.rand(6, 4, requires_grad=True)
    target = torch.randint(0, 2, (6, 4)).float() if name in ("bce", "focal") else torch.rand(6, 4)
    if name == "giou":
        pred = torch.tensor([[0.0, 0, 1, 1]]).repeat(6, 1) + torch.rand(6, 4) * 0.4
        pred, target = pred.requires_grad_(), pred.detach() + 0.3
    holes = target.clone()
    holes[[1, 4]] = NAN
    loss_fn, plain = build_loss(dict(name=name, missing=True)), build_loss(name)
    kept = [0, 2, 3, 5]
    close(loss_fn(pred, holes), plain(pred[kept], target[kept]))
    grad, = torch.autograd.grad(loss_fn(pred, holes), pred)
    expected, = torch.autograd.grad(plain(pred[kept], target[kept]), pred)
    assert torch.allclose(grad, expected, atol=1e-7) and grad[[1, 4]].abs().sum() == 0
    full = [torch.autograd.grad(f(pred, target), pred)[0] for f in (loss_fn, plain)]
    if name in MISSING:
        assert torch.equal(loss_fn(pred, target), MISSING[name](pred, target)) and torch.equal(*full)
    none = loss_fn(pred, target * NAN)
    assert none.item() == 0 and torch.autograd.grad(none, pred)[0].abs().sum() == 0
    assert math.isnan(ignored_index(loss_fn)) and count(holes, pred, math.nan)[0] == 16


@pytest.mark.parametrize("name", ["mse", "bce"])
def test_an_epoch_weighs_batches_by_the_targets_that_are_there(name):
    "Batches with 4, 1 and no target: the epoch's loss is the mean over all five, the empty one moves nothing."
    x, y = torch.randn(12, 3), torch.randint(0, 2, (12, 1)).float()
    y[5:] = NAN
    batches = [[x[i:i + 4], y[i:i + 4]] for i in (0, 4, 8)]
    model = nn.Linear(3, 1)
    learn = Learner(model, (batches, batches), dict(name=name, missing=True), "sgd", lr=0.0).fit(1)
    with torch.no_grad():
        whole = MISSING[name](model(x[:5]), y[:5]).item()
    row = learn.history.epochs[0]
    assert row["train_loss"] == pytest.approx(whole, abs=1e-6) == row["valid_loss"]
    assert list(learn.history.steps["n"]) == [4, 1, 0] and learn.history.steps["loss"][2] == 0
    before = [p.clone() for p in model.parameters()]
    Learner(model, batches[2:], dict(name=name, missing=True), "sgd", lr=0.1).fit(1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_metrics_by_name_leave_out_what_the_loss_leaves_out():
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    y[::2] = NAN
    learn = Learner(nn.Linear(3, 1), (None, [[x, y]]), dict(name="mse", missing=True), metrics=["mae", "rmse", "r2"])
    row, d = learn.validate(), (learn.predict(x) - y)[1::2]
    close(row["valid_mae"], d.abs().mean())
    close(row["valid_rmse"], d.square().mean().sqrt())
    close(row["valid_r2"], 1 - d.square().sum() / (y[1::2] - y[1::2].mean()).square().sum(), 1e-5)
    learn.loss_fn = "mse"
    assert math.isnan(learn.validate()["valid_mae"]), "a loss that keeps all targets, and metrics with it"


def test_several_labels_and_micro_f1():
    "(N, L) logits with 0/1 labels, some of them missing: F1 of all labels together, by hand."
    x, y = torch.randn(10, 3), torch.randint(0, 2, (10, 4)).float()
    y[0, 0] = NAN
    learn = Learner(nn.Linear(3, 4), (None, [[x[:6], y[:6]], [x[6:], y[6:]]]), dict(name="bce", missing=True),
                    metrics=["f1_micro", dict(name="f1", average="macro", threshold=0.5)])
    row, seen = learn.validate(), ~y.isnan()
    yes, true = (learn.predict(x) > 0)[seen], y[seen] == 1
    close(row["valid_f1_micro"], 2 * (yes & true).sum() / (yes.sum() + true.sum()))
    assert learn.metrics["f1"].threshold == 0.5, "what is given with a name stays"


def test_nan_in_targets_stops_the_run_and_says_how_missing_ones_are_left_out():
    from ptwrap.all import NonFinite
    batch = [torch.randn(4, 2), torch.tensor([[1.0], [NAN], [NAN], [2.0]])]
    with pytest.raises(NonFinite, match=r"the target has 2 NaN; missing=True leaves missing ones out"):
        Learner(nn.Linear(2, 1), [batch], "mse").fit(1)


# --- through the learner

def test_a_loss_by_dict_is_shown_and_written_to_the_script():
    from ptwrap.all import DataModule
    data = DataModule.digits(seed=0)
    learn = Learner("mlp", data, dict(name="focal", gamma=3, alpha="balanced"), seed=0, device="cpu")
    assert learn.loss_fn.alpha.shape == (10,)
    assert "loss       FocalLoss(gamma=3, alpha=[" in repr(learn)
    script = learn.fit(steps=2).to_script()
    assert "loss_fn={'name': 'focal', 'gamma': 3, 'alpha': 'balanced'}" in script
    for given, shown in [(nn.CrossEntropyLoss(label_smoothing=0.1), "CrossEntropyLoss(label_smoothing=0.1)"),
                         (dict(name="ce", label_smoothing=0.1), "CrossEntropyLoss(label_smoothing=0.1)"),
                         ("ce", "CrossEntropyLoss()"), (nn.CrossEntropyLoss(ignore_index=3), "CrossEntropyLoss(ignore_index=3)"),
                         (F.cross_entropy, "cross_entropy"),
                         (nn.CrossEntropyLoss(torch.ones(10)), "CrossEntropyLoss(weight=[1.0, 1.0, ")]:
        learn.loss_fn = given
        assert f"loss       {shown}" in repr(learn)


def test_balanced_weights_come_from_the_data():
    from ptwrap.all import DataModule
    y = torch.tensor([0] * 90 + [1] * 10)
    data = DataModule.arrays(torch.randn(100, 2), y, valid_share=0)
    learn = Learner(nn.Linear(2, 2), data, dict(name="ce", weight="balanced"), device="cpu")
    assert learn.loss_fn.weight.tolist() == pytest.approx([100 / 180, 5.0])
    learn.fit(1)
    assert sum(learn.history.steps["n"]) == pytest.approx(90 * 100 / 180 + 10 * 5.0,
                                                          rel=1e-6), "weighed by class weights"


def test_a_registered_function_of_pred_and_target_is_a_loss():
    @LOSSES.register("test_losses_own")
    def own(pred, target):
        return (pred - target).abs().mean()
    batch = [torch.randn(4, 2), torch.randn(4, 1)]
    learn = Learner(nn.Linear(2, 1), [batch], "test_losses_own", "sgd", lr=0.0).fit(1)
    close(learn.history.steps["loss"][0], (learn.predict(batch[0]) - batch[1]).abs().mean())


# --- what is wrong

class Part:
    "Prints as nothing helpful."


WRONG = {
    "name": ("focl", UnknownName, "unknown loss 'focl'; did you mean 'focal'?"),
    "torch's name": ("TripletMarginLos", UnknownName, "'TripletMarginLoss'"),
    "argument": (dict(name="focal", gama=2), TypeError, "loss 'focal' has no argument 'gama'; did you mean 'gamma'?"),
    "torch's argument": (dict(name="triplet_margin", margn=2), TypeError,
                         "has no argument 'margn'; did you mean 'margin'?"),
    "argument of another": (dict(name="mse", delta=2), TypeError, "loss 'mse' has no argument 'delta'"),
    "gamma": (dict(name="focal", gamma="two"), TypeError, "gamma='two': give a number of 0 or more"),
    "negative gamma": (dict(name="focal", gamma=-1), ValueError, "gamma=-1: give a number of 0 or more"),
    "alpha": (dict(name="focal", alpha=1.5), ValueError, "alpha=1.5: give a number from 0 to 1"),
    "smoothing": (dict(name="ce", label_smoothing=10), ValueError, "label_smoothing=10: give a number from 0 to 1"),
    "weights": (dict(name="ce", weight=["a", "b"]), TypeError, "give one number a class, as a list or tensor"),
    "negative weights": (dict(name="ce", weight=[1, -1]), ValueError,
                         "values from -1; give one number of 0 or more a class"),
    "matrix of weights": (dict(name="ce", weight=torch.ones(2, 2)), ValueError, "weight has shape (2, 2)"),
    "word as weights": (dict(name="ce", weight="equal"), ValueError,
                        "weight='equal': give 'balanced', or one number a class"),
    "balanced without data": (dict(name="ce", weight="balanced"), ValueError,
                              "give class_counts=[...], or weight as a list"),
    "empty class": (dict(name="ce", weight="balanced", class_counts=[3, 0]), ValueError,
                    "class 1 has no sample in training"),
    "number of weights": (dict(name="ce", weight=[1, 2], num_classes=3), ValueError,
                          "2 numbers for 3 classes; give one a class"),
    "reduction": (dict(name="mse", reduction="none"), ValueError, "reduction='none': give 'mean' or 'sum'"),
    "boxes": (dict(name="giou", boxes="xywh"), ValueError, "boxes='xywh': give 'xyxy' (two corners) or 'cxcywh'"),
    "temperature": (dict(name="distillation", temperature=0), ValueError, "temperature=0: give a number"),
    "beta": (dict(name="smooth_l1", beta=None), TypeError, "beta=None: give a number of 0 or more"),
    "no name": (dict(gamma=2), TypeError, "loss: a dictionary needs one key 'name' beside the arguments"),
    "a number": (3, TypeError, "loss_fn is a int; give a name, a module or a function of (pred, target)"),
    "an object": (Part(), TypeError, "loss_fn is a Part; give a name"),
}


@pytest.mark.parametrize("spec, error, text", WRONG.values(), ids=WRONG)
def test_a_wrong_loss_is_refused_when_it_is_made(spec, error, text):
    with pytest.raises(error) as info:
        Learner(nn.Linear(2, 2), [[torch.randn(4, 2), torch.zeros(4).long()]], spec)
    assert text in str(info.value)


Y = torch.tensor([0, 1, 1, 0])
REFUSED = {
    "focal, float classes": ("focal", 3, Y.float(), "class numbers must be integers: use target.long()"),
    "focal, classes and labels": ("focal", 3, torch.zeros(4, 2), "logits have shape (4, 3) and labels (4, 2)"),
    "focal, one alpha for classes": (dict(name="focal", alpha=0.3), 3, Y,
                                     "the model 3 classes; give one number a class"),
    "focal, alphas for labels": (dict(name="focal", alpha=[1, 2]), 1, Y,
                                 "alpha has 2 numbers and the targets are labels"),
    "focal, labels out of range": ("focal", 1, Y + 1, "labels go from 1 to 2; they must lie between 0 and 1"),
    "bce, NaN": ("bce", 1, torch.tensor([0, 1, NAN, 0]), "1 labels are NaN; missing=True leaves missing labels out"),
    "bce, pos_weight": (dict(name="bce", pos_weight=[1, 2]), 3, torch.zeros(4, 3),
                        "2 pos_weight for 3 labels; give one a label"),
    "dice, shapes": ("dice", 3, torch.zeros(4, 2), "dice loss: logits (4, 3) and targets (4, 2)"),
    "dice, class too high": ("dice", 2, Y + 1, "targets go from 1 to 2 and the model has 2 outputs"),
    "giou, shape": ("giou", 4, torch.zeros(4, 5),
                    "prediction (4, 4) and target (4, 5); both need the same shape (*, 4)"),
    "giou, not boxes": ("giou", 3, torch.zeros(4, 3), "both need the same shape (*, 4), boxes as xyxy"),
    "mse, missing and flat": (dict(name="mse", missing=True), 1, torch.zeros(4), "use target.reshape((4, 1))"),
    "distillation": ("distillation", 3, (Y, torch.zeros(4, 2)), "the student gives (4, 3), the teacher (4, 2)"),
    "triplet": ("triplet_margin", 3, torch.zeros(4, 3), "override Learner.compute"),
    "a target by task": ("mse", 1, dict(a=torch.zeros(4, 1)), "give loss_fn=[dict(name='a', loss=...)]"),
}


@pytest.mark.parametrize("spec, n_out, target, text", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_the_loss_is_explained_at_the_first_batch(spec, n_out, target, text):
    learn = Learner(nn.Linear(2, n_out), [[torch.randn(4, 2), target]], spec)
    with pytest.raises(LossError) as info:
        learn.fit(1)
    assert text in str(info.value) and learn.state.step == 0


def test_b29_with_arguments_by_name():
    "Integer labels (N,) for logits (N, 1); class weights as float64 are converted where they come by name."
    x = torch.randn(4, 2)
    learn = Learner(nn.Linear(2, 1), [[x, Y]], dict(name="bce", pos_weight=1), "sgd", lr=0.0)
    nn.init.zeros_(learn.model.weight), nn.init.zeros_(learn.model.bias)
    assert learn.fit(1).history.epochs[0]["train_loss"] == pytest.approx(0.693147, abs=1e-6)
    weight = torch.tensor([1.0, 2.0], dtype=torch.float64)
    learn = Learner(nn.Linear(2, 2), [[x, Y]], dict(name="cross_entropy", weight=weight), "sgd", lr=0.0).fit(1)
    close(learn.history.steps["loss"][0], F.cross_entropy(learn.predict(x), Y, weight.float()))


# --- classes and numbers are not mixed up

def tips(target="tip", **kwargs):
    import pandas as pd

    from ptwrap.all import DataModule
    frame = pd.DataFrame(dict(bill=torch.linspace(3, 50, 40).numpy(), tip=torch.linspace(1, 9, 40).numpy() ** 1.1,
                              sex=["f", "m"] * 20))
    return DataModule.frame(frame, target=target, seed=0, **kwargs)


@pytest.mark.parametrize("loss_fn, name", [
    ("ce", "CrossEntropyLoss"), (dict(name="ce", label_smoothing=0.1), "CrossEntropyLoss"),
    (nn.CrossEntropyLoss(), "CrossEntropyLoss"), (nn.CrossEntropyLoss, "CrossEntropyLoss"), ("nll", "NLLLoss"),
    (F.cross_entropy, "cross_entropy"), (partial(F.cross_entropy, label_smoothing=0.1), "cross_entropy"),
    (dict(name="focal", alpha=[1, 2]), "FocalLoss"), ("distillation", "DistillationLoss"),
    ("multi_margin", "MultiMarginLoss")], ids=str)
def test_a_loss_on_classes_is_refused_where_the_target_is_a_number(loss_fn, name):
    "torch takes (N, 1) floats as the probability of one class: the loss would be 0.0 in each epoch."
    with pytest.raises(LossError, match=f"{name} is for class numbers and the target is a number: use 'mse', 'l1' or 'huber'"):
        Learner("mlp", tips(), loss_fn)


@pytest.mark.parametrize("loss_fn", ["mse", "l1", "huber", "smooth_l1", nn.MSELoss(), dict(name="mse", missing=True)], ids=str)
def test_a_loss_on_numbers_is_refused_where_the_target_is_a_class(loss_fn):
    with pytest.raises(LossError, match="is for numbers and the target holds class numbers: use 'cross_entropy'"):
        Learner("mlp", tips("sex"), loss_fn)


def test_the_same_in_the_form_of_tasks():
    for target, loss, text in [("tip", "ce", "CrossEntropyLoss is for class numbers and the target is a number: use 'mse'"),
                               ("sex", "mse", "the target holds class numbers: use 'cross_entropy'")]:
        with pytest.raises(LossError, match=text):
            Learner("mlp", tips(target), [dict(name=target, loss=loss)])
    row = Learner("mlp", tips(), [dict(name="tip", loss="huber")], seed=0).fit(1).history.epochs[0]
    assert row["train_loss"] == row["train_loss_tip"] > 0.05


def test_the_right_kinds_train():
    for target, loss_fn in [("tip", "mse"), ("tip", "huber"), ("sex", "ce"), ("sex", None), ("tip", None), ("sex", "focal")]:
        learn = Learner("mlp", tips(target), loss_fn, seed=0).fit(1)
        assert learn.history.epochs[0]["train_loss"] > 0.05
    learn.loss_fn = "ce"
    with pytest.raises(LossError, match="use 'cross_entropy'"):
        learn.loss_fn = "mse"


def test_soft_labels_stay_allowed():
    from ptwrap.all import DataModule
    x, soft = torch.randn(20, 4), torch.rand(20, 3).softmax(1)
    learn = Learner("mlp", DataModule.arrays(x, soft, seed=0), "ce", "sgd", lr=0.0, seed=0).fit(1)
    assert 0.9 < learn.history.epochs[0]["train_loss"] < 1.5
    Learner(nn.Linear(4, 3), [[x, soft]], "ce").fit(1)


def test_a_learner_with_a_target_of_its_own_takes_any_loss():
    "An autoencoder on labelled images."
    from ptwrap.all import DataModule

    class Auto(Learner):
        def forward(self, batch):
            return self.net(batch[0]), None, batch[0]
    learn = Auto(nn.Conv2d(1, 1, 3, padding=1), DataModule.digits(seed=0), "mse", seed=0).fit(steps=2)
    assert learn.history.steps["loss"][0] > 0


MIXED = {
    "one column": ("ce", 1, torch.rand(4, 1), "cross entropy over one class is always 0: prediction (4, 1) float32"),
    "one column, numbers": ("ce", 1, torch.rand(4, 1), "for numbers give loss_fn='mse'"),
    "one column, class 0": ("ce", 1, torch.zeros(4).long(), "for yes and no give loss_fn='bce'"),
    "one column, function": (F.cross_entropy, 1, torch.rand(4, 1), "over one class is always 0"),
    "numbers": ("ce", 3, torch.full((4, 3), 7.0), "and this one goes from 7 to 7: prediction (4, 3) float32"),
    "below 0": (nn.CrossEntropyLoss(), 3, torch.full((4, 3), -7.0), "as probabilities of classes"),
    "bce on numbers": (nn.BCEWithLogitsLoss(), 1, torch.full((4, 1), 3.0), "labels go from 3 to 3; they must lie between"),
    "bce function": (F.binary_cross_entropy_with_logits, 1, torch.full((4, 1), -1.0), "labels go from -1 to -1"),
}


@pytest.mark.parametrize("loss_fn, n_out, target, text", MIXED.values(), ids=MIXED)
def test_without_a_data_module_the_first_batch_tells(loss_fn, n_out, target, text):
    learn = Learner(nn.Linear(2, n_out), [[torch.randn(4, 2), target]], loss_fn)
    with pytest.raises(LossError) as info:
        learn.fit(1)
    assert text in str(info.value) and learn.state.step == 0


def test_squeezed_outputs_are_no_classes():
    learn = Learner(nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), [[torch.randn(4, 2), torch.rand(4)]], "ce")
    with pytest.raises(LossError, match="as probabilities of classes"):
        learn.fit(1)


# --- functions with arguments

def poly1(pred, target, epsilon=1.0):
    ce = F.cross_entropy(pred, target, reduction="none")
    return (ce + epsilon * (1 - (-ce).exp())).mean()


def test_a_registered_function_is_bound_with_its_arguments():
    LOSSES.register()(poly1)
    logits, y = torch.zeros(2, 4), torch.tensor([0, 3])
    close(build_loss("poly1")(logits, y), math.log(4) + 0.75)
    learn = Learner(nn.Linear(2, 4), [[torch.randn(4, 2), Y]], dict(name="poly1", epsilon=2.0), seed=0)
    close(learn.loss_fn(logits, y), math.log(4) + 1.5)
    assert "loss       poly1(epsilon=2.0)" in repr(learn.fit(1))
    close(build_loss(dict(name=poly1, epsilon=2.0))(logits, y), math.log(4) + 1.5)
    close(pickle.loads(pickle.dumps(learn.loss_fn))(logits, y), math.log(4) + 1.5)
    assert ignored_index(build_loss(dict(name=F.cross_entropy, ignore_index=7))) == 7
    with pytest.raises(TypeError, match="loss 'poly1' has no argument 'eps'.*epsilon"):
        build_loss(dict(name="poly1", eps=2.0))


def test_a_function_that_needs_more_says_what():
    def own(pred, target, alpha, *, beta): ...
    with pytest.raises(TypeError, match="loss 'own' needs alpha and beta beside pred and target"):
        build_loss(dict(name=own))
    assert build_loss(dict(name=own, alpha=1, beta=2)).keywords == dict(alpha=1, beta=2)


@pytest.mark.parametrize("name, meant", [("torch.nn.MSELoss", "MSELoss"), ("nn.CrossEntropyLoss", "CrossEntropyLoss")])
def test_a_dotted_name_gets_the_short_one(name, meant):
    with pytest.raises(UnknownName, match=f"unknown loss '{name}'; did you mean '{meant}'?"):
        build_loss(name)
