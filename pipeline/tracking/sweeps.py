"""A sweep in the tracker: a parent run, and each run of the sweep as its child; sent from disk, in the background."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pipeline.config.sections import Tracking
from pipeline.report.record import Record, RunInfo
from pipeline.tracking.live import Status, finished, open_run
from pipeline.tracking.publish import Files, complete
from pipeline.tracking.store import Store, connect, prepare, resolve_uri
from pipeline.tracking.worker import Worker, in_a_line

ADVICE = "the sweep goes on and everything is kept in results/sweep. Send it later with: make sweep"


class SweepRuns:
    """What a sweep sends the tracker. The first failure gives one warning and ends it; only `finish` waits."""

    def __init__(self, tracking: Tracking, root: Path, record: Record, folder: Path) -> None:
        """record: of the sweep. folder: keeps the parent's id, so that a repeated sweep goes on in the same run."""
        self._tracking, self._root, self._record, self._folder = tracking, root, record, folder
        self._info = RunInfo(resolve_uri(tracking, root), tracking.experiment)
        self._store: Store | None = None
        self._children = 0
        self._worker = Worker(ADVICE)
        try:
            prepare()  # here, not in the background, where it would compete with the first rounds
        except ImportError as error:
            self._worker.fail(in_a_line(error))
        self._worker.do(self._open)

    def child(self, folder: Path, failed: bool = False) -> None:
        """A run whose results are in the folder; nothing is sent that this tracker has already."""
        self._children += 1
        self._worker.do(lambda: self._send(folder, failed))

    def finish(self, status: Status) -> None:
        """Send the summary and close the parent, waiting for what is still queued, but not for ever."""
        self._worker.do(lambda: self._close(status))
        self._worker.close(30.0 + 10.0 * self._children)

    def _open(self) -> None:
        note = self._folder / "mlflow_run.json"
        self._store = connect(self._tracking, self._root)
        run = open_run(self._store, self._record, RunInfo.load(note))
        self._info = replace(self._info, run_id=run.info.run_id)
        self._info.save(note)

    def _send(self, folder: Path, failed: bool) -> None:
        assert self._store is not None
        assert self._info.run_id is not None
        files = Files(folder, folder)
        training = hashlib.sha256(files.record.read_bytes()).hexdigest()[:16]
        known = RunInfo.load(files.info)
        if known and replace(self._info, run_id=known.run_id, training=training) == known:
            return
        record = Record.load(files.record)
        record = replace(record, tags=record.tags | {"mlflow.parentRunId": self._info.run_id})
        info = replace(self._info, run_id=known.run_id if known else None)
        sent = complete(self._store, record, files, info, known)
        if failed:
            assert sent.run_id is not None
            self._store.client.set_terminated(sent.run_id, status="FAILED")
        replace(sent, training=training).save(files.info)

    def _close(self, status: Status) -> None:
        assert self._store is not None
        assert self._info.run_id is not None
        for file in (self._folder / "summary.csv", self._folder / "report.html"):
            if file.is_file():
                self._store.client.log_artifact(self._info.run_id, str(file))
        self._store.client.set_terminated(self._info.run_id, status=status)


def sweep_runs(tracking: Tracking, root: Path, record: Record, folder: Path) -> AbstractContextManager[SweepRuns]:
    """The tracker's runs around a sweep: the parent ends as the sweep does."""
    return finished(SweepRuns(tracking, root, record, folder))
