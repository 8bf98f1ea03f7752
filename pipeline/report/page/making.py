"""What the page says of how the run was made: its cost, and how to make it again."""

from __future__ import annotations

from io import StringIO
from typing import Any

from ruamel.yaml import YAML

from pipeline.report.page.story import Story
from pipeline.report.page.words import duration, large, plain
from pipeline.report.record import Record, nested
from pipeline.report.settings import changed

COSTS = {
    "communication_rounds": "exchanges between server and clients",
    "floats_up": "numbers sent by clients",
    "floats_down": "numbers sent to clients",
    "gradients": "minibatch gradients of clients",
    "hvps": "Hessian-vector products of clients",
}


def cost(story: Story) -> dict[str, Any]:
    """Totals of the last round, and means per round."""
    last, rounds = (story.rows[-1] if story.rows else {}), max(story.record.rounds, 1)
    totals = [(label.replace("client", story.who), float(last.get(name) or 0.0)) for name, label in COSTS.items()]
    rows = [[label, large(total), large(total / rounds) if total else ""] for label, total in totals]
    seconds = last.get("seconds")
    if seconds is not None:
        rows.append(["seconds of training, evaluations included", duration(seconds), duration(seconds / rounds)])
    device = story.record.environment.get("device", "")
    text = f"{story.record.rounds:,} rounds, counted over all {story.who}s"
    return {"text": text + (f"; computed on {device}." if device else "."), "rows": rows}


def reproduce(
    record: Record,
    settings: dict[str, Any],
    more: dict[str, Any] | None = None,
    command: str = ".venv/bin/dvc repro",
    given: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Commands, the settings that differ from the defaults, and what pins the run down.

    settings: in use, dotted. more: further sections of params.yaml. given: the settings that differ, dotted; None:
    found out by comparing.
    """
    commit = record.tags.get("mlflow.source.git.commit", "")
    differs = changed(settings) if given is None else given
    dirty = record.tags.get("git.dirty", "no")
    text = "All randomness comes from the seed: the same code, settings and data give the same numbers on this machine."
    if dirty != "no":
        text += f" The code had changes that are in no commit ({dirty.removeprefix('yes: ')})."
    commands = [*([f"git checkout {commit}"] if commit else []), "make setup", command]
    facts = {
        "code": commit or "not in git",
        "data": f"{record.dataset.get('name', '')}, {record.tags.get('data_hash', '')}",
        "partition": record.tags.get("partition_hash", ""),
        "experiment": record.tags.get("dvc.exp_name", ""),
        "trained on": record.environment.get("date", ""),
        "MLflow run": (record.run.run_id or "") if record.run else "",
        "Python": record.environment.get("python", ""),
        "system": record.environment.get("platform", ""),
        "libraries": ", ".join(f"{n} {v}" for n, v in record.environment.get("packages", {}).items()),
    }
    tree = nested(differs) | (more or {})
    return {
        "text": text,
        "commands": "\n".join(commands),
        "yaml": _yaml(tree) if tree else "",
        "facts": [(name, value) for name, value in facts.items() if value],
        "settings": [(name, plain(value), name in differs) for name, value in settings.items()],
    }


def _yaml(tree: dict[str, Any]) -> str:
    text, writer = StringIO(), YAML(typ="safe")
    writer.default_flow_style = False
    writer.allow_unicode = True
    writer.dump(tree, text)
    return text.getvalue().strip()
