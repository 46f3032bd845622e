# make demo: solve an example and draw it.   make test: lint, types and tests.
# Both set up .venv first (a minute or two the first time, nothing afterwards).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
EXTRAS := dev

# Tests that need the TSPLIB files skip with a reason when they are not found.
ifneq ($(wildcard ../shared/tsplib/optimal.csv),)
export GEOROUTENET_TSPLIB ?= $(abspath ../shared/tsplib)
endif

.PHONY: demo docs pictures test test-slow test-browser test-ray ray-run torture gate format clean

demo: $(STAMP)
	$(BIN)/georoutenet demo

# The tests start many processes: what Python compiled of the sources is kept for them, whatever the environment says.
test test-slow: export PYTHONDONTWRITEBYTECODE :=
# As many tests as cores run at a time: each has one thread for PyTorch.
test: export OMP_NUM_THREADS ?= 1

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n auto

test-slow: $(STAMP)
	$(BIN)/pytest -n auto -m slow

# The playground in a real browser. Of the driver's own browsers none is fetched.
AXE := 4.14.0
test-browser: $(STAMP)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
		{ echo "there is no Chromium on the PATH; on Debian: apt-get install chromium"; exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	@command -v npm && npm install --silent --no-save --prefix .browser axe-core@$(AXE) || \
		echo "no npm: the test of accessibility is skipped"
	$(BIN)/pytest tests/web/test_browser.py

# Bulk runs on a real Ray, in an environment of its own; the log is kept, with commit and date.
test-ray:
	$(MAKE) VENV=.venv-ray EXTRAS=dev,cluster ray-run

ray-run: $(STAMP)
	$(BIN)/python -c 'import pandas, pyarrow, ray; from georoutenet.io.provenance import commit, today; \
		print(commit(), today()); [print(each.__name__, each.__version__) for each in (ray, pyarrow, pandas)]' \
		> tests/ray_run.txt
	$(BIN)/python -m pytest -n0 -vv --no-header --disable-warnings --durations=0 --durations-min=1 \
		tests/bulk/test_on_ray.py tests/bulk/test_solver.py >> tests/ray_run.txt || \
		{ cat tests/ray_run.txt; exit 1; }
	cat tests/ray_run.txt

# The documentation as a site, in build/site; a warning is an error.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --strict

# Every picture of the documentation; those of the playground with a Chromium from the PATH.
pictures: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[web,browser]'
	$(BIN)/python -m research.pictures

# Hostile inputs, kills and signals, seeded and counted: a minute for each kind of attack; then the service.
torture: $(STAMP)
	$(BIN)/python -m research.torture
	$(BIN)/python -m research.abuse

# One row of quality and speed, compared with the last release's.
gate: $(STAMP)
	$(BIN)/python benchmarks/gate.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV) (once)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) .venv-ray build dist .mypy_cache .ruff_cache .pytest_cache
