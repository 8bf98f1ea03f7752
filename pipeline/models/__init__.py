"""The networks, each usable as a function of one flat parameter vector.

A new one is a function (channels, image_size, classes, **options) -> nn.Module and its line in ``MODELS``;
one's own needs no line: ``model.name`` is then its dotted path.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.config import own_code
from pipeline.errors import UserError, not_allowed
from pipeline.models.flat import FlatModel
from pipeline.models.networks import Normalise, cnn, conv4, lenet5, lenet_wide, linear, mlp, mlp3
from pipeline.models.resnet import resnet18
from pipeline.models.trial import require_steady, tried

__all__ = ["AUTOMATIC", "MODELS", "FlatModel", "Normalise", "automatic", "build", "source_files", "tried"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "mlp3": mlp3,
    "lenet5": lenet5,
    "lenet_wide": lenet_wide,
    "cnn": cnn,
    "conv4": conv4,
    "resnet18": resnet18,
}

AUTOMATIC = {
    "lenet5": "images of 12 to 64 pixels",
    "conv4": "larger images",
    "mlp": "smaller ones, and vectors",
    "linear": "vectors, if there are fewer than 1000 and the problem needs no body",
}
"""What `model.name: auto` chooses from, and when."""


def automatic(size: int, samples: int, body: bool = False) -> str:
    """A network for images of size x size pixels, or, at size 1, for vectors. body: whether it must have one."""
    if size == 1:
        return "mlp" if body or samples >= 1000 else "linear"
    if size < 12:
        return "mlp"
    return "lenet5" if size <= 64 else "conv4"


_FORM = "(channels, image_size, classes, **options) -> torch.nn.Module"


def build(
    name: str, channels: int, image_size: int, classes: int, options: Mapping[str, Any] | None = None
) -> FlatModel:
    """The network ``model.name`` with ``model.options``, tried on two images.

    name: a key of ``MODELS``, or the dotted path of your own function. Every mistake is a ``UserError``.
    """
    function = _function(name)
    options = dict(options or {})
    _check_call(name, function, (channels, image_size, classes), options)
    model = FlatModel(partial(_made, name, function, channels, image_size, classes, options), _label(name))
    _try(name, model, torch.Size([2, channels, image_size, image_size]), classes)
    return model


def source_files(name: str) -> list[Path]:
    """The files that define a custom model, see `own_code.source_files`; [] for a built-in."""
    if "." not in name:
        return []
    _function(name)
    return own_code.source_files(name)


def _label(name: str) -> str:
    return f"model.name = {name!r}"


def _function(name: str) -> Callable[..., nn.Module]:
    """The function behind a name; or dotted path."""
    if "." not in name:
        if name in MODELS:
            return MODELS[name]
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)
        allowed = f"one of {', '.join(MODELS)}, or the dotted path of your own function"
        raise not_allowed("model.name", name, allowed, f"write {near[0] if near else 'lenet5'}")
    return own_code.found_at("model.name", name, None, "function", f", as {_FORM}")


def _check_call(
    name: str, function: Callable[..., nn.Module], shape: tuple[int, int, int], options: dict[str, Any]
) -> None:
    """Whether the function takes these arguments at all, before it is called."""
    try:
        signature = inspect.signature(function)
        signature.bind(*shape, **options)
    except ValueError:  # no signature to look at; calling it will show
        return
    except TypeError as error:
        if name not in MODELS:
            raise UserError(
                f"{_label(name)} with model.options = {options!r}: it cannot be called ({own_code.cause(error)})."
                f" Fix: define it as {_FORM}, and give in model.options only what it takes."
            ) from error
        known = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        wrong = next(key for key in options if key not in known)
        near = difflib.get_close_matches(str(wrong), known, n=1)
        fix = f"write {near[0]} instead of {wrong}" if near else f"remove {wrong}"
        allowed = f"a mapping with keys among {', '.join(known)}" if known else f"{{}}, for {name} has no options"
        raise not_allowed("model.options", options, allowed, fix) from error


def _made(
    name: str,
    function: Callable[..., nn.Module],
    channels: int,
    image_size: int,
    classes: int,
    options: dict[str, Any],
) -> nn.Module:
    """The network, or a ``UserError``."""
    try:
        network = function(channels, image_size, classes, **options)
    except Exception as error:
        raise UserError(
            f"{_label(name)} with model.options = {options!r} failed for {channels} x {image_size} x"
            f" {image_size} images and {classes} classes ({own_code.cause(error)})."
            f" Fix: correct model.options, or choose another model.name."
        ) from error
    if not isinstance(network, nn.Module):
        raise UserError(
            f"{_label(name)} returned {type(network).__name__}, not a torch.nn.Module. Fix: define it as {_FORM}."
        )
    return network


def _try(name: str, model: FlatModel, shape: torch.Size, classes: int) -> None:
    """Logits must be [2, classes], and steady."""
    black = model.initial(0).new_zeros(shape)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = model.apply(model.initial(0), black)
    except Exception as error:
        raise UserError(
            f"{_label(name)} fails on images of shape {list(shape)} ({own_code.cause(error)})."
            f" Fix: make forward accept [batch, channels, height, width]."
        ) from error
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(
            f"{_label(name)} answers two images with {got}. Fix: return logits of shape [batch, {classes}]."
        )
    if name in MODELS:
        require_steady(_label(name), model, black)
    else:
        tried(_label(name), model, black)
