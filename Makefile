# Every target sets up what it needs: a fresh checkout wants only Python 3.11 or later, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: quickstart test test-slow lint lock clean

quickstart: $(READY)
	$(BIN)/python run.py -m experiment=quickstart hydra/launcher=joblib
	$(BIN)/python -m experiments tables quickstart --show
	$(BIN)/python -m experiments figures quickstart

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest

test-slow: $(READY)
	$(BIN)/pytest -m slow

lint: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The environment, from the lock file alone.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, got " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	touch $(READY)

# Write the lock file anew from what is installed in $(VENV).
lock:
	$(BIN)/pip freeze --exclude-editable --all | sed -e 's/+cpu$$//' -e '/^ntl[= ]/d' -e '/^pip==/d' > requirements.lock

clean:
	rm -rf $(VENV) outputs data dist
