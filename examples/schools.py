"""Examination results of 65 London schools, predicted from the pupils' reading tests: numbers, and many clients.

    .venv/bin/python -m examples.schools Exam.csv report.html

`Exam.csv` is the public table of that name (R package mlmRev, 4059 pupils): columns `school`, `normexam` (the result),
`standLRT` (the reading test), `intake`, `sex`.
"""

import sys
from pathlib import Path

import pandas as pd

import fedbilevel as fb

FEATURES = ["standLRT", "intake", "sex"]


def schools(table: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, pd.Series]]:
    """Each school with its pupils."""
    return {f"school {name}": (pupils[FEATURES], pupils["normexam"]) for name, pupils in table.groupby("school")}


if __name__ == "__main__":
    source, page = map(Path, sys.argv[1:])
    clients = schools(pd.read_csv(source))
    for algorithm in ("average", "primal_dual"):
        found = fb.fit(clients, algorithm=algorithm, rounds=300, eval_every=50)
        print(f"{algorithm}: R2 {found.metrics['test_r2']:.3f} on the test set")
    print(pd.concat([found.weights.head(), found.weights.tail()]).to_string(index=False))
    print("settled:", found.settled, "suspicious:", found.suspicious)
    found.plot_weights().savefig(page.with_suffix(".png"), dpi=60)
    found.report(page)
