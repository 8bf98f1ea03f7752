"""What a federated run leaves behind: the files of a simulated run, under the sites' names, and the tracker's run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.spec import dotted
from pipeline.federation import measuring, model
from pipeline.federation.hub import Hub
from pipeline.federation.samples import TEST
from pipeline.federation.settings import Server
from pipeline.params import Params, Resolved
from pipeline.params.decides import params_in_use
from pipeline.problems.base import ClientHeldUpper
from pipeline.report import figures, matrices, tables
from pipeline.report.assembly import remarks, troubles
from pipeline.report.clients import UNKNOWN, Clients
from pipeline.report.numbers import run_facts
from pipeline.report.page.render import write_page
from pipeline.report.page.story import USES, Holdings, Story
from pipeline.report.record import Record, describe
from pipeline.report.series import column, evaluations, read_history, read_weights
from pipeline.report.writing import write_json
from pipeline.tracking.live import live_run
from pipeline.tracking.publish import publish
from pipeline.training.best import Served
from pipeline.training.evaluation import Outcome, outcome
from pipeline.training.history import History
from pipeline.training.resume import ResumeFolder
from pipeline.training.saves import save_variables
from pipeline.training.tasks import Task

SOURCE = Path(__file__).parents[2]
COMMANDS = """\
.venv/bin/uv pip install -c constraints.txt -e '.[federation]'
.venv/bin/python -m pipeline.federation site FOLDER    # at each of {sites}
.venv/bin/python -m pipeline.federation server FOLDER  # at the server, with its federation.yaml"""


def scalars(hub: Hub) -> dict[str, float]:
    """What the record gains in a round."""
    spent = [each["epsilon"] for each in hub.privacy.values() if each.get("epsilon") is not None]
    return {"sites": float(len(hub.ready))} | ({"epsilon": max(spent)} if spent else {})


def record_of(params: Resolved, task: Task, settings: Server) -> Record:
    """The facts of the run, known when training starts."""
    flat = dotted(params)
    record = describe(flat, task.data_hash, task.partition_hash, str(task.device), settings.sites, SOURCE)
    shown = {name: value for name, value in record.params.items() if name.split(".")[0] not in ("data", "partition")}
    shown |= {"data.name": params.data.name, "sites": ", ".join(settings.sites), "payload": settings.payload}
    name = f"{params.algorithm} on {len(settings.sites)} sites seed {params.seed}"
    return replace(record, name=name, params=shown, dataset={"name": "sites", "digest": task.data_hash})


@contextmanager
def live(params: Resolved, folder: Path, record: Record, kept: ResumeFolder) -> Iterator[Any]:
    """The tracker's run around the training."""
    with live_run(params.tracking, folder, record, kept.note("run.json")) as run:
        yield run


