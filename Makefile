# Each target installs what it needs; later calls install nothing.
PYTHON ?= python3
BIN := .venv/bin
# One stamp per Python version, so that another PYTHON creates a new environment. `run` needs only part of it.
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
READY := .venv/.ready-$(VERSION)
RUNS := .venv/.runs-$(VERSION)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start a thousand programs. Without bytecode each one would compile our sources, and tests would take 50 % longer.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run fleet test check fmt bench conformance interop fuzz soak docs pictures clean
.DEFAULT_GOAL := help

help:                    ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile | expand -t 22

run: $(RUNS)             ## serve the weather example on loopback and call its tools; PORT=8000
	@$(BIN)/python dev/showcase.py $(if $(PORT),--port $(PORT))

fleet: $(READY)          ## three workers on Redis behind a proxy; one is killed while it asks a client
	@$(BIN)/python examples/three_workers.py

test: $(READY)           ## run all tests in parallel, with coverage and the table of proven rules
	@$(BIN)/python dev/chromium.py
	@$(BIN)/coverage erase
	@# Four workers more than cores: tests spend a third of their time waiting for processes or timers.
	$(BIN)/pytest -n $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 4 ))) --cov --cov-report= $(ARGS)
ifneq ($(strip $(ARGS)),)
	@echo "coverage: judged on whole runs only (without ARGS)"
else
	@if test -f "$${TOOLPOST_SPEC:-../shared/spec}/REQUIREMENTS.md"; then \
		$(BIN)/coverage report --include='src/toolpost/types/*,src/toolpost/protocol/*' --fail-under=100; \
	else echo "coverage: not judged: tests that need the specification were skipped (set TOOLPOST_SPEC)"; fi
endif

check: $(READY)          ## check format, lint, types, import contracts, house rules
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports --no-cache
	$(BIN)/python dev/house.py

fmt: $(READY)            ## format the files and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)          ## compare the speed with other libraries; QUICK=1 for two minutes, ONLY="http stdio" for some scenarios
	$(BIN)/python -m bench $(if $(filter-out 0,$(QUICK)),--quick) $(if $(ONLY),--only $(ONLY))

conformance: $(READY)    ## run the official conformance suite; LEG=name for one leg, or a prefix
	@status=0; PYTHONPATH=interop $(BIN)/python conformance/judge.py $(LEG) || status=$$?; \
	$(if $(LEG),,PYTHONPATH=interop $(BIN)/python conformance/differential.py || status=$$?;) exit $$status

interop: $(READY)        ## test with clients and servers of other projects; PEER=name for one
	$(BIN)/python interop/run.py $(PEER)

fuzz: $(READY)           ## run coverage-guided fuzzing, FUZZ_SECONDS (60) per target; TARGET=name for one
	$(BIN)/python -m fuzz --seconds $(or $(FUZZ_SECONDS),60) $(TARGET)

soak: $(READY)           ## load-test all transports and revisions under faults, for SOAK_SECONDS (600)
	$(BIN)/python dev/soak.py

docs: $(READY)           ## build the documentation site, in site/
	$(BIN)/python dev/website.py

pictures: $(READY)       ## draw the screenshots in docs/pictures, with Chromium
	@$(BIN)/python dev/chromium.py
	$(BIN)/python dev/pictures.py

clean:                   ## remove everything that `make` created
	rm -rf .venv .cache build dist site .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: python
python:
	@$(PYTHON) -c '' || { echo "$(PYTHON) not found; choose another: make test PYTHON=python3.12"; exit 1; }
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
