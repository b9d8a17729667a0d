# Every target runs from .venv, which the first one that needs it creates; none of them has to come first.

# The first Python that can run the pinned list; name another one with `make PYTHON=/path/to/python3.12 …`.
IS_SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(IS_SUPPORTED)' 2>/dev/null && echo $$p && break; done)

# Asked for torch, and for nothing else, when pip does not find it elsewhere.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

PLATFORM := $(shell uname -s | tr A-Z a-z)-$(shell uname -m)
PACKAGES := conf/requirements/cpu-$(PLATFORM).txt
TORCH := conf/requirements/torch-cpu-$(PLATFORM).txt
KNOWN_PLATFORMS := $(patsubst conf/requirements/torch-cpu-%.txt,%,$(wildcard conf/requirements/torch-cpu-*.txt))

# The stamp is written last. `incomplete` marks an installation that has begun, so that an interrupted one starts over.
STAMP := .venv/.installed
INCOMPLETE := .venv/.incomplete
# Without build isolation the few source packages are built by the pinned setuptools, not by whatever is newest.
PIP_INSTALL := .venv/bin/python -m pip install -qq --no-input --disable-pip-version-check --no-deps --no-build-isolation

.PHONY: help install demo test bench lint types clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

install: $(STAMP) ## create .venv with everything that a CPU needs (2 to 5 minutes, once)

demo: $(STAMP) ## train a small model on this machine; DEMO_ARGS="run.steps=5 …" overrides settings
	.venv/bin/vipray train conf/demo.yaml run.name=demo-$$(date +%Y%m%d-%H%M%S) $(DEMO_ARGS)

test: $(STAMP) ## run the tests; ARGS="-k allocation …" goes to pytest
	.venv/bin/python -m pytest $(ARGS)

bench: $(STAMP) ## time the parts beside their alternatives; ARGS="--large --json FILE …" goes to vipray bench
	.venv/bin/python -m jobs.bench $(ARGS)

lint: $(STAMP) ## check style and formatting
	.venv/bin/ruff check
	.venv/bin/ruff format --check

types: $(STAMP) ## check types
	.venv/bin/mypy

clean: ## remove caches and build leftovers; .venv and outputs stay
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find vipray actors jobs tests -name __pycache__ -prune -exec rm -rf {} +

# An installation that stops half-way leaves $(INCOMPLETE) and no stamp.
$(STAMP): $(wildcard $(PACKAGES) $(TORCH)) pyproject.toml
	@test -n '$(wildcard $(PACKAGES))' || { echo "error: no pinned list for $(PLATFORM), only for: $(KNOWN_PLATFORMS)"; exit 1; }
	@'$(PYTHON)' -c '$(IS_SUPPORTED)' 2>/dev/null || \
		{ echo "error: no Python 3.11 to 3.14 found as '$(or $(PYTHON),python3)': install one, or name it with PYTHON=/path/to/python3.11"; exit 1; }
	@'$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "error: $(PYTHON) lacks the venv module: install it, e.g. with 'apt-get install python3-venv'"; exit 1; }
	@if test -e $(INCOMPLETE) || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then \
		echo "==> creating .venv with $$('$(PYTHON)' --version)"; '$(PYTHON)' -m venv --clear .venv; fi
	@touch $(INCOMPLETE)
	@rm -f $(STAMP)
	@echo "==> installing what builds source packages"
	@$(PIP_INSTALL) $$(grep '^setuptools==' $(PACKAGES))
	@$(PIP_INSTALL) $$(grep '^pycosat==' $(PACKAGES)) >/dev/null 2>&1 || \
		echo "    pycosat did not build (no C compiler, or no Python headers): reasoning-gym's logic puzzles will not work, the rest will"
	@echo "==> installing $$(grep '^torch==' $(TORCH))"
	@$(PIP_INSTALL) --retries 0 --timeout 15 -r $(TORCH) 2>/dev/null || \
		{ echo "    not found by pip's own settings, asking $(TORCH_INDEX)"; \
		$(PIP_INSTALL) --retries 1 --timeout 15 --index-url '$(TORCH_INDEX)' -r $(TORCH); } || \
		{ echo "error: torch is neither where pip looks nor at $(TORCH_INDEX): name an index that has it with 'make install TORCH_INDEX=https://…'," \
		"or put its wheel into a folder and set PIP_FIND_LINKS=/that/folder"; exit 1; }
	@echo "==> installing $$(grep -c '==' $(PACKAGES)) packages (about 2 minutes)"
	@grep -v '^pycosat==' $(PACKAGES) > $(INCOMPLETE)
	@$(PIP_INSTALL) -r $(INCOMPLETE)
	@echo "==> installing vipray itself"
	@$(PIP_INSTALL) -e .
	@rm $(INCOMPLETE)
	@touch $@
