"""A finished run on disk, made up: the files `train` and `evaluate` leave behind."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.report import figures, matrices
from pipeline.report.clients import Clients, default_names
from pipeline.report.plots import PLOTS
from pipeline.report.record import Record

CLIENTS = 10
KINDS = ["clean"] * 3 + ["noisy"] * 7
LABELS: list[list[int]] = [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9]] + [list(range(10))] * 7
ORACLE = np.array([0.5, 0.3, 0.2] + [0.0] * 7)
SAMPLES = [640, 380, 250] + [100] * 7


@dataclass
class Synthetic:
    """rounds and evaluations every `every`; a deterministic imitation of the lead experiment."""

    folder: Path
    rounds: int = 40
    every: int = 10
    columns: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.columns = [
            "round",
            "seconds",
            "communication_rounds",
            "floats_up",
            "floats_down",
            "gradients",
            "hvps",
        ]
        self.columns += ["validation_loss", "test_accuracy", *(f"client_weight_{i}" for i in range(CLIENTS))]
        self.columns += ["dual_norm"]
        self.record = Record(
            name="primal_dual digits seed 0",
            rounds=self.rounds,
            params={
                "seed": 0,
                "algorithm": "primal_dual",
                "model.name": "lenet5",
                "train.rounds": self.rounds,
            },
            tags={"data_hash": "d" * 32, "partition_hash": "p" * 16, "git.dirty": "no"},
            environment={"python": "3.11", "device": "cpu"},
            dataset={"name": "digits", "digest": "d" * 64, "samples": 1797, "classes": 10},
        )

    def weights(self) -> np.ndarray:
        """[R + 1, N]: from uniform towards the oracle."""
        t = np.arange(self.rounds + 1)[:, None] / self.rounds
        wobble = 0.01 * np.random.default_rng(0).normal(size=(self.rounds + 1, CLIENTS)).cumsum(0) / 10
        raw = np.clip(0.1 + (ORACLE - 0.1) * (1 - np.exp(-5 * t)) + wobble * (1 - t), 0, None)
        return raw / raw.sum(1, keepdims=True)

    def rows(self) -> list[dict[str, Any]]:
        """History as the train stage reports it."""
        rows = []
        for r, weights in enumerate(self.weights()):
            t = r / self.rounds
            evaluated = r % self.every == 0 or r == self.rounds
            loss, accuracy = 2.3 * np.exp(-4 * t) + 0.1, 0.98 - 0.88 * np.exp(-6 * t)
            cells = [r, 0.05 * r, 2 * r, 10.0 * r, 20.0 * r, 11 * r, 10 * r]
            cells += [loss, accuracy] if evaluated else [None, None]
            rows.append(dict(zip(self.columns, [*cells, *weights.tolist(), 1.5 * t], strict=True)))
        return rows

    def write(self, *, plots: bool = False) -> None:
        results, models = self.folder / "results", self.folder / "models"
        for place in (results, models, self.folder / "data" / "federated"):
            place.mkdir(parents=True, exist_ok=True)
        with (results / "history.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows())
        final = self.weights()[-1]
        with (results / "client_weights.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "name", "kind", "labels", "samples", "weight", "weight_low", "weight_high"])
            for i in range(CLIENTS):
                held, weight = " ".join(map(str, LABELS[i])), f"{final[i]:.9g}"
                writer.writerow([i, f"client {i}", KINDS[i], held, SAMPLES[i], weight, "", ""])
        metrics = {
            "algorithm": "primal_dual", "problem": "client_weighting", "dataset": "digits", "seed": 0,
            "rounds": self.rounds, "test_accuracy": 0.9778, "test_loss": 0.081, "selection_accuracy": 0.96,
            "clean_weight": float(final[:3].sum()), "max_noise_weight": float(final[3:].max()),
            "weight_error": float(np.abs(final - ORACLE).sum()), "detection_auc": 1.0,
        }  # fmt: skip
        (results / "metrics.json").write_text(json.dumps(metrics))
        (models / "model.pt").write_bytes(b"tensors")
        (self.folder / "data" / "federated" / "summary.txt").write_text("who holds what\n")
        self.record.save(models / "training.json")
        if plots:
            self.plots(results / "plots")

    def plots(self, folder: Path) -> None:
        rows, weights, rng = self.rows(), self.weights(), np.random.default_rng(1)
        rounds = np.arange(self.rounds + 1)
        loss = np.array([row["validation_loss"] for row in rows], dtype=float)
        accuracy = np.array([row["test_accuracy"] for row in rows], dtype=float)
        counts = np.array(
            [[128 * (c in LABELS[i]) if i < 3 else rng.integers(6, 15) for c in range(10)] for i in range(10)]
        )
        matrix = np.diag(rng.integers(30, 38, 10)) + (rng.random((10, 10)) < 0.08)
        clients = Clients(default_names(CLIENTS), KINDS, LABELS, SAMPLES, weights[-1], oracle=ORACLE)
        pictures = [
            figures.weights_over_rounds(rounds, weights, clients),
            figures.final_weights(clients),
            figures.accuracy_and_loss(rounds, accuracy, loss),
            matrices.partition_heatmap(counts, clients),
            matrices.confusion_matrix(matrix),
        ]
        for name, figure in zip((p for p in PLOTS if "stationarity" not in p), pictures, strict=True):
            figures.save(figure, folder / name)
