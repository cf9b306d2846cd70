# Commands for developers. Needs Python 3.11 and make; everything else is installed into .venv.

# Tests start hundreds of processes, and each would compile frd again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell for python in python3.11 python3.12 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	echo $$python && exit; done; echo python3.11)
BIN := .venv/bin
# Each in its process, the longest first: to hand out thousands of short tests costs xdist half a minute.
COMPUTING := $(addprefix tests/,unit property unit/engine unit/agent unit/service sim helm frozen docs)
# A shared machine may stall any process for seconds. A test with real processes that fails is run once
# more and listed in the summary (RERUN): two failures in a row count.
REAL := --reruns 1 -rR
# Seeds of `make sim`: one or two seconds of a core each.
SEEDS := 1000
# What `make test-torch` runs.
TESTS := tests/e2e
# The code that mutmut changes; a file such as frd/engine/hangs/attribution.py takes minutes, all of it hours.
MODULE := frd/engine
BENCHES := ingest door overhead start phase analyze clock memory poll traces inspect_suspect waits_for web

.PHONY: help demo test test-real $(COMPUTING) quick quick-tests prepare test-torch test-frameworks test-gpu test-pods test-slurm test-wheel lint coverage sim soak mutants bench proto dashboards requirements sbom clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    a small job hangs on this machine; frd names the first cause (about a minute)"
	@echo "make test    lint, types, import floors, generated code, tests"
	@echo "make quick   lint, types, unit tests, frozen verdicts (80 seconds)"
	@echo "make lint    only the checks that run no code"
	@echo "make coverage  lines of engine, parser, outbox and stores that no test runs"
	@echo "make sim SEEDS=N  simulate N jobs with one service, N with replicas, 2N with hooks; all frozen verdicts"
	@echo "make soak    end-to-end tests that are too long for make test (10 minutes)"
	@echo "make mutants MODULE=PATH  small changes that must fail a test: forty chosen ones, then mutmut in PATH"
	@echo "make test-torch TORCH=VERSION  the tests with real ranks, on another release of torch (6 minutes)"
	@echo "make test-frameworks  hangs and ends of real jobs that torchrun, Lightning, Ray and others start (20 minutes)"
	@echo "make test-gpu  hangs, memory and CUDA graphs of real jobs with NCCL; one GPU is enough (5 minutes)"
	@echo "make test-pods  the image, the chart's pods and a systemd in real containers; root on Debian (10 minutes)"
	@echo "make test-slurm  jobs of the recipe for Slurm on two nodes, real Slurm; root on Debian (6 minutes)"
	@echo "make test-wheel  the wheel in empty environments of Python 3.11, 3.12 and 3.13 (3 minutes)"
	@echo "make bench   run the benches (several minutes, on an idle machine)"
	@echo "make proto   regenerate frd/v1 from proto/"
	@echo "make dashboards  regenerate helm/frd/dashboards"
	@echo "make requirements  write the hashes of all pinned releases into requirements/"
	@echo "make sbom    write dist/frd-VERSION.cdx.json: what the image contains, with licences and hashes"
	@echo "make clean   remove everything that make has created"

demo: .venv/installed torch
	@$(BIN)/frd demo

test:
	@$(MAKE) --no-print-directory -j 3 prepare
	@$(MAKE) --no-print-directory -k -j 5 test-real lint $(COMPUTING)
	@$(BIN)/pytest $(REAL) -m "alone and not soak" tests/e2e

# These wait for processes half of the time. Tests that compute fill the gaps, and report in the end.
test-real: .venv/installed
	@echo "frd: tests with real daemons, NATS servers and ranks; meanwhile, all that only compute"
	@$(BIN)/pytest $(REAL) -n 4 --dist loadgroup -m "not alone and not soak" --durations 10 tests/contract tests/e2e

$(COMPUTING): .venv/installed
	@log=.venv/$(subst /,-,$@).log; \
		nice -n 10 $(BIN)/pytest $@ $(addprefix --ignore ,$(filter $@/%,$(COMPUTING))) > $$log 2>&1; \
		status=$$?; echo "frd: $@"; cat $$log; exit $$status

quick:
	@$(MAKE) --no-print-directory -j 3 lint quick-tests

# Without scenes of stragglers, recordings and checks of docs, which take a third of the time.
quick-tests: .venv/installed
	@$(BIN)/pytest -q -n 4 --dist loadgroup -m "not torch and not prometheus" tests/unit tests/frozen \
		$(addprefix --ignore tests/unit/,project dftracer offline engine/stragglers)

lint: .venv/installed .venv-proto/installed
	@echo "frd: lint"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "frd: types"
	@$(BIN)/mypy --no-error-summary
	@echo "frd: import floors"
	@$(BIN)/lint-imports --no-logo > .venv/floors.log || { cat .venv/floors.log; exit 1; }
	@echo "frd: generated code"
	@scripts/generate --check
	@$(BIN)/python -m scripts.dashboards --check
	@echo "frd: words"
	@$(BIN)/python -m scripts.words

coverage: .venv/installed
	@$(BIN)/pytest -n 2 --dist loadgroup --timeout 600 --cov --cov-report= tests/unit tests/property tests/sim tests/frozen
	@$(BIN)/python -m scripts.covered

