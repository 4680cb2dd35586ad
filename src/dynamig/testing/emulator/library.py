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

NAME = "libnvidia-ml.so.1"

TEXTS = ("nvmlErrorString",)
"""Symbols that answer no nvmlReturn_t; generate.py gives them no wrapper."""

SHT_DYNSYM, SHN_UNDEF, ELF64_SYM = 11, 0, 24
"""Section type, section index and size of a symbol (elf(5), 64 bit)."""


def find_library(given: Path | None = None) -> Path:
    """`given`, else $DYNAMIG_EMULATOR_LIBRARY, else build/ of the source tree. Raises Unavailable LIBRARY_NOT_BUILT."""
    named = os.environ.get("DYNAMIG_EMULATOR_LIBRARY")
    built = [parent / "build" / NAME for parent in Path(__file__).resolve().parents]
    for candidate in [given] if given else [Path(named)] if named else built:
        if candidate is not None and candidate.is_file():
            return candidate
    raise Unavailable(
        "LIBRARY_NOT_BUILT", f"the emulator's {NAME} is not built", "make emulator, or set DYNAMIG_EMULATOR_LIBRARY"
    )


def known_call(call: str, library: Path | None) -> None:
    """Raises Refused UNKNOWN_CALL, with what is near, for a symbol that the library lacks, or a pattern of none.

    A node can be made and given faults before the library is built; then nothing is known to be wrong.
    """
    try:
        symbols = symbols_of(find_library(library))
    except Unavailable:
        return
    if call in TEXTS:
        raise Refused("UNKNOWN_CALL", f"{call} answers a text and no code: nothing strikes it", "name another call")
    unversioned = [re.sub(r"_v\d+$", "", symbol) for symbol in symbols]
    if not fnmatch.filter(symbols, call) and call not in unversioned:
        near = difflib.get_close_matches(call, symbols, n=4) or ["any symbol of nvml.h"]
        raise Refused("UNKNOWN_CALL", f"NVML has no call {call!r}", f"near: {', '.join(near)}")


def symbols_of(library: Path) -> list[str]:
    """NVML's functions that the shared object exports, by name: its .dynsym, which every ELF object has (elf(5))."""
    data = library.read_bytes()
    start, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    _, _, _, _, offset, length, link, *_ = next(h for h in headers if h[1] == SHT_DYNSYM)
    names = headers[link][4]
    found = []
    for at in range(offset, offset + length, ELF64_SYM):
        name, _, _, section = struct.unpack_from("<IBBH", data, at)
        text = data[names + name : data.index(b"\0", names + name)].decode()
        if section != SHN_UNDEF and text.startswith("nvml"):
            found.append(text)
    return sorted(found)


def foreign_instance(
    directory: Path, library: Path | None, gpu: int, profile_id: int, start: int, *, with_ci: bool
) -> tuple[NvmlReturn, int]:
    """(code, id of the new GPU instance)."""
    return _ask(directory, library, "foreign", *map(str, (gpu, profile_id, start, int(with_ci))))


def switch_mig(directory: Path, library: Path | None, gpu: int, *, on: bool) -> NvmlReturn:
    """MIG mode is switched, or pending, if the answer is SUCCESS."""
    return _ask(directory, library, "mig", str(gpu), str(int(on)))[0]


def refusal(code: NvmlReturn, what: str, directory: Path, living: str) -> Refused:
    """The library's refusal, with the reason. `living`: instances that are in the way, empty if none is."""
    in_the_way = f"in the way: {living or 'no instance, but engines or ids that others have'}"
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
    command = [sys.executable, str(Path(__file__)), str(find_library(library)), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 2:
        raise Unavailable("CONTROL_FAILED", done.stderr.strip() or "the helper ended without an answer", "see above")
    code, answer = map(int, words)
    return NvmlReturn(code), answer


def _helper(library: str, what: str, *numbers: str) -> None:
    nvml, answer = ctypes.CDLL(library), ctypes.c_uint32()
    code = nvml.nvmlInitWithFlags(1)
    if code == 0 and what == "foreign":
        code = nvml.dynamig_emulator_foreign(*map(int, numbers), ctypes.byref(answer))
    elif code == 0:
        gpu, device = int(numbers[0]), ctypes.c_void_p()
        code = nvml.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(device))
        code = code or nvml.nvmlDeviceSetMigMode(device, int(numbers[1]), ctypes.byref(answer))
    print(code, answer.value)


if __name__ == "__main__":
    _helper(*sys.argv[1:])
