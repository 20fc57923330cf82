# make demo and make test need only Go and make. As root on Debian or Ubuntu they install
# what else is missing; see scripts/require.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: help demo lib install uninstall wheel release test test-long test-python test-net test-netem test-rdma bench-rdma race fuzz soak lint build build-tests test-gpu bench-primitives bench-machine clean need

# go-nvml calls functions that later versions of NVML deprecate.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations

staticcheck_version := v0.8.2
clang_format_version := 14.0.6
staticcheck := build/staticcheck-$(staticcheck_version)/staticcheck
clang_format := build/clang-format-$(clang_format_version)/clang_format/data/bin/clang-format

# Stamp binaries with the commit, unless git refuses to tell it (in a tree of another
# user), which the go command would take for a failure.
vcs := $(shell git status >/dev/null 2>&1 && echo auto || echo false)

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 18

demo: need ## four ranks all-reduce on this machine, verified
	go build -buildvcs=$(vcs) -o build/ ./cmd/mscclgo ./samples/allreduce
	build/allreduce

lib: need ## build the C library libmscclgo.so and its header mscclgo.h into build/
	scripts/lib build -buildvcs=$(vcs)

install: lib ## install the library, its command and headers below PREFIX=/usr/local, and that below DESTDIR
	scripts/install build "$(DESTDIR)$(or $(PREFIX),/usr/local)"

uninstall: ## remove what install has installed
	scripts/install --remove "$(DESTDIR)$(or $(PREFIX),/usr/local)"

wheel: need ## build the wheel of the Python package for glibc 2.28 or later into build/python/
	scripts/wheel build/python

release: need ## make all artifacts of this version, for x86-64 and arm64, into build/release/
	scripts/release

test: need ## vet and test all packages; list what was skipped and why
	scripts/test -short

test-long: need ## the same tests with all schedules, sizes and numbers of ranks, which takes an hour
	scripts/test

test-python: need ## test the Python package, installed from its wheel
	scripts/test-python

test-netem: need ## test over links that delay, lose and reorder, in a virtual machine
	scripts/test-netem

test-rdma: need ## test InfiniBand in a virtual machine, or on MSCCLGO_TEST_IB_DEVICES=a,b
	scripts/test-rdma

bench-rdma: need ## time InfiniBand beside perftest, there too
	scripts/bench-rdma

test-net: need ## test groups on several hosts, which are network namespaces; needs root
	scripts/require ip mpirun
	MSCCLGO_REQUIRE=netns,mpirun go test -json -count=1 -run '^Test(Host|Unplug|Cable|RankOnOther|Mpirun)' ./internal/test/netlab ./bootstrap ./communicator ./samples/allreduce ./cmd/mscclgo | go run ./scripts/testsummary

# The detector sees Go only: it finds nothing in tests of kernels, of programs, and of the race
# finder, which run without it as well. In devicecode two tests have goroutines that meet.
race: need ## test the packages in which goroutines meet with the race detector
	{ go test -vet=off -json -race -run '^Test(OneCompilerForMany|CompileEndsWithContext)$$' ./devicecode; \
	  go test -vet=off -timeout 30m -p $$((1 + $$(nproc))) -json -race -short ./collective ./communicator $$(go list ./... | \
	    grep -vE '/(capi|cmd|devicecode|docs|samples|scripts|internal/(race|explore|test))(/|$$)'); } | go run ./scripts/testsummary

fuzz: need ## run every fuzz target for some seconds, and all in TOTAL=300
	scripts/fuzz $(or $(TOTAL),300)

soak: need ## hurt one rank of many groups, and check what the others are told
	go build -buildvcs=$(vcs) -o build/ ./cmd/mscclgo/internal/soak
	build/soak -runs $(or $(RUNS),20) -parallel $(or $(PARALLEL),1)

lint: need $(staticcheck) $(clang_format) ## check formatting, go.mod and the layers of ARCHITECTURE.md, run staticcheck
	@wrong=$$(gofmt -l .); [ -z "$$wrong" ] || { echo "gofmt would change:" $$wrong; exit 1; }
	go mod tidy -diff
	go run ./scripts/layers
	$(staticcheck) ./...
	git ls-files -z -co --exclude-standard '*.c' '*.h' '*.cc' '*.cu' '*.cuh' | xargs -0r $(clang_format) --dry-run -Werror

build: need ## build the command and all samples into build/
	go build -buildvcs=$(vcs) -o build/ ./cmd/... ./samples/...

build-tests: need ## build all tests into build/tests/, to be run by scripts/gpu-tests
	scripts/build-tests build/tests

test-gpu: build-tests ## test all packages on this machine's NVIDIA GPUs
	scripts/gpu-tests build/tests

bench-primitives: build-tests ## time the FIFO and the port channels, also over Ethernet, on this machine's NVIDIA GPUs
	scripts/bench-primitives build/tests

bench-machine: build ## check and time all collectives on RANKS=8 GPUs of this machine, in 25 minutes
	scripts/bench-machine build $(or $(RANKS),8)

clean: ## remove build/
	rm -rf build

need:
	@scripts/require go gcc g++ certificates

$(staticcheck):
	GOBIN=$(CURDIR)/$(@D) go install honnef.co/go/tools/cmd/staticcheck@$(staticcheck_version)

# A wheel in its own folder, so that the version is the same everywhere.
$(clang_format):
	scripts/require git pip
	PIP_ROOT_USER_ACTION=ignore python3 -m pip --disable-pip-version-check install --quiet --target build/clang-format-$(clang_format_version) clang-format==$(clang_format_version)
