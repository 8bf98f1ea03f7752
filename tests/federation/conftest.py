import pytest

from pipeline.federation import results


@pytest.fixture(autouse=True)
def _no_tracker(monkeypatch, request):
    """Runs here use no tracker and export no model, unless that is what is tested."""
    if request.node.get_closest_marker("slow"):
        return
    from contextlib import contextmanager
    from types import SimpleNamespace

    @contextmanager
    def live(*_):
        yield SimpleNamespace(report=lambda rows: None, info=None)

    monkeypatch.setattr(results, "live", live)
    monkeypatch.setattr(results, "send", lambda *_: None)
    if "exports" not in request.fixturenames:
        monkeypatch.setattr(results, "export", lambda *_: None)


@pytest.fixture
def exports():
    """The MLflow model is written."""


@pytest.fixture
def started():
    """Processes that a test starts; none outlives it."""
    running = {}
    yield running
    for process in running.values():
        process.kill()
        process.wait()
