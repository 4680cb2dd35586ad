"""Finding libnvidia-ml.so.1 of the emulator, which symbols it has, and what the control side asks it to do.

Making an instance and switching MIG mode are the library's knowledge, so nothing here does them a second time.
The library is asked in a process of its own: the caller may have NVML loaded, for another node.
"""

from __future__ import annotations

import ctypes
import difflib
import fnmatch
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

from dynamig.errors import Refused, Unavailable
from dynamig.testing.emulator.faults import NvmlReturn

NAME, VARIABLE = "libnvidia-ml.so.1", "DYNAMIG_EMULATOR_LIBRARY"

TEXTS = ("nvmlErrorString",)
"""Symbols that answer no nvmlReturn_t; generate.py gives them no wrapper."""

SHT_DYNSYM, SHN_UNDEF, ELF64_SYM = 11, 0, 24
"""Section type, section index and size of a symbol (elf(5), 64 bit)."""


def find_library(given: Path | None = None) -> Path:
    """`given`, else $DYNAMIG_EMULATOR_LIBRARY, else build/ of the source tree.

    Raises Unavailable LIBRARY_NOT_FOUND if what is named is no file, LIBRARY_NOT_BUILT if nothing is named.
    """
    named = os.environ.get(VARIABLE)
    if given or named:
        chosen, whose = (given, "") if given else (Path(str(named)), f", which ${VARIABLE} names,")
        if os.path.isfile(chosen):  # false also where nobody may look, where Path.is_file raises
            return chosen
        built = f"name the {NAME} that `make emulator` built" + (f", or unset {VARIABLE}" if whose else "")
        raise Unavailable("LIBRARY_NOT_FOUND", f"{chosen}{whose} is not a file", built)
    for parent in Path(__file__).resolve().parents:
        if (candidate := parent / "build" / NAME).is_file():
            return candidate
    raise Unavailable("LIBRARY_NOT_BUILT", f"the emulator's {NAME} is not built", f"make emulator, or set {VARIABLE}")


def known_call(call: str, library: Path | None) -> None:
    """Raises Refused UNKNOWN_CALL, with what is near, for a symbol that the library lacks, or a pattern of none.

    A node can be made and given faults before the library is built; then nothing is known to be wrong.
    """
    try:
        found = find_library(library)
    except Unavailable as error:
        if error.code == "LIBRARY_NOT_BUILT":
            return
        raise
    symbols = [symbol for symbol in symbols_of(found) if symbol not in TEXTS]
    if not symbols:
        raise _not_the_library(found, "it exports no symbol of NVML")
    if call in TEXTS:
        raise Refused(
            "UNKNOWN_CALL", f"{call} answers a text and no code, which a fault could change", "name another call"
        )
    unversioned = [re.sub(r"_v\d+$", "", symbol) for symbol in symbols]
    if not fnmatch.filter(symbols, call) and call not in unversioned:
        what = f"no call of NVML fits {call!r}" if set(call) & set("*?[") else f"NVML has no call {call!r}"
        raise Refused("UNKNOWN_CALL", what, _near(call, symbols))


def _near(call: str, symbols: list[str]) -> str:
    """Symbols that look alike; else those that begin as it does, as far as any does; else where all are."""
    if alike := difflib.get_close_matches(call, symbols, n=4):
        return f"near: {', '.join(alike)}"
    beginnings = (call[:length] for length in range(len(call), len("nvml"), -1))
    for beginning in beginnings:
        if found := [symbol for symbol in symbols if symbol.startswith(beginning)]:
            return f"with {beginning} begin {', '.join(found[:4])}; emulator/SYMBOLS.md lists all of nvml.h"
    return f"name one as {symbols[0]}, or a pattern as nvmlDevice*; emulator/SYMBOLS.md lists all of nvml.h"


def symbols_of(library: Path, beginning: str = "nvml") -> list[str]:
    """Functions that the shared object exports, by name: its .dynsym, which every ELF object has (elf(5)).

    Raises Unavailable NOT_THE_LIBRARY for a file that is none, or cannot be read.
    """
    try:
        return sorted(name for name in _exported(library.read_bytes()) if name.startswith(beginning))
    except OSError as error:
        raise _not_the_library(library, f"it cannot be read: {error.strerror}") from error
    except (ValueError, IndexError, StopIteration, struct.error) as error:
        raise _not_the_library(library, "it is no shared object of 64 bit") from error


