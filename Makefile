# make demo: build a dataset and read it, from nothing.   make test: run every test, from nothing.
# make bench: raw against presized against LMDB, in small, on the CPU.
# make check: what CI runs, tests and linters and types.   PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
DEMO ?= demo
BENCH ?= bench
SRC ?= $(DEMO)/raw
JOBS ?= $(shell nproc)

SOURCES = $(shell find presize datasets -name '*.py' -o -name '*.c' -o -name '*.pyi' -o -path '*/templates/*') pyproject.toml README.md
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c tools/constraints.txt

.PHONY: demo test check bench clean

test: $(VENV)/.presize
	$(BIN)/pytest -n 2

check: test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(VENV) && bin/mypy --config-file ../pyproject.toml -p presize

demo: $(VENV)/.presize
	@test -e "$(SRC)" || $(BIN)/presize sample "$(SRC)" --images 1000 --classes 10
	$(BIN)/presize build "$(SRC)" $(DEMO)/256 --size 256 --jobs $(JOBS) --overwrite
	$(BIN)/presize build "$(SRC)" $(DEMO)/folder --size 256 --to folder --jobs $(JOBS) --overwrite
	$(BIN)/python tools/demo.py "$(SRC)" $(DEMO)/folder $(DEMO)/256

# One worker, so that training has a core to itself on a machine of two; of ResNet-50 a few steps.
bench: $(VENV)/.presize
	@test -e "$(SRC)" || $(BIN)/presize sample "$(SRC)" --images 1000 --classes 10
	$(BIN)/presize bench --raw "$(SRC)" --work $(BENCH)/work --out $(BENCH)/small --images 1000 --workers 1 \
		--epochs 2 --cold
	$(BIN)/presize bench --raw "$(SRC)" --work $(BENCH)/work --out $(BENCH)/resnet50 --images 1000 --workers 1 \
		--model resnet50 --batch 8 --steps 4 --epochs 1 --repeats 1 --variant raw --variant loader

# The dependencies once, presize itself whenever a source has changed. Not editable: what is tested
# is what a user gets from a wheel. Without build/, whose left-overs would be installed, too.
$(VENV)/.requirements: pyproject.toml tools/constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) ".[torch,test,dev]"
	@touch $@

$(VENV)/.presize: $(VENV)/.requirements $(SOURCES)
	@rm -rf build
	$(PIP) --no-deps --force-reinstall .
	@touch $@

# What make makes by default, and never a folder that was named to it: DEMO=~/photos is not ours to remove.
clean:
	rm -rf .venv demo bench build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
