# One command each, on a machine that has python3 with pip and nothing else:
#   make demo     a real swarm on this computer; DEMO_ARGS="--peers 2 --algorithm model-parallel" for another one
#   make test     all checks and all tests; WORKERS=8 for as many of the tests side by side that start no swarm, 2 if it is not said
PYTHON ?= $(shell for python in python3 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && { echo "$$python"; break; }; done)
BIN := .venv/bin
STAMP := .venv/installed
DEMO_ARGS ?=
WORKERS ?= 2
# Files of tests that have this mark: pytest alone would read all files for the few.
marked = $(sort $(shell grep -rl 'mark\.$(1)' tests --include='test_*.py'))
long_first = $(filter tests/network/%_swarm.py,$(1)) $(filter-out tests/network/%_swarm.py,$(1))
# Tests start hundreds of programs, and each would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check fast swarm faults oldest install format clean
.DEFAULT_GOAL := demo

demo: $(STAMP)
	@$(BIN)/manta-swarm up $(DEMO_ARGS)

# The tests without processes compute while those of programs wait: side by side they take less time. What each prints comes when it ends.
test: check
	@echo "all tests: this takes about a quarter of an hour, and what they say comes when they end"
	@$(MAKE) --no-print-directory -j 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) fast swarm

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests side by side compute with one thread each, or they wait for each other's threads.
fast: $(STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m "not swarm" -n $(WORKERS) --dist worksteal

# Files of tests side by side, more than there are cores: most of them wait for rounds. Those with one long test come first. Where something
# is broken on purpose there is less beside it.
swarm: $(STAMP)
	$(BIN)/pytest -m "swarm and not faults" -n 3 --dist loadfile --no-loadscope-reorder $(call long_first,$(filter-out tests/faults/%,$(call marked,swarm)))
	$(BIN)/pytest -m "swarm and not faults" -n 2 --dist loadfile --no-loadscope-reorder tests/faults

faults: $(STAMP)
	$(BIN)/pytest -m faults $(call marked,faults)

# The export's tests with the oldest torch and torchvision that pyproject.toml allows, in an environment of their own.
OLDEST = $(shell sed -nE 's/^ *"(torch|torchvision)>=([0-9]+\.[0-9]+)".*/\1==\2.0/p' pyproject.toml)

oldest: .venv-oldest/installed
	.venv-oldest/bin/pytest tests/automl/export

.venv-oldest/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Manta needs Python 3.11 or 3.12: install one, or name it: make oldest PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "installing $(OLDEST) into .venv-oldest: several gigabytes, some minutes, once"
	@$(PYTHON) -m venv .venv-oldest 2>/dev/null || { $(PYTHON) -m venv --without-pip .venv-oldest && $(PYTHON) -m pip --python .venv-oldest install -q pip; }
	@.venv-oldest/bin/python -m pip install --disable-pip-version-check --progress-bar off -e '.[dev]' $(OLDEST) >.venv-oldest/install.log 2>&1 \
		|| { tail -n 15 .venv-oldest/install.log >&2; echo "the install failed; all that pip said is in .venv-oldest/install.log" >&2; exit 1; }
	@touch $@

format: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

install: $(STAMP)

# The stamp is written last: an install that was interrupted is done again. Some systems ship Python without the part of venv that
# brings pip; then the pip that is there fills the environment. What pip says is in a file, and is shown where it fails. pip would compile with
# one processor. Some packages bring files that no Python compiles: nothing imports them.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Manta needs Python 3.11 or 3.12: install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "installing Manta and what it needs into .venv: several gigabytes, some minutes, once"
	@$(PYTHON) -m venv .venv 2>/dev/null || { $(PYTHON) -m venv --without-pip .venv && $(PYTHON) -m pip --python .venv install -q pip; }
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile -e '.[dev]' >.venv/install.log 2>&1 \
		|| { tail -n 15 .venv/install.log >&2; echo "the install failed; all that pip said is in .venv/install.log" >&2; exit 1; }
	@$(BIN)/python -m compileall -q -j 0 -x '/tests?/' .venv/lib >>.venv/install.log 2>&1 || true
	@echo "installed: $$(du -sh .venv | cut -f1) in .venv; what pip said is in .venv/install.log"
	@touch $@

clean:
	rm -rf .venv .venv-oldest build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
