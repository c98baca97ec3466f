"""Scan of a pickle before loading: refuse what asks for too much memory or time.

Ten bytes can ask Python's unpickler for gigabytes: a memo index of 2^29 makes a table of that many entries, a
buffer's or a frame's length is allocated before one byte of it is read. The scan walks the opcodes without
running one: each length must lie inside the file, a memo index cannot exceed the number of opcodes before it,
and opcodes that no metadata needs are refused. `pickle_stack` refuses values that unfold through the memo.
Source: CPython's `pickletools`, `Modules/_pickle.c`.
"""

import pickle
import pickletools
from collections.abc import Set
from functools import lru_cache

from trainer.run_folder.checkpoint.pickle_stack import PickleStack

MOST_OPCODES = 1 << 28
# No size or offset takes more. Longer numbers may have one hash, and a dict of them takes quadratic time.
_MOST_NUMBER_BYTES = 9
_MOST_NUMBER_TEXT = 22  # 19 digits, a sign, an L, the line's end
_REFUSED = {
    "BYTEARRAY8",
    "NEXT_BUFFER",
    "READONLY_BUFFER",
    "PERSID",
    "BINPERSID",
    "EXT1",
    "EXT2",
    "EXT4",
    "DUP",
}
_NUMBERS = {"INT", "LONG", "LONG1", "LONG4"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_TEXTS = {"GET", "PUT"}  # whose memo index is written in digits
# Bytes of an argument's length, by pickletools' negative sizes.
_LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_NAMES = {ord(one.code): one.name for one in pickletools.opcodes}
_ARGUMENT_BYTES = {ord(one.code): one.arg.n if one.arg else 0 for one in pickletools.opcodes}
_PLAIN = {  # opcodes whose argument needs no look
    code: count
    for code, count in _ARGUMENT_BYTES.items()
    if count >= 0 and _NAMES[code] not in _REFUSED | {"BINPUT", "LONG_BINPUT", "FRAME"}
}


@lru_cache(maxsize=8)  # a resume reads the metadata of each part of its checkpoint several times
def require_bounded(data: bytes) -> None:
    """Raise UnpicklingError for a pickle that is cut, or asks for more memory or time than it has bytes."""
    _scan(data, _REFUSED)


def require_bounded_tensor(data: bytes) -> None:
    """Check a tensor's pickle, whose storage is a persistent id, as `require_bounded` does."""
    _scan(data, _REFUSED - {"BINPERSID"})


def _scan(data: bytes, refused: Set[str]) -> None:
    """Walk the opcodes of a pickle; raise UnpicklingError for those refused and for what is unbounded."""
    at, count, size = 0, 0, len(data)
    actions = PickleStack().actions
    while at < size:
        code = data[at]
        at += 1
        count += 1
        name = _NAMES.get(code)
        if name is None or name in refused:
            raise pickle.UnpicklingError(f"byte {at - 1} holds {name or code}, which torch never writes")
        start = at
        plain = _PLAIN.get(code)
        at = _behind_argument(data, at, name, _ARGUMENT_BYTES[code], count) if plain is None else at + plain
        if at > size:
            break
        actions[code](data, start, at)
        if name == "STOP":
            if count > MOST_OPCODES:
                raise pickle.UnpicklingError(f"it has {count:,} opcodes")
            return
    raise pickle.UnpicklingError(f"it is cut after {size} bytes")


def _behind_argument(data: bytes, at: int, name: str, form: int, count: int) -> int:
    """Return the place behind an argument of an opcode. Raises UnpicklingError."""
    if form >= 0:
        value, start, behind = int.from_bytes(data[at : at + form], "little"), at + form, at + form
        if name == "FRAME" and behind + value > len(data):
            raise pickle.UnpicklingError(f"a frame of {value:,} bytes lies beyond its end")
    elif form == pickletools.UP_TO_NEWLINE:
        start, behind = at, data.find(b"\n", at) + 1
        if not behind:
            raise pickle.UnpicklingError(f"it is cut after {len(data)} bytes")
        if name in ("GLOBAL", "INST"):  # two lines
            behind = data.find(b"\n", behind) + 1
        text = data[at : behind - 1]
        value = int(text) if name in _TEXTS and len(text) < 20 and text.isdigit() else 0
        if name in _TEXTS and not value and text != b"0":
            raise pickle.UnpicklingError(f"the memo index {text[:20]!r} is none")
    else:
        start = at + _LENGTH_BYTES[form]
        value = 0
        behind = start + int.from_bytes(data[at:start], "little")
    if not 0 < behind <= len(data):
        raise pickle.UnpicklingError(f"a {name} at byte {at - 1} lies beyond its end")
    if name in _PUTS and value > count:
        raise pickle.UnpicklingError(f"opcode {count} has the memo index {value:,}")
    most = _MOST_NUMBER_TEXT if form == pickletools.UP_TO_NEWLINE else _MOST_NUMBER_BYTES
    if name in _NUMBERS and behind - start > most:
        raise pickle.UnpicklingError(f"a number at byte {at - 1} has {behind - start:,} bytes")
    return behind
