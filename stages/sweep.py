"""`make sweep`: the runs that `sweep` in params.yaml names, each with results and a tracker's run of its own."""

from pipeline.command import Paths, run
from pipeline.config.spec import dotted
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.params.decides import params_in_use
from pipeline.report.page.sweep import write_sweep_page
from pipeline.report.record import describe_sweep
from pipeline.report.sweep import metrics, table, write_summary
from pipeline.sweep.plan import plan
from pipeline.sweep.running import run_all
from pipeline.tracking.sweeps import sweep_runs


def sweep(params: Params, paths: Paths) -> None:
    runs = plan(params)
    paths.sweep.mkdir(parents=True, exist_ok=True)
    for name in ("summary.csv", "report.html"):
        (paths.sweep / name).unlink(missing_ok=True)  # of a sweep before
    record = describe_sweep([dotted(run.params) for run in runs], list(runs[0].varied))
    with sweep_runs(params.tracking, paths.root, record, paths.sweep) as tracker:
        run_all(runs, params.sweep.together, paths, tracker.child)
        write_summary(runs, paths.sweep)
        write_sweep_page(runs, record, params_in_use(dotted(runs[0].params)), paths.sweep)
    print(table(runs, paths.sweep))
    if not any(metrics(paths.sweep / run.name) for run in runs):
        raise UserError(f"every run diverged; run.json in the folders of {paths.sweep} says where. Fix: smaller steps.")


if __name__ == "__main__":
    run(sweep)