def _not_the_library(path: Path, why: str) -> Unavailable:
    built = f"name the {NAME} that `make emulator` built, or unset {VARIABLE}"
    return Unavailable("NOT_THE_LIBRARY", f"{path} is not the emulator's library: {why}", built)


def _exported(data: bytes) -> list[str]:
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no ELF object of 64 bit")
    start, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    _, _, _, _, offset, length, link, *_ = next(h for h in headers if h[1] == SHT_DYNSYM)
    names = headers[link][4]
    found = []
    for at in range(offset, offset + length, ELF64_SYM):
        name, _, _, section = struct.unpack_from("<IBBH", data, at)
        if section != SHN_UNDEF:
            found.append(data[names + name : data.index(b"\0", names + name)].decode())
    return found


def foreign_instance(
    directory: Path, library: Path | None, gpu: int, profile_id: int, start: int, *, with_ci: bool
) -> tuple[NvmlReturn, int]:
    """(code, id of the new GPU instance)."""
    return _ask(directory, library, "foreign", *map(str, (gpu, profile_id, start, int(with_ci))))


def switch_mig(directory: Path, library: Path | None, gpu_uuid: str, *, on: bool) -> NvmlReturn:
    """MIG mode is switched, or pending, if the answer is SUCCESS."""
    return _ask(directory, library, "mig", gpu_uuid, str(int(on)))[0]


def refusal(code: NvmlReturn, what: str, directory: Path, living: str) -> Refused:
    """The library's refusal, with the reason. `living`: instances that are in the way, empty if none is."""
    ended = f"{living}; a client destroys it, `dynamig emulator remove-foreign` or `reset {directory} GPU` ends it"
    in_the_way = f"in the way: {ended if living else 'no instance, but engines or ids that others have'}"
    next_step = {
        NvmlReturn.IN_USE: in_the_way,
        NvmlReturn.INSUFFICIENT_RESOURCES: in_the_way,
        NvmlReturn.NO_PERMISSION: f"act as the owner of {directory}, with the right to make device nodes there",
        NvmlReturn.OPERATING_SYSTEM: f"its files cannot be written: is the file system of {directory} full?",
        NvmlReturn.GPU_IS_LOST: f"bring the GPU back: dynamig emulator lose {directory} GPU --back",
    }.get(code, f"dynamig emulator show {directory}")
    return Refused(f"NVML_{code.name}", f"{what}: {code.name}", next_step)


def _ask(directory: Path, library: Path | None, *arguments: str) -> tuple[NvmlReturn, int]:
    """The helper's code and answer."""
    environment = {**os.environ, "DYNAMIG_EMULATOR_DIR": str(directory.absolute()), "DYNAMIG_EMULATOR_TRACE": "0"}
    found = find_library(library)
    if not symbols_of(found, "dynamig_emulator_foreign"):
        raise _not_the_library(found, "it lacks dynamig_emulator_foreign")
    command = [sys.executable, str(Path(__file__)), str(found), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 2:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode} and without an answer"]
        raise Unavailable("CONTROL_FAILED", f"{found}: {last[0]}", "make emulator builds it anew")
    code, answer = map(int, words)
    return NvmlReturn(code), answer


def _helper(library: str, what: str, *words: str) -> None:
    """Prints the code and the answer. The GPU is the node's, whatever of the node this process sees."""
    nvml, answer = ctypes.CDLL(library), ctypes.c_uint32()
    code = nvml.nvmlInitWithFlags(1)
    if code == 0 and what == "foreign":
        code = nvml.dynamig_emulator_foreign(*map(int, words), ctypes.byref(answer))
    elif code == 0:
        device = ctypes.c_void_p()
        code = nvml.nvmlDeviceGetHandleByUUID(words[0].encode(), ctypes.byref(device))
        code = code or nvml.nvmlDeviceSetMigMode(device, int(words[1]), ctypes.byref(answer))
    print(code, answer.value)


if __name__ == "__main__":
    _helper(*sys.argv[1:])
