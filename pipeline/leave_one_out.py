"""What the model is without one of the clients: the same run again, on everyone else's samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.api import fit, trained
from pipeline.config.spec import override
from pipeline.data.partition import Partition
from pipeline.errors import UserError
from pipeline.fitted import Fit
from pipeline.in_memory import Samples

if TYPE_CHECKING:
    import pandas as pd


def leave_one_out(
    found: Fit | Mapping[str, Samples],
    validation: Samples | None = None,
    test: Samples | None = None,
    *,
    clients: str | Sequence[str] = "all",
    progress: bool = True,
    **settings: Any,
) -> pd.DataFrame:
    """Test accuracy (R2 of numbers) with everyone and without each client, one further run for each.

    found: what `fit` returned, or the arguments of `fit`. clients: `all`, `suspicious`, or names. The server's sets,
    the scales of the features, the seed and all settings stay; the others' weights are learned anew.

    Returns a row per client that was left out: client, weight, test_accuracy, test_accuracy_without (likewise test_r2)
    and difference, without less with: above 0, the model is better without the client. The largest comes first.
    """
    import pandas as pd
    from tqdm.auto import tqdm

    if not isinstance(found, Fit):
        found = fit(found, validation, test, progress=progress, **settings)
    elif settings or validation is not None or test is not None:
        raise UserError("leave_one_out: the fit has its samples and settings already. Fix: give it alone, or all anew.")
    names = found.partition.names
    asked = _asked(found, clients)
    metric = "test_accuracy" if found.classes else "test_r2"
    weights = dict(zip(found.clients.names, found.clients.weights.tolist(), strict=True))
    rows = []
    for name in tqdm(asked, desc="without one", unit="run", disable=not progress or not asked):
        left = _fit_without(found, names.index(name))
        pair = found.metrics[metric], left.metrics[metric]
        rows.append((name, weights[name], *pair, pair[1] - pair[0]))
    table = pd.DataFrame(rows, columns=["client", "weight", metric, f"{metric}_without", "difference"])
    return table.sort_values("difference", ascending=False, kind="stable", ignore_index=True)


def _asked(found: Fit, clients: str | Sequence[str]) -> list[str]:
    names = found.partition.names
    if len(names) < 3:
        raise UserError(f"leave_one_out: of {len(names)} clients none can be left out. Fix: at least three.")
    if isinstance(clients, str) and clients in ("all", "suspicious"):
        return list(names) if clients == "all" else found.suspicious
    asked = [clients] if isinstance(clients, str) else [str(name) for name in clients]
    if strange := [name for name in asked if name not in names]:
        some = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
        raise UserError(f"leave_one_out: there is no client {strange[0]!r}. Fix: all, suspicious, or some of {some}.")
    return asked


def _fit_without(found: Fit, client: int) -> Fit:
    params = override(found.params, {"train.replicates": 0})
    partition = without(found.partition, client)
    return trained(params, found.raw, partition, found.network, progress=False)


def without(partition: Partition, client: int) -> Partition:
    """The same partition but for that client; no client holds its samples then."""
    kept = [i for i in range(partition.clients) if i != client]

    def parts(prefix: str) -> dict[str, np.ndarray]:
        offsets = getattr(partition, f"{prefix}offsets")
        spans = [slice(offsets[i], offsets[i + 1]) for i in kept]
        flat = {
            name: np.concatenate([getattr(partition, name)[span] for span in spans])
            for name in (f"{prefix}indices", f"{prefix}labels")
        }
        sizes = np.diff(offsets)[kept]
        return flat | {f"{prefix}offsets": np.cumsum([0, *sizes.tolist()], dtype=np.int64)}

    per_client = {
        name: [getattr(partition, name)[i] for i in kept] for name in ("kinds", "client_labels", "quality", "names")
    }
    changes: dict[str, Any] = per_client | parts("") | parts("validation_")
    return dataclasses.replace(partition, **changes)
