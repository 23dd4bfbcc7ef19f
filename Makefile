# Every target sets up what it needs: a fresh checkout wants only Python 3.11 or later, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: quickstart test test-slow fuzz audit lint lock clean

quickstart: $(READY)
	$(BIN)/python run.py -m experiment=quickstart hydra/launcher=joblib
	$(BIN)/python -m experiments tables quickstart --show
	$(BIN)/python -m experiments figures quickstart
	@echo; echo "records: outputs/runs   table: outputs/tables/quickstart.md   figure: outputs/figures/quickstart.png"
	@echo "Ask one of the models: $(BIN)/python run.py predict run=<its id> \"What is the tens digit of 3582?\""

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n auto

test-slow: $(READY)
	$(BIN)/pytest -m slow -n auto --dist loadgroup

# 4,000 examples of each test of tests/fuzz, 20,000 of those of numbers: about eight minutes on one core.
fuzz: $(READY)
	$(BIN)/pytest tests/fuzz --hypothesis-profile=fuzz

# The advisories on what requirements.lock pins. The tool lives apart: its packages are none of the suite's.
PIP_AUDIT := 2.10.1
audit:
	test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && \
	  .venv-audit/bin/pip install --disable-pip-version-check --quiet pip-audit==$(PIP_AUDIT); }
	$(PYTHON) .ci/audit.py .venv-audit/bin/pip-audit

lint: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The environment, from the lock file alone.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, got " + sys.version) if sys.version_info < (3, 11) else None'
	@echo "Making $(VENV) from requirements.lock; this takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	touch $(READY)

# Write the lock file anew: the newest versions that pyproject.toml admits, with torch held.
TORCH := 2.13.0
lock:
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet torch==$(TORCH) -e ".[suite,dev]"
	echo "# Every package of the environment, pinned; written by \`make lock\` from pyproject.toml." > requirements.lock
	.venv-lock/bin/pip freeze --exclude-editable --all | sed -e 's/+cpu$$//' -e '/^pip==/d' >> requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf $(VENV) .venv-audit outputs data dist
