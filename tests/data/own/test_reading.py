"""Own tables, folders and arrays: what is read, described, held out, and which notes are shown."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from pipeline.data.datasets import prepare
from pipeline.data.own import preprocessing
from pipeline.data.partition import Partition, summary_table
from pipeline.errors import UserError
from tests.data.own.making import CLIENTS, folder, made, settings, table

TABLE = {"data__name": "table", "data__label": "label", "data__client": "place"}


def csv(tmp_path, frame: pd.DataFrame, name: str = "table.csv"):
    file = tmp_path / name
    frame.to_csv(file, index=False)
    return str(file)


def notes_of(tmp_path, **keys) -> str:
    params = settings(**keys)
    return prepare(params.data.name, tmp_path / "raw", settings=params.data)


# -------------------------------------------------------------------------------------------- tables


def test_a_table_becomes_features_by_a_record_that_serves_too(tmp_path):
    frame = table()
    params, raw, partition = made(
        tmp_path, **TABLE, data__path=csv(tmp_path, frame), data__features=["age", "job", "country"]
    )
    names = preprocessing.feature_names(raw.preprocessing)
    assert names == ["age", "age is missing", "job = clerk", "job = none", "job = self-employed", "job is missing"]
    X = raw.train_images[:, :, 0, 0]
    assert X.shape == (300, 6)
    age = frame["age"]
    assert np.array_equal(X[:, 1], age.isna())
    assert (X[age.isna(), 0] == 0).all()  # as the mean
    there = age.notna()
    assert np.corrcoef(X[there, 0], age[there])[0, 1] == pytest.approx(1, abs=1e-6)
    assert abs(X[there, 0].mean()) < 0.2
    assert 0.8 < X[there, 0].std() < 1.2
    assert (X[:, 2:].sum(1) == 1).all()
    record = json.loads((tmp_path / "raw" / "preprocessing.json").read_text())
    assert record["target"] == {"classes": ["ja", "nein"], "given": "texts"}
    assert np.array_equal(preprocessing.apply(record, frame[["job", "age", "country"]]), raw.train_images)
    assert (raw.client_names, params.partition.scheme, params.model.name) == (
        tuple(sorted(CLIENTS)),
        "natural",
        "linear",
    )
    assert partition.names == sorted(CLIENTS)
    assert set(partition.kinds) == {"unknown"}
    unseen = frame.head(2).assign(job=["never seen", None], age=[1e9, None])
    assert preprocessing.apply(record, unseen)[:, :, 0, 0].tolist() == [[10, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 1]]


def test_a_client_in_other_units_does_not_decide_the_scale(tmp_path):
    frame = table()
    _, raw, _ = made(tmp_path / "a", **TABLE, data__path=csv(tmp_path, frame))
    frame.loc[frame["place"] == "Graz", "age"] *= 1e6
    _, other, _ = made(tmp_path / "b", **TABLE, data__path=csv(tmp_path, frame, "other.csv"))
    assert np.abs(other.train_images).max() <= 10
    kept = (frame["place"] != "Graz").to_numpy()
    before, after = (each.train_images[kept, 0, 0, 0] for each in (raw, other))
    assert np.corrcoef(before, after)[0, 1] > 0.999
    assert 0.5 < after.std() / before.std() < 2


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_folder_of_tables_gives_the_servers_sets(tmp_path, suffix):
    frame, place = table(), tmp_path / "tables"
    place.mkdir()
    for name, part in (("clients", frame[:200]), ("validation", frame[200:260]), ("test", frame[260:])):
        file = place / f"{name}.{suffix}"
        if suffix == "parquet":
            part.to_parquet(file)
        else:
            part.to_csv(file, index=False, sep="\t" if suffix == "tsv" else ";")
    _, raw, partition = made(tmp_path, **TABLE, data__path=str(place))
    assert (len(raw.train_labels), len(raw.test_labels)) == (260, 40)
    assert len(partition.server_validation) == 60
    assert partition.sizes.sum() == 200
    assert not len(partition.server_test)
    assert partition.settings["held_out"] == {name: [0, 0, 0] for name in sorted(CLIENTS)}


@pytest.mark.parametrize(
    ("name", "separator", "decimal"),
    [
        ("t.csv", ",", "."),
        ("t.csv", ";", "."),
        ("t.csv", ";", ","),
        ("t.csv", "\t", ","),
        ("t.csv", "|", "."),
        ("t.tsv", ",", "."),
    ],
)
def test_separators_and_decimal_commas(tmp_path, name, separator, decimal):
    frame = table().rename(columns={"age": "age, in years, months, days, and hours"})
    _, plain, _ = made(tmp_path / "plain", **TABLE, data__path=csv(tmp_path, frame))
    frame.to_csv(tmp_path / name, index=False, sep=separator, decimal=decimal)
    _, raw, _ = made(tmp_path / "other", **TABLE, data__path=str(tmp_path / name))
    assert np.array_equal(raw.train_images, plain.train_images)


def test_a_stray_text_among_numbers_and_chance_are_told_apart(tmp_path):
    frame = table(40)
    frame["score"] = frame["score"].round(0).astype(int).astype(object)
    frame.loc[3, "score"] = "n.b."
    frame["luck"] = np.random.default_rng(0).normal(size=40)  # every value has one row, and so one class
    text = notes_of(tmp_path, **TABLE, data__path=csv(tmp_path, frame))
    assert "column 'score' is taken for categories: 39 of 40 cells are numbers, but 'n.b.' in row 4 is none" in text
    assert "gives away" not in text


def test_classes_that_may_be_a_mistake_are_noted(tmp_path):
    frame = table(60)
    frame.loc[0, "label"] = "Ja "
    path = csv(tmp_path, frame)
    assert "classes 'Ja ' and 'ja' differ by upper case or blanks alone" in notes_of(tmp_path, **TABLE, data__path=path)
    frame["rate"] = frame["score"].map("{:.0%}".format)
    text = notes_of(tmp_path, **TABLE | {"data__label": "rate"}, data__path=csv(tmp_path, frame))
    assert "data.label 'rate' is taken for" in text


def test_shares_are_held_out_evenly_and_groups_stay_together(tmp_path):
    frame = table(2000)
    params, raw, partition = made(tmp_path, **TABLE, data__path=csv(tmp_path, frame), data__group="person")
    sets = [partition.server_test, partition.server_validation, partition.server_selection, partition.indices]
    assert sum(map(len, sets)) == 2000
    assert [len(part) / 2000 for part in sets] == pytest.approx([0.2, 0.1, 0.05, 0.65], abs=0.03)
    people = [set(frame["person"].to_numpy()[part]) for part in sets]
    assert all(not a & b for i, a in enumerate(people) for b in people[:i])
    shares = np.bincount(raw.owners[partition.server_test], minlength=3) / np.bincount(raw.owners)
    assert shares == pytest.approx([0.2] * 3, abs=0.05)
    classes = np.bincount(raw.train_labels[partition.server_validation]) / np.bincount(raw.train_labels)
    assert classes == pytest.approx([0.1] * 2, abs=0.03)
    text = summary_table(partition)
    assert all(name in text for name in CLIENTS)
    assert "held out from the clients" in text
    again = made(tmp_path / "again", **TABLE, data__path=params.data.path, data__group="person")[2]
    other = made(tmp_path / "other", **TABLE, data__path=params.data.path, data__group="person", seed=1)[2]
    assert again.hash == partition.hash != other.hash
    file = tmp_path / "partition.npz"
    partition.save(file)
    assert Partition.load(file).hash == partition.hash
    assert Partition.load(file).names == partition.names


def test_named_bad_clients_make_kinds_known(tmp_path):
    path = csv(tmp_path, table())
    _, _, partition = made(tmp_path, **TABLE, data__path=path, data__bad=["Graz"])
    assert dict(zip(partition.names, partition.kinds, strict=True))["Graz"] == "noisy"
    assert partition.known
    assert partition.oracle_weights().sum() == pytest.approx(1)
    with pytest.raises(UserError, match=r"data\.bad = \['Gras'\] .*'Graz'"):
        made(tmp_path, **TABLE, data__path=path, data__bad=["Gras"])


def test_a_table_without_clients_is_dealt_by_a_scheme(tmp_path):
    keys = {"data__name": "table", "data__label": "label", "data__path": csv(tmp_path, table())}
    params, raw, partition = made(tmp_path, **keys)
    assert (params.partition.scheme, partition.clients, raw.client_names) == ("iid", 10, ())
    _, _, dealt = made(tmp_path, **keys, partition__scheme="dirichlet")
    assert dealt.clients == 10


def test_numbers_to_predict(tmp_path):
    frame = table()
    path = csv(tmp_path, frame)
    params, raw, partition = made(tmp_path, **TABLE | {"data__label": "score"}, data__path=path)
    assert (raw.classes, raw.train_labels.dtype, params.loss.name) == (0, np.float64, "squared")
    assert raw.train_labels.tolist() == pytest.approx(frame["score"].tolist())
    file = tmp_path / "partition.npz"
    partition.save(file)
    assert np.array_equal(Partition.load(file).labels, raw.train_labels[partition.indices])
    with pytest.raises(UserError, match=r"partition\.scheme: shards deals by classes.*iid"):
        made(tmp_path, **TABLE | {"data__label": "score"}, data__path=path, partition__scheme="shards")


def test_what_looks_odd_is_told(tmp_path):
    frame = table()
    frame["verdict"] = np.where(frame["label"] == "ja", 1, 0)
    frame["key"] = [f"row {i}" for i in range(len(frame))]
    frame.loc[len(frame)] = {**frame.iloc[0].to_dict(), "place": "alone"}
    frame["number"] = np.arange(len(frame))
    place = tmp_path / "tables"
    place.mkdir()
    frame.to_csv(place / "clients.csv", index=False)
    frame[:30].replace({"label": {"nein": "vielleicht"}}).to_csv(place / "Test.csv", index=False)
    frame.to_csv(place / "validate.csv", index=False)
    text = notes_of(
        tmp_path, **TABLE, data__path=str(place), data__features=["age", "job", "country", "verdict", "key", "number"]
    )
    for line in (
        "column 'country' is 'DE' throughout and left out",
        "column 'key' is left out: nearly every row has a text of its own there, such as 'row 0' (300 of 301)",
        "column 'number' numbers the rows",
        "validate.csv in ",
        "column 'verdict' gives away the class of 100.0 % of the rows",
        "class 'vielleicht' is in the test set alone",
        "class 'nein' is missing in the test set",
        "client 'alone' has one sample only",
        "30 of 30 test samples are also among the clients samples",
    ):
        assert f"note: {line}" in text


# ------------------------------------------------------------------------------------------- folders


def test_a_folder_of_images_of_mixed_sizes(tmp_path):
    params, raw, partition = made(tmp_path, data__name="folder", data__path=str(folder(tmp_path / "scans")))
    assert raw.train_images.shape == (36, 1, 16, 16)
    assert raw.train_images.dtype == np.uint8
    assert raw.class_names == ("große Zelle", "leer")
    assert (params.partition.scheme, params.model.name) == ("natural", "lenet5")
    assert partition.names == sorted(CLIENTS)
    bright = raw.train_images.mean((1, 2, 3)) > 110
    assert np.array_equal(bright, raw.train_labels == 0)
    assert any("several sizes" in note for note in raw.notes)
    picture = Image.open(next((tmp_path / "scans").rglob("*.png")))
    assert preprocessing.apply(raw.preprocessing, [picture, np.asarray(picture)]).shape == (2, 1, 16, 16)


def test_colours_sizes_and_given_sets(tmp_path):
    scans = folder(tmp_path / "scans")
    Image.new("RGB", (40, 40), (255, 0, 0)).save(scans / "clients" / "Graz" / "leer" / "red.jpg")
    for part in ("validation", "test"):
        for label in ("leer", "große Zelle"):
            (scans / part / label).mkdir(parents=True)
            Image.new("L", (16, 16), 77).save(scans / part / label / "a.png")
    _, raw, partition = made(tmp_path, data__name="folder", data__path=str(scans), data__image_size=8)
    assert raw.train_images.shape == (39, 3, 8, 8)
    assert (len(partition.server_validation), len(raw.test_labels)) == (2, 2)
    assert any("2 of 2 test samples are also among the validation samples" in note for note in raw.notes)


def test_unreadable_images_are_named_and_skipped_only_if_asked(tmp_path):
    scans = folder(tmp_path / "scans")
    (scans / "clients" / "Graz" / "leer" / "broken.png").write_bytes(b"no image")
    (scans / "clients" / "Graz" / "leer" / "notes.txt").write_text("notes")
    (scans / "Validation").mkdir()
    keys = {"data__name": "folder", "data__path": str(scans)}
    with pytest.raises(UserError, match=r"cannot be read: .*broken\.png\. Fix: .*skip_unreadable"):
        notes_of(tmp_path, **keys)
    text = notes_of(tmp_path, **keys, data__skip_unreadable=True)
    assert "broken.png" in text
    assert "1 files are no images" in text
    assert "note: Validation in " in text
    for file in (scans / "clients" / "Graz").rglob("*.png"):
        file.write_bytes(b"no image")
    assert "client 'Graz' is left out" in notes_of(tmp_path, **keys, data__skip_unreadable=True)


# -------------------------------------------------------------------------------------------- arrays


def arrays(tmp_path, **more) -> dict[str, str]:
    random = np.random.default_rng(0)
    X = random.normal(3, 2, (60, 4))
    content = {"X": X, "y": (X[:, 0] > 3).astype(int), "client": np.repeat(list(CLIENTS), 20), **more}
    np.savez(tmp_path / "a.npz", **{name: value for name, value in content.items() if value is not None})
    return {"data__name": "arrays", "data__path": str(tmp_path / "a.npz")}


def test_arrays_of_vectors_and_of_images(tmp_path):
    _, raw, partition = made(tmp_path, **arrays(tmp_path))
    assert raw.train_images.shape == (60, 4, 1, 1)
    assert np.abs(raw.train_images.mean(0)).max() < 0.3
    assert partition.names == sorted(CLIENTS)
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    _, raw, _ = made(tmp_path, **arrays(tmp_path, X=images, X_test=images[:5], y_test=np.arange(5) % 2))
    assert raw.train_images.shape == (60, 3, 8, 8)
    assert np.array_equal(raw.train_images[3, 1], images[3, :, :, 1])
    assert len(raw.test_labels) == 5
    _, raw, _ = made(tmp_path, **arrays(tmp_path, y=np.linspace(0, 1, 60), client=None))
    assert (raw.classes, raw.client_names) == (0, ())
