"""Table and figures of "Efficient Weighting and Optimization in Federated Learning: A Primal-Dual Approach".

| module | what |
|---|---|
| `params` | what params.yaml may hold |
| `grid` | which runs the table and figures consist of |
| `toy` | Figures 1 and 2: repetitions of the toy problem |
| `winners` | step sizes by accuracy on the selection set |
| `tables`, `figures`, `page` | what is made of the runs |
| `__main__` | the commands of dvc.yaml |
"""
