"""A run of the tracker: opened, fed and closed while training goes on undisturbed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from pipeline.config.sections import Tracking
from pipeline.report.record import Record, RunInfo
from pipeline.tracking.metrics import Point, points
from pipeline.tracking.store import Store, connect, prepare, resolve_uri
from pipeline.tracking.worker import Worker, in_a_line

if TYPE_CHECKING:
    from mlflow.entities import Run

Status = Literal["FINISHED", "FAILED", "KILLED"]

ADVICE = "the run goes on and everything is kept in results/. Send it later with: make publish"
_METRICS_AT_ONCE = 900  # a server takes 1000 per request
_PARAMS_AT_ONCE = 100


class LiveRun:
    """What the train stage sends the tracker. Only `finish` waits for it, and only for seconds.

    info: where the run is kept; its run_id is None until the tracker has answered.
    """

    def __init__(self, tracking: Tracking, root: Path, record: Record, note: Path | None) -> None:
        self.info = RunInfo(resolve_uri(tracking, root), tracking.experiment)
        self._tracking, self._root, self._record, self._note = tracking, root, record, note
        self._sent = -1  # last round the tracker already has
        self._store: Store | None = None
        self._worker = Worker(ADVICE)

    @classmethod
    def open(cls, tracking: Tracking, root: Path, record: Record, note: Path | None = None) -> LiveRun:
        """Continue the run named in `note` if the tracker has it with equal parameters; else start one.

        note: where the run's id is written as soon as it is known; in the resume folder it lets an
        interrupted training go on in its own run.
        """
        live = cls(tracking, root, record, note)
        try:
            prepare()  # here, not in the background, where it would compete with the first rounds
        except ImportError as error:
            live._worker.fail(in_a_line(error))
        live._worker.do(live._open)
        return live

    def report(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """New rows of the history; `round`, and any columns of history.csv. Empty cells are None or nan."""
        found = points(rows, self._record.rounds, self._record.clients)
        if found:
            self._worker.do(lambda: self._send(found))

    def finish(self, status: Status, seconds: float = 20.0) -> RunInfo:
        """Close the run, waiting at most so long for the tracker to take what is still queued."""
        self._worker.do(lambda: self._terminate(status))
        self._worker.close(seconds)
        return self.info

    def _open(self) -> None:
        known = RunInfo.load(self._note) if self._note else None
        self._store = connect(self._tracking, self._root)
        run = open_run(self._store, self._record, known)
        self.info = replace(self.info, run_id=run.info.run_id)
        if self._note and self._note.parent.is_dir():  # gone if the training has already ended
            self.info.save(self._note)
        if "cost/communication_rounds" in run.data.metrics:
            history = self._store.client.get_metric_history(run.info.run_id, "cost/communication_rounds")
            self._sent = max(metric.step for metric in history)

    def _send(self, found: list[Point]) -> None:
        assert self._store is not None
        assert self.info.run_id is not None
        log_points(self._store, self.info.run_id, [p for p in found if p[2] > self._sent])

    def _terminate(self, status: Status) -> None:
        assert self._store is not None
        assert self.info.run_id is not None
        self._store.client.set_terminated(self.info.run_id, status=status)


def live_run(tracking: Tracking, root: Path, record: Record, note: Path) -> AbstractContextManager[LiveRun]:
    """A run of the tracker around a training."""
    return finished(LiveRun.open(tracking, root, record, note))


class Open(Protocol):
    """Runs of the tracker that are still to be closed."""

    def finish(self, status: Status) -> Any: ...


Opened = TypeVar("Opened", bound=Open)


@contextmanager
def finished(run: Opened) -> Iterator[Opened]:
    """Closes it: FINISHED when the block ends well, FAILED when it breaks (a training: when it diverges), KILLED when
    it is stopped and can go on later."""
    try:
        yield run
    except (KeyboardInterrupt, SystemExit):
        run.finish("KILLED")
        raise
    except Exception:
        run.finish("FAILED")
        raise
    run.finish("FINISHED")


def open_run(store: Store, record: Record, known: RunInfo | None) -> Run:
    """The run `known` if this tracker has it with the same parameters, else a new one; in state RUNNING."""
    from mlflow.entities import Param

    run = _find(store, known)
    if run is not None and run.info.experiment_id != store.experiment_id:
        run = None  # recorded elsewhere
    if run is not None:
        written = {name: str(value)[:6000] for name, value in record.params.items()}
        if any(written.get(name, value) != value for name, value in run.data.params.items()):
            run = None  # the tracker refuses changed parameters, rightly: it is another run
    if run is None:
        run = store.client.create_run(store.experiment_id, run_name=record.name, tags=record.tags)
    else:
        store.client.update_run(run.info.run_id, status="RUNNING")
    missing = [Param(n, str(v)[:6000]) for n, v in record.params.items() if n not in run.data.params]
    for start in range(0, len(missing), _PARAMS_AT_ONCE):
        store.client.log_batch(run.info.run_id, params=missing[start : start + _PARAMS_AT_ONCE])
    return run


def _find(store: Store, known: RunInfo | None) -> Run | None:
    """The run, unless the tracker does not have it or has it in the bin."""
    from mlflow.exceptions import MlflowException

    if known is None or known.run_id is None:
        return None
    try:
        run = store.client.get_run(known.run_id)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise
    return run if run.info.lifecycle_stage == "active" else None


def log_points(store: Store, run_id: str, found: Sequence[Point]) -> None:
    """Many metrics in few requests: one by one, 2000 rounds would take a minute."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    for start in range(0, len(found), _METRICS_AT_ONCE):
        chunk = found[start : start + _METRICS_AT_ONCE]
        store.client.log_batch(run_id, metrics=[Metric(name, value, now, step) for name, value, step in chunk])
