"""The server's program: the rounds, with everything around them that a simulated run has."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.config.spec import dotted
from pipeline.data.federated import FederatedData
from pipeline.errors import UserError
from pipeline.federation import measuring, problems, results
from pipeline.federation.hub import Hub, SitesLost, Transport
from pipeline.federation.messages import Message
from pipeline.federation.rounds import remote
from pipeline.federation.samples import TEST, ServerSamples
from pipeline.federation.settings import Server
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext
from pipeline.params import Params, Resolved
from pipeline.params.decides import params_in_use
from pipeline.params.reading import load_params
from pipeline.problems.base import ClientHeldUpper
from pipeline.training import saves
from pipeline.training.best import SELECTION, Best
from pipeline.training.history import History, Row
from pipeline.training.loop import Loop, NotFinite, evaluates, row_of
from pipeline.training.resume import ResumeFolder, fingerprint
from pipeline.training.tasks import Task, image_task

SOME = 1000
"""Samples, while it is not known how many there are: settings that depend on this are settled later."""
SCALARS = ("sites", "epsilon")
"""Columns of the history that a simulated run has not: sites that took part in the round's last step, and the largest
epsilon that a site has spent (empty without noise)."""


class Sites:
    """What the server learns of the sites and sends them. apart: the parts that they set aside -> how many samples of
    each site. samples: for training, of each, 0 while unknown. run: a name of its own, by which sites keep what their
    clients keep; the same run made once more has another. saved_at: the round of the last save."""

    def __init__(self, settings: Server, own: ServerSamples, apart: Sequence[str]) -> None:
        self.settings, self.own, self.run = settings, own, uuid.uuid4().hex
        self.apart: dict[str, dict[str, int]] = {part: {} for part in apart}
        self.samples = dict.fromkeys(settings.sites, 0)
        self.setup: Message | None = None
        self.saved_at: int | None = None
        self._known: set[str] = set()
        self.hub: Hub

    def welcome(self, site: str) -> None:
        """A site that has (re)appeared: ask what it has, send it the run's settings. Raises SitesLost."""
        described = self._ask(site, Message("describe", {"apart": list(self.apart)}))
        self.samples[site] = int(described["samples"])
        shape = list(self.own.validation[0].shape[1:])
        if described["shape"] != shape or described["columns"] != self.own.columns:
            theirs, ours = (described["columns"] or described["shape"], self.own.columns or shape)
            self._refuse(site, f"its samples have {theirs}, the server's {ours}")
        for part, count in described["apart"].items():
            self.apart[part][site] = count
        if empty := [part for part, sizes in self.apart.items() if not sizes[site]]:
            self._refuse(site, f"it sets no {empty[0]} samples aside (site.yaml, data.{empty[0]})")
        if self.setup is None:
            return  # the run has not begun
        ready = self._ask(site, Message("setup", self.setup.facts | {"run": self.run}, self.setup.tensors))
        if ready["rows"] and self.saved_at is not None and (ready["anew"] or site not in self._known):
            found = self._ask(site, Message("restore", {"run": self.run, "round": self.saved_at}))["round"]
            if found is None:
                self.hub.note(f"{site} has no save of this run: what its clients keep starts anew")
            elif found < self.saved_at:
                self.hub.note(f"{site} goes on with what its clients kept after round {found}")
        self._known.add(site)
        self.hub.note(f"{site} takes part")

    def _refuse(self, site: str, why: str) -> None:
        self.hub.note(f"{site} cannot take part: {why}")
        self.hub.rest_long(site)
        raise SitesLost({site: why})

    def _ask(self, site: str, question: Message) -> dict[str, Any]:
        return self.hub.ask({site: question}, {})[site].facts

    def gather(self) -> None:
        """At the start: enough sites, and a while for the others."""
        deadline = time.monotonic() + self.settings.gather
        while self.hub.gather() and time.monotonic() < deadline:
            time.sleep(0.1)

    def begin(self, params: Resolved, data: FederatedData) -> None:
        """From now on sites hear of the run; those that are there, at once."""
        flat = {name: value for name, value in params_in_use(dotted(params)).items() if name.split(".")[0] in _SENT}
        facts: dict[str, Any] = {
            "params": flat,
            "sizes": data.sizes.tolist(),
            "sites": self.settings.sites,
        }
        facts |= {"classes": self.settings.classes, "payload": self.settings.payload, "apart": list(self.apart)}
        self.setup = Message("setup", facts, problems.scaling_tensors(data.scaling))
        self.hub.forget()

    def go_on(self, run: str, at: int) -> None:
        """With a run that was saved in that round."""
        self.run, self.saved_at = run, at


