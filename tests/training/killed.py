"""A training in its own process, for a test that kills it; the model is ruined after round 17. Argument: its folder."""

import sys
import time
from pathlib import Path

import pytorch_lightning as pl
import torch

from pipeline.config.sections import Train
from pipeline.data.datasets import load, prepare
from pipeline.data.partition import make_partition
from pipeline.params import FederationSettings, Model, Params
from pipeline.params.resolve import resolve
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.saves import save_variables
from pipeline.training.setup import build_problem
from pipeline.training.tasks import image_task
from tests.training.helpers import Ruin


class Announce(pl.Callback):
    def on_train_batch_end(self, trainer, module, *args):
        print("round", module.round, flush=True)
        time.sleep(0.01)


root = Path(sys.argv[1])
prepare("digits", root / "raw")
raw = load(root / "raw")
params = resolve(
    Params(
        model=Model("linear"),
        federation=FederationSettings(participation=0.5, batch_size=8),
        train=Train(rounds=30, eval_every=10, checkpoint_every=5, accelerator="cpu"),
    )
)
partition = make_partition(raw.train_labels, "digits", 10, params.partition, params.seed)
problem = build_problem(params, raw, partition, torch.device("cpu"))
with ResumeFolder(root, "run") as folder:
    module, history = train(params, image_task(problem), folder, callbacks=(Announce(), Ruin(after=17)), progress=False)
    history.export(root / "results")
    save_variables(root / "results" / f"model of round {module.kept.round}.pt", module.kept.variables)
