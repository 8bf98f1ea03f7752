"""The federated bilevel loop as a Lightning module with manual optimization.

One training step is one outer iteration: K inner steps of the method, each of which yields a direction per server
variable. A direction becomes that variable's `.grad`, its torch optimizer takes the step (plain SGD unless params.yaml
says otherwise), and the method's projection brings it back onto its set. So optimizers, schedules and their
checkpoints come from the libraries, and the method stays a record of pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from pipeline.methods import Algorithm, Cost, State, StepContext
from pipeline.methods.base import advance
from pipeline.sharing import Share
from pipeline.training.best import Served
from pipeline.training.loop import NotFinite, optimizer_of, require_finite, schedule, schedule_of, sizes_of

__all__ = ["FederatedBilevel", "NotFinite", "schedule"]


class FederatedBilevel(pl.LightningModule):
    """State of a run: the server's variables (parameters), the method's memory (buffers), the round and the cost.

    context: the template of every step's; `round` and `inner` are filled in as the run goes on. share: this process
    among those that simulate the run; a checkpoint holds the rows of all of them, so any number may go on from it.
    kept: what to save and serve, set when training has ended. halvings: of the main step size, after that many
    divergences. diverged: the round in which the run did so for the last time, if it ended for that.
    """

    kept: Served
    diverged: int | None = None

    def __init__(
        self, algorithm: Algorithm[Any], context: StepContext, rounds: int, share: Share | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.algorithm, self.context, self.rounds, self.share = algorithm, context, rounds, share or Share()
        state = algorithm.init(context)
        for name in algorithm.client_rows & state.memory.keys():
            self.share.keep_own(state.memory[name])
        self.variables = nn.ParameterDict({name: nn.Parameter(v) for name, v in state.variables.items()})
        self._memory_names = tuple(state.memory)
        for name, value in state.memory.items():
            self.register_buffer(f"memory_{name}", value)
        self.round = 0  # outer iterations done
        self.cost = Cost()
        self._hyper, self.halvings = context.hyper, 0
        self.measured: dict[str, float] = {}  # the method's measures in the last round; none before the first

    @property
    def state(self) -> State:
        """The method's view: detached tensors that share their storage with the parameters and buffers."""
        variables = {name: parameter.detach() for name, parameter in self.variables.items()}
        return State(variables, {name: getattr(self, f"memory_{name}") for name in self._memory_names})

    @property
    def served(self) -> dict[str, torch.Tensor]:
        """What is evaluated: the server's variables, and the clients' own lower variables Y [N, d_y] where the method
        has such; of clients left out the others' mean. During training all processes ask for it, since each holds rows
        of Y."""
        state = self.state
        if "Y" not in state.memory:
            return state.variables
        Y, screen = self.share.total(state.memory["Y"])[0], self.context.screen
        return state.variables | {"Y": screen.neutral(Y, self.round) if screen else Y}

    @property
    def step_sizes(self) -> dict[str, float]:
        """Per variable to be moved, in force in the coming round."""
        return {name: size * self._schedule(name)(self.round) for name, size in self._sizes.items()}

    @property
    def _sizes(self) -> dict[str, float]:
        """Before any schedule."""
        return sizes_of(self.algorithm, self.context.hyper, self.variables.keys())

    def _schedule(self, variable: str) -> Callable[[int], float]:
        """Factor of that variable's step size after t rounds."""
        return schedule_of(variable, self.algorithm, self.context.hyper, self.rounds)

    def configure_optimizers(self) -> Any:
        """One optimizer and one schedule per server variable."""
        optimizers = {
            name: optimizer_of(name, self.context.hyper, self.variables[name], size)
            for name, size in self._sizes.items()
        }
        schedulers = [torch.optim.lr_scheduler.LambdaLR(o, self._schedule(name)) for name, o in optimizers.items()]
        return list(optimizers.values()), schedulers

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One outer iteration."""
        self._halve()
        optimizers = dict(zip(self._sizes, _listed(self.optimizers()), strict=True))
        for name, size in self.step_sizes.items() if self.halvings else ():
            optimizers[name].param_groups[0]["lr"] = size  # a save holds those of before
        factor = schedule(self.context.hyper.schedule, self.rounds)(self.round)
        context = dataclasses.replace(self.context, round=self.round + 1, step_sizes=self.step_sizes, schedule=factor)

        def move(name: str, direction: Tensor) -> None:
            self.variables[name].grad = direction
            optimizers[name].step()
            require_finite(name, self.variables[name], self.round + 1, self.step_sizes, self.context.hyper)

        cost, measured = advance(self.algorithm, self.state, context, move)
        self.cost, self.measured = self.cost + cost, measured or self.measured
        for scheduler in _listed(self.lr_schedulers()):
            scheduler.step()
        self.round += 1

    def _halve(self) -> None:
        """The hyper-parameters in force."""
        main = self._hyper.main_step_size
        value = getattr(self._hyper, main) * 0.5**self.halvings
        if getattr(self.context.hyper, main) != value:
            self.context = dataclasses.replace(self.context, hyper=dataclasses.replace(self._hyper, **{main: value}))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["federated"] = {"round": self.round, "cost": dataclasses.asdict(self.cost)}
        checkpoint["federated"]["halvings"] = self.halvings
        if self.context.screen:
            checkpoint["federated"]["screen"] = self.context.screen.state_dict()
        for key in self._shared_rows:
            checkpoint["state_dict"][key] = self.share.total(checkpoint["state_dict"][key])[0]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.round = checkpoint["federated"]["round"]
        self.cost = Cost(**checkpoint["federated"]["cost"])
        self.halvings = max(self.halvings, checkpoint["federated"]["halvings"])
        if self.context.screen:
            self.context.screen.load_state_dict(checkpoint["federated"]["screen"])
        for key in self._shared_rows:
            self.share.keep_own(checkpoint["state_dict"][key])

    def put_together(self) -> None:
        """After training: all rows in every process."""
        for name in self._shared_rows:
            rows = self.get_buffer(name)
            rows.copy_(self.share.total(rows)[0])
        self.share = Share()

    @property
    def _shared_rows(self) -> list[str]:
        """Buffers whose rows several processes share out."""
        shared = self.share.ranks > 1
        return [f"memory_{name}" for name in self._memory_names if shared and name in self.algorithm.client_rows]


def _listed(found: Any) -> list[Any]:
    """Lightning gives one optimizer or scheduler bare, several in a list."""
    return found if isinstance(found, list) else [found]
