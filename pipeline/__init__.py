"""Federated bilevel learning: learn how much to trust each client while the shared model trains."""

__version__ = "0.1.0"
