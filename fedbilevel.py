"""Federated bilevel learning: `import fedbilevel as fb`, then `fb.fit`."""

from pipeline.api import fit
from pipeline.errors import UserError
from pipeline.fitted import Fit
from pipeline.leave_one_out import leave_one_out

__all__ = ["Fit", "UserError", "fit", "leave_one_out"]
