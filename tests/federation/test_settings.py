"""federation.yaml and site.yaml: one clear line for each mistake, and the commented files of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.config.spec import dotted
from pipeline.errors import UserError
from pipeline.federation import server
from pipeline.federation.hospital import site_of
from pipeline.federation.settings import Server, SiteSettings, read
from pipeline.federation.transports import InProcess
from pipeline.params import Params
from tests.federation.helpers import prepare

DOCS = Path(__file__).parents[2] / "docs"
KINDS = {"federation.yaml": Server, "site.yaml": SiteSettings}
EXAMPLES = {"sites", "name", "engine.host", "data.options"}
"""Keys whose values there are no defaults."""


@pytest.mark.parametrize("name", KINDS)
def test_the_commented_file_has_every_key_with_its_default(name):
    text = (DOCS / "federation" / name).read_text()
    given, usual = dotted(read(KINDS[name], DOCS / "federation" / name)), dotted(KINDS[name]())
    assert {key.partition(".label")[0] for key in given} == usual.keys()
    for key, value in usual.items():
        if key not in EXAMPLES:
            assert given[key] == value, key
        assert re.search(rf"^ *{key.rpartition('.')[2]}:", text, re.MULTILINE), key


GOOD = {
    "federation.yaml": "sites: [north, south]\npatience: 0.1\ngather: 0\ndata: {options: {label: diseased}}\n",
    "site.yaml": "name: north\ndata: {options: {label: diseased}}\n",
}
WRONG = {
    "federation.yaml": [
        ("", "sites is empty. Fix: name all sites"),
        ("sites: [north, north]", "sites names 'north' twice. Fix:"),
        ("sites: [north, no.rth]", "sites = 'no.rth' is not allowed: it must be letters, digits, - and _"),
        ("sites: [north, server]", "sites = 'server' is not allowed"),
        ("sites: north", 'sites = "north" is not allowed: it must be a list of texts'),
        ("min_site: 1", "min_site is not a known key. Did you mean min_sites?"),
        ("min_sites: 3", "min_sites = 3 is not allowed: it must be at most 2, of sites. Fix: lower it"),
        ("min_sites: two", 'min_sites = "two" is not allowed: it must be a whole number, at least 1'),
        ("timeout: 0", "timeout = 0 is not allowed: it must be a number, greater than 0"),
        ("payload: float16", "Did you mean bfloat16?"),
        ("engine: {port: 99999}", "engine.port = 99999 is not allowed"),
        ("engine: tcp", "engine = 'tcp' is not allowed: it must be a section of keys"),
        ("data: {validation: other.csv, options: {label: diseased}}", "other.csv does not exist. Fix:"),
        ("data: {options: {lable: diseased}}", "must be options of pipeline.federation.readers.csv_file: label. Fix:"),
        ("data: {options: {label: ill}}", "validation.csv: no column 'ill'"),
        ("data: {options: {label: age}}", "a whole number from 0 on. Fix: number the classes"),
        ("data: {reader: pathlib.Path.nowhere}", "data.reader = 'pathlib.Path.nowhere'"),
        ("data: {reader: tests.federation.test_settings.broken}", "failed on"),
        ("data: {reader: tests.federation.test_settings.other}", "returned int. Fix: (X, y, names of the columns)"),
    ],
    "site.yaml": [
        ("name: ''", "name is empty. Fix: name this site"),
        ("name: nor/th", "name = 'nor/th' is not allowed"),
        ("data: {path: nowhere.csv}", "nowhere.csv does not exist. Fix:"),
        ("data: {options: {label: diseased}, validation: 1.5}", "data.validation = 1.5 is not allowed"),
        ("data: {options: {label: diseased}, test: nowhere.csv}", "nowhere.csv does not exist. Fix:"),
        ("data: {options: {label: diseased}, test: site.yaml}", "site.yaml: no column 'diseased'"),
        ("privacy: {noise: 1}", "privacy.noise without privacy.clip. Fix:"),
        ("privacy: {clip: 0}", "privacy.clip = 0 is not allowed"),
        ("code: mine.net", 'code = "mine.net" is not allowed: it must be a list of texts'),
    ],
}


STARTED = {
    "federation.yaml": lambda folder: server.run(
        read(Server, folder / "federation.yaml"), server.params_in(folder), folder, InProcess({})
    ),
    "site.yaml": lambda folder: site_of(read(SiteSettings, folder / "site.yaml"), folder),
}


def broken(path):
    raise ZeroDivisionError("a fault of its own")


def other(path):
    return 3


@pytest.mark.parametrize(("name", "line", "said"), [(name, *case) for name, cases in WRONG.items() for case in cases])
def test_a_mistake_is_one_line_before_anyone_is_waited_for(tmp_path, name, line, said):
    folder = prepare(tmp_path, 1, 2)["server" if name == "federation.yaml" else "north"]
    key = line.partition(":")[0]
    kept = [each for each in GOOD[name].splitlines() if not each.startswith(f"{key}:")] if line else ["min_sites: 1"]
    (folder / name).write_text("\n".join([*kept, line]) + "\n")
    with pytest.raises(UserError) as found:
        STARTED[name](folder)
    text = str(found.value)
    assert said in text
    assert "\n" not in text
    assert "sites are there" not in text


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_is_not_there_or_empty_is_answered_with_the_example(tmp_path, name):
    place = tmp_path / name
    for text in (None, ""):
        if text is not None:
            place.write_text(text)
        with pytest.raises(UserError, match=f"Fix: write it; docs/federation/{name}"):
            read(KINDS[name], place)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age,diseased\n1,0\n2\n", "line 3: 1 cells, not 2"),
        ("age,diseased\n1,0\n2,x\n", "could not convert"),
        ("age,diseased\n1,0\n,1\n", "must be a finite number"),
        ("age,diseased\n1,0\n2,1.5\n", "label = '1.5'"),
        ("age,diseased\n1,0\n2,-1\n", "label = '-1.0'"),
        ("age,diseased\n", "or no rows"),
        ("age;diseased\n1;0\n", "no column 'diseased'"),
        (b"\xff\xfe1", "no UTF-8 text"),
    ],
)
def test_a_table_that_is_none_is_named(tmp_path, text, said):
    folder = prepare(tmp_path, 1, 2)["north"]
    (folder / "data.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as found:
        site_of(read_good(folder), folder)
    assert said in str(found.value)
    assert "data.csv" in str(found.value)


def read_good(folder):
    (folder / "site.yaml").write_text(GOOD["site.yaml"])
    return read(SiteSettings, folder / "site.yaml")


def test_a_table_as_spreadsheets_save_it(tmp_path):
    """With a byte order mark and an empty last line."""
    folder = prepare(tmp_path, 1, 2)["north"]
    (folder / "data.csv").write_bytes("\ufeffdiseased,age\r\n1,30\r\n0,40\r\n\r\n".encode())
    assert site_of(read_good(folder), folder)._describe([])["columns"] == ["age"]


def test_more_classes_than_named_are_named(tmp_path):
    folder = prepare(tmp_path, 1, 2)["server"]
    place = folder / "validation.csv"
    place.write_text(place.read_text().replace(",1.0\n", ",2.0\n").replace(",1.0\r\n", ",2.0\r\n"))
    (folder / "federation.yaml").write_text(GOOD["federation.yaml"])
    with pytest.raises(UserError, match=r"classes = 2, and validation.csv has the label 2\. Fix: as many"):
        STARTED["federation.yaml"](folder)


def test_without_params_yaml_every_setting_is_the_default(tmp_path, capsys):
    assert server.params_in(tmp_path) == Params()
    assert "no params.yaml: every setting is the default" in capsys.readouterr().err
