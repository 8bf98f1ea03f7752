"""What `fedbilevel.fit` returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from pipeline.config.spec import dotted
from pipeline.data.own import given, preprocessing, targets
from pipeline.data.partition import Partition
from pipeline.data.raw import RawDataset
from pipeline.errors import UserError
from pipeline.models import FlatModel
from pipeline.params import Resolved
from pipeline.problems.base import ImageProblem
from pipeline.problems.images import logits
from pipeline.training.evaluation import weight_interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Fit:
    """What `fit` found: the model, the clients' weights, and how they came about.

    params: every setting, `auto` resolved. network: of one's own, else None. rows: a row of figures per round;
    over_rounds: the weights, [R + 1, N]. variables: the server's, of the served round. replicates: weights of further
    runs, [B, N]; pull: what moved the weights, [N], of methods that keep it.
    """

    params: Resolved
    raw: RawDataset = field(repr=False)
    partition: Partition = field(repr=False)
    problem: ImageProblem = field(repr=False)
    network: FlatModel | None = field(repr=False)
    variables: dict[str, torch.Tensor] = field(repr=False)
    served_round: int
    rows: list[dict[str, Any]] = field(repr=False)
    over_rounds: np.ndarray = field(repr=False)
    replicates: np.ndarray = field(repr=False)
    pull: np.ndarray = field(repr=False)
    left_out: dict[str, int] = field(repr=False)

    @cached_property
    def weights(self) -> pd.DataFrame:
        """A row per client: client, weight, the ends of its 90 % interval low and high (nan without `replicates`), and
        samples; the heaviest first."""
        import pandas as pd

        clients = self.clients
        low, high = np.full((2, len(clients)), np.nan) if clients.interval is None else clients.interval
        frame = pd.DataFrame(
            {"client": clients.names, "weight": clients.weights, "low": low, "high": high, "samples": clients.samples}
        )
        return frame.sort_values("weight", ascending=False, kind="stable", ignore_index=True)

    @property
    def settled(self) -> bool | None:
        """Whether the weights have; None of a method that does not say. If not, train for more rounds."""
        found = self.rows[self.served_round].get("settled")
        return None if found is None else bool(found)

    @property
    def suspicious(self) -> list[str]:
        """Clients of low weight with whose labels the model disagrees; empty while the weights have not settled."""
        return [] if self.settled is False else [self.clients.names[i] for i in self.clients.suspects]

    @cached_property
    def history(self) -> pd.DataFrame:
        """A row per round: costs, what the method reports, and each client's weight under its name."""
        import pandas as pd

        frame = pd.DataFrame(self.rows)
        if not len(self.over_rounds):
            return frame
        names = [f"client {name}" if name in frame else name for name in self.clients.names]
        return pd.concat([frame, pd.DataFrame(self.over_rounds, columns=names)], axis=1)

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of `predict_proba`'s columns; none where numbers are predicted."""
        return list(self.raw.class_names)

    @property
    def model(self) -> nn.Module:
        """The trained network. It takes prepared features: `prepared(X)`."""
        return self.problem.model.module_with(self.problem.network(self.variables))

    def prepared(self, X: Any) -> torch.Tensor:
        """Features of raw samples as the network takes them, [m, C, H, W]."""
        record = self.raw.preprocessing
        assert record is not None
        features = preprocessing.apply(record, given.asked(X, table=record["kind"] == "table"), known=True)
        return self.problem.data.scaled(torch.as_tensor(features, device=self.problem.data.device))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of every class, [m, C]."""
        if not self.classes:
            raise UserError("predict_proba: the targets are numbers, which have no probabilities. Fix: predict.")
        return self._outputs(X).softmax(1).cpu().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The class of every sample as it was given in y, or its number, [m]."""
        found = self._outputs(X)
        if not self.classes:
            unit = self.problem.data.unit
            return (found[:, 0].double() * unit.spread + unit.shift).cpu().numpy()
        return self._labels[found.argmax(1).cpu().numpy()]

    def score(self, X: Any, y: Any) -> float:
        """Accuracy, or R2 of numbers."""
        guess, y = self.predict(X), given.targets("score", y)
        if len(guess) != len(y) or not len(y):
            raise UserError(f"score: {len(guess)} samples and {len(y)} targets. Fix: one target per sample.")
        if self.classes:
            if guess.dtype.kind == "b" and y.dtype.kind in "iuf":
                y = y.astype(bool)
            names = np.array([targets.class_name(value) for value in y], dtype=object)
            if not np.isin(names, self.classes).any():
                raise UserError(
                    f"score: no target is one of the classes {', '.join(map(repr, self.classes[:10]))}; the first is"
                    f" {names[0]!r}. Fix: y as it was given to fit."
                )
            return float((np.array([targets.class_name(value) for value in guess], dtype=object) == names).mean())
        if y.dtype.kind == "O" or len(np.unique(y)) < 2:
            raise UserError(f"score: R2 is of different numbers, and y holds {y[0]!r}. Fix: other targets.")
        return float(1 - np.square(y - guess).sum() / np.square(y - y.mean()).sum())

    def plot_weights(self) -> Figure:
        """The weights over rounds, as a matplotlib figure."""
        from pipeline.report.figures import weights_over_rounds

        return weights_over_rounds(np.arange(len(self.over_rounds)), self.over_rounds, self.clients)

    def report(self, path: str | Path, leave_one_out: pd.DataFrame | None = None) -> Path:
        """Write the page on this run: one file that needs no network. leave_one_out: what `fedbilevel.leave_one_out`
        returned of this fit, to go with the evidence."""
        from pipeline.report.page.render import write_page

        path = Path(path)
        if path.is_dir():
            raise UserError(f"report: {path} is a folder. Fix: a file, such as {path / 'report.html'}.")
        without = None
        if leave_one_out is not None:
            measured = leave_one_out.set_index("client").iloc[:, 2]  # test metric without the client
            without = measured.reindex(self.clients.names).to_numpy(dtype=np.float64)
        try:
            write_page(replace(self._story, without=without), path)
        except OSError as error:
            raise UserError(f"report: {path} cannot be written ({error.strerror}). Fix: another place.") from None
        return path

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Every figure of the result, as in metrics.json."""
        from pipeline.report.numbers import metrics

        says = {} if self.settled is None else {"weights_settled": self.settled}
        return metrics(self._outcome, self.partition, self._record) | says

    @cached_property
    def clients(self) -> Any:
        """Names, sizes, weights and what speaks against each (`pipeline.report.clients.Clients`)."""
        from pipeline.report.clients import Clients

        weights = self._outcome.weights
        interval = weight_interval(weights, self.replicates) if len(self.replicates) else None
        found = Clients.of(self.partition, weights, interval)
        return replace(found, disagrees=self._evidence.disagrees)

    @cached_property
    def _outcome(self) -> Any:
        from pipeline.training.evaluation import outcome

        return outcome(self.problem, self.variables)

    @cached_property
    def _evidence(self) -> Any:
        from pipeline.report.evidence import gather

        pull = self.pull if self.served_round == len(self.rows) - 1 else np.zeros(0)
        return gather(self.problem, self.variables, pull, getattr(self._outcome.test, "recall", []))

    @cached_property
    def _record(self) -> Any:
        from pipeline.report.record import describe

        data = self.problem.data
        names = self.partition.names
        record = describe(dotted(self.params), self.raw.hash, self.partition.hash, str(data.device), names)
        return replace(record, served_round=self.served_round, left_out=self.left_out)

    @property
    def _story(self) -> Any:
        from pipeline.report.page.story import Holdings, Story
        from pipeline.training.evaluation import Classification

        test = self._outcome.test
        return Story(
            self._record,
            self.metrics,
            self.clients,
            self.rows,
            self.over_rounds,
            test=test if isinstance(test, Classification) else None,
            what="class" if self.classes else "number",
            holdings=Holdings.of(self.problem.data, self.partition),
            evidence=self._evidence,
        )

    @cached_property
    def _labels(self) -> np.ndarray:
        """Classes as they were given."""
        assert self.raw.preprocessing is not None
        kind = self.raw.preprocessing["target"]["given"]
        if kind == "booleans":
            return np.array([name == "True" for name in self.classes])
        if kind == "texts":
            return np.array(self.classes, dtype=object)
        whole = all(name.lstrip("-").isdigit() for name in self.classes)
        return np.array([int(name) if whole else float(name) for name in self.classes])

    def _outputs(self, X: Any) -> torch.Tensor:
        return logits(
            self.problem.model, self.problem.data, self.problem.network(self.variables), self.prepared(X), scaled=True
        )
