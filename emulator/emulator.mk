# NVML emulator: build/libnvidia-ml.so.1 and build/nvml-list. Included by the Makefile at the root.
BUILD ?= build
PYTHON ?= .venv/bin/python
CC ?= cc

# One line for each file; `make V=1 emulator` shows the commands.
QUIET := $(if $(V),,@)

EMULATOR_OUT := $(BUILD)/emulator
EMULATOR_SOURCES := $(wildcard emulator/src/*.c)
EMULATOR_OBJECTS := $(EMULATOR_SOURCES:emulator/src/%.c=$(EMULATOR_OUT)/%.o) $(EMULATOR_OUT)/exports.o
EMULATOR_WARNINGS := -Wall -Wextra -Werror -Wmissing-prototypes -Wstrict-prototypes -Wshadow -Wvla
EMULATOR_CFLAGS := -std=c11 -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=default $(EMULATOR_WARNINGS) $(EMULATOR_SANITIZE)

# Old unversioned names are exported too, so the header's renaming macros must stay off.
EMULATOR_INCLUDES := -I$(EMULATOR_OUT) -Iemulator/src -isystem $(EMULATOR_OUT)/include -DNVML_NO_UNVERSIONED_FUNC_DEFS

.PHONY: emulator venv
emulator: $(BUILD)/libnvidia-ml.so.1 $(BUILD)/nvml-list

# nvml.h comes with the package nvidia-nvml-dev; where it lies, the package's own list knows.
$(EMULATOR_OUT)/include/nvml.h: | venv
	@mkdir -p $(@D)
	@header=$$($(PYTHON) -c 'from importlib.metadata import files; \
	    print(next(f.locate() for f in files("nvidia-nvml-dev") if f.name == "nvml.h"))') && cp "$$header" $@ || { \
	    echo 'nvml.h not found: install nvidia-nvml-dev for $(PYTHON)' >&2; exit 1; }

$(EMULATOR_OUT)/exports.c: emulator/generate.py $(EMULATOR_OUT)/include/nvml.h
	@echo "  GEN $(@F)"
	$(QUIET)$(PYTHON) emulator/generate.py $(EMULATOR_OUT)/include/nvml.h $(CC) $(EMULATOR_OUT)

$(EMULATOR_OUT)/exports.o: $(EMULATOR_OUT)/exports.c emulator/src/emulator.h emulator/src/trace_generic.h emulator/src/layout.h
	@echo "  CC  $(<F)"
	$(QUIET)$(CC) $(EMULATOR_CFLAGS) $(EMULATOR_INCLUDES) -Wno-address -c -o $@ $<

$(EMULATOR_OUT)/%.o: emulator/src/%.c emulator/src/emulator.h emulator/src/layout.h $(EMULATOR_OUT)/exports.c
	@echo "  CC  $(<F)"
	$(QUIET)$(CC) $(EMULATOR_CFLAGS) $(EMULATOR_INCLUDES) -c -o $@ $<

# Linked under another name and moved into place: a running client keeps the file it has mapped.
$(BUILD)/libnvidia-ml.so.1: $(EMULATOR_OBJECTS)
	@echo "  LD  $(@F)"
	$(QUIET)$(CC) -shared $(EMULATOR_SANITIZE) -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=$(EMULATOR_OUT)/exports.map \
	    -Wl,--no-undefined -Wl,-z,relro -o $@.new $(EMULATOR_OBJECTS)
	@mv $@.new $@

$(BUILD)/nvml-list: emulator/list/nvml_list.c $(EMULATOR_OUT)/include/nvml.h
	@echo "  CC  $(<F)"
	$(QUIET)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g $(EMULATOR_WARNINGS) -isystem $(EMULATOR_OUT)/include -o $@.new $< -ldl
	@mv $@.new $@

.PHONY: symbols
symbols: $(EMULATOR_OUT)/include/nvml.h ## The emulator's table of symbols written anew: emulator/SYMBOLS.md
	@$(PYTHON) -m emulator.symbols $< $(CC) > emulator/SYMBOLS.md
