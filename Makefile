# All commands. `make run` and `make test` work on a fresh machine with Python >= 3.11, make and git.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
FEDERATION := .venv/.federation

# Byte code matters: every stage is a new process that imports torch.
export PYTHONDONTWRITEBYTECODE :=
export MLFLOW_DISABLE_TELEMETRY := true
export DVC_NO_ANALYTICS := 1

.PHONY: help setup run recipe sweep paper paper-quick experiments test test-fast test-federation fuzz nightly docs \
	federation-demo check audit ui publish bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## the virtual environment with the project in it

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than 3.11. Fix: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode -c constraints.txt -e '.[dev]'
	@touch $@

run: setup ## the whole pipeline on the committed params.yaml
	@$(BIN)/python -m stages.check # first, for a clear message: DVC cannot read a broken params.yaml either
	$(BIN)/dvc repro

recipe: setup ## settings tuned for one data set into params.yaml: NAME=printed; without NAME the list of them
	@$(BIN)/python -m stages.recipe $(NAME)

sweep: setup ## the runs that `sweep` in params.yaml names: seeds and values, results in results/sweep
	@$(BIN)/python -m stages.sweep

# Experiments are a DVC project of their own. The library lies outside of them, where no .dvcignore counts, so that what
# Python leaves beside its modules would be a change.
paper-quick paper experiments: export PYTHONDONTWRITEBYTECODE := 1
NO_BYTE_CODE := find pipeline -name __pycache__ -prune -exec rm -rf {} +

paper-quick: setup ## the lead paper's experiments on digits and the toy: under ten minutes on two cores, no download
	$(BIN)/python -m experiments primal_dual_weighting plan quick
	@$(NO_BYTE_CODE)
	cd experiments/primal_dual_weighting && $(CURDIR)/$(BIN)/dvc repro quick-page

paper: setup ## the lead paper's experiments in full (says first how long it takes here)
	$(BIN)/python -m experiments primal_dual_weighting plan full
	@$(NO_BYTE_CODE)
	cd experiments/primal_dual_weighting && $(CURDIR)/$(BIN)/dvc repro full-page

STUDY ?= simfbo
PROFILE ?= quick

experiments: setup ## another paper's: STUDY=simfbo|fedbio|a_fedpd|client_weights|trust|bad_answers PROFILE=quick|full
	$(BIN)/python -m experiments $(STUDY) plan $(PROFILE)
	@$(NO_BYTE_CODE)
	cd experiments/$(STUDY) && $(CURDIR)/$(BIN)/dvc repro $(PROFILE)-page

# Left out are tests marked slow: runs until a method rests at its limit, in several processes, or through DVC.
test-fast: setup ## the tests of the methods, problems, oracles and parameters, without slow ones: no run to a method's limit
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(addprefix tests/,$(FAST))

FAST := core oracles params problems

test: setup ## the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

fuzz: setup ## 10,000 odd files against every reader, others in each run; nightly
	FEDBILEVEL_FUZZ=10000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz

nightly: fuzz ## fuzz, every command of the documentation, 500 damaged saves, 36 kills: an hour or two on one core
	FEDBILEVEL_NIGHTLY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(LONG)

LONG := tests/training/test_saves.py tests/stages/test_kills.py tests/stages/test_documented.py

docs: setup ## the documentation as pages: build/docs/index.html, no network needed to read it
	@$(BIN)/python -c 'import sphinx, myst_parser, furo' 2>/dev/null || \
		$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[docs]'
	$(BIN)/python -m pipeline.params --check
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

# Real sites need an engine and an accountant that nothing else here uses.
$(FEDERATION): $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode -c constraints.txt -e '.[federation]'
	@touch $@

test-federation: $(FEDERATION) ## the tests that need NVFlare: real processes, killed and started again; installs it
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(addprefix tests/federation/,$(SITES))

SITES := test_flare.py test_faults.py test_privacy.py

federation-demo: $(FEDERATION) ## a server and four hospitals as processes of this machine, with certificates; installs NVFlare
	@$(BIN)/python -W ignore -m pipeline.federation.demo

check: setup ## formatter, linter, type checker; whether what is derived from the registries is up to date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pipeline.params --check

# Their own environments: neither is needed to run anything.
audit: setup ## build/sbom.json, a bill of materials (CycloneDX); known vulnerabilities, where their database can be reached
	@mkdir -p build
	@timeout 120 $(BIN)/uv tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py environment $(BIN)/python -o build/sbom.json \
		|| echo "note: no bill of materials: its tool cannot be had from the package index"
	@timeout 120 $(BIN)/uv tool run --quiet pip-audit@2.10.1 --disable-pip --no-deps -r constraints.txt --progress-spinner off \
		> build/audit.txt 2>&1; code=$$?; \
	if grep -qE "^Found [0-9]+ known" build/audit.txt; then cat build/audit.txt >&2; exit 1; fi; \
	if [ $$code != 0 ] || grep -q "could not be audited" build/audit.txt; then \
		echo "note: the database of vulnerabilities cannot be reached, or not all of it: build/audit.txt"; fi

ui: setup ## the MLflow page on http://127.0.0.1:5000
	@echo "open http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=fedbilevel&workflowType=machine_learning"
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false $(BIN)/mlflow server --backend-store-uri sqlite:///mlflow.db \
		--default-artifact-root ./mlartifacts --host 127.0.0.1 --port 5000 --workers 1

publish: setup ## send what is in results/ to the tracker (again)
	$(BIN)/python -m pipeline.tracking

bench: setup ## benchmarks, results on the terminal (one of them: .venv/bin/python -m benchmarks scaling)
	$(BIN)/python -m benchmarks

clean: ## remove data, results, caches and resume folders (not the tracker's records)
	git clean -fdXq data models results
	rm -rf .resume .dvc/cache .dvc/tmp
