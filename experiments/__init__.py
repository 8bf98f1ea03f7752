"""Papers' experiments, a DVC project of its own on top of the library.

| module | what |
|---|---|
| `study`, `params` | what the params.yaml of a study's folder declares |
| `cells`, `former` | single runs: their names, and what comes out |
| `results`, `workers`, `provenance` | results files, processes that fill them, with which code |
| `report`, `tracking` | the page, the tracker |
| `command`, `__main__` | the command line |
"""
