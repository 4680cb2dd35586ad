# dynamig: `make demo` shows it, `make test` proves it; both do all the set-up they need.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BUILD ?= build
SYSTEM_PYTHON ?= python3
PYTHON ?= .venv/bin/python
PYTEST := $(PYTHON) -m pytest
LAB_ARGS ?=
SLURM_LAB ?= .lab-slurm
SLURM_LABS := $(SLURM_LAB) $(SLURM_LAB)-2
WORKERS ?= 2
# Tests side by side; those of one file stay together, for what they build once.
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile

# `lab env` exports this for people, of any lab; targets have theirs whatever a shell says, unless told on make's command line.
ifneq ($(origin DYNAMIG_LAB_DIR),command line)
override DYNAMIG_LAB_DIR := $(CURDIR)/.lab
endif
export DYNAMIG_LAB_DIR

-include emulator/emulator.mk

.PHONY: help demo test check lint unit property integration soak e2e slurm slurm-soak lab-up lab-down lab-status bench proto lock clean

help: ## This list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / && !seen[$$1]++ {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: venv emulator ## Native Slurm jobs, pods and a notebook share GPUs: shown live, checked at the end
	$(PYTHON) -m examples.demo --dir $(SLURM_LAB)

# The recipe is in emulator/emulator.mk.
emulator: ## The NVML emulator and its lister alone: build/libnvidia-ml.so.1, build/nvml-list

test: check property integration e2e slurm ## All rings below, lab included (the first run builds Kubernetes: about 8 minutes)

check: venv emulator lint unit ## Fast ring for every change: lint and unit (about a minute)

lint: venv ## Style, types, layers
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy src lab tests bench examples emulator
	.venv/bin/lint-imports --no-logo

unit: venv emulator ## Decisions on values and fakes, nothing outside the process
	$(PYTEST) tests/unit -q $(SIDE_BY_SIDE)

property: venv emulator ## Random geometries, claims and orders against models
	$(PYTEST) tests/property -q $(SIDE_BY_SIDE)

integration: venv emulator ## Adapters and emulator against real NVML clients, sockets and processes
	$(PYTEST) tests/contract tests/integration -q $(SIDE_BY_SIDE)

SOAK := DYNAMIG_EMULATOR_OPERATIONS=1000000 DYNAMIG_EMULATOR_SETS=1000000 \
    DYNAMIG_EMULATOR_ASAN_OPERATIONS=100000 DYNAMIG_EMULATOR_TSAN_OPERATIONS=20000
e2e: venv emulator lab-up ## Pods and jobs in the lab, with faults
	$(PYTEST) tests/e2e -v --durations=10 --timeout=420  # the kubelet retries after 80 s

SLURM_TESTS ?= not soak
slurm: venv emulator ## Pods paid for in Slurm beside native jobs, in two labs that end with it: the tests mostly wait
	for lab in $(SLURM_LABS); do $(PYTHON) -m lab up --dir $$lab --slurm-hooks deploy/slurm || exit 1; done
	DYNAMIG_SLURM_LAB_DIR=$(SLURM_LAB):$(SLURM_LAB)-2 $(PYTEST) tests/slurm -m "$(SLURM_TESTS)" -v --durations=5 --timeout=420 \
	    -n $(words $(SLURM_LABS)) --dist worksteal
	for lab in $(SLURM_LABS); do $(PYTHON) -m lab down --dir $$lab || exit 1; done

soak: venv emulator ## The emulator for some ten minutes: a million operations with kills, and under sanitizers
	$(SOAK) $(PYTEST) tests/integration/emulator/test_every_set.py tests/integration/emulator/test_soak.py \
	    tests/integration/emulator/test_sanitizers.py -v --durations=10

# DYNAMIG_SOAK=N puts the faults at the first N writes of each kind, one run of the story for each.
slurm-soak: SLURM_TESTS = soak
slurm-soak: slurm ## The stories of faults that `make slurm` leaves out for their time

lab-up: venv emulator ## Real etcd, Kubernetes and two nodes with emulated GPUs; continues where it stopped
	$(PYTHON) -m lab up $(LAB_ARGS)

lab-down: venv ## Everything of all labs is gone: processes, mounts, namespaces, files
	$(PYTHON) -m lab down $(LAB_ARGS)
	for lab in $(SLURM_LABS); do $(PYTHON) -m lab down --dir $$lab || exit 1; done

lab-status: venv ## Every daemon of the lab: pid, since when, log, readiness
	$(PYTHON) -m lab status $(LAB_ARGS)

bench: venv emulator lab-up ## Measured figures, each as a ratio against something named
	$(PYTHON) -m bench

proto: venv ## Compile the kubelet's protocols again
	$(PYTHON) -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src --grpc_python_out=src \
	    src/dynamig/kube/proto/dra_v1.proto src/dynamig/kube/proto/registration_v1.proto

lock: ## Write requirements.lock anew from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --group dev --generate-hashes --no-annotate --no-header --no-emit-index-url \
	    --python-version 3.11 -q -o requirements.lock

# The environment is made anew whenever the lock changes; the stamp is written last.
.PHONY: venv
venv: .venv/stamp
.venv/stamp: requirements.lock pyproject.toml
	@command -v $(SYSTEM_PYTHON) >/dev/null || { echo "python3 (3.11 or newer) is missing: install it, or set SYSTEM_PYTHON" >&2; exit 1; }
	@$(SYSTEM_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(SYSTEM_PYTHON) is older than 3.11: set SYSTEM_PYTHON to a newer one" >&2; exit 1; }
	@echo "setting up .venv from requirements.lock"
	@test -x .venv/bin/python || $(SYSTEM_PYTHON) -m venv .venv
	@.venv/bin/python -m pip install --quiet --require-hashes -r requirements.lock
	@.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

clean: ## Remove build results and the environment (take the lab down first)
	@for lab in .lab $(SLURM_LABS); do [ ! -e $$lab ] || { echo "a lab is in $$lab: run make lab-down first" >&2; exit 1; }; done
	rm -rf $(BUILD) .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
