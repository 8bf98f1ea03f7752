"""Besides the runs that params.yaml declares: the toy's repetitions, and a page of its own kind."""

from experiments.primal_dual_weighting.page import write_page
from experiments.primal_dual_weighting.toy import run
from experiments.primal_dual_weighting.toy import toy_cells as cells

__all__ = ["cells", "run", "write_page"]
