# A small front to meson. `make demo` and `make check` set up all they need on Debian 12, 13 and
# Ubuntu 24.04 as root; the rest of the targets expect that to have happened.
BUILD  ?= build
MESON  ?= meson
FUZZ_SECONDS ?= 20

.PHONY: all setup build demo check check-unit check-asan check-tsan check-clang check-fuzz check-style \
	soak weave zdtm check-commits bench bench-llm gpu-check gpu-bundle install site uninstall dist deb rpm node clean format

all: build

# Packages of the distribution, and a CRIU that is new enough. Does nothing where all is there.
setup:
	@tools/setup

$(BUILD)/build.ninja: | setup
	$(MESON) setup $(BUILD) $(if $(PREFIX),--prefix=$(PREFIX))

build: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD)

demo: build
	@tools/demo $(BUILD)

# In builds of its own, where a warning is an error.
check: setup
	@tools/check

# Parts of `make check`, for work on one thing.
check-unit: build
	$(MESON) test -C $(BUILD) --suite unit
check-asan: setup
	@tools/check --only asan
check-tsan: setup
	@tools/check --only tsan
check-clang: setup
	@tools/check --only clang
check-style: setup
	@tools/check --only style
check-fuzz: setup
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/check --only fuzz

# Random jobs, operations and faults, for SECONDS. SEED, of a round that failed, repeats it. STOPS=1: all are stopped, too.
SECONDS ?= 3600
soak: build
	BUILD=$(BUILD) python3 tests/soak.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(STOPS),--stops)
# The same with jobs of many processes that are made at random.
weave: build
	BUILD=$(BUILD) python3 tests/integration/weave.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(STOPS),--stops)

# CRIU's own tests, under brumate; takes about ten minutes.
zdtm: build
	BUILD=$(BUILD) python3 tests/integration/zdtm.py --all

# Every commit since REV builds by itself.
check-commits: setup
	@tools/check-commits $(REV)

# Measurements, on a machine that does nothing else: BENCH_DIR is on the disk to be measured.
BENCH_DIR ?= /var/tmp
BENCH_MIB ?= 2048
bench: build
	$(BUILD)/tests/bench/bench-store $(BENCH_DIR) $(BENCH_MIB)

# A language model of GIB, at defaults and by hand: needs a GPU and PyTorch.
GIB ?= 36.5
bench-llm: build
	@tools/bench-llm --build $(BUILD) --gib $(GIB)

# On a machine with a GPU. gpu-bundle puts all it needs beside the programs, for machines without
# network, where `tools/gpu-check --build DIR` then runs it.
gpu-check: build
	@tools/gpu-check --build $(BUILD)
gpu-bundle: build
	@tools/gpu-bundle $(BUILD)

# PREFIX (/usr/local) is compiled in, DESTDIR is not.
install: setup $(BUILD)/build.ninja
	$(if $(PREFIX),$(MESON) configure $(BUILD) -Dprefix=$(PREFIX))
	@ninja -C $(BUILD)
	$(MESON) install -C $(BUILD) --no-rebuild $(if $(DESTDIR),--destdir=$(DESTDIR))

# These pages and the man pages as a site that can be searched, in build-site. Needs Debian's mkdocs.
site: build
	@tools/site --build $(BUILD)

# What that has installed, and nothing else.
uninstall:
	@tools/uninstall $(BUILD)

# Packages, in build-package/out: of what is committed (dist), of what is here (deb, rpm, and node for packaging/kubernetes).
dist:
	@tools/package dist
deb rpm node: setup
	@tools/package $@

format:
	clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	rm -rf $(BUILD) build-check-* build-package build-package-node build-site
