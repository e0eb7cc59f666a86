# Everything a person or CI types. Plain `make` lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Tests that start programs wait more than they compute: twice as many workers as cores.
TESTERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
SPREAD := -n $(TESTERS) --dist worksteal
ONE    := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
QUICK  := -m "not bench and not soak and not slow and not chaos"
# Hundreds of processes begin with the same modules: let them find these compiled.
unexport PYTHONDONTWRITEBYTECODE
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test quick core-alone test-all soak busy portable check format lint types contracts docs bench chaos lowest emulated torch oracles browser dist deb journeys clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.sim ## broker, aggregator and eight devices learn from real readings (three minutes, no torch)
	@$(BIN)/gridfed-sim demo --out demo-run

test: $(VENV)/.dev ## the quick tests (some five minutes on two cores); what is absent is skipped with its reason
	@$(ONE) $(BIN)/python -m pytest $(SPREAD) $(QUICK) --processor-limit=1000 $(PYTEST)

quick: $(VENV)/.dev ## the quick tests of one part: make quick PART=edge_sdk/store
	@$(ONE) $(BIN)/python -m pytest $(QUICK) -q $(wildcard $(PART) tests/$(PART)) $(PYTEST)

core-alone: $(VENV)/.dev ## the quick tests of the core in a copy without the folders of extensions
	@$(ONE) $(BIN)/python -m tools.core_alone -- $(SPREAD) -q

test-all: $(VENV)/.dev ## every test of CI that this machine can run, also the slow ones and those that kill programs for minutes
	@$(ONE) $(BIN)/python -m pytest $(SPREAD) $(PYTEST)

soak: $(VENV)/.dev ## before a release: longer and larger courses of what shorter tests show
	@$(ONE) $(BIN)/python -m pytest $(SPREAD) -m soak $(PYTEST)

busy: $(VENV)/.dev ## the quick tests beside two programs that compute without end
	@for i in 1 2; do $(BIN)/python -c 'while True: pass' & pids="$$pids $$!"; done; trap "kill $$pids" EXIT; \
	  $(MAKE) --no-print-directory test

portable: $(VENV)/.dev ## the numeric tests with the kernels of other processors (SETTINGS="prescott zen": these alone)
	@$(ONE) $(BIN)/python -m tools.portable $(SETTINGS)

check: format lint types contracts test-all docs ## what CI and reviewers run

format: $(VENV)/.dev ## is the code formatted?
	@$(BIN)/ruff format --check .

lint: $(VENV)/.dev ## ruff, spelling, packaging metadata
	@$(BIN)/ruff check .
	@$(BIN)/codespell
	@$(BIN)/validate-pyproject pyproject.toml

types: $(VENV)/.dev ## mypy --strict
	@$(BIN)/mypy

contracts: $(VENV)/.dev ## check the import contracts, and print the counts of the structure
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.structure --check

docs: $(VENV)/.dev ## build the documentation, strictly
	@$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev ## the benchmarks, as tables of ratios
	@$(ONE) $(BIN)/python -m pytest tests/benchmarks -m bench --override-ini addopts= -q -s -p no:randomly

chaos: $(VENV)/.sim ## 200 devices, everything fails for minutes, then the history check (report in chaos-run)
	@$(ONE) $(BIN)/python -m tools.chaos --out chaos-run $(CHAOS)

lowest: $(VENV)-lowest/.ready ## the device's tests with Debian 12's numpy, cryptography, msgpack, and no onnxruntime
	@PYTHONPATH="$(CURDIR)" $(VENV)-lowest/bin/python -m pytest tests/edge_sdk $(SPREAD) -m "not broker and not chaos and not torch and not slow and not soak" $(PYTEST)

emulated: $(VENV)/.sim ## the device's versions on an emulated Cortex-A53 (needs apt and Debian 12's packages; else says why)
	@$(ONE) $(BIN)/python -m tools.emulated $(EMULATED)

torch: $(VENV)/.torch ## add torch and onnx, to author models and run the tests that compare with torch

oracles: $(VENV)/.oracles ## add second oracles: peers for rules, privacy, graphs, telegrams and charge points, torch-geometric for graphs

browser: $(VENV)/.browser ## add selenium and axe-core, for the console's tests in chromium (Debian: chromium chromium-driver)

dist: $(VENV)/.publish ## build the three distributions with man pages and completion into dist/, and check them for an index
	@$(BIN)/python -m tools.distributions --out dist

deb: $(VENV)/.publish ## build Debian packages of device, aggregator, console and witness into dist/ (needs dpkg-deb)
	@$(BIN)/python -m tools.deb --out dist

journeys: $(VENV)/.sim dist ## what three new users do, from the wheels, with the time to their first success
	@for one in firmware researcher operations; do $(BIN)/python tests/journeys/$$one.py --dist dist || exit 1; done

clean: ## remove what the targets above made
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-arm64 site demo-run chaos-run runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gridfed needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.11 demo" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.sim: $(VENV)/bin/python pyproject.toml constraints/dev.txt
	@echo "installing the simulator's dependencies into $(VENV) (once)"
	@$(PIP) install -c constraints/dev.txt -e '.[sim]'
	@touch $@

$(VENV)/.dev: $(VENV)/.sim
	@echo "installing the development tools into $(VENV) (once)"
	@$(PIP) install -c constraints/dev.txt -e '.[dev]'
	@touch $@

$(VENV)/.publish: $(VENV)/.sim
	@echo "installing build, shtab and twine into $(VENV) (once)"
	@$(PIP) install -c constraints/dev.txt -e '.[publish]'
	@touch $@

# Only the axe-core that axe-playwright-python contains is used, not playwright.
$(VENV)/.browser: $(VENV)/.dev
	@$(PIP) install -c constraints/dev.txt -e '.[browser]'
	@$(PIP) install --no-deps axe-playwright-python==0.1.8
	@touch $@

# torch first, and by exact version: a looser request can pull several GB of GPU libraries.
$(VENV)/.torch: $(VENV)/bin/python
	@$(PIP) install torch==2.13.0
	@$(PIP) install -c constraints/dev.txt -e '.[train]'
	@touch $@

# Their arithmetic is all that is imported: what they declare besides (a web stack, uv, a newer certifi, attrs
# below 24) is left out, or is the version of constraints/dev.txt.
$(VENV)/.oracles: $(VENV)/.dev
	@$(PIP) install -c constraints/dev.txt grpcio httpx iterators protobuf pycryptodome typer
	@$(PIP) install -c constraints/dev.txt absl-py attrs dm-tree mpmath scipy
	@$(PIP) install -c constraints/dev.txt aiohttp fsspec Jinja2 psutil pyparsing requests tqdm xxhash
	@$(PIP) install -c constraints/dev.txt -e '.[oracles]'
	@$(PIP) install --no-deps flwr==1.42.0 byzfl==0.0.11 dp-accounting==0.6.0 torch-geometric==2.8.1
	@touch $@

# Not the package itself: its requirements name onnxruntime. The tests take it from here.
$(VENV)-lowest/.ready: constraints/lowest.txt
	@$(PYTHON) -m venv $(VENV)-lowest
	@$(VENV)-lowest/bin/python -m pip --disable-pip-version-check --quiet install -r constraints/lowest.txt \
	  pytest==9.2.0 pytest-randomly==5.1.0 pytest-timeout==2.4.0 pytest-xdist==3.8.0 hypothesis==6.170.15
	@touch $@
