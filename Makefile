# One machine, one command: `make run`. Everything lives in .venv; nothing outside the checkout is touched.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# constraints.txt holds the versions that the tests run with, torch among them.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
# bench/trl_*.py want TRL beside kitlib: see their docstrings.
BENCHES := $(filter-out bench/common.py bench/trl_%,$(sort $(wildcard bench/*.py)))

# Nothing here may wait for a model hub, and no window is ever opened.
test bench course gpu: export HF_HUB_OFFLINE := 1
test bench gpu: export MPLBACKEND := Agg

.PHONY: help run test lab lint format bench gallery course gpu clean distclean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Settings go through RUN: make run RUN='trainer.total_training_steps=20 actor_rollout_ref.rollout.n=4'"
	@echo "  PYTHON names the interpreter; PIP_EXTRA_INDEX_URL may name PyTorch's index of CPU wheels, to install a smaller torch"

run: $(VENV)/run.stamp  ## train the shipped tiny model (about two minutes on two cores)
	$(BIN)/kitlib run $(RUN)

test: $(VENV)/test.stamp  ## every test, notebooks included, on two processes (WORKERS=1 for one)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --nbmake --nbmake-timeout=600 tests $(NOTEBOOKS)

lab: $(VENV)/test.stamp  ## open JupyterLab at the first notebook
	$(BIN)/python -m jupyter lab $(firstword $(sort $(NOTEBOOKS)))

lint: $(VENV)/test.stamp  ## style, types, import doors, stripped notebooks
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(if $(NOTEBOOKS),$(BIN)/nbstripout --verify $(NOTEBOOKS))

format: $(VENV)/test.stamp  ## apply the style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(if $(NOTEBOOKS),$(BIN)/nbstripout $(NOTEBOOKS))

bench: $(VENV)/test.stamp  ## the measured numbers of the README
	@set -e; for script in $(BENCHES); do echo "== $$script"; $(BIN)/python $$script; done

gallery: $(VENV)/test.stamp  ## docs/gallery.html: what every view looks like
	$(BIN)/python docs/make_gallery.py

course: $(VENV)/test.stamp  ## docs/course/: the notebooks as pages to read (COURSE=05 for one of them)
	$(BIN)/python docs/make_course.py $(COURSE)

gpu: $(VENV)/test.stamp  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu tests

# Installing is skipped while neither file changed. torch goes first: whatever is asked for later finds it there and does not
# take another build of it.
$(VENV)/run.stamp: pyproject.toml constraints.txt
	@echo "installing into $(VENV): some minutes the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp
	$(INSTALL) -e '.[notebooks,lora,dev]'
	touch $@

clean:  ## remove caches and builds
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find kitlib tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## and the virtual environment
	rm -rf $(VENV)
