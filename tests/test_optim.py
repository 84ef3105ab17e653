"Optimizers by name: each is the native class, with the groups that it should have."
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ptwrap.all import *
from ptwrap.optim import param_groups

torch.set_num_threads(1)
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(5))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def learner(model=None, opt="adamw", **kwargs) -> Learner:
    learn = Learner(model or net(), DataLoader(TensorDataset(X, Y), batch_size=8), "ce", opt, device="cpu", **kwargs)
    learn.default_cbs = []
    return learn


def groups_of(learn) -> list[tuple]:
    return [(g["lr"], g["weight_decay"], g["param_names"]) for g in learn.opt.param_groups]


NAMES = [name for name in OPTIMS.names() if name not in ("lbfgs", "sparseadam")]


def test_every_optimizer_of_torch_has_a_name():
    theirs = {k.lower() for k, v in vars(torch.optim).items() if isinstance(v, type)} - {"optimizer"}
    assert theirs <= set(OPTIMS.names()) and {"lion", "muon", "adafactor", "asgd", "rprop"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_native_class_and_trains(name):
    "Two epochs give the weights of a loop by hand with the same class over the same groups."
    from timm import optim as timm_optim
    lr = 1.0 if name == "adadelta" else 0.01
    learn = learner(opt=name, lr=lr).fit(2)
    home = timm_optim if name in ("lion", "muon") else torch.optim
    cls = next(v for k, v in vars(home).items() if k.lower() == name and isinstance(v, type))
    assert type(learn.opt) is cls
    model = net()
    groups = [dict(params=list(model.parameters()))]
    if learn.opt.defaults.get("weight_decay"):
        groups = [dict(params=[model[0].weight, model[3].weight]),
                  dict(params=[model[0].bias, *model[1].parameters(), model[3].bias], weight_decay=0.0)]
    opt = cls(groups, lr=lr, **(dict(fused=True) if learn.opt.defaults.get("fused") else {}))
    drop = lambda group: {k: v for k, v in group.items() if k not in ("params", "param_names")}
    assert [drop(g) for g in learn.opt.param_groups] == [drop(g) for g in opt.param_groups]
    start = nn.functional.cross_entropy(net()(X), Y).item()
    for _ in range(2):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
            opt.zero_grad()
    assert all(map(torch.equal, model.state_dict().values(), learn.model.state_dict().values()))
    assert learn.history.epochs[-1]["train_loss"] < start


def test_only_some_names_have_weight_decay_of_their_own():
    decays = {name for name in NAMES if learner(opt=name).opt.param_groups[0].get("weight_decay")}
    assert decays == {"adamw"}


@pytest.mark.parametrize("name", ["NAdam", "ASGD", "AdamW", "RMSprop", "SGD"])
def test_names_in_any_case(name):
    cls = getattr(torch.optim, name)
    assert type(learner(opt=name).opt) is cls
    assert type(learner(opt=dict(type=name, lr=0.5)).opt) is cls


def test_muon_trains_a_cnn_and_moves_biases_too():
    learn = Learner("cnn", DataModule.digits(), metrics="accuracy", opt="muon", lr=5e-3, seed=0, device="cpu")
    learn.default_cbs = []
    before = {k: v.clone() for k, v in learn.model.named_parameters()}
    assert learn.fit(2).history.epochs[-1]["valid_accuracy"] > 0.9
    assert all((v != before[k]).any() for k, v in learn.model.named_parameters())


def test_keys_go_through_unchanged():
    learn = learner(opt=dict(name="adamw", weight_decay=0.1, betas=(0.9, 0.95), amsgrad=True), lr=0.02)
    assert {(g["betas"], g["amsgrad"], g["lr"]) for g in learn.opt.param_groups} == {((0.9, 0.95), True, 0.02)}
    assert groups_of(learn) == [(0.02, 0.1, ["0.weight", "3.weight"]),
                                (0.02, 0.0, ["0.bias", "1.weight", "1.bias", "3.bias"])]
    foreach = learner(opt=dict(name="sgd", foreach=True, momentum=0.9)).opt.param_groups[0]
    assert (foreach["foreach"], foreach["fused"], foreach["momentum"]) == (True, None, 0.9)


def test_the_learner_says_what_has_no_weight_decay():
    row = lambda learn: next(line for line in repr(learn).splitlines() if "optimizer" in line).split(maxsplit=1)[1]
    assert row(learner()) == "AdamW, lr 0.001, weight decay 0.01 (none on 4 bias and norm parameters)"
    assert row(learner(opt=dict(name="adamw", decay_all=True))) == "AdamW, lr 0.001, weight decay 0.01"
    assert row(learner(opt="sgd", lr=0.1, sched="cosine")) == "SGD, lr 0.1, schedule cosine"
    groups = [dict(match="^0", lr_mult=0.1)]
    assert row(learner(opt=dict(name="sgd", groups=groups), lr=0.1)) == "SGD, lr 0.1 (0.01 in other groups)"


def test_what_a_user_made_stays_untouched():
    own = lambda params, lr=1e-3: torch.optim.AdamW(params, lr=lr)
    for opt in (torch.optim.AdamW, own, dict(name=torch.optim.AdamW)):
        assert [g["weight_decay"] for g in learner(opt=opt).opt.param_groups] == [0.01]
    model = net()
    ready = torch.optim.AdamW(model.parameters())
    assert learner(model, ready).opt is ready and len(ready.param_groups) == 1
    assert [g["weight_decay"] for g in learner(opt=dict(name="adamw", decay_all=True)).opt.param_groups] == [0.01]


def test_norms_of_any_shape_and_attention_have_no_weight_decay_embeddings_have():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(5, 4), nn.LayerNorm((3, 4))
            self.rms, self.attend = nn.RMSNorm((3, 4)), nn.MultiheadAttention(4, 2)
            self.lstm, self.scale = nn.LSTM(4, 4), nn.Parameter(torch.ones(()))

    decayed, bare = ([n for n, _ in g["params"]] for g in param_groups(Model(), weight_decay=0.1))
    assert decayed == ["table.weight", "attend.in_proj_weight", "attend.out_proj.weight", "lstm.weight_ih_l0",
                       "lstm.weight_hh_l0"]
    assert "norm.weight" in bare and "rms.weight" in bare and "scale" in bare and "attend.in_proj_bias" in bare


def test_discriminative_rates():
    "Two groups with a rate of their own, the rest with the common one, which comes first and is `learn.lr`."
    groups = [dict(match=r"^0\.", lr_mult=0.1), dict(match=r"^3\.bias", lr=0.5, weight_decay=0.3, betas=(0.5, 0.9))]
    learn = learner(opt=dict(name="adamw", weight_decay=0.1, groups=groups), lr=0.01)
    assert groups_of(learn) == [(0.01, 0.1, ["3.weight"]), (0.01, 0.0, ["1.weight", "1.bias"]),
                                (0.001, 0.1, ["0.weight"]), (0.001, 0.0, ["0.bias"]), (0.5, 0.3, ["3.bias"])]
    assert learn.opt.param_groups[-1]["betas"] == (0.5, 0.9)
    learn.lr = 0.02
    assert [g["lr"] for g in learn.opt.param_groups] == pytest.approx([0.02, 0.02, 0.002, 0.002, 1.0])
    learn.sched = "one_cycle"
    learn.fit(1)
    assert [g["max_lr"] for g in learn.opt.param_groups] == pytest.approx([0.02, 0.02, 0.002, 0.002, 1.0])


def test_every_parameter_is_in_one_group_and_the_first_match_takes_it():
    model = net()
    model[0].requires_grad_(False)
    rules = [dict(match="bias", lr_mult=2), dict(match="^3", lr_mult=3)]
    groups = param_groups(model, lr=1.0, weight_decay=0.1, groups=rules)
    names = [n for g in groups for n, _ in g["params"]]
    assert sorted(names) == sorted(n for n, _ in model.named_parameters())
    assert {n: g["lr"] for g in groups for n, _ in g["params"]} == {
        "0.weight": 1, "1.weight": 1, "0.bias": 2, "1.bias": 2, "3.bias": 2, "3.weight": 3}


def test_groups_are_for_any_optimizer_class():
    opt = torch.optim.SGD(param_groups(net(), lr=0.1, groups=[dict(match="^0", lr_mult=0.5, momentum=0.9)]), lr=1.0)
    assert [(g["lr"], g["momentum"]) for g in opt.param_groups] == [(0.1, 0), (0.05, 0.9)]


def test_a_loss_with_parameters_is_in_the_optimizer():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, pred, target):
            return nn.functional.cross_entropy(pred * self.scale, target)

    learn = Learner(net(), DataLoader(TensorDataset(X, Y), batch_size=8), Scaled(), lr=0.1, device="cpu")
    assert groups_of(learn)[1][2][-1] == "loss_fn.scale"
    learn.fit(1)
    assert learn.loss_fn.scale.item() != 1


