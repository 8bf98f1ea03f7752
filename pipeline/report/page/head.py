"""The first screen: the question, the answer, the key figures."""

from __future__ import annotations

from typing import Any

from pipeline.problems.registry import problem_named
from pipeline.report.numbers import UNCHECKED
from pipeline.report.page.story import Story
from pipeline.report.page.words import counted, duration, listed, percent


def head(story: Story) -> dict[str, Any]:
    """name, title, question, answer and tiles."""
    metrics = story.metrics
    return {
        "name": story.record.name,
        "title": f"{metrics['algorithm']} on {metrics['dataset']}",
        "question": question(story),
        "answer": answer(story),
        "tiles": tiles(story),
    }


def question(story: Story) -> str:
    """What the run asks."""
    problem, n = story.metrics["problem"], counted(len(story.clients), story.who)
    if problem == "toy":
        return f"How close does the method come to the known optimum of a problem with {n}?"
    if story.learned and problem == "client_weighting":
        return (
            f"A server with a small clean validation set trains one model with {n}. Which {story.who}s can it trust,"
            " and how good is the model?"
        )
    if problem in ("client_weighting", "consensus"):
        return f"How good is the model that {n} train together under fixed weights?"
    return f"{n} train together ({problem}: {problem_named(problem).summary}). How good is the result?"


def answer(story: Story) -> dict[str, Any]:
    """tone: how to colour it; lines: most important first."""
    metrics, lines, tone = story.metrics, [], ""
    if "test_accuracy" in metrics:
        tested = (story.holdings.sets if story.holdings else {}).get("test")
        of = f" of {tested:,} test samples" if tested else " of the test samples"
        lines.append(f"The model is right on {percent(metrics['test_accuracy'], 2)}{of}.")
    if "test_rmse" in metrics:
        lines.append(
            f"On the test set the model is off by {metrics['test_rmse']:.4g} (root mean square) and explains"
            f" {percent(metrics['test_r2'])} of the variance."
        )
    if "stationarity" in metrics:
        lines.append(
            f"Upper value {metrics['upper_value']:.6g}, stationarity {metrics['stationarity']:.3g} (0 at the optimum)."
        )
    if story.learned:
        lines += _about_weights(story)
        if story.holdings and story.holdings.unchecked:
            lines.append(f"{UNCHECKED[0].upper()}{UNCHECKED[1:]}.")
        doubt = story.suspects or (story.light if story.clients.disagrees is None else [])
        tone = "warn" if story.settled is False else "" if doubt else "good"
    return {"tone": tone, "lines": lines + story.remarks}


def _about_weights(story: Story) -> list[str]:
    if story.settled is False:
        return [
            f"The weights have not settled: train on (more rounds). Until then no {story.who} is ranked or suspected."
        ]
    start = "The weights have settled" if story.settled else "This method does not say whether its weights have settled"
    sure = "surely less" if story.clients.interval is not None else "less"
    share = f"{sure} than half of an equal share"
    if not story.suspects and not story.light:
        start += f"; no {story.who} holds {share}"
    lines = [f"{start}."]
    if story.suspects:
        their = "its" if len(story.suspects) == 1 else "their"
        who = _holding(story, story.suspects, share)
        lines.append(f"Suspicious: {who}, and the model disagrees with {their} labels.")
    if story.light:
        against = "it" if len(story.light) == 1 else "them"
        speaks = f"the model agrees with the labels, so nothing else speaks against {against}"
        if story.clients.disagrees is None:
            speaks = "a low weight alone is no evidence of bad data"
        lines.append(f"{_holding(story, story.light, share)}; {speaks}.")
    if "detection_auc" in story.metrics:
        lines.append(
            "Which clients are bad is known here: the clean ones hold"
            f" {percent(story.metrics['clean_weight'])} of the weight, no bad one more than"
            f" {percent(story.metrics['max_noise_weight'])}."
        )
    return lines


def _holding(story: Story, which: list[int], share: str) -> str:
    names = listed([story.clients.names[i] for i in which])
    return f"{counted(len(which), story.who)} {'holds' if len(which) == 1 else 'hold'} {share} ({names})"


def _doubted(story: Story) -> dict[str, str]:
    """How many are suspicious; of light ones, where no one has compared labels."""
    of = f"of {counted(len(story.clients), story.who)}"
    if story.clients.disagrees is None and story.light:
        return {"value": str(len(story.light)), "label": f"{of} below half of an equal share", "tone": ""}
    count = len(story.suspects)
    return {"value": str(count), "label": f"{of} suspicious", "tone": "bad" if count else "good"}


def tiles(story: Story) -> list[dict[str, str]]:
    """Key figures, most important first."""
    metrics, found = story.metrics, []
    for name, label in (("test_accuracy", "test accuracy"), ("average_accuracy", "mean accuracy of the clients")):
        if name in metrics:
            found.append({"value": percent(metrics[name], 2), "label": label, "tone": ""})
    for name, label in (("test_rmse", "test error (root mean square)"), ("test_r2", "test R2")):
        if name in metrics:
            found.append({"value": f"{metrics[name]:.4g}", "label": label, "tone": ""})
    if "stationarity" in metrics:
        found.append({"value": f"{metrics['stationarity']:.3g}", "label": "stationarity", "tone": ""})
    if story.learned:
        says = {True: ("settled", "good"), False: ("not settled", "warn"), None: ("not known", "")}
        value, tone = says[story.settled]
        found.append({"value": value, "label": f"{story.who} weights", "tone": tone})
        if story.settled is not False:
            found.append(_doubted(story))
    if story.learned and "detection_auc" in metrics:
        found.append({"value": percent(metrics["clean_weight"]), "label": "of the weight on clean clients", "tone": ""})
    rounds = {"value": f"{story.record.rounds:,}", "label": "rounds", "tone": ""}
    seconds = story.rows[-1].get("seconds") if story.rows else None
    if seconds is not None:
        rounds["label"] = f"rounds in {duration(seconds)}"
    return [*found, rounds]
