# Two commands for a newcomer: `make demo` and `make check`. meson does the work; this only calls it.

BUILD = build
PROGRAM = $(BUILD)/src/main/ermite-runner

.PHONY: all build deps image demo check check-full bench install clean

all: build

# Debian packages that are missing, of Debian 12.
deps:
	@tools/deps build run

build:
	@test -e $(BUILD)/build.ninja || CC=gcc meson setup $(BUILD)
	@ninja -C $(BUILD)

# The image that the demo and the tests use, unless it is there.
image: build
	@tools/image $(PROGRAM)

# Builds this project inside a sandbox, live, and shows how that ended.
demo:
	@tools/demo

# Every test. `make check STAGES="unit fuzz"` runs a part.
check:
	@tools/deps build run check
	@tools/check $(STAGES)

# The same, longer.
check-full:
	@tools/deps build run check
	@tools/check --full $(STAGES)

# Measures against docker, lxc and socat, side by side; docs/performance.md shows a result.
bench: image
	@tools/deps check
	@bench/bench --build $(BUILD)

# DESTDIR is honoured; another prefix is meson's: meson configure build -Dprefix=/usr
install: build
	@meson install -C $(BUILD) --no-rebuild

clean:
	@rm -rf $(BUILD) build-sanitized
