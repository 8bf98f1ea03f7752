"""Papers' experiments, one folder each: a DVC project of its own on top of the library."""
