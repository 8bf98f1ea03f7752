"""Your own methods, problems and partition schemes: `algorithm: my_methods.robust.ROBUST` in params.yaml finds the
`Algorithm` ROBUST in my_methods/robust.py; so `problem` a `Formulation` and `partition.scheme` a `Scheme`. `examples/`
has one of each to start from.

DVC watches this folder, so an edit here runs again what it must. A module elsewhere on the import path works too, but
DVC does not see its edits.
"""
