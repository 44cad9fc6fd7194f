# Each word sets up what it needs; a second call installs nothing.
PYTHON ?= python3
BIN := .venv/bin
# One stamp per version, so that another PYTHON makes a new environment. `run` needs a small part of it only.
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
READY := .venv/.ready-$(VERSION)
RUNS := .venv/.runs-$(VERSION)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start a thousand programs: without bytecode each of them compiles our sources, and they take half as long again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run test check fmt bench conformance interop fuzz soak docs pictures clean
.DEFAULT_GOAL := help

help:                    ## list the words
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile | expand -t 22

run: $(RUNS)             ## serve the weather example on loopback, call each of its tools; PORT=8000
	@$(BIN)/python dev/showcase.py $(if $(PORT),--port $(PORT))

test: $(READY)           ## all tests in parallel, coverage gate, table of proven rules
	@$(BIN)/python dev/chromium.py
	@$(BIN)/coverage erase
	@# Four more than there are cores: a third of the time a test waits for a process or a clock.
	$(BIN)/pytest -n $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 4 ))) --cov --cov-report= $(ARGS)
ifneq ($(strip $(ARGS)),)
	@echo "coverage: judged on whole runs only, that is without ARGS"
else
	@if test -f "$${TOOLPOST_SPEC:-../shared/spec}/REQUIREMENTS.md"; then \
		$(BIN)/coverage report --include='src/toolpost/types/*,src/toolpost/protocol/*' --fail-under=100; \
	else echo "coverage: not judged, because tests that need the specification were skipped; set TOOLPOST_SPEC"; fi
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

bench: $(READY)          ## speed beside the peers and the limit; QUICK=1 for a minute, ONLY="http stdio" for a part
	$(BIN)/python -m bench $(if $(filter-out 0,$(QUICK)),--quick) $(if $(ONLY),--only $(ONLY))

conformance: $(READY)    ## the official suite, judged strictly; LEG=name for one leg, or how its name begins
	@status=0; PYTHONPATH=interop $(BIN)/python conformance/judge.py $(LEG) || status=$$?; \
	$(if $(LEG),,PYTHONPATH=interop $(BIN)/python conformance/differential.py || status=$$?;) exit $$status

interop: $(READY)        ## real peers, both directions; PEER=name for one of them
	$(BIN)/python interop/run.py $(PEER)

fuzz: $(READY)           ## coverage-guided fuzzing, FUZZ_SECONDS for each target; TARGET=name for one of them
	$(BIN)/python -m fuzz --seconds $(or $(FUZZ_SECONDS),60) $(TARGET)

soak: $(READY)           ## all transports and revisions while things break, for SOAK_SECONDS (600)
	$(BIN)/python dev/soak.py

docs: $(READY)           ## the documentation as a site, in site/
	$(BIN)/python dev/website.py

pictures: $(READY)       ## the pictures of the command line in docs/pictures, by Chromium
	@$(BIN)/python dev/chromium.py
	$(BIN)/python dev/pictures.py

clean:                   ## remove everything that `make` has made
	rm -rf .venv .cache build dist site .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: python
python:
	@$(PYTHON) -c '' || { echo "there is no $(PYTHON); name one: make test PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "toolpost needs Python 3.11 or newer; $(PYTHON) is older. Try: make test PYTHON=python3.12"; exit 1; }

$(RUNS): pyproject.toml dev/constraints.txt | python
	@test -f $(RUNS) || $(PYTHON) -m venv --clear .venv
	PIP_CONSTRAINT=dev/constraints.txt $(BIN)/python -m pip install --quiet -e '.[http,cli]'
	@touch $(RUNS)

$(READY): pyproject.toml dev/requirements.txt dev/constraints.txt | python
	$(PYTHON) -m venv --clear .venv
	PIP_CONSTRAINT=dev/constraints.txt $(BIN)/python -m pip install --quiet -r dev/requirements.txt -e .
	@mkdir -p .cache && touch $(RUNS) $(READY)
