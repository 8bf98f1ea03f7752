"""From a run to its page: the parts, the pictures, the template."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.report import figures
from pipeline.report.page import themed
from pipeline.report.page.clients import data, evidence, weights
from pipeline.report.page.head import head
from pipeline.report.page.making import cost, reproduce
from pipeline.report.page.model import classes, confusion, numbers
from pipeline.report.page.story import Story
from pipeline.report.series import column, evaluations, thin
from pipeline.report.writing import write_text

TEMPLATES = Path(__file__).parent / "templates"
PARTS = {"weights": weights, "evidence": evidence, "data": data, "cost": cost}
TITLES = ("weights", "evidence", "model", "data", "cost", "reproduce")


def write_page(story: Story, path: Path) -> None:
    """The page of a run."""
    write_text(path, render("run.html.j2", run_page(story)))


def run_page(story: Story) -> dict[str, Any]:
    """What the template of a run shows."""
    page = head(story) | {name: part(story) for name, part in PARTS.items()}
    page |= {"classes": classes(story), "confusion": confusion(story), "numbers": numbers(story)}
    page["reproduce"] = reproduce(story.record, story.record.params, command=story.command, given=story.given)
    page["contents"] = [(name, name.capitalize()) for name in TITLES if name == "model" or page[name]]
    return page | {"figures": {"weights": weight_curves(story), "curves": curves(story)}}


def render(template: str, page: dict[str, Any]) -> str:
    """A whole page. Whatever the template misses is a mistake of ours and raises."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8").strip())
    return environment.get_template(template).render(style=style, version=_version(), **page)


def weight_curves(story: Story) -> Markup | None:
    """Weights over rounds, of a method that moves them."""
    if not story.learned:
        return None
    rounds = np.arange(len(story.weights))
    kept = np.unique([*rounds[:: thin(len(rounds) - 1)], rounds[-1]])
    picture = figures.weights_over_rounds(kept, story.weights[kept], story.clients, themed.SMALL)
    return Markup(themed.svg(picture, "weights"))


def curves(story: Story) -> list[tuple[str, Markup]]:
    """Pictures of what was evaluated, with what they show in words."""
    evaluated = evaluations(story.rows)
    drawn = []
    for name, title in figures.EVALUATED.items():
        values = column(evaluated, name)
        if np.isfinite(values).any():
            picture = figures.over_rounds(column(evaluated, "round"), values, name, themed.SMALL)
            drawn.append((f"{title} over rounds", Markup(themed.svg(picture, name))))
    return drawn


def _version() -> str:
    try:
        return version("fedbilevel")
    except PackageNotFoundError:
        return ""
