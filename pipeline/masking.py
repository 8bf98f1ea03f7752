"""Credentials stay in the process's memory: what is written, sent or printed shows *** in their place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, TextIO

_VARIABLES = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "FEDBILEVEL_DATA_MIRROR",
    "AWS_SECRET_ACCESS_KEY",
)
_IN_ADDRESS = re.compile(r"([A-Za-z][\w+.-]*://)([^\s/?#'\"]*)@")
_WITHOUT_SCHEME = re.compile(r"(?<![\w/@:.+-])([\w.+-]+:[^\s/?#'\"@:]+)@(?=[\w\[])")
"""`user:password@host`, as a path may have it."""
_IN_QUERY = re.compile(r"([?&;][^=&;\s]*(?:pass|pwd|token|secret|key|sig|cred)[^=&;\s]*=)([^&;\s'\"]+)", re.IGNORECASE)
_known: set[str] = set()


def remember(address: str | None) -> None:
    """Keep this address's credentials out of every text, also where they stand without it."""
    for found in _IN_ADDRESS.finditer(address or ""):
        user, _, password = found[2].partition(":")
        _known.update(each for each in (found[2], password or user) if len(each) > 3)
    _known.update(found[2] for found in _IN_QUERY.finditer(address or "") if len(found[2]) > 3)


def masked(text: str) -> str:
    """The text without user names and passwords in addresses, and without any that are known."""
    text = _WITHOUT_SCHEME.sub("***@", _IN_QUERY.sub(r"\1***", _IN_ADDRESS.sub(r"\1***@", text)))
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def remember_environment(environment: Mapping[str, str] = os.environ) -> None:
    """What the environment holds."""
    for name in _VARIABLES:
        value = environment.get(name)
        remember(value)
        if value and "://" not in value and len(value) > 3 and name.endswith(("PASSWORD", "TOKEN", "KEY")):
            _known.add(value)


class Masked:
    """A text stream that writes no credentials."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(masked(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
