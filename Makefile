# Two commands: `make reproduce` runs the main job, `make test` the checks.
# Each makes .venv first if it is not there or out of date.

PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
HTML := docs/_build/html

export PYTHONHASHSEED := 0
export MPLBACKEND := Agg
# Tests run in one process per core, so each needs one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

.PHONY: reproduce test test-all lint format docs bench clean

# Its problems are small: a second thread would only wait.
reproduce: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/isthmus reproduce

test: $(STAMP) lint
	$(PYTEST)

test-all: $(STAMP) lint
	$(PYTEST) -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --quiet docs $(HTML)
	@echo "The pages are in $(HTML)/index.html"

bench: $(STAMP)
	$(BIN)/isthmus bench

clean:
	rm -rf $(VENV) report build dist docs/_build

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "isthmus needs Python 3.11 or newer; set PYTHON=...")'
	@echo "Installing into $(VENV): about 2 GB, some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt --editable . --group dev
	touch $@

# Sphinx is for `make docs` alone.
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt --group docs
	touch $@
