# Each word sets up what it needs; a second call installs nothing.
PYTHON ?= python3
BIN := .venv/bin
# One stamp per version, so that another PYTHON makes a new environment.
READY := .venv/.ready-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
SPEC := $(wildcard $(or $(TOOLPOST_SPEC),../shared/spec))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help run test check fmt bench conformance interop docs clean
.DEFAULT_GOAL := help

help:                    ## list the words
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile | expand -t 22

run:                     ## serve the example (lands with the command line)
	@echo "make run: not there yet. It will serve examples/ on loopback once the command line has landed."

test: $(READY)           ## all tests in parallel, coverage gate, table of proven rules
	@$(BIN)/coverage erase
	$(BIN)/pytest -n $(shell nproc 2>/dev/null || echo 2) --cov --cov-report= $(ARGS)
ifneq ($(strip $(ARGS)),)
	@echo "coverage: judged on whole runs only, that is without ARGS"
else ifeq ($(SPEC),)
	@echo "coverage: not judged, because tests that need the specification were skipped; set TOOLPOST_SPEC"
else
	$(BIN)/coverage report --include='src/toolpost/types/*,src/toolpost/protocol/*' --fail-under=100
endif

check: $(READY)          ## format, lint, types, import contracts, house rules
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports --no-cache
	$(BIN)/python dev/house.py

fmt: $(READY)            ## rewrite the files as `check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)          ## the measurements, each beside a peer in the same run
	$(BIN)/python bench/core.py

conformance:             ## the official conformance suite (lands with its issue)
	@echo "make conformance: not there yet. The official suite joins once HTTP has landed."

interop: $(READY)        ## real peers, both directions; PEER=name for one of them
	$(BIN)/python interop/run.py $(PEER)

docs:                    ## build the documentation site (lands with its issue)
	@echo "make docs: not there yet. Until then the pages are plain Markdown: start with docs/architecture.md."

clean:                   ## remove everything that `make` has made
	rm -rf .venv .cache build dist site .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml dev/requirements.txt dev/constraints.txt
	@$(PYTHON) -c '' || { echo "there is no $(PYTHON); name one: make test PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "toolpost needs Python 3.11 or newer; $(PYTHON) is older. Try: make test PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv --clear .venv
	PIP_CONSTRAINT=dev/constraints.txt $(BIN)/python -m pip install --quiet -r dev/requirements.txt -e .
	@mkdir -p .cache && touch $(READY)