@pytest.fixture(scope="module")
def resnet():
    import timm
    return timm.create_model("test_resnet", num_classes=3)


def test_layer_decay_is_timms(resnet):
    "The rates are those of timm's own groups, frozen layers included; each layer has 0.5 times the next one's."
    from timm.optim import param_groups_layer_decay
    hers = {id(p): g["lr_scale"] for g in param_groups_layer_decay(resnet, layer_decay=0.5) for p in g["params"]}
    resnet.conv1.requires_grad_(False)
    mine = param_groups(resnet, lr=1.0, weight_decay=0.1, layer_decay=0.5)
    assert not any(p.requires_grad for p in resnet.conv1.parameters())
    assert {id(p): g["lr"] for g in mine for _, p in g["params"]} == hers
    lrs = [g["lr"] for g in mine]
    assert lrs[0] == 1.0 and lrs == sorted(lrs, reverse=True) and len(set(lrs)) > 4
    assert {round(a / b, 9) for a, b in zip(lrs, lrs[1:])} == {1.0, 2.0}
    resnet.requires_grad_(True)


def test_layer_decay_in_a_learner(resnet):
    x, y = torch.randn(8, 3, 64, 64), torch.arange(8) % 3
    opt = dict(name="adamw", layer_decay=0.75, groups=[dict(match="^fc", lr_mult=10)])
    learn = Learner(resnet, [(x, y)] * 2, "ce", opt, lr=1e-3, device="cpu")
    rates = {n: g["lr"] for g in learn.opt.param_groups for n in g["param_names"]}
    assert rates["fc.weight"] == pytest.approx(1e-2) and rates["conv1.0.weight"] < 5e-4
    before = [p.clone() for p in resnet.parameters()]
    learn.fit(1)
    assert all((a != b).any() for a, b in zip(before, resnet.parameters()))


