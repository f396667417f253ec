# `make` prints the verbs. Cargo's commands keep one shape (--workspace), or it would build the dependencies twice; `demo`
# and `dev` build the binary alone, which is sooner done on a new machine.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo dev check lint test conformance conformance-serve clients fuzz bench up down fmt

help: ## print the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## run a long call from a real client through the whole system, and print what happens
	@cargo build --bin longhaul
	@scripts/demo

dev: ## keep the whole system running in one process on 127.0.0.1:8080
	cargo run --bin longhaul -- dev

check: ## formatting, lints, the crate graph, proto, compose, images, migrations, licences
	cargo fmt --all --check
	$(MAKE) --no-print-directory lint
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace --test it house
	@if cargo deny --version >/dev/null 2>&1; then \
		cargo deny --offline check bans licenses sources; \
	else \
		echo "cargo-deny is not installed: licences are not checked"; \
	fi

test: ## every test, on a private Postgres and Redis, then the official conformance suite and the real clients
	scripts/with-services cargo test --workspace
	$(MAKE) --no-print-directory conformance
	$(MAKE) --no-print-directory clients

conformance: ## the official MCP conformance suite, in both eras
	cargo build --workspace --all-targets
	scripts/conformance

conformance-serve: ## keep the server of the conformance suite running: PORT=8080
	cargo build --workspace --all-targets
	$${CARGO_TARGET_DIR:-target}/debug/longhaul-conformance --port $(or $(PORT),8080)

clients: ## MCP clients from PyPI and npm, as they are
	cargo build --workspace --all-targets
	scripts/clients/run

FOR ?= 300
fuzz: ## mutate forms, answers, labels and URLs for FOR=300 seconds each, from a random seed
	LONGHAUL_FUZZ_SECONDS=$(FOR) LONGHAUL_FUZZ_SEED=$$RANDOM cargo test --workspace --test input fuzz -- --nocapture

bench: ## rates and latencies beside their floors; writes target/bench/latest.json
	scripts/bench

up: ## all roles, two replicas each, with Docker Compose
	scripts/up

down: ## stop what `make up` started; its data is kept
	docker compose down

fmt: ## format everything
	cargo fmt --all

LINT := .cache/lint

lint: $(LINT)/ready
	$(LINT)/bin/buf lint
	$(LINT)/bin/buf format --diff --exit-code
	$(LINT)/bin/yamllint --strict .yamllint.yaml buf.yaml docker-compose.yml
	$(LINT)/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(LINT)/bin/hadolint deploy/Dockerfile
	$(LINT)/bin/squawk migrations/postgres/*.sql
	$(LINT)/bin/shellcheck --severity=warning $$(grep -lE '^#!.*\b(ba)?sh$$' .ci/* scripts/* scripts/*/* 2>/dev/null)

$(LINT)/ready: scripts/requirements.txt
	python3 -m venv --clear $(LINT)
	$(LINT)/bin/pip install --quiet --disable-pip-version-check --requirement scripts/requirements.txt
	touch $@