_SENT = ("seed", "problem", "problems", "federation", "algorithm", "algorithms", "model", "train")


def params_in(folder: Path) -> Params:
    """params.yaml of the folder; without one, every setting is the default."""
    if (folder / "params.yaml").is_file():
        return load_params(folder / "params.yaml")
    print(f"federation: {folder} has no params.yaml: every setting is the default", file=sys.stderr, flush=True)
    return Params()


def run(settings: Server, params: Params, folder: Path, transport: Transport, on_round: Any = None) -> str:
    """Train to the last round, going on from the last save; write results; return the summary for the terminal."""
    own = ServerSamples.read(settings, folder)
    shape = own.validation[0].shape
    channels, size = (1, shape[-1]) if len(shape) == 3 else (shape[1], shape[-1] if len(shape) == 4 else 1)
    name = fingerprint(params_in_use(dotted(params)) | {"own": own.hash, "sites": settings.sites})

    def server_data(sizes: Sequence[int]) -> FederatedData:
        sets = own.validation, own.test or own.validation, own.selection
        return problems.server_data(*sets, settings.classes, sizes, problems.dtype_of(params))

    expected = problems.settled(params, SOME, channels, size, settings.classes)
    apart = problems.set_aside(expected)
    if TEST not in apart and not own.test:
        raise UserError("federation.yaml: data.test = null: the server tests the model. Fix: a file of test samples.")
    if TEST in apart and own.selection:
        raise UserError(
            f"federation.yaml: data.selection = {settings.data.selection!r}: under local heads every network has a part"
            " at its site, and the server can test none. Fix: leave it out, or problems.hyper_representation.heads:"
            " shared with another algorithm."
        )
    problems.problem_of(expected, server_data([1] * len(settings.sites)))  # before anyone is waited for
    sites = Sites(settings, own, apart)
    floats = torch.bfloat16 if settings.payload == "bfloat16" else None
    hub = sites.hub = Hub(
        transport,
        {site: [number] for number, site in enumerate(settings.sites)},
        timeout=settings.timeout,
        needed=settings.min_sites,
        patience=settings.patience,
        rest=settings.rest,
        welcome=sites.welcome,
        floats=floats,
        dtype=problems.dtype_of(params),
        note=lambda line: print(f"federation: {line}", file=sys.stderr, flush=True),
    )
    with ResumeFolder(folder / ".resume", name) as kept:
        saved = _read(kept)
        sites.gather()
        if saved:  # a site that is away now had samples when the run began
            sites.samples = {site: sites.samples[site] or saved["samples"][site] for site in settings.sites}
        sizes = [max(1, sites.samples[site]) for site in settings.sites]
        resolved = problems.settled(params, sum(sizes), channels, size, settings.classes)
        data = server_data(sizes)
        task = image_task(problems.problem_of(resolved, data), own.hash, name)
        if isinstance(task.problem, ClientHeldUpper):
            task = measuring.Figures(hub, task.problem).measuring(task)
        sites.begin(resolved, data)
        return _train(settings, resolved, results.given(params), folder, hub, sites, task, kept, saved, on_round)


