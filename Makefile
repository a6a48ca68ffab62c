# Every target sets up its own .venv from nothing, says what it does, and does it.
#   make demo   see it work            make test   the test suite (make test-slow: the long checks)
#   make bench  measure and record     make lint   format, lint and type checks (make format: repair)
#   make lock   rewrite constraints.txt from what is installed

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# torch's idle threads spin by default and slow down whatever shares the cores with them.
export OMP_WAIT_POLICY := PASSIVE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format bench lock clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,4p'

$(BIN)/python:
	@echo "==> making $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "mimonets needs Python 3.11 or newer; try: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: installed again only when the pins or the package's metadata change.
$(VENV)/installed-%: $(BIN)/python pyproject.toml constraints.txt
	@echo "==> installing mimonets[$*] into $(VENV)"
	@$(PIP_INSTALL) -e '.[$*]'
	@touch $@

demo: $(VENV)/installed-demo
	@echo "==> mimonets demo"
	@$(BIN)/mimonets demo $(DEMO_ARGS)

# One worker per core, one thread each: tiny models gain nothing from more.
test: $(VENV)/installed-test
	@echo "==> running the tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto

test-slow: $(VENV)/installed-test
	@echo "==> running the slow checks"
	@$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/installed-lint
	@echo "==> checking format, style and types"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(VENV)/installed-lint
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/installed-plot
	@echo "==> MIMOConv-28-10, every mode, against single-input networks (about three minutes)"
	@$(BIN)/mimonets bench cifar100-mimoconv-n4 --plot results/bench-mimoconv.png \
		--out results/bench-mimoconv.json
	@echo "==> the same in the memory layout that is faster on most CPUs"
	@$(BIN)/mimonets bench cifar100-mimoconv-n4 --channels-last \
		--out results/bench-mimoconv-channels-last.json
	@echo "==> MIMOFormer on 4,096 tokens, against the Performer (about ten minutes)"
	@$(BIN)/mimonets bench lra-text-mimoformer-4x4 lra-text-mimoformer-2x2-mlp \
		lra-text-mimoformer-4x4-mlp lra-text-mimoformer-4x4-qkv \
		--active-streams max --rounds 3 --warmup 1 --out results/bench-mimoformer.json
	@echo "==> the isometry penalty, against the convolution it replaces"
	@$(BIN)/python benchmarks/isometry_penalty.py
	@echo "==> training steps, with and without keeping freed memory"
	@$(BIN)/python benchmarks/allocator.py

lock: $(VENV)/installed-test $(VENV)/installed-lint
	@echo "==> writing constraints.txt"
	@$(BIN)/python -m pip freeze --exclude-editable \
		| sed -E 's/\+[A-Za-z0-9.]+$$//' | grep -v '^mimonets' > constraints.txt.new
	@mv constraints.txt.new constraints.txt

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
