"""The public heart-disease records of four hospitals as a table of your own: two classes, zeros that mean missing.

    .venv/bin/python -m examples.heart_disease heart.csv /data/heart/hospitals.csv

`heart.csv` has a column `hospital`, thirteen measurements and `num` (0 = healthy, 1 to 4 = diseased). In params.yaml:

    data: {name: table, path: /data/heart/hospitals.csv, label: disease, client: hospital}
    train: {replicates: 5}
"""

import sys

import pandas as pd


def hospitals(heart: pd.DataFrame) -> pd.DataFrame:
    """The table, with a label of two classes; a cholesterol or blood pressure of 0 means missing."""
    table = heart.drop(columns="num")
    table["disease"] = (heart["num"] > 0).map({True: "diseased", False: "healthy"})
    for measured in ("chol", "trestbps"):
        table[measured] = table[measured].replace(0, float("nan"))
    return table


if __name__ == "__main__":
    source, target = sys.argv[1:]
    hospitals(pd.read_csv(source)).to_csv(target, index=False)
