"""Methods that learn, or fix, one weight per client while every client is evaluated at the same model w."""

from pipeline.methods.client_weighting.common.weighting_context import WEIGHTING, ServerOptions, WeightingContext

__all__ = ["WEIGHTING", "ServerOptions", "WeightingContext"]
