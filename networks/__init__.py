"""Your own networks: `model.name: networks.example.small` in params.yaml finds `small` in networks/example.py.

DVC watches this folder, so an edit here retrains. A network elsewhere on the import path works too, but DVC does not
see its edits.
"""