def test_what_is_frozen_stays_and_what_is_unfrozen_trains():
    "Freezing is `requires_grad` alone: no weight decay, no momentum of earlier steps, and the optimizer stays."
    model = net()
    model[0].requires_grad_(False)
    learn, before = learner(model, dict(name="adamw", weight_decay=0.5), lr=0.1), model[0].weight.clone()
    opt = learn.opt
    learn.fit(1)
    assert torch.equal(model[0].weight, before)
    model[0].requires_grad_(True)
    learn.fit(1)
    moved = model[0].weight.clone()
    assert (moved != before).all()
    model[0].requires_grad_(False)
    learn.fit(1)
    assert torch.equal(model[0].weight, moved) and learn.opt is opt


def test_state_goes_on_in_a_new_learner():
    make = lambda: learner(opt=dict(name="adamw", weight_decay=0.1, groups=[dict(match="^0", lr_mult=0.1)]), lr=0.02)
    whole, first, second = make().fit(2), make().fit(1), make()
    second.load_state_dict(first.state_dict())
    second.fit(1)
    assert all(map(torch.equal, whole.model.state_dict().values(), second.model.state_dict().values()))


def test_a_registered_function_may_ask_for_the_model():
    seen = []

    @OPTIMS.register("mine_with_model")
    def mine(params, lr, model):
        seen.append(model)
        return torch.optim.SGD(params, lr=lr)

    @OPTIMS.register("mine_plain")
    def plain(params, lr):
        return torch.optim.SGD(params, lr=lr)

    learn = learner(opt="mine_with_model", lr=0.1)
    assert seen == [learn.model] and type(learner(opt="mine_plain", lr=0.1).opt) is torch.optim.SGD


