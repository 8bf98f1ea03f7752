"""Every mistake with own data gets one line: what, where, and the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from pipeline.errors import UserError
from tests.data.own.making import folder, made, table

TABLE = {"data__name": "table", "data__label": "label", "data__client": "place"}
FOLDER = {"data__name": "folder"}
ARRAYS = {"data__name": "arrays"}


def as_csv(change: Callable[[pd.DataFrame], Any] = lambda frame: frame, name: str = "t.csv") -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        file = place / name
        change(table(60)).to_csv(file, index=False)
        return file

    return write


def as_text(text: str | bytes, name: str = "t.csv") -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        file = place / name
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    return write


def two_tables(**changes: Callable[[pd.DataFrame], Any]) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        for name, change in changes.items():
            change(table(60)).to_csv(place / f"{name}.csv", index=False)
        return place

    return write


def images(change: Callable[[Path], Any] = lambda scans: None) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        scans = folder(place / "scans", each=4)
        change(scans)
        return scans

    return write


def as_npz(**more: Any) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        X = np.random.default_rng(0).normal(size=(30, 4))
        content = {"X": X, "y": np.arange(30) % 2, "client": np.arange(30) % 3} | more
        np.savez(place / "a.npz", **{name: value for name, value in content.items() if value is not None})
        return place / "a.npz"

    return write


def single_array(place: Path) -> Path:
    with (place / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    return place / "a.npz"


def same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def new(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4)).save(path)


def spoilt(path: Path) -> None:
    new(path)
    path.write_bytes(b"no image")


MISTAKES: list[tuple[dict[str, Any], Callable[[Path], Path] | None, str]] = [
    # tables
    (TABLE, None, r"data\.path = None"),
    (TABLE | {"data__label": None}, as_csv(), r"data\.label = None .*the column to predict"),
    (TABLE, lambda place: place / "none.csv", r"data\.path: .*none\.csv is neither a file nor a folder"),
    (TABLE, as_csv(name="t.xlsx"), r"t\.xlsx is no \.csv, \.tsv, \.parquet file"),
    (TABLE | {"data__label": "lable"}, as_csv(), r"data\.label 'lable' is no column.*Did you mean 'label'"),
    (TABLE | {"data__client": "plaze"}, as_csv(), r"data\.client 'plaze' is no column.*Did you mean 'place'"),
    (TABLE | {"data__group": "persons"}, as_csv(), r"data\.group 'persons' is no column.*Did you mean 'person'"),
    (TABLE | {"data__features": ["agee"]}, as_csv(), r"data\.features 'agee' is no column.*Did you mean 'age'"),
    (TABLE | {"data__features": ["age", "label"]}, as_csv(), r"data\.features: 'label' is data\.label already"),
    (TABLE | {"data__features": ["age", "age"]}, as_csv(), r"data\.features.*names a column twice"),
    (TABLE | {"data__features": []}, as_csv(), r"data\.features = \[\]"),
    (TABLE | {"data__client": "label"}, as_csv(), r"data\.client = 'label' is not allowed: it is data\.label"),
    (TABLE | {"data__client": None, "data__bad": ["Graz"]}, as_csv(), r"data\.bad names clients"),
    (TABLE | {"data__features": ["country"]}, as_csv(), r"none of the columns 'country' says anything"),
    (TABLE, as_text(""), r"t\.csv is empty"),
    (TABLE, as_text("place,age,label\n"), r"t\.csv holds no rows"),
    (TABLE, as_text("place,age,label\nA,1\n"), r"t\.csv cannot be read"),
    (TABLE, as_text("place,age,label\nA,1,ja\n".encode("utf-16")), r"cannot be read \(it is no UTF-8 text\)"),
    (TABLE, as_text(bytes(4000)), r"t\.csv cannot be read \(it is no UTF-8 text\)"),
    (
        TABLE,
        as_csv(lambda f: f.replace({"place": {"Graz": "Graz\n2"}})),
        r"client's name 'Graz\\n2' holds a line break",
    ),
    (TABLE, as_text("place,age,label\nK\xf6ln,1,ja\n".encode("latin-1")), r"cannot be read.*save it as UTF-8"),
    (TABLE, as_text("place,age,age,label\nA,1,2,ja\nB,1,2,no\n"), r"column 'age' is there twice"),
    (TABLE, as_text(b"PAR1 no", "t.parquet"), r"t\.parquet cannot be read"),
    (TABLE, as_csv(lambda f: f.assign(label=f["label"].where(f.index != 4))), r"label.*1 of 60.*row 5"),
    (TABLE, as_csv(lambda f: f.assign(place=f["place"].where(f.index != 4))), r"data\.client: 1 of 60 rows name no"),
    (TABLE, as_csv(lambda f: f.assign(label="ja")), r"only one class, 'ja'"),
    (TABLE, as_csv(lambda f: f.assign(place="Graz")), r"one client only, 'Graz'"),
    (TABLE | {"data__task": "regression"}, as_csv(), r"it holds texts.*data\.task is regression"),
    (TABLE | {"data__label": "age", "data__task": "regression"}, as_csv(), r"age.*have no value there"),
    (TABLE, as_csv(lambda f: f.assign(score=np.inf)), r"column 'score' holds infinite numbers"),
    (
        TABLE | {"data__label": "score"},
        as_csv(lambda f: f.astype({"score": object}).assign(score=["12 kg", *f["score"][1:]])),
        r"'score': '12 kg' is no number, and 59 of 60",
    ),
    (
        TABLE | {"data__label": "score"},
        two_tables(clients=same, validation=lambda f: f.assign(score="old")),
        r"'score': it is 'old' in row 1 of validation, and clients holds numbers",
    ),
    (
        TABLE,
        two_tables(clients=same, test=lambda f: f.assign(label=f["label"].where(f.index != 4))),
        r"'label': 1 of 60 samples \(test\) have no value there, the first in row 5",
    ),
    (TABLE | {"data__group": "job"}, as_csv(), r"data\.group: column 'job'.*empty cells"),
    (TABLE, two_tables(train=same), r"holds no clients\.csv"),
    (
        TABLE,
        two_tables(clients=same, test=lambda f: f.drop(columns="age")),
        r"column 'age' is no column of .*test\.csv",
    ),
    (
        TABLE,
        two_tables(clients=same, test=lambda f: f.assign(age="old")),
        r"test: column 'age' holds texts, such as 'old', where the clients' rows hold numbers",
    ),
    (TABLE | {"data__test_share": 0.0}, as_csv(), r"data\.test_share = 0\.0"),
    (TABLE | {"data__test_share": 0.9}, as_csv(), r"data\.test_share = 0\.9 .*at most 0\.5"),
    (TABLE | {"data__bad": ["Wien"]}, as_csv(), r"data\.bad = \['Wien'\].*'Graz'.*remove 'Wien'"),
    (TABLE | {"data__task": "clasification"}, as_csv(), r"data\.task = .*Did you mean classification"),
    (
        TABLE | {"partition__validation_per_label": 5},
        as_csv(),
        r"validation_per_label = 5.*validation_share",
    ),
    (TABLE | {"subset__train": 10}, as_csv(), r"subset does not go with data\.name: table"),
    # folders
    (FOLDER, None, r"data\.path = None"),
    (FOLDER, lambda place: place / "none", r"none is no folder"),
    (FOLDER, lambda place: place, r"has no folder clients"),
    (FOLDER, lambda place: images()(place) / "clients", r"clients is the clients' folder\. Fix: data\.path: "),
    (FOLDER, images(lambda scans: (scans / "clients" / "empty").mkdir()), r"client 'empty' has no image"),
    (FOLDER, images(lambda scans: (scans / "test").mkdir()), r"test has no image in <class>/"),
    (FOLDER, images(lambda scans: new(scans / "clients" / "Graz" / "x.png")), r"x\.png lies beside the classes"),
    (
        FOLDER,
        images(lambda scans: (scans / "clients" / "Graz" / "leer" / "0.png").write_bytes(b"")),
        r"cannot be read: .*0\.png\. Fix: .*data\.skip_unreadable",
    ),
    (
        FOLDER | {"data__skip_unreadable": True},
        images(lambda scans: spoilt(scans / "test" / "leer" / "0.png")),
        r"no image of the test set can be read",
    ),
    (FOLDER | {"data__channels": 2}, images(), r"data\.channels = 2"),
    (FOLDER | {"data__image_size": 0}, images(), r"data\.image_size = 0"),
    (
        FOLDER | {"data__image_size": 10**9},
        images(),
        r"1000000000 x 1000000000 pixels .* GB, and this machine has .*Fix",
    ),
    # arrays
    (ARRAYS, lambda place: place / "a.npz", r"a\.npz does not exist"),
    (ARRAYS, as_text(b"nothing", "a.npz"), r"a\.npz is no \.npz file"),
    (ARRAYS, as_text(b"PK\5\6" + bytes(18), "a.npz"), r"no array"),
    (ARRAYS, single_array, r"a\.npz is no \.npz file, which holds several arrays"),
    (ARRAYS, as_npz(y=None), r"no array 'y'"),
    (ARRAYS, as_npz(labels=np.zeros(30)), r"array 'labels' has no meaning here"),
    (ARRAYS, as_npz(y=np.arange(29)), r"shape of y = \(29,\)"),
    (ARRAYS, as_npz(client=np.arange(29)), r"client has the shape"),
    (ARRAYS, as_npz(X=np.array([["a"] * 4] * 30)), r"dtype of X"),
    (ARRAYS, as_npz(X=np.zeros((30, 4))), r"every feature is constant"),
    (ARRAYS, as_npz(X=np.full((30, 4), np.inf)), r"X\[0, 0\] is inf"),
    (
        ARRAYS,
        as_npz(X=np.zeros((30, 4, 4), np.uint8), X_test=np.ones((3, 4, 4)), y_test=np.arange(3) % 2),
        r"dtype of X_test = 'float64' is not allowed: it must be uint8, as X",
    ),
    (ARRAYS, as_npz(X=np.zeros((30, 4, 6), dtype=np.uint8)), r"shape of X .*square"),
    (ARRAYS, as_npz(X_test=np.zeros((3, 5)), y_test=np.zeros(3)), r"shape of X_test"),
    (ARRAYS, as_npz(X_test=np.zeros((3, 4))), r"no array 'y_test'"),
    (ARRAYS, as_npz(y=np.array([None] * 30, dtype=object)), r"no Python objects"),
    # clients
    ({"partition__scheme": "natural"}, None, r"natural does not go with data\.name: digits"),
    (
        TABLE | {"data__client": None, "partition__scheme": "natural"},
        as_csv(),
        r"natural does not go with data that have no clients.*data\.client",
    ),
]


@pytest.mark.parametrize(("keys", "write", "said"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_answered_in_a_line(tmp_path, keys, write, said):
    place = tmp_path / "source"
    place.mkdir()
    if write:
        keys = keys | {"data__path": str(write(place))}
    with pytest.raises(UserError, match=said) as caught:
        made(tmp_path, **keys)
    message = str(caught.value)
    assert "\n" not in message
    assert "Fix: " in message or "Did you mean" in message
    assert not (tmp_path / "raw").exists() or not list(tmp_path.glob("raw/.*"))
