"""Federated bilevel learning: `import fedbilevel as fb`, then `fb.fit`."""

from pipeline.api import fit
from pipeline.errors import UserError
from pipeline.fitted import Fit

__all__ = ["Fit", "UserError", "fit"]