@pytest.mark.parametrize("opt, lr, error, text", [
    ("adamv", None, LookupError, "unknown optimizer 'adamv'; did you mean 'adam"),
    (dict(name="adamw", weight_deacy=0.1), None, TypeError,
     "optimizer 'adamw' has no argument 'weight_deacy'; did you mean 'weight_decay'?"),
    (dict(name="adamw", layerdecay=0.7), None, TypeError, "did you mean 'layer_decay'?"),
    (dict(name="sgd", betas=(0.9, 0.99)), None, TypeError, "optimizer 'sgd' has no argument 'betas'"),
    (dict(weight_decay=0.1), None, TypeError,
     "optimizer: a dictionary needs one key 'name' beside the arguments, this has the keys 'weight_decay'"),
    (dict(name="sgd", lr=0.1), 0.2, TypeError, "the learning rate is given twice: lr=0.2, and lr=0.1 in opt"),
    (dict(name="adamw", weight_decay="0.1"), None, TypeError,
     "optimizer 'adamw': weight_decay='0.1' is a str; give a number"),
    (dict(name="adamw", weight_decay=-1), None, ValueError, "weight_decay=-1: give a number from 0"),
    (dict(name="sgd", groups=[dict(lr=0.1)]), None, TypeError,
     "needs 'match', a regular expression: dict(match='head', lr_mult=10)"),
    (dict(name="sgd", groups=dict(match="0")), None, TypeError, "is one group; give a list of them"),
    (dict(name="sgd", groups=[dict(match="0.wieght")]), None, ValueError,
     "groups: no parameter matches '0.wieght'; did you mean '0.weight'"),
    (dict(name="sgd", groups=[dict(match="[")]), None, ValueError, "groups: '[' is no regular expression"),
    (dict(name="sgd", groups=[dict(match="0"), dict(match="^0.bias")]), None, ValueError, "put the narrower one first"),
    (dict(name="sgd", groups=[dict(match="0", lr=0.1, lr_mult=2)]), None, TypeError, "has both lr and lr_mult"),
    (dict(name="sgd", groups=[dict(match="0", lr_mlut=2)]), None, TypeError,
     "optimizer 'sgd': a group has no argument 'lr_mlut'; did you mean 'lr_mult'"),
    (dict(name="sgd", groups=[dict(match="0", lr="1e-3")]), None, TypeError,
     "lr='1e-3' is a str; give a number, such as 0.001"),
    (dict(name="adamw", layer_decay=0.7), None, TypeError, "Sequential has none: give groups="),
    (dict(name="adamw", layer_decay=7), None, ValueError, "layer_decay=7: give a number from 0 to 1"),
    (dict(name=torch.optim.SGD, momentun=0.9), None, TypeError, "did you mean 'momentum'?"),
    (dict(name="adamw", lr="1e-3"), None, TypeError, "optimizer 'adamw': lr='1e-3' is a str; give a number"),
    (dict(name="adamw", lr=-1), None, ValueError, "optimizer 'adamw': lr=-1: give a number from 0"),
    (dict(name="adamw", eps="1e-8"), None, TypeError, "optimizer 'adamw': eps='1e-8' is a str; give a number"),
    (dict(name="adamw", betas=0.9), None, TypeError, "optimizer 'adamw': betas=0.9; give 2 values, such as [0.9, 0.999]"),
    (dict(name="adamw", betas=["0.9", 0.99]), None, TypeError, "betas='0.9' is a str; give a number"),
    (dict(name="sgd", momentum="0.9"), None, TypeError, "optimizer 'sgd': momentum='0.9' is a str; give a number"),
    (dict(name="sgd", nesterov=True), None, ValueError, "optimizer 'sgd': Nesterov momentum requires a momentum"),
    (dict(name="lion", betas=[0.9]), None, TypeError, "betas=[0.9]; give 2 values"),
    ("sgd", -0.1, ValueError, "lr=-0.1: give a number from 0"),
    ("sgd", float("nan"), ValueError, "lr=nan: give a number from 0"),
    ("sgd", [1e-3, 1e-2], TypeError, "lr=[0.001, 0.01]: give a number, such as 1e-3; rates for parts of the model go with"),
    ("sgd", slice(1e-4, 1e-2), TypeError, "lr=slice(0.0001, 0.01, None): give a number"),
    ("sgd", True, TypeError, "lr=True: give a number, such as 1e-3"),
    (3, None, TypeError, "opt is a int; give a name, an optimizer or a function of (params, lr)"),
    (print, None, TypeError, "opt made a NoneType, expected a torch.optim.Optimizer"),
], ids=str)
def test_wrong_inputs(opt, lr, error, text):
    with pytest.raises(error) as found:
        learner(opt=opt, lr=lr)
    assert text in str(found.value)


