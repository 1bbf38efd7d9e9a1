# Everything runs from .venv, which `make .venv/ok` builds from the hash-locked requirements.
PY ?= python3
BIN = .venv/bin

.DEFAULT_GOAL := check
.PHONY: check install model demo test lint bench soak lock docs clean

check: lint test

install: .venv/ok

.venv/ok: requirements.lock requirements-dev.lock pyproject.toml
	$(PY) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements-dev.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# The embedding model, once per machine, into the store that all homes share; its hash is checked.
model: install
	@$(BIN)/ctxd --install-model snowflake-arctic-embed-s

demo: model
	$(BIN)/python bench/demo.py

test: model
	$(BIN)/python -m pytest -q

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: model
	$(BIN)/python -m bench

# The same proofs as in `make test`, for as long as an evening allows.
soak: model
	CTX_IO_STRIDE=1 CTX_CRASH_POINTS=100000 CTX_KILL_CYCLES=1000 CTX_SOAK_TURNS=1000 CTX_LOAD_SECONDS=120 CTX_RESTARTS=200 \
	  $(BIN)/python -m pytest -q tests/durability tests/crash tests/e2e -o timeout=7200

docs: install
	$(BIN)/python -m contextinfinity.protocol.openrpc > docs/protocol.md

# Needs uv; only for whoever changes a dependency.
lock:
	uv lock
	uv export -q --frozen --no-dev --no-emit-project -o requirements.lock
	uv export -q --frozen --all-groups --no-emit-project -o requirements-dev.lock

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
