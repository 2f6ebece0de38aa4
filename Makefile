# make demo   builds Strata and runs a real program through nested memory under five policies
# make test   everything a change must pass: tests, formatting, lints, documentation
# make install installs the program (PREFIX=/usr/local)
# make deb    makes a Debian package; make deb-test looks at it and installs it in a bare Debian
# make wheel  makes a wheel of the Python module; make python-test builds, installs and tests one
# make lab    builds the lab's kernel and boots a nested machine (about ten minutes the first time)
# make lab-test  the lab's tests: real kernels, every scenario; make lab-smoke: the shortest of them
# make lab-unit-tests  kvm-unit-tests on both kernels (STRATA_KVM_UNIT_TESTS=where they were built)
# make look-test  the pages of --html in a real browser
# make published  makes docs/published-gemini.md and -xgemini.md anew
# make predicted  makes docs/predicted.md anew: the layers' counts beside the model's
# make deps   installs the Debian packages the tests run (demo installs its own)

.PHONY: demo test test-live deps build install install-built deb deb-test wheel python-test python-deps lab lab-test lab-unit-tests lab-smoke lab-smoke-intel lab-deps lab-programs look-deps \
  look-test published predicted format lint doc rust

# To build: a C compiler and linker. To run programs live: the emulator.
BUILD_PACKAGES = gcc libc6-dev qemu-user
# What the demonstration runs.
DEMO_PACKAGES = sqlite3
# What the tests run through the emulator, besides.
TEST_PACKAGES = procps patch xz-utils valgrind stress-ng redis-server redis-tools python3-numpy
# The browser that pages are looked at with, and what drives it.
LOOK_PACKAGES = chromium chromium-driver python3 python3-selenium fonts-dejavu-core
# What makes Python environments, besides what the build takes.
PYTHON_PACKAGES = python3 python3-venv
# What the lab builds its kernel with, and runs.
LAB_PACKAGES = make patch g++ flex bison bc perl lz4 libelf-dev libnuma-dev busybox-static qemu-system-x86 seabios

# Where cargo puts what it builds.
CARGO_TARGET_DIR ?= target
RELEASE = $(CARGO_TARGET_DIR)/release
STRATA = $(RELEASE)/strata
# What tests are built with, and the programs beside them. Always of the whole workspace: for a part of it cargo
# chooses other features of the libraries, and builds nearly everything once more.
TEST = cargo test --workspace --quiet
DEBUG = $(CARGO_TARGET_DIR)/debug

demo: rust
	scripts/packages $(BUILD_PACKAGES) $(DEMO_PACKAGES)
	cargo build --release --quiet --package strata
	$(STRATA) run --stack nested -- sqlite3 -batch -init demo/orders.sql :memory: .quit

test: deps format lint doc
	$(TEST)

# Both times the same packages: for others cargo chooses other features, and builds anew.
LIVE = cargo test --quiet --package strata --package strata-workloads

# Of these, the tests that run the programs of deps, and every command of the documentation: what finds a package
# that is not installed.
test-live: deps
	$(LIVE) --test docs
	$(LIVE) --test integration -- live:: foreign::

deps: rust
	@scripts/rust fmt clippy
	scripts/packages $(BUILD_PACKAGES) $(DEMO_PACKAGES) $(TEST_PACKAGES)

# Where the program and the plugin it loads go.
PREFIX = /usr/local
SYSTEMD = /lib/systemd/system

install: build install-built

# Without building: what is in target/release.
install-built:
	install -D $(STRATA) $(DESTDIR)$(PREFIX)/bin/strata
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/strata \
	  $(RELEASE)/libstrata_plugin.so $(RELEASE)/libstrata_machine_plugin.so
	install -D -t $(DESTDIR)$(PREFIX)/lib/strata $(RELEASE)/strata-agent
	$(STRATA) manual $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	  $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(STRATA) completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/strata
	$(STRATA) completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_strata
	$(STRATA) completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/strata.fish
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/strata packaging/grafana.json
	install -D -m 644 -t $(DESTDIR)$(SYSTEMD) packaging/strata-metrics.service packaging/strata-metrics.timer

deb: build
	scripts/packages dpkg-dev
	scripts/deb

deb-test: deb
	scripts/packages lintian mmdebstrap
	scripts/deb-test $(CARGO_TARGET_DIR)/strata_*.deb

