"""The tools that are compared: each is one function `(task, epochs, on)` that builds what the tool needs and fits.

The model, the loader, the loss and the optimizer are the task's, the same for all. `on` asks for the tool's usual
progress output.
"""
import logging
import time
import warnings
from contextlib import nullcontext
from functools import partial

import torch

warnings.filterwarnings("ignore")


def raw(task, epochs, on=False):
    task.model.train()
    for _ in range(epochs):
        total = torch.zeros(())
        for x, y in task.train_dl:
            task.opt.zero_grad()
            loss = task.loss_fn(task.model(x), y)
            loss.backward()
            task.opt.step()
            total += loss.detach()
        total.item()


def ptwrap(task, epochs, on=False, cbs=()):
    from ptwrap.all import Learner
    from ptwrap.callback import DEFAULT_CALLBACKS
    views = DEFAULT_CALLBACKS[:]
    if not on:  # what a program has that imports ptwrap.learner only: no view
        DEFAULT_CALLBACKS.clear()
    try:
        return Learner(task.model, (task.train_dl, None), loss_fn=task.loss_fn, opt=task.opt).fit(epochs, cbs=cbs)
    finally:
        DEFAULT_CALLBACKS[:] = views


def ptwrap_dispatch_us(task) -> float:
    "CPU microseconds a batch that eight callbacks cost which listen to all five events of a batch and do nothing."
    from ptwrap.callback import Callback
    found = []

    class Noop(Callback):
        def on_batch_start(self, learn, batch): pass
        def on_backward_end(self, learn, out): pass
        def on_step_start(self, learn, out): pass
        def on_step_end(self, learn, out): pass
        def on_batch_end(self, learn, out): pass

    class Clock(Noop):
        def on_fit_start(self, learn):
            for _ in range(20):
                start = time.process_time()
                for _ in range(1000):
                    for event in ("on_batch_start", "on_backward_end", "on_step_start", "on_step_end", "on_batch_end"):
                        learn.fire(event, None)
                found.append((time.process_time() - start) * 1e3)
    ptwrap(task, 1, cbs=[Clock(), *(Noop() for _ in range(7))])
    return min(found)


def poutyne(task, epochs, on=False):
    from poutyne import Model
    model = Model(task.model, task.opt, task.loss_fn)
    model.fit_generator(task.train_dl, epochs=epochs, verbose=on)
    return model


def ignite(task, epochs, on=False):
    from ignite.engine import create_supervised_trainer
    trainer = create_supervised_trainer(task.model, task.opt, task.loss_fn)
    if on:
        from ignite.handlers import ProgressBar
        from ignite.metrics import RunningAverage
        RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
        ProgressBar().attach(trainer, ["loss"])
    trainer.run(task.train_dl, max_epochs=epochs)
    return trainer


def skorch(task, epochs, on=False):
    from skorch import NeuralNet
    quiet = {} if on else {"verbose": 0, "callbacks__print_log": None}
    net = NeuralNet(task.model, type(task.loss_fn), optimizer=torch.optim.SGD, lr=task.lr, max_epochs=epochs,
                    train_split=None, iterator_train=lambda dataset, **kwargs: task.train_dl, **quiet)
    net.fit(task.train_dl.dataset, y=None)
    return net


def fastai(task, epochs, on=False):
    import fastai.callback.progress  # adds no_bar
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import OptimWrapper
    learn = Learner(DataLoaders(task.train_dl, []), task.model, loss_func=task.loss_fn,
                    opt_func=partial(OptimWrapper, opt=torch.optim.SGD), lr=task.lr)
    with nullcontext() if on else learn.no_bar(), nullcontext() if on else learn.no_logging():
        learn.fit(epochs)
    return learn


def lightning(task, epochs, on=False):
    import lightning as L
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.loss_fn = task.model, task.loss_fn

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = self.loss_fn(self.model(x), y)
            if on:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self):
            return task.opt
    mode = dict(logger=False, enable_checkpointing=False, enable_model_summary=False) if on else dict(barebones=True)
    trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", **mode)
    trainer.fit(Module(), task.train_dl)
    return trainer


PEERS = {"poutyne": poutyne, "ignite": ignite, "skorch": skorch, "fastai": fastai, "lightning": lightning}
IMPORTS = {"ptwrap": "from ptwrap.all import *", "poutyne": "import poutyne", "ignite": "import ignite.engine",
           "skorch": "import skorch", "fastai": "from fastai.basics import *", "lightning": "import lightning"}
