# `make reproduce` runs the main job, `make test` the checks.
# Both create .venv first if it is missing or out of date.

PYTHON ?= python3
PIP_FLAGS ?=
# The versions to install: constraints.txt, constraints-oldest.txt, or /dev/null for the newest.
CONSTRAINTS ?= constraints.txt
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NIGHTLY_STAMP := $(VENV)/.installed-nightly
DOCS_STAMP := $(VENV)/.installed-docs
HTML := docs/_build/html

export PYTHONHASHSEED := 0
export MPLBACKEND := Agg
# One process per core, so one thread per process.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile -q -rs
COVERAGE := --cov --cov-report=term:skip-covered --cov-fail-under=93
PIP := python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c $(CONSTRAINTS)

.PHONY: reproduce test test-all test-only lint format docs wheel bench clean

# One thread: the report runs its parts in parallel.
reproduce: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/isthmus reproduce

# What every change must pass.
test: $(STAMP) lint
	$(PYTEST)

# Everything, nightly: slow tests, coverage, and random arguments from a seed that is printed.
test-all: SEED ?= $(shell date +%s)
test-all: $(NIGHTLY_STAMP) lint
	@echo "Random arguments: make test-all SEED=$(SEED)"
	HYPOTHESIS_PROFILE=fresh $(PYTEST) $(COVERAGE) -m "slow or not slow" --hypothesis-seed=$(SEED)

# Without lint, whose findings depend on the versions of the linters.
test-only: $(STAMP)
	$(PYTEST)

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

# Build sdist and wheel with the pinned hatchling, and install each without extras in an empty environment: the sdist with the
# oldest versions, the wheel with the newest. There, run the README's first example.
define TRY_PACKAGE
	$(PYTHON) -m venv build/$(1)
	build/$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c $(2) $(3)
	cd build && $(1)/bin/python -P example.py && $(1)/bin/isthmus --version
endef

wheel: $(STAMP)
	rm -rf dist build
	$(BIN)/python -m build --no-isolation --outdir dist .
	mkdir build
	awk '/^```python/ { inside = 1; next } /^```/ { if (inside) exit } inside' README.md > build/example.py
	$(call TRY_PACKAGE,oldest,constraints-oldest.txt,dist/*.tar.gz)
	$(call TRY_PACKAGE,newest,/dev/null,dist/*.whl)

bench: $(STAMP)
	$(BIN)/isthmus bench attend --sizes small

clean:
	rm -rf $(VENV) report build dist docs/_build docs/gallery

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "isthmus needs Python 3.11 or newer; set PYTHON=...")'
	@echo "Installing into $(VENV): about 2 GB, a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) "pip>=25.3"
	$(BIN)/$(PIP) --build-constraint $(CONSTRAINTS) --editable . --group dev
	touch $@

# hamux and JAX are needed by `make test-all` only.
$(NIGHTLY_STAMP): $(STAMP)
	$(BIN)/$(PIP) --group nightly
	touch $@

# Sphinx is needed by `make docs` only.
$(DOCS_STAMP): $(STAMP)
	$(BIN)/$(PIP) --group docs
	touch $@
