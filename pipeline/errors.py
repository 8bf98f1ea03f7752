"""The one exception for mistakes a user can correct: it says what, which value, what is allowed, and the fix."""

from __future__ import annotations

from pipeline.text import clipped


class UserError(Exception):
    """A mistake in the parameters, the data folder or the environment.

    Stages print ``str(error)`` on standard error, without a traceback, and exit with code 1.
    """


def not_allowed(key: str, value: object, allowed: str, fix: str) -> UserError:
    """The house form of a complaint about one parameter: key, value, allowed values, fix."""
    return UserError(f"{key} = {clipped(repr(value), 200)} is not allowed: it must be {allowed}. Fix: {fix}.")