def test_settings_of_the_optimizer_given_to_the_learner():
    with pytest.raises(TypeError, match=r"opt=dict\(name='adamw', weight_decay=0.01\)"):
        learner(weight_decay=0.1)


def test_lbfgs_says_what_to_do():
    with pytest.raises(TypeError, match="LBFGS evaluates the loss several times a step: override Learner.train_step"):
        learner(opt="lbfgs").fit(1)


def test_a_rate_below_zero_is_refused_later_too():
    learn = learner(opt="sgd", lr=0.1)
    for lr, text in {-0.1: "lr=-0.1: give a number from 0", math.nan: "lr=nan: give a number from 0"}.items():
        with pytest.raises(ValueError, match=text):
            learn.lr = lr
    assert learn.lr == 0.1


def test_weight_decay_that_is_given_to_biases_alone_is_theirs():
    groups = [dict(match="bias", weight_decay=0.5, lr=0.1), dict(match="^1", weight_decay=0.2)]
    opt = OPTIMS["adamw"](nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.LayerNorm(2)), lr=0.01, groups=groups)
    assert [(g["weight_decay"], g["lr"], g["param_names"]) for g in opt.param_groups] == [
        (0.01, 0.01, ["0.weight"]), (0.0, 0.01, ["2.weight"]), (0.5, 0.1, ["0.bias", "1.bias", "2.bias"]),
        (0.2, 0.01, ["1.weight"])]
    whole = OPTIMS["adamw"](nn.Linear(3, 4), groups=[dict(match=".", weight_decay=0.2)])
    assert [g["weight_decay"] for g in whole.param_groups] == [0.2, 0.0]


# --- names and arguments of others

def needs_lr(params, lr):
    return torch.optim.SGD(params, lr)


@pytest.mark.parametrize("opt, error, text", [
    (needs_lr, TypeError, "optimizer 'needs_lr' needs lr: give lr=1e-3 in the Learner, or a default"),
    (lambda params, lr, momentum: None, TypeError, "needs lr and momentum: give lr=1e-3"),
    ("torch.optim.AdamW", LookupError, "unknown optimizer 'torch.optim.AdamW'; did you mean 'adamw'?"),
    ("optim.SGD", LookupError, "did you mean 'sgd'?"),
    (dict(name="torch.optim:Adam", lr=1), LookupError, "did you mean 'adam'?"),
    (dict(name="adamw", wd=0.1), TypeError, "optimizer 'adamw' has no argument 'wd'; did you mean 'weight_decay'?"),
    (dict(name=torch.optim.SGD, wd=0.1), TypeError, "optimizer 'SGD' has no argument 'wd'; did you mean 'weight_decay'?"),
    (dict(name="adamw", beta1=0.9), TypeError, "did you mean 'betas'? It is a pair"),
    (dict(name="sgd", learning_rate=0.9), TypeError, "has no argument 'learning_rate'; did you mean 'lr'?"),
    (dict(name="sgd", groups=[dict(match="0", wd=1)]), TypeError, "a group has no argument 'wd'; did you mean 'weight_decay'?"),
], ids=str)
def test_what_others_call_it(opt, error, text):
    with pytest.raises(error) as found:
        learner(opt=opt)
    assert text in str(found.value)


def test_a_function_that_needs_lr_gets_it():
    assert learner(opt=needs_lr, lr=0.3).lr == 0.3
    assert learner(opt=dict(name=needs_lr, lr=0.2)).lr == 0.2