wheel: build python-deps
	scripts/wheel release

# In an environment of its own, with versions that crates/python/requirements.txt names: minutes.
python-test: python-deps
	$(TEST) --no-run
	scripts/python-test

python-deps: rust
	scripts/packages $(BUILD_PACKAGES) binutils
	@command -v python3 >/dev/null && python3 -m venv -h >/dev/null 2>&1 || scripts/packages $(PYTHON_PACKAGES)

lab: lab-deps build
	$(STRATA) lab build
	$(STRATA) lab run

# Tests as they are for all others, of programs of a release: larger ones in the layers change what memory is used there.
# More threads than cores, so that none waits for a machine that stands still: each takes a turn for one that runs.
RUST_TEST_THREADS ?= 8
LAB_TEST = STRATA_LAB_PROGRAMS=$(abspath $(RELEASE)) RUST_TEST_THREADS=$(RUST_TEST_THREADS) $(TEST) --no-fail-fast

lab-test: lab-deps build
	$(STRATA) lab build --kernel aligned
	$(STRATA) lab build --kernel aligned --machine intel
	$(LAB_TEST) --test lab --test docs -- --ignored --skip unit_tests_

lab-unit-tests: lab-deps build
	$(STRATA) lab build --kernel aligned
	$(LAB_TEST) --test lab -- --ignored --nocapture unit_tests_

# What the shortest tests run is what all tests have built: the emulator takes their time.
lab-programs: lab-deps
	$(TEST) --no-run

# One machine of two layers and one of three: a minute or two once the kernel is there.
lab-smoke: lab-programs
	$(DEBUG)/strata lab build
	$(TEST) --test lab -- --ignored smoke_ --skip smoke_intel_

# The same on Intel's processors, which are emulated more slowly, by another emulator.
lab-smoke-intel: lab-programs
	$(DEBUG)/strata lab build --machine intel
	$(TEST) --test lab -- --ignored smoke_intel_

# The lab downloads packages without installing them, for which their lists must be there.
lab-deps: rust
	@scripts/rust fmt clippy
	scripts/packages $(BUILD_PACKAGES) $(LAB_PACKAGES)
	@apt-cache show linux-source-6.12 >/dev/null 2>&1 || apt-get update --quiet --quiet

# Pages in a headless browser: a minute. Debian's Python, which has Debian's packages.
look-test: look-deps
	$(TEST) --no-run
	STRATA=$(DEBUG)/strata /usr/bin/python3 crates/see/view/browser/test_pages.py

look-deps: rust
	scripts/packages $(BUILD_PACKAGES) $(LOOK_PACKAGES)

# What the published results look like here: half an hour on two cores. Real programs are shown as far as
# `strata workloads prepare` has recorded them.
published: build
	$(STRATA) paper gemini -o docs/published-gemini.md
	$(STRATA) paper xgemini -o docs/published-xgemini.md

# What the lab's layers count beside what the model says: an hour. A scenario that was run by the same
# program is not run again.
PREDICTED = $(CARGO_TARGET_DIR)/predicted
PREDICTED_ON_VANILLA = native vm clean l1-base no-thp refill scattered shadow
PREDICTED_ON_ALIGNED = refill scattered
PREDICTIONS = $(PREDICTED_ON_VANILLA:%=$(PREDICTED)/vanilla/%.json) $(PREDICTED_ON_ALIGNED:%=$(PREDICTED)/aligned/%.json)

predicted: lab-deps build
	$(STRATA) lab build --kernel aligned
	$(MAKE) $(PREDICTIONS)
	sed '/^<!-- strata lab table/q' docs/predicted.md >$(PREDICTED)/page
	$(STRATA) lab table $(PREDICTIONS) >>$(PREDICTED)/page
	cp $(PREDICTED)/page docs/predicted.md

$(PREDICTIONS): $(PREDICTED)/%.json: $(STRATA)
	@mkdir -p $(@D)
	$(STRATA) lab predict --kernel $(*D) --scenario $(*F) --runs 3 --json $@

build: rust
	scripts/packages $(BUILD_PACKAGES)
	cargo build --release --package strata --package strata-plugin \
	  --package strata-agent --package strata-machine-plugin

format:
	cargo fmt --all --check

lint:
	cargo clippy --workspace --all-targets --quiet -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

rust:
	@scripts/rust
