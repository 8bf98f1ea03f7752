"""One page per profile: tables and figures, with where and when they were made."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.primal_dual_weighting import figures, tables
from experiments.primal_dual_weighting.grid import HERE, Plan, Winners, search_cells, table_cells
from experiments.primal_dual_weighting.params import Table
from experiments.primal_dual_weighting.toy import Label, toy_cells
from experiments.primal_dual_weighting.winners import trials
from experiments.report import provenance

PAGES = HERE / "pages"
TITLES = {
    "table": "Table 1 and Figure 3",
    "fashion": "Figure 4",
    "bad_clients": "Bad clients of every kind",
    "toy": "Figures 1 and 2: the toy laboratory",
}


def write_page(plan: Plan, winners: Winners, folder: Path, out: Path) -> Path:
    """out/README.md with its figures and CSV files."""
    out.mkdir(parents=True, exist_ok=True)
    command = "make paper" if plan.profile == "full" else "make paper-quick"
    parts = [
        f"# Client weighting: the lead paper's experiments, {plan.profile}",
        f"Made by `{command}` ([what it consists of](../../params.yaml)). Accuracies are on the test set, weights are"
        " means over the last 100 rounds. All rows take plain steps without a limit, as the papers print them."
        " `primal_dual` has the printed dual, the library's former defaults (`experiments/former.py`) and searched"
        " steps, like the others without clipping;"
        " `primal_dual, as printed` is the paper's listing, its steps not searched: constant steps (eta_w 0.1, eta_x"
        " 0.01), gamma 1, a ball of radius 10, neither damping nor clipping, the hypergradient on the gradient's"
        " minibatch, absent clients scaled by N/n.",
    ]
    for table in ("table", "fashion"):
        if getattr(plan.sizes, table).seeds:
            parts += _accuracy_section(plan, table, winners, folder, out)
    if plan.sizes.bad_clients.seeds:
        parts += _detection_section(plan, winners, folder, out)
    parts += _toy_section(plan, folder, out)
    size, tried = plan.sizes.search, trials(plan, folder)
    waiting = sum(1 for trial in tried if trial["state"] == "not run")
    parts += [
        "## Step sizes",
        "Chosen by accuracy on the selection set, which no method sees; of equals the former default, else the"
        f" smallest loss. {size.data}, {size.model}, {size.rounds} rounds, participation 1, seed {size.seed}."
        " As many trials for each method that learns weights, and defaults where there is none; but the other settings"
        " of primal_dual were found by some twenty earlier trials, those of its competitors are first choices."
        + (f" **{waiting} trials are not run; without any, a method has its default steps.**" if waiting else ""),
        tables.plan_table(tried, winners),
        provenance(search_cells(plan), folder),
    ]
    path = out / "README.md"
    path.write_text("\n\n".join(parts) + "\n")
    (out / "winners.json").write_text(json.dumps(winners, indent=2) + "\n")
    return path


def _accuracy_section(plan: Plan, table: str, winners: Winners, folder: Path, out: Path) -> list[str]:
    size, cells = getattr(plan.sizes, table), table_cells(plan, table, winners)
    published = size.data == "mnist" and size.rounds == 2000
    rows = tables.summarise(cells, folder, published)
    tables.write_csv(rows, out / f"{table}.csv")
    for participation in size.participation:
        if curves := tables.curves(cells, folder, participation):
            tables.write_csv(curves, out / f"{table}_p{participation:g}.csv")
    parts = [
        f"## {TITLES[table]}: {size.data}, {size.model}, {size.rounds} rounds",
        tables.markdown(rows, published),
        *_variants(size),
        provenance(cells, folder),
    ]
    drawn = figures.accuracy(cells, folder, f"Test accuracy on {size.data}")
    if figures.save_if_any(drawn, out / f"{table}.png"):
        parts.insert(
            2, f"![Test accuracy over rounds]({table}.png)\n\nWhat stays below the frame is in the table alone."
        )
    return parts


def _variants(size: Table) -> list[str]:
    """What the rows with settings of their own set."""
    named = "; ".join(
        f"`{row}`: {', '.join(f'{step} {value}' for step, value in steps.items())}"
        for row, steps in size.variants.items()
    )
    return [f"Rows with settings of their own: {named}."] if named else []


def _detection_section(plan: Plan, winners: Winners, folder: Path, out: Path) -> list[str]:
    size, cells = plan.sizes.bad_clients, table_cells(plan, "bad_clients", winners)
    rows = tables.detections(cells, folder)
    tables.write_csv(rows, out / "bad_clients.csv")
    return [
        f"## {TITLES['bad_clients']}: {size.data}, {size.model}, {size.rounds} rounds",
        "Three clean clients and one each of: random labels, 30 and 60 % wrong labels, shuffled pixels, a copy of the"
        " first clean client, few samples. AUC: the chance that a clean client holds more weight than a bad one (0.5 ="
        " the weights tell nothing); a copy and a small client count as bad. Rank correlation: of the weights with the"
        " share of right samples, of which the copy and the small client have all.",
        tables.detection_markdown(rows),
        provenance(cells, folder),
    ]


def _toy_section(plan: Plan, folder: Path, out: Path) -> list[str]:
    cells, size = toy_cells(plan), plan.sizes.toy
    parts = [
        f"## {TITLES['toy']}",
        f"15 clients, {size.repetitions} repetitions, {size.rounds} rounds. In the figure all methods have the same"
        f" steps, eta_x = {min(size.eta_x):g}; bands as in the paper: 0.1 standard error of the value, 0.5 of the"
        " stationarity. A series cut after K terms is too short, by two to five times at K = 1, and points elsewhere as"
        " well: the first table shows how far a larger eta_x takes it.",
    ]
    if figures.save_if_any(figures.toy(cells, folder), out / "toy.png"):
        parts.append("![Value and stationarity over rounds](toy.png)")
    lines = [
        "| K | eta_x | method | rounds to a tenth of the start (median)"
        f" | repetitions within twice exact_gradient's at eta_x {min(size.eta_x):g} |",
        "|--|--|--|--|--|",
    ]
    for row in tables.toy_claim(cells, folder):
        within = "" if row["within_twice"] is None else f"{100 * row['within_twice']:.0f} %"
        rounds = "never" if row["median_rounds"] == float("inf") else f"{row['median_rounds']:g}"
        lines.append(f"| {row['K']} | {row['eta_x']:g} | {row['method']} | {rounds} | {within} |")
    parts.append("Deterministic setting:\n\n" + "\n".join(lines))
    if noisy := tables.toy_noise(cells, folder):
        lines = [
            "| setting | K | method | stationarity at the end (mean)"
            f" | repetitions with f_0(w*(x)) above its start after round {size.rounds // 3} |",
            "|--|--|--|--|--|",
        ]
        lines += [
            f"| {r['setting']} | {r['K']} | {r['method']} | {r['stationarity']:.2g} | {100 * r['gone']:.0f} % |"
            for r in noisy
        ]
        parts.append(
            "Noisy settings, half of the clients active; the dual of primal_dual is kept in a ball of radius 5 (1000 in"
            " the deterministic setting). steadied: every method remembers absent clients' answers, and primal_dual's"
            " dual is slower (eta_lambda 0.03, not 0.1) and damped (0.3, not 0), found by a few trials on these"
            " repetitions; the others keep their steps:\n\n" + "\n".join(lines)
        )
    if missing := [str(Label.of(cell)) for cell in cells if not cell.path(folder).is_file()]:
        parts.append(f"Not run: {'; '.join(missing)}.")
    return [*parts, provenance(cells, folder)]
