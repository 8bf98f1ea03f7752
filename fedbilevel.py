"""Federated bilevel learning: `import fedbilevel as fb`, then `fb.fit`."""

from pipeline.api import Fit, fit
from pipeline.errors import UserError

__all__ = ["Fit", "UserError", "fit"]
