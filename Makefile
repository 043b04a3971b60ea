# make demo and make test are all the set-up: they build .venv at first use and again when its inputs change.
#
# Variables, for example `make test PYTHON=python3.12 TORCH_INDEX=`:
#   PYTHON       interpreter that makes the environment (3.10 or newer)
#   VENV         where the environment is
#   TORCH        the torch that is installed
#   TORCH_INDEX  package index for torch; empty is pip's own. On Linux without an NVIDIA driver it is PyTorch's
#                index of CPU builds, and pip's own if that cannot be reached
#   CONSTRAINTS  file with the versions of what training, tests and lint run on
#   ARGS         passed on to the demo or to pytest

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
CONSTRAINTS ?= tools/constraints.txt
ARGS ?=

NO_GPU := $(shell test "$$(uname -s)" = Linux && ! command -v nvidia-smi >/dev/null && echo yes)
TORCH_INDEX ?= $(if $(NO_GPU),https://download.pytorch.org/whl/cpu)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
STAMP := $(VENV)/.installed

.PHONY: demo test lint format drift matrix clean

demo: $(STAMP)
	$(BIN)/patcher demo $(ARGS)

# Two workers of one thread each; `make test ARGS="-n 8"` where there are more cores.
test: $(STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Every anchor in every published release, from wheels, and in mutants of them.
drift: $(STAMP)
	$(BIN)/python -m tools.drift
	$(BIN)/python -m tools.drift_mutants

# Packed steps on old and new releases, a lane each.
matrix: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.matrix --subset ci

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo

$(STAMP): setup.cfg pyproject.toml Makefile $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(PIP) --retries 1 --timeout 20 --index-url $(TORCH_INDEX) "$(TORCH)" ||) $(PIP) "$(TORCH)"
	$(PIP) -c $(CONSTRAINTS) -e ".[demo,test,dev]"
	@touch $@
