"""A run's description, on top of its page in MLflow."""

from __future__ import annotations

from typing import Any

from pipeline.report.plots import PLOTS
from pipeline.report.record import Record

TABLE = "client_weights.json"
"""The artifact with all clients."""


def story(
    record: Record,
    metrics: dict[str, Any],
    clients: list[dict[str, Any]],
    plots: set[str],
    page: str,
    run_id: str,
    report: bool = False,
) -> str:
    """Markdown: what this run is, where to look, who was trusted; most important first, as the page shows
    about four lines until the reader asks for more. page: address of the run's page, relative to the server.
    plots: the names among PLOTS that exist (a method without weights has no curves of them).
    report: whether there is a report.html."""
    mode = "?workflowType=machine_learning"  # else the server shows its language-model pages
    lines = [f"**{record.name}**, {record.rounds} rounds."]
    if "test_rmse" in metrics:
        lines[0] += f" Test RMSE **{metrics['test_rmse']:.4g}**, R2 **{metrics['test_r2']:.3f}**."
    if "test_accuracy" in metrics:
        lines[0] += f" Test accuracy **{100 * metrics['test_accuracy']:.2f} %**."
    if "stationarity" in metrics:
        lines[0] += f" Upper value **{metrics['upper_value']:.4f}**, stationarity **{metrics['stationarity']:.2g}**."
    if "detection_auc" in metrics:
        lines[0] += (
            f" The clean clients hold **{100 * metrics['clean_weight']:.1f} %** of the weight; no bad client"
            f" holds more than {100 * metrics['max_noise_weight']:.2g} %."
        )
    links = [
        f"[{file.removesuffix('.png').replace('_', ' ')}]({page}/artifacts/plots/{file}{mode})"
        for file in PLOTS
        if file in plots
    ]
    if report:
        links.insert(0, f"**[report]({page}/artifacts/report.html{mode})**")
    lines.append(" · ".join([*links, f"[all curves]({page}/model-metrics{mode})"]))
    if clients:
        ranked = sorted(clients, key=lambda row: -row["weight"])[:20]
        rows = "\n".join(
            f"| {_cell(row['name'])} | {row['kind']} | {_cell(row['labels'])} | {row['samples']} |"
            f" {row['weight']:.4f} |"
            for row in ranked
        )
        left_out = f"\n\n{len(clients) - 20} more in `{TABLE}`." if len(clients) > 20 else ""
        lines.append(f"| client | kind | labels | samples | weight |\n|:--|:--|:--|--:|--:|\n{rows}{left_out}")
    lines += [f"![{name}](get-artifact?path=plots/{name}&run_uuid={run_id})" for name in PLOTS[:2] if name in plots]
    return "\n\n".join(lines)


def _cell(text: str) -> str:
    """As it is, within a table of Markdown."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
