# Every target sets up its own .venv from nothing, says what it does, and does it.
#   make serve  serve the digits network that ships, with a page at http://127.0.0.1:8000
#   make demo   see it work            make test   the test suite (make test-slow: the long checks)
#   make bench  measure                make lint   format, lint and type checks (make format: repair)
#   make docs   build the documentation into site/   make wheel   build and try what users install
#   make lock   rewrite constraints.txt from what is installed   make costs   count the recipes' networks anew
#   make tables write the tables of README and docs anew from results/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# torch's idle threads spin by default and slow down whatever shares the cores with them.
export OMP_WAIT_POLICY := PASSIVE

.DEFAULT_GOAL := help
.PHONY: help demo serve test test-slow lint format bench docs tables wheel minimal serve-only costs lock clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,7p'

$(BIN)/python:
	@echo "==> making $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "mimonets needs Python 3.11 or newer; try: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: installed again only when the pins, the metadata or the version change.
$(VENV)/installed-%: $(BIN)/python pyproject.toml constraints.txt src/mimonets/__init__.py
	@echo "==> installing mimonets[$*] into $(VENV)"
	@$(PIP_INSTALL) -e '.[$*]'
	@touch $@

# A group of pyproject.toml (PEP 735) and the extras that go with it. pip 25.1 has --group; this works with older ones.
EXTRAS_test := demo,export,grpc,hub,tracing
EXTRAS_lint := cli,data,export,grpc,hub,tracing
EXTRAS_docs := demo
$(VENV)/group-%: $(BIN)/python pyproject.toml constraints.txt src/mimonets/__init__.py
	@echo "==> installing mimonets[$(EXTRAS_$*)] and the group $* into $(VENV)"
	@$(BIN)/python tools/group.py $* > $(VENV)/$*.txt
	@$(PIP_INSTALL) -e '.[$(EXTRAS_$*)]' -r $(VENV)/$*.txt
	@touch $@

demo: $(VENV)/installed-demo
	@echo "==> mimonets demo"
	@$(BIN)/mimonets demo $(DEMO_ARGS)

serve: $(VENV)/installed-demo,serve
	@echo "==> mimonets serve, with its page and the digits network that ships with the package"
	@$(BIN)/mimonets serve --demo $(SERVE_ARGS)

# One worker per core, one thread each: tiny models gain nothing from more. A file runs in one worker, so that what its
# tests share is made once. Ends with the ten slowest tests.
test: $(VENV)/group-test
	@echo "==> running the tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile --durations=10

test-slow: $(VENV)/group-test
	@echo "==> running the slow checks"
	@$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/group-lint
	@echo "==> checking format, style and types"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(VENV)/group-lint
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Into runs/results; `make bench OUT=results` takes the measurements into the documentation.
OUT ?= runs/results
bench: $(VENV)/installed-cli
	@echo "==> MIMOConv-28-10, every mode, against single-input networks (about three minutes)"
	@$(BIN)/mimonets bench cifar100-mimoconv-n4 --out $(OUT)/bench-mimoconv.json
	@echo "==> the same in the memory layout that is faster on most CPUs"
	@$(BIN)/mimonets bench cifar100-mimoconv-n4 --channels-last \
		--out $(OUT)/bench-mimoconv-channels-last.json
	@echo "==> MIMOFormer on 4,096 tokens, against the Performer (about seven minutes)"
	@$(BIN)/mimonets bench lra-text-mimoformer-4x4 lra-text-mimoformer-2x2-mlp \
		lra-text-mimoformer-4x4-mlp lra-text-mimoformer-4x4-qkv \
		--active-streams max --rounds 2 --warmup 1 --threads 1 --out $(OUT)/bench-mimoformer.json
	@echo "==> the isometry penalty, against the convolution it replaces"
	@$(BIN)/python benchmarks/isometry_penalty.py $(OUT)
	@echo "==> training steps, with and without keeping freed memory"
	@$(BIN)/python benchmarks/allocator.py $(OUT)

# Warnings are errors: a link that leads nowhere, a docstring that does not parse.
docs: $(VENV)/group-docs
	@echo "==> building the documentation into site/"
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs site
	@$(BIN)/python tools/browser.py site/try
	@$(BIN)/jupytext --quiet --to ipynb --output site/tour.ipynb examples/tour.py

# What `mimonets cost` shows of our recipes, counted anew; GPU-hours and memory take some minutes.
costs: $(VENV)/installed-demo
	@$(BIN)/python tools/costs.py

# The tables of README and docs and the figure of docs/when-it-pays.md, from the files in results/.
tables: $(VENV)/group-test
	@$(BIN)/python tools/tables.py
	@$(BIN)/python benchmarks/when_it_pays.py results

# A wheel and an sdist, then the wheel in an environment of its own: the library, its data files, the command.
wheel: $(VENV)/group-lint
	@echo "==> building dist/ and trying the wheel outside the source tree"
	@rm -rf dist $(VENV)-wheel
	@$(BIN)/python -m build --quiet --outdir dist .
	@$(PYTHON) -m venv $(VENV)-wheel
	@$(VENV)-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	@cd $(VENV)-wheel && bin/python ../.ci/installed.py && bin/mimonets --version

# The library without any extra.
minimal:
	@echo "==> the library with its required dependencies only"
	@rm -rf $(VENV)-minimal
	@$(PYTHON) -m venv $(VENV)-minimal
	@$(VENV)-minimal/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt .
	@cd $(VENV)-minimal && bin/python ../.ci/installed.py

# What serves an export, without PyTorch: the network is exported in .venv, and runs in an environment of its own.
PIP_SERVE_ONLY := $(BIN)/python -m pip --python $(VENV)-serve-only/bin/python install --quiet --disable-pip-version-check
serve-only: $(VENV)/installed-demo
	@echo "==> serving an export without PyTorch"
	@rm -rf $(VENV)-serve-only
	@$(PYTHON) -m venv --without-pip $(VENV)-serve-only
	@$(PIP_SERVE_ONLY) --no-deps .
	@$(PIP_SERVE_ONLY) -c constraints.txt -r deploy/serve.txt
	@$(BIN)/mimonets export digits-keys --out $(VENV)-serve-only/digits-keys
	@cd $(VENV)-serve-only && bin/python ../.ci/serve_only.py digits-keys

lock: $(VENV)/group-test $(VENV)/group-lint $(VENV)/group-docs
	@echo "==> writing constraints.txt"
	@$(BIN)/python -m pip freeze --exclude-editable \
		| sed -E 's/\+[A-Za-z0-9.]+$$//' | grep -v '^mimonets' > constraints.txt.new
	@mv constraints.txt.new constraints.txt

clean:
	rm -rf $(VENV) $(VENV)-wheel $(VENV)-minimal $(VENV)-serve-only dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
