"""No text shows a credential."""

import io

import pytest

from pipeline import masking
from pipeline.report.record import RunInfo


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(masking, "_known", set())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://alice:pw@host:5000/a", "http://***@host:5000/a"),
        ("failed: postgresql+psycopg://a:p@ss@db/x, again", "failed: postgresql+psycopg://***@db/x, again"),
        ("https://token@host", "https://***@host"),
        ("s3://bucket/a?X-Amz-Signature=abc&part=2", "s3://bucket/a?X-Amz-Signature=***&part=2"),
        ("https://host/x?api_key=abc;b=1", "https://host/x?api_key=***;b=1"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
        ("http://host/a@b and x@y", "http://host/a@b and x@y"),
        ("data.path: me:pw@host:/x.csv does not exist", "data.path: ***@host:/x.csv does not exist"),
        ("/data/a:b@c.csv at 12:30 @ me@host", "/data/a:b@c.csv at 12:30 @ me@host"),
    ],
)
def test_addresses_are_shown_without_their_credentials(text, shown):
    assert masking.masked(text) == shown


def test_a_known_password_is_masked_wherever_it_stands():
    masking.remember("http://alice:hunter2@host/")
    masking.remember_environment({"MLFLOW_TRACKING_TOKEN": "abcdefgh"})
    assert masking.masked("nonnumeric port: 'hunter2@host' for abcdefgh") == "nonnumeric port: '***@host' for ***"
    stream = io.StringIO()
    print("it is hunter2", file=masking.Masked(stream))
    assert stream.getvalue() == "it is ***\n"


def test_the_record_of_a_run_holds_no_credential(tmp_path):
    RunInfo("http://alice:hunter2@host/", "x").save(tmp_path / "run.json")
    assert "hunter2" not in (tmp_path / "run.json").read_text()
    assert RunInfo.load(tmp_path / "run.json") == RunInfo("http://alice:hunter2@host/", "x")
