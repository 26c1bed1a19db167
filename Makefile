# `make demo` and `make test` work on a machine that has nothing but Python (>= 3.11) and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# Two spinning OpenMP threads on a shared core are several times slower than one.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-all check format docs readme bench clean

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.ready  ## learn from the embedded digits, leave out/demo/index.html: about a minute
	$(BIN)/setwise demo

test: $(VENV)/.ready  ## the default suite, about 9 minutes on 2 cores
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2

check: $(VENV)/.ready  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.ready  ## the site, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

readme: $(VENV)/.ready  ## the numbers of README.md and docs/ from the records in results/
	$(BIN)/python docs/readme.py
	$(BIN)/python benchmarks/scale.py

bench: $(VENV)/.ready  ## ratios, all from one run
	$(BIN)/python benchmarks/losses.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
