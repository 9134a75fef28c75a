.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dev: $(BIN)/onnx-egraph links ## editable install in .venv, and links for type checkers and editors

$(BIN)/onnx-egraph: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -e '.[dev]'
	touch $@

# The editable install resolves imports by a finder, which no type checker follows; they read these links.
links:
	rm -rf .links
	mkdir -p .links/onnx_egraph
	ln -s ../../egraph ../../lowering ../../rules .links/onnx_egraph/
	ln -s $(addprefix ../../,$(wildcard api/*.py) $(patsubst %/__init__.py,%,$(wildcard api/*/__init__.py))) \
	  ../../api/py.typed .links/onnx_egraph/

fmt: ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: ## what CI checks before the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: links ## mypy, strict
	$(BIN)/mypy -p onnx_egraph

test: ## all tests, on the working tree
	$(BIN)/pytest

smoke: ## five seconds: layers, extraction, one export through the whole path
	$(BIN)/pytest -q -n 0 tests/packaging/test_layers.py tests/packaging/test_source.py tests/egraph/test_extract.py \
	  "tests/models/test_snapshots.py::test_snapshot[qwen3_posids_ts_eager-cpu]"

snapshots: ## write tests/models/snapshots anew, to be read as a diff
	SNAPSHOTS=write $(BIN)/pytest -q tests/models/test_snapshots.py

ci: ## what CI runs, on the built wheel
	.ci/run

clean: ## remove everything git ignores, but the environments
	rm -rf .links build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

.PHONY: help dev links fmt lint type test smoke snapshots ci clean
