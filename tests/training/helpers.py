"""What several tests of training use."""

import pytorch_lightning as pl
import torch


class Ruin(pl.Callback):
    """After that many rounds the linear model answers the last class, whatever the image, in every round to come."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_train_batch_start(self, trainer, module, *args):
        if module.round >= self.after:
            with torch.no_grad():
                module.variables["w"].zero_()
                module.variables["w"][-1] = 1000.0
