# make demo and make test are all a newcomer needs; the rest is for those who change things.
#
# TORCH says which build of torch is installed first, with pip's own words, for example
#   make install TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"

TORCH ?= torch==2.13.0
# The official client, for the server's tests. Without its dependencies: they are proprietary, and talking to a server
# needs none of them.
CLIENT ?= moondream==2.6.1
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all gpu-check lint docs clean FORCE

help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

install: $(VENV)/.installed ## Fill .venv: torch first, then gapless and the tools of its tests

demo: $(VENV)/.runs ## Ask, point, detect and outline on three bundled pictures, then time one fixed mix
	$(BIN)/gapless demo

test: export OMP_NUM_THREADS := 1
test: export CUDA_VISIBLE_DEVICES := -1
test: install ## Run the tests (about 4 minutes on two cores)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu"

test-all: export OMP_NUM_THREADS := 1
test-all: export CUDA_VISIBLE_DEVICES := -1
test-all: install ## Run the long tests too
	$(BIN)/python -m pytest -m "not gpu"

gpu-check: ## Run the tests that need a GPU, from src/ and without installing
	$(GPU_PYTHON) tests/gpu/drive.py --tests

lint: install ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v node >/dev/null; then for file in src/gapless/serve/ui/*.js; do \
	  node --check --input-type=module < $$file || exit 1; done; else echo "no node: the page's scripts are not checked"; fi

docs: export NO_MKDOCS_2_WARNING := 1
docs: install ## Build the site of the docs into site/, and check its links
	$(BIN)/mkdocs build --quiet

clean: ## Remove what make made
	rm -rf $(VENV) site demo-out gpu-out .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The wish is kept in a file that changes only when TORCH does, so that another TORCH installs anew.
$(VENV)/.torch: FORCE
	@mkdir -p $(VENV)
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

$(VENV)/.runs: pyproject.toml $(VENV)/.torch
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e .
	@touch $@

$(VENV)/.installed: $(VENV)/.runs
	$(BIN)/python -m pip install -e '.[dev]'
	$(BIN)/python -m pip install --no-deps $(CLIENT)
	@touch $@

FORCE:
