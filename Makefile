# `make serve` and `make test` set up whatever they need; a second run finds it there.

ENVIRONMENT := .venv/.installed
PURE := */forenotice/core/*,*/forenotice/wire/*,*/forenotice/agent/rules/*

.DEFAULT_GOAL := help
.PHONY: help serve cluster lab test check bench soak wheel clean

help: ## say what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile

serve: $(ENVIRONMENT) ## run the service with a small demonstration fleet (ARGS='--speed 10' adds flags)
	@.venv/bin/forenotice serve --demo $(ARGS)

cluster: $(ENVIRONMENT) ## run a cluster on this machine: NATS, PostgreSQL, two services, three edges (ARGS='--speed 10' adds flags)
	@.venv/bin/forenotice cluster demo $(ARGS)

lab: $(ENVIRONMENT) ## run real VMs on this machine, with the service (ARGS='--vms 5' adds flags); `forenotice lab down` ends them
	@scripts/system-packages lab
	@scripts/environment libvirt
	@.venv/bin/forenotice lab up $(ARGS)

# Each of the many processes would compile everything anew where the environment forbids to keep it.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(ENVIRONMENT) ## run all tests but the long ones, and hold core, wire and the agent's rules to every branch
	@scripts/system-packages test
	@scripts/environment libvirt
	@.venv/bin/coverage erase
	.venv/bin/coverage run -m pytest -n 5 --dist worksteal
	@.venv/bin/coverage combine -q
	.venv/bin/coverage report --include='$(PURE)' --fail-under=100

check: $(ENVIRONMENT) ## lint, formatting and types
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

bench: $(ENVIRONMENT) ## measure side by side with nginx and plain SQLite, and write bench/RESULTS.md
	@scripts/system-packages bench
	@scripts/environment libvirt
	.venv/bin/python -m bench

soak: $(ENVIRONMENT) ## run the long tests, and hold the coverage of all rooms to its floor
	@scripts/system-packages test
	@scripts/environment libvirt
	.venv/bin/pytest -m soak -o faulthandler_timeout=0
	@.venv/bin/coverage erase
	MEASURE_ALL=1 .venv/bin/coverage run -m pytest -n 4 --dist worksteal
	@.venv/bin/coverage combine -q
	.venv/bin/coverage report --omit='$(PURE)' --precision=2 --fail-under=90.01

wheel: $(ENVIRONMENT) ## build the wheel that VMs install, into dist/
	@rm -rf build dist
	@.venv/bin/python -m pip wheel -qq --no-input --disable-pip-version-check --no-deps --no-build-isolation --check-build-dependencies --wheel-dir dist .
	@ls dist/*.whl

clean: ## back to a bare clone
	rm -rf .venv build dist wheelhouse screenshots .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* src/*.egg-info
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(ENVIRONMENT): pyproject.toml hashes.txt scripts/environment
	@scripts/environment
	@touch $@
