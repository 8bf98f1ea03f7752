"""The page says what is known, does not rank what has not settled, and holds whatever clients are called."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from pipeline.report.clients import Clients, default_names
from pipeline.report.evidence import Evidence
from pipeline.report.page.render import render, run_page, write_page
from pipeline.report.page.story import Holdings, Story
from pipeline.report.page.sweep import write_sweep_page
from pipeline.report.page.words import duration, large, listed
from pipeline.report.series import read_history
from pipeline.report.writing import write_json
from pipeline.training.evaluation import Classification
from tests.report.synthetic import KINDS, LABELS, ORACLE, SAMPLES, Synthetic

PARAMS = {
    "seed": 0,
    "data.name": "digits",
    "problem": "client_weighting",
    "algorithm": "primal_dual",
    "algorithms.primal_dual.gamma": 1.0,
    "train.rounds": 40,
}
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Elements in order, with their text; the tags must nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def story(tmp_path: Path) -> Story:
    made = Synthetic(tmp_path)
    made.write()
    weights, rng = made.weights(), np.random.default_rng(0)
    confusion = np.diag(rng.integers(30, 38, 10)) + (rng.random((10, 10)) < 0.08)
    recall = (np.diag(confusion) / confusion.sum(1)).tolist()
    test = Classification(0.9778, 0.08, recall, recall, recall, confusion)
    counts = np.array([[60 * (c in LABELS[i]) for c in range(10)] for i in range(10)])
    metrics = {
        "algorithm": "primal_dual", "problem": "client_weighting", "dataset": "digits", "test_accuracy": 0.9778,
        "clean_weight": 0.99, "max_noise_weight": 0.003, "detection_auc": 1.0, "weights_settled": True,
    }  # fmt: skip
    return Story(
        record=replace(made.record, params=PARAMS),
        metrics=metrics,
        clients=Clients(
            default_names(10), KINDS, LABELS, SAMPLES, weights[-1], oracle=ORACLE, disagrees=np.arange(10) > 3
        ),
        rows=read_history(tmp_path / "results" / "history.csv"),
        weights=weights,
        test=test,
        holdings=Holdings({"validation": 100, "test": 359}, [str(c) for c in range(10)], counts),
        evidence=Evidence(np.linspace(-1.5, 1.5, 10), np.linspace(1, 0.1, 10), np.full(10, 0.97)),
    )


def written(story: Story) -> str:
    text = render("run.html.j2", run_page(story))
    Page(text)
    return text


def seen(text: str) -> str:
    """What a reader sees: no style, no tags, blanks as one."""
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def test_the_first_screen_answers(story: Story) -> None:
    text = seen(written(story))
    assert "Which clients can it trust" in text
    assert "The model is right on 97.78 % of 359 test samples." in text
    assert "Suspicious: 6 clients hold less than half of an equal share (client 4, client 5" in text
    assert "1 client holds less than half of an equal share (client 3); the model agrees with the labels" in text
    assert "Suspicious clients, and why" in text
    assert text.index("client 0 clean") < text.index("client 3 noisy")
    assert "raises 1.50" in text
    assert "lowers 1.50" in text
    assert "gamma: 1.0" in text


def test_it_is_one_file(story: Story, tmp_path: Path) -> None:
    for path in (tmp_path / "a.html", tmp_path / "b.html"):
        write_page(story, path)
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert page.tags.count("svg") == 3
    assert all(address.startswith("#") for address in page.addresses)
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert not re.search(r"url\((?!#)|@import", text)


def test_weights_that_have_not_settled_are_not_ranked(story: Story) -> None:
    story = replace(story, metrics={**story.metrics, "weights_settled": False})
    story = replace(story, clients=replace(story.clients, weights=story.clients.weights[::-1].copy()))
    text = seen(written(story))
    assert "have not settled: train on" in text
    assert "suspicious" not in text.replace("suspected", "")
    assert text.index("client 0 clean") < text.index("client 9 noisy")
    assert "so this is no verdict" in text


def test_names_and_classes_may_hold_anything(story: Story) -> None:
    names = ["<script>alert(1)</script>", 'St. Mary\'s & "Söhne"', "$a$ | b", "--> X", "東京", "&amp;", *"ghij"]
    classes = ["<b>bold", "a b", "ß", "</style>", *"efghij"]
    clients = replace(story.clients, names=names, kinds=["unknown"] * 10, oracle=None)
    metrics = {name: value for name, value in story.metrics.items() if "weight" not in name and "auc" not in name}
    assert story.holdings
    holdings = replace(story.holdings, classes=classes, columns={"missing values": ["1 %"] * 10})
    text = written(replace(story, clients=clients, holdings=holdings, metrics={**metrics, "weights_settled": True}))
    assert "<script>" not in text
    assert text.count("</style>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "St. Mary&#39;s &amp; &#34;Söhne&#34;" in text
    assert "&lt;b&gt;bold" in text
    assert "oracle" not in seen(text)
    assert "missing values" in seen(text)
    assert "(東京, &amp;amp;, g, h, i and j)" in seen(text)
    assert "(--&gt; X)" in seen(text)


def test_intervals_and_equal_weights(story: Story) -> None:
    w = story.clients.weights
    ends = np.stack([np.clip(w - 0.02, 0, 1), w + 0.02])
    text = seen(written(replace(story, clients=replace(story.clients, interval=ends))))
    assert "surely less than half" in text
    assert f"{ends[0, 0]:.4f} to {ends[1, 0]:.4f}" in text
    fixed = replace(story, weights=np.full((41, 10), 0.1), clients=replace(story.clients, weights=np.full(10, 0.1)))
    fixed = replace(fixed, metrics={"algorithm": "average", "problem": "consensus", "dataset": "digits"})
    text = seen(written(fixed))
    assert "under fixed weights" in text
    assert "Whom the server trusts" not in text
    assert "What speaks for and against each client" in text


def test_hundreds_of_clients_and_classes(story: Story) -> None:
    n, c = 300, 40
    weights = np.random.default_rng(0).dirichlet(np.ones(n), size=41)
    clients = Clients(default_names(n), ["clean"] * 200 + ["noisy"] * 100, [[0, 1, 5]] * n, [9] * n, weights[-1])
    test = Classification(0.5, 1.0, [0.5] * c, [0.5] * c, [0.5] * c, np.ones((c, c), dtype=int))
    holdings = Holdings({"test": 40}, [str(i) for i in range(c)], np.ones((n, c), dtype=int))
    evidence = Evidence(agreement=np.linspace(0, 1, n))
    text = written(replace(story, clients=clients, weights=weights, test=test, holdings=holdings, evidence=evidence))
    assert len(text) < 500_000
    assert "260 clients between these" in seen(text)
    assert "median of the" in seen(text)
    assert "What it takes for what" not in text


def test_the_toy_has_a_page(story: Story) -> None:
    rows = [{"round": float(r), "seconds": 0.1, "validation_loss": 1.0, "upper_value": 2.0 / (r + 1),
             "stationarity": 0.1 / (r + 1)} for r in range(5)]  # fmt: skip
    metrics = {"algorithm": "primal_dual", "problem": "toy", "dataset": "toy", "upper_value": 0.4, "stationarity": 0.02}
    params = {"seed": 0, "data.name": "toy", "problem": "toy", "algorithm": "primal_dual", "train.rounds": 4}
    clients = Clients.alike(np.array([0.5, 0.3, 0.2]))
    weights = np.linspace([1 / 3] * 3, clients.weights, 5)
    toy = Story(replace(story.record, params=params, rounds=4), metrics, clients, rows, weights)
    text = seen(written(toy))
    assert "known optimum" in text
    assert "stationarity 0.02 (0 at the optimum)" in text
    assert "Accuracy by class" not in text


class Run:
    def __init__(self, eta: float, seed: int) -> None:
        self.name, self.varied = f"eta={eta},seed={seed}", {"algorithms.primal_dual.eta_w": eta, "seed": seed}
        self.values = {"algorithms.primal_dual.eta_w": eta}


def test_a_sweep_has_a_page(tmp_path: Path) -> None:
    runs = [Run(eta, seed) for eta in (0.1, 0.4) for seed in (0, 1)]
    for run in runs[:3]:
        Synthetic(tmp_path / run.name).write()
        (tmp_path / run.name / "results").rename(tmp_path / "moved")
        for file in (tmp_path / "moved").iterdir():
            file.rename(tmp_path / run.name / file.name)
        (tmp_path / "moved").rmdir()
        chosen = {"selection_accuracy": run.values["algorithms.primal_dual.eta_w"], "test_accuracy": 0.9}
        write_json(tmp_path / run.name / "metrics.json", chosen | {"weights_settled": run.varied["seed"] == 0})
    record = replace(Synthetic(tmp_path).record, name="sweep of <eta> (2), seed (2): primal_dual")
    write_sweep_page(runs, record, PARAMS, tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags.count("svg") == 2
    assert "Sweep of &lt;eta&gt; (2)" in text
    shown = seen(text)
    assert "In 1 run the weights have not settled" in shown
    assert "eta=0.4,seed=1 diverged" in shown
    assert "values: algorithms.primal_dual.eta_w: - 0.1 - 0.4" in shown


def test_numbers_in_words() -> None:
    assert [large(x) for x in (0, 999.0, 12345.0, 12_345_678.0, 3.2e10)] == [
        "0", "999", "12,345", "12.3 million", "32 billion",
    ]  # fmt: skip
    assert [duration(x) for x in (1.234, 75, 3700)] == ["1.23 s", "1 min 15 s", "1 h 1 min"]
    assert [listed(list("abc")[:k]) for k in (0, 1, 2, 3)] == ["", "a", "a and b", "a, b and c"]
    assert listed([str(k) for k in range(15)]).endswith("11 and 3 more")