def _train(
    settings: Server,
    params: Resolved,
    given: dict[str, Any],
    folder: Path,
    hub: Hub,
    sites: Sites,
    task: Task,
    kept: ResumeFolder,
    saved: dict[str, Any] | None,
    on_round: Any,
) -> str:
    screen = problems.screen_of(params, settings.sites, hub.note)
    algorithm, context = remote(params.method, problems.context_of(params, task.problem), hub, screen)
    loop = Loop(algorithm, context, params.train.rounds)
    scalars = [*algorithm.reports, *algorithm.measures, *SCALARS]
    history = History(kept.path, task.clean, task.measures, scalars, task.digits)
    best, spent, counted = Best(), 0.0, [hub.tally.left_out + hub.tally.unanswered]
    left_out: dict[str, int] = {}
    if saved and not history.restore(saved["history"]):
        loop.load_state_dict(saved["loop"])
        best, spent, left_out = Best(**saved["best"]), saved["seconds"], saved["left_out"]
        if context.screen:
            context.screen.load_state_dict(saved["screen"])
        sites.go_on(saved["run"], loop.round)
        hub.note(f"going on from the save of round {loop.round}")
    else:
        saved = None
        history.start()
    since = time.perf_counter()
    record = results.record_of(params, task, settings)
    with results.live(params, folder, record, kept) as live:

        def note_round() -> None:
            due = evaluates(loop, params.train.eval_every)
            seconds = spent + time.perf_counter() - since
            row, weights = row_of(loop, loop.state.variables, seconds, task.measure if due else None)
            total = hub.tally.left_out + hub.tally.unanswered
            judged = context.screen.left_out if context.screen else []
            row["answers_left_out"] = len(judged) + total - counted[0]
            counted[0] = total
            for site in hub.spoiled | {settings.sites[client] for client in judged}:
                left_out[site] = left_out.get(site, 0) + 1
            hub.spoiled.clear()
            history.append(row, weights)
            best.see(loop.round, row.get(SELECTION), loop.state.variables)
            if due:
                shown = ", ".join(f"{name.replace('_', ' ')} {row[name]:.4g}" for name in task.measures if name in row)
                hub.note(f"round {loop.round} of {loop.rounds}: {shown}")

        def save() -> None:
            if isinstance(context, BilevelContext) and algorithm.client_rows & loop.state.memory.keys():
                _save_rows(hub, sites, loop.round)
                sites.saved_at = loop.round
            rows: list[Row] = history.flush()
            content: dict[str, Any] = {"loop": loop.state_dict(), "best": best.state_dict(), "samples": sites.samples}
            content |= {"history": history.state(), "seconds": spent + time.perf_counter() - since}
            content |= {
                "run": sites.run,
                "left_out": left_out,
                "screen": context.screen.state_dict() if context.screen else None,
            }
            saves.write(kept.checkpoint, lambda file: torch.save(content, file))
            live.report(rows)

        try:
            if not saved:
                note_round()
                save()
            while loop.round < loop.rounds:
                loop.step()
                loop.measured = loop.measured | results.scalars(hub)
                note_round()
                if loop.round % params.train.checkpoint_every == 0 or loop.round == loop.rounds:
                    save()
                if on_round:
                    on_round(loop.round, hub)
        except NotFinite as error:
            live.report(history.flush())
            raise NotFinite(f"{error} What was recorded is in {kept.give_up()}.") from None
    served = best.served(loop.round, loop.state.variables)
    record = replace(record, run=live.info, served_round=served.round, left_out=left_out)
    summary = results.write(folder, record, history, served, task, hub, sites.samples, sites.apart, given)
    results.export(folder, task, served, sites.own.columns, list(sites.own.validation[0].shape[1:]))
    kept.discard()
    results.send(params, folder)
    return summary


def _read(kept: ResumeFolder) -> dict[str, Any] | None:
    """The last save; None if there is none, or none that can be read."""
    try:
        return saves.read_tensors(kept.checkpoint) if kept.found else None
    except saves.Damaged as error:
        print(f"federation: {error}; starting afresh", file=sys.stderr)
        return None


def _save_rows(hub: Hub, sites: Sites, at: int) -> None:
    """What clients keep at their sites, on the sites' disks; a site that cannot is left out of the next step."""
    present = [site for site in hub.members if site in hub.ready]
    question = Message("save", {"run": sites.run, "round": at, "taken": hub.taken})
    with suppress(SitesLost):
        hub.ask(dict.fromkeys(present, question), {})
