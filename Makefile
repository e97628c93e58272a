# hocket: one front door. `make` builds, `make demo` runs the main job, `make check` passes the tests; each sets up what it needs.
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=
PREFIX ?= /usr/local
export CTEST_OUTPUT_ON_FAILURE = 1

.PHONY: all setup demo check python wheel torch-suite asan ubsan tsan sanitized bench ladder lab lab-check install tidy fmt bless fuzz docs clean

all: setup
	@cmake -S . -B $(BUILD) -G Ninja $(CMAKE_FLAGS) > $(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log
	@cmake --build $(BUILD) -j $(JOBS)

setup:
	@scripts/setup

demo: all
	@scripts/demo $(BUILD)

check: all
	@cd $(BUILD) && ctest -j $(JOBS) --timeout 170 $(CTEST_FLAGS)

# Debug information and optimisation as usual; the tests know from the compiler that they are sanitized and take fewer combinations.
sanitized:
	@$(MAKE) --no-print-directory all BUILD=build-$(NAME) CMAKE_FLAGS="-DHOCKET_SANITIZE=$(SANITIZE)"
	@cd build-$(NAME) && ctest -j $(JOBS) --timeout 600 -LE unsanitized $(CTEST_FLAGS)

asan ubsan:
	@$(MAKE) --no-print-directory sanitized NAME=asan SANITIZE=address,undefined
tsan:
	@$(MAKE) --no-print-directory sanitized NAME=tsan SANITIZE=thread CTEST_FLAGS="-L threads $(CTEST_FLAGS)"

# make bench [BASE=rev] [ARGS="--op all_gather -n 4"]: beside Open MPI and MPICH, or another revision, and beside the machine's limits.
bench: all
	@scripts/bench --build $(BUILD) $(if $(BASE),--base $(BASE)) $(ARGS)

# make ladder [LADDER_ARGS="--rounds 2 --parts rungs,overlap"]: what each way of reducing gradients gives, by wall clock (docs/train.md).
ladder: all
	@scripts/ladder --build $(BUILD) $(LADDER_ARGS)

# A cluster of network namespaces with shaped links; needs root. lab-check: its checks alone, passed over where there can be no lab.
lab: all
	@scripts/setup lab
	@scripts/lab --build $(BUILD) $(ARGS)

lab-check: all
	@scripts/setup lab
	@scripts/lab --build $(BUILD) --quick || [ $$? = 77 ]

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

# build/venv: hocket for Python, and CPU torch if it can be had. From then on `make check` runs the tests of the Python package too.
python: setup
	@scripts/python $(BUILD)

# build/dist/hocket-*.whl, tried in an empty environment elsewhere.
wheel: setup
	@scripts/wheel $(BUILD)

# make torch-suite [ARGS="--quick"] [ARGS="--backend gloo"]: PyTorch's own tests of torch.distributed (docs/python.md, python/suite).
torch-suite: all
	@scripts/torch_suite $(BUILD) $(ARGS)

tidy: all
	@scripts/tidy $(BUILD)

fmt:
	@scripts/format

# Rewrites golden files from what the code says now; the diff is the review.
bless: all
	@cd $(BUILD) && BLESS=1 ctest -L golden $(CTEST_FLAGS)

# make fuzz T=plan_text [SECONDS=60]
fuzz:
	@scripts/fuzz $(T) $(or $(SECONDS),60)

docs: all
	@scripts/docs $(BUILD)/bin/hocket

clean:
	@rm -rf build build-*