def write(
    folder: Path,
    record: Record,
    history: History,
    served: Served,
    task: Task,
    hub: Hub,
    samples: dict[str, int],
    apart: dict[str, dict[str, int]],
    given: dict[str, Any],
) -> str:
    """models/ and results/; returns the summary for the terminal, weights under the sites' names. samples: of each site
    for training. apart: part -> how many samples each site has set aside for it. given: `given()`."""
    problem: Any = task.problem
    results, names = folder / "results", list(hub.members)
    shutil.rmtree(results, ignore_errors=True)  # of an earlier run, which may have made other files
    save_variables(folder / "models" / "model.pt", served.variables)
    history.export(results)
    record.save(folder / "models" / "training.json")
    rows = read_history(results / "history.csv")
    if isinstance(problem, ClientHeldUpper):
        found = measuring.Figures(hub, problem).outcome(served.variables, rows[served.round])
    else:
        found = outcome(problem, served.variables)
    tested: Any = found.test
    facts = (
        run_facts(record)
        | {
            "dataset": f"{len(names)} sites",
            "test_accuracy": tested.accuracy,
            "test_loss": tested.loss,
            "selection_accuracy": getattr(found.selection, "accuracy", None),
            "validation_loss": found.validation_loss,
        }
        | found.measures
        | {
            "exchanges": hub.tally.exchanges,
            "answers_left_out": sum(int(row.get("answers_left_out") or 0) for row in rows),
            "bytes_up": hub.tally.bytes_up,
            "bytes_down": hub.tally.bytes_down,
        }
        | ({"privacy": hub.privacy} if hub.privacy else {})
    )
    settled = rows[served.round].get("settled")
    if settled is not None:
        facts["weights_settled"] = bool(settled)
    write_json(results / "metrics.json", facts)
    kinds = [UNKNOWN] * len(names)
    labels: list[list[int]] = [[] for _ in names]
    clients = Clients(names, kinds, labels, [samples[name] for name in names], found.weights)
    clients.write(results)
    _plots(results, found, clients)
    data, said = problem.data, remarks(facts, clients, results)
    sets = {"validation": len(data.validation_labels), "selection": len(data.selection_labels)}
    if TEST not in apart:
        sets["test"] = len(data.test_labels)
    columns = {f"own {part}": [str(sizes.get(name, "")) for name in names] for part, sizes in apart.items()}
    uses = USES | ({"validation": "scales the features"} if apart else {})
    story = Story(
        record,
        facts,
        clients,
        rows,
        read_weights(results)["weights"],
        test=tested if len(tested.confusion) else None,
        holdings=Holdings(sets, columns=columns | _spent(hub), uses=uses),
        remarks=troubles(facts, rows),
        command=COMMANDS.format(sites=", ".join(names)),
        given=given,
        who="site",
        repeatable=False,
    )
    write_page(story, results / "report.html")
    headline = tables.headline(facts) if tested.accuracy is not None else "no site has tested the last model"
    return "\n".join([tables.client_table(clients), "", headline, *said])


def export(folder: Path, task: Task, served: Served, columns: list[str], shape: list[int]) -> None:
    """models/mlflow, for use."""
    model.export(folder / "models", task.problem, served.variables, columns, shape)


def given(params: Params) -> dict[str, Any]:
    """The settings of params.yaml that differ from the defaults, dotted; of those that count here."""
    usual, used = dotted(Params()), params_in_use(dotted(params))
    sections = {name: value for name, value in used.items() if name.split(".")[0] not in ("data", "partition")}
    return {name: value for name, value in sections.items() if value != usual.get(name)}


def _spent(hub: Hub) -> dict[str, list[str]]:
    """A column of the privacy that each site has spent, if one keeps an account."""
    if not hub.privacy:
        return {}
    spent = (hub.privacy.get(site, {"epsilon": 0.0})["epsilon"] for site in hub.members)
    return {"epsilon spent": ["no guarantee" if each is None else f"{each:.3g}" for each in spent]}


def _plots(results: Path, found: Outcome, clients: Clients) -> None:
    """The curves of the weights, the last ones, accuracy and loss, the confusion matrix."""
    plots, kept = results / "plots", read_weights(results)
    if len(kept["weights"]):
        curves = figures.weights_over_rounds(kept["round"], kept["weights"], clients)
        figures.save(curves, plots / "client_weights.png")
    figures.save(figures.final_weights(clients), plots / "final_weights.png")
    rows = evaluations(read_history(results / "history.csv"))
    columns = (column(rows, name) for name in ("round", "test_accuracy", "validation_loss"))
    figures.save(figures.accuracy_and_loss(*columns), plots / "accuracy_and_loss.png")
    tested: Any = found.test
    if len(tested.confusion):
        figures.save(matrices.confusion_matrix(tested.confusion), plots / "confusion_matrix.png")


def send(params: Resolved, folder: Path) -> None:
    """Complete the run in the tracker."""
    publish(folder / "results", folder / "models", params.tracking, folder)
