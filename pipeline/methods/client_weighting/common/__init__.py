"""What methods for client weighting share: estimators, steps, the lower level, the Neumann series."""
