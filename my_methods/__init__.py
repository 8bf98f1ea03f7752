"""Your own methods: `algorithm: my_methods.robust.ROBUST` in params.yaml finds the `Algorithm` ROBUST in
my_methods/robust.py. `examples/trimmed.py` is one to start from.

DVC watches this folder, so an edit here retrains. A method elsewhere on the import path works too, but DVC does not see
its edits.
"""
