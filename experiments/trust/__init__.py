"""Federations that no default was tuned for: whom each method trusts, and what that wins or loses."""
