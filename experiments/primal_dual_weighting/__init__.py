"""Table and figures of "Efficient Weighting and Optimization in Federated Learning: A Primal-Dual Approach".

| module | what |
|---|---|
| `more` | what the engine (`experiments.study`) finds here besides params.yaml |
| `toy` | Figures 1 and 2: repetitions of the toy problem |
| `tables`, `figures`, `page` | what is made of the runs |
"""
