"""What the train stage needs of the tracker: the run's record, and a live run that ends as the training ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.config.sections import Tracking
from pipeline.params.decides import params_in_use
from pipeline.tracking.record import Record, code_tags, environment
from pipeline.tracking.run import LiveRun


def describe(params: dict[str, Any], data_hash: str, partition_hash: str, device: str) -> Record:
    """The record of a training. params: every parameter under its dotted name, `auto` resolved."""
    used = params_in_use(params)
    return Record(
        name=f"{used['algorithm']} {used['data.name']} seed {used['seed']}",
        rounds=used["train.rounds"],
        params=used,
        tags=code_tags() | {"data_hash": data_hash, "partition_hash": partition_hash},
        environment=environment(device),
        dataset={"name": used["data.name"], "digest": data_hash},
    )


def describe_sweep(runs: Sequence[dict[str, Any]], varied: Sequence[str]) -> Record:
    """The record of a sweep: what its runs have in common, and the values of what they have not. runs: as `describe`
    takes them; varied: dotted names."""
    used = [params_in_use(params) for params in runs]
    common = {name: value for name, value in used[0].items() if all(name in u and u[name] == value for u in used)}
    values = {f"sweep.{name}": list(dict.fromkeys(str(params[name]) for params in runs)) for name in varied}
    shorter = ", ".join(name.rsplit(".", 1)[-1] for name in varied)
    return Record(
        name=f"sweep {runs[0]['algorithm']} {runs[0]['data.name']}: {shorter}",
        rounds=runs[0]["train.rounds"],
        params=common | values,
        tags=code_tags(),
    )


@contextmanager
def live_run(tracking: Tracking, root: Path, record: Record, note: Path) -> Iterator[LiveRun]:
    """A run of the tracker around a training: FINISHED when it ends well, FAILED when it diverges or breaks, KILLED
    when it is stopped and can be resumed."""
    live = LiveRun.open(tracking, root, record, note)
    try:
        yield live
    except (KeyboardInterrupt, SystemExit):
        live.finish("KILLED")
        raise
    except Exception:
        live.finish("FAILED")
        raise
    live.finish("FINISHED")
