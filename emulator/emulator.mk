# NVML emulator: build/libnvidia-ml.so.1 and build/nvml-list. Included by the Makefile at the root.
BUILD ?= build
PYTHON ?= .venv/bin/python
CC ?= cc

EMULATOR_OUT := $(BUILD)/emulator
EMULATOR_SOURCES := $(wildcard emulator/src/*.c)
EMULATOR_OBJECTS := $(EMULATOR_SOURCES:emulator/src/%.c=$(EMULATOR_OUT)/%.o) $(EMULATOR_OUT)/exports.o
EMULATOR_WARNINGS := -Wall -Wextra -Werror -Wmissing-prototypes -Wstrict-prototypes -Wshadow -Wvla
EMULATOR_CFLAGS := -std=c11 -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=default $(EMULATOR_WARNINGS) $(EMULATOR_SANITIZE)

# nvml.h comes with the package nvidia-nvml-dev; which file it is, the package's own list knows.
NVML_HEADER = $(shell $(PYTHON) -c 'from importlib.metadata import files; \
    print(next(f.locate() for f in files("nvidia-nvml-dev") if f.name == "nvml.h"))')

.PHONY: emulator
emulator: $(BUILD)/libnvidia-ml.so.1 $(BUILD)/nvml-list ## NVML emulator and its lister

# Old unversioned names are exported too, so the header's renaming macros must stay off.
$(EMULATOR_OUT)/flags.mk: emulator/emulator.mk
	@mkdir -p $(EMULATOR_OUT)
	@header='$(NVML_HEADER)'; test -n "$$header" || { \
	    echo 'nvml.h not found: install nvidia-nvml-dev for $(PYTHON)' >&2; exit 1; }; \
	    printf 'NVML_H := %s\n' "$$header" > $@

-include $(EMULATOR_OUT)/flags.mk

EMULATOR_INCLUDES = -I$(EMULATOR_OUT) -Iemulator/src -isystem $(dir $(NVML_H)) -DNVML_NO_UNVERSIONED_FUNC_DEFS

$(EMULATOR_OUT)/exports.c: emulator/generate.py $(EMULATOR_OUT)/flags.mk
	$(PYTHON) emulator/generate.py $(NVML_H) $(CC) $(EMULATOR_OUT)

$(EMULATOR_OUT)/exports.o: $(EMULATOR_OUT)/exports.c emulator/src/emulator.h emulator/src/trace_generic.h emulator/src/layout.h
	$(CC) $(EMULATOR_CFLAGS) $(EMULATOR_INCLUDES) -Wno-address -c -o $@ $<

$(EMULATOR_OUT)/%.o: emulator/src/%.c emulator/src/emulator.h emulator/src/layout.h $(EMULATOR_OUT)/exports.c
	$(CC) $(EMULATOR_CFLAGS) $(EMULATOR_INCLUDES) -c -o $@ $<

# Linked under another name and moved into place: a running client keeps the file it has mapped.
$(BUILD)/libnvidia-ml.so.1: $(EMULATOR_OBJECTS)
	$(CC) -shared $(EMULATOR_SANITIZE) -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=$(EMULATOR_OUT)/exports.map \
	    -Wl,--no-undefined -Wl,-z,relro -o $@.new $(EMULATOR_OBJECTS)
	mv $@.new $@

$(BUILD)/nvml-list: emulator/list/nvml_list.c $(EMULATOR_OUT)/flags.mk
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -g $(EMULATOR_WARNINGS) -isystem $(dir $(NVML_H)) -o $@.new $< -ldl
	mv $@.new $@
