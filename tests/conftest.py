"""Shared by all tests: one thread per process (pytest-xdist runs several), no tracker or telemetry by accident."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DVC_NO_ANALYTICS"] = "1"
for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "DVC_ROOT", "DVC_STAGE"):
    os.environ.pop(name, None)