# All seeds of every test that tries a part of them elsewhere.
sim: .venv/installed
	@$(BIN)/python -m tests.frozen
	@FRD_ALL_SEEDS=1 $(BIN)/pytest -n 2 --dist loadgroup --timeout 600 $$(grep -rl --include='test_*.py' 'tests\.world.*seeds' tests)
	@$(BIN)/python -m tests.sim --seeds $(SEEDS)
	@$(BIN)/python -m tests.sim --asks --strict --seeds $(SEEDS)
	@$(BIN)/python -m tests.sim --hidden --strict --seeds $(SEEDS)
	@$(BIN)/python -m tests.sim --asks --mutate --seeds $(SEEDS)
	@$(BIN)/python -m tests.sim --cluster --asks --seeds $(SEEDS)
	@$(BIN)/python -m tests.sim --hooks late --seeds $(SEEDS)
	@$(BIN)/python -m tests.sim --hooks issue --seeds $(SEEDS)
	@$(BIN)/python -m tests.sim --seed 1 --world 768

soak: .venv/installed torch
	@$(BIN)/pytest $(REAL) -n 3 --dist loadgroup -m "soak and not alone" --durations 10 tests/e2e
	@$(BIN)/pytest $(REAL) -m "soak and alone" tests/e2e

# The tests of `test-real` and `test` with real ranks, in a separate environment for each release of torch.
test-torch:
	@test -n "$(TORCH)" || { echo "frd: test-torch: no release: name one: make test-torch TORCH=2.15.0 \
	(2.7.0, 2.9.1, 2.10.0, 2.13.0 and 2.15.0 are tried, see docs/frameworks.md)" >&2; exit 2; }
	@$(MAKE) --no-print-directory .venv-torch-$(TORCH)/installed
	@echo "frd: tests with real ranks: torch $(TORCH)"
	@.venv-torch-$(TORCH)/bin/pytest $(REAL) -n 4 --dist loadgroup -m "torch and not alone and not soak" --durations 10 $(TESTS)
	@.venv-torch-$(TORCH)/bin/pytest $(REAL) -m "torch and alone and not soak" $(TESTS) || test $$? = 5  # none

# In a separate environment: the frameworks are large, and `make test` needs none of them.
test-frameworks: .venv-frameworks/installed
	@.venv-frameworks/bin/pytest $(REAL) tests/frameworks

# In a separate environment as well, with a CUDA build of torch; FRD_GPU_PYTHON names another one.
test-gpu:
	@scripts/gpu .venv-gpu $(PYTHON)

# In containers that podman runs, with images that are made here and kept in .pods.
test-pods: .venv/installed torch
	@scripts/pods $(BIN)/python

# With Debian's Slurm and munge; every test has its cluster below .slurm, and removes it.
test-slurm: .venv/installed torch
	@scripts/slurm $(BIN)/python

# Downloads what frd depends on, for each Python that is found.
test-wheel: .venv/installed torch
	@$(BIN)/pytest $(REAL) -n 2 --durations 10 tests/wheel

mutants: .venv/installed
	@$(BIN)/python -m tests.mutants
	@$(BIN)/python -m scripts.mutants $(MODULE)

bench: .venv/installed torch
	@for bench in $(BENCHES); do \
		echo "frd: bench/$$bench.py"; $(BIN)/python bench/$$bench.py --json || exit 1; done

proto: .venv-proto/installed
	@scripts/generate

dashboards: .venv/installed
	@$(BIN)/python -m scripts.dashboards

requirements: .venv-uv/installed
	@.venv-uv/bin/python -m scripts.requirements .venv-uv/bin/uv

sbom: .venv/installed
	@$(BIN)/python -m scripts.sbom dist

clean:
	rm -rf .venv .venv-proto .venv-uv .venv-frameworks .venv-gpu .venv-torch-* .pods .slurm dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .mutants \
		.import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

LOCKED := $(addprefix requirements/,service.txt build.txt) scripts/venv scripts/install

.venv/installed: pyproject.toml requirements/dev.txt requirements/cluster.txt $(LOCKED)
	@scripts/venv .venv $(PYTHON) requirements/dev.txt --editable
	@touch $@

.venv-proto/installed: requirements/proto.txt scripts/venv scripts/install
	@scripts/venv .venv-proto $(PYTHON) requirements/proto.txt
	@touch $@

# torch depends on one version of NCCL, so the newer one is installed after it, without dependencies.
.venv-gpu/installed: pyproject.toml $(addprefix requirements/,dev.txt cluster.txt demo.txt cuda.txt nccl.txt) $(LOCKED)
	@scripts/venv .venv-gpu $(PYTHON) requirements/dev.txt --editable
	@echo "frd: installing torch and NCCL for GPUs (a large download)"
	@scripts/install .venv-gpu/bin/python --quiet -r requirements/demo.txt
	@.venv-gpu/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes --no-deps -r requirements/nccl.txt
	@touch $@

.venv-torch-%/installed: pyproject.toml $(addprefix requirements/,dev.txt cluster.txt) $(LOCKED) scripts/torch-release
	@scripts/venv .venv-torch-$* $(PYTHON) requirements/dev.txt --editable
	@scripts/torch-release .venv-torch-$* $*
	@touch $@

.venv-frameworks/installed: $(addprefix requirements/,frameworks.txt demo.txt torch-cpu.txt) $(LOCKED)
	@scripts/venv .venv-frameworks $(PYTHON) requirements/frameworks.txt --editable --cpu
	@touch $@

.venv-uv/installed: requirements/uv.txt scripts/venv scripts/install
	@scripts/venv .venv-uv $(PYTHON) requirements/uv.txt
	@touch $@

# All that `make test` downloads and installs.
prepare: .venv/installed .venv-proto/installed torch dftracer
	@scripts/debian-packages

# Real ranks need torch; without it the demo uses scripted ranks, and tests skip.
.PHONY: torch dftracer
torch: .venv/installed
	@scripts/torch .venv requirements/demo.txt

# Tests that read traces of I/O made on the spot skip without it.
dftracer: .venv/installed
	@scripts/dftracer .venv
