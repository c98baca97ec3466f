"""Simulated stack of a pickle: refuse values that unfold to too many or too deep.

A pickle may use a value again through its memo, and Python hashes, compares and prints a tuple anew wherever
the tuple stands: 40 tuples that each hold the one before twice are 170 bytes, and 2^40 steps as the key of a
dict. A nesting of 300,000 tuples overflows the C stack. So the simulation keeps of each value how many values
it holds when unfolded and how deep it is, and refuses what torch never writes: a memo reference to a large
or changeable value, and a deep nesting. What is behind a memo reference then stays as small as it was, and
the whole holds at most SHARED_VALUES values for each byte of the pickle.
"""

import pickle
import pickletools
from collections.abc import Callable, Sequence
from functools import partial

SHARED_VALUES = 256  # that a value may hold which the memo gives again; a shape has up to 64
MOST_DEPTH = 64  # torch's own metadata have 8
_SMALL = 16  # values; a small value is kept as this number alone, and is never deeper than it
_ATOM_BYTES = 64  # of a text that counts as one value; a longer one counts as one for each 8 bytes
_BYTES_OF_A_VALUE = 8


class _Value:
    """A large or changeable value: how many values it holds, itself included, and how deep."""

    __slots__ = ("depth", "grows", "is_open", "size")

    def __init__(self, size: int, depth: int, *, grows: bool, is_open: bool) -> None:
        self.size, self.depth = size, depth
        self.grows = grows  # a container, or an object without values yet: the pickle may fill it
        self.is_open = is_open  # a container, an object that has been filled, or one that holds such a value


_Any = int | _Value
_EMPTY_TUPLE = 0  # a size that no other value has

Action = Callable[[bytes, int, int], None]
_CONTAINERS = {"EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "LIST", "DICT", "FROZENSET"}
_FILLS = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}


class PickleStack:
    """Stack and memo of one pickle, with one action for each opcode.

    An action takes the pickle, and where the opcode's argument starts and ends. Raises UnpicklingError.
    """

    def __init__(self) -> None:
        self._stack: list[_Any] = []
        self._marks: list[int] = []  # lengths that the stack had
        self._memo: dict[int, _Any] = {}
        own: dict[str, Action] = {
            "GET": lambda data, start, end: self._get(int(data[start : end - 1])),
            "BINGET": lambda data, start, end: self._get(data[start]),
            "LONG_BINGET": lambda data, start, end: self._get(int.from_bytes(data[start:end], "little")),
            "PUT": lambda data, start, end: self._put(int(data[start : end - 1])),
            "BINPUT": lambda data, start, end: self._put(data[start]),
            "LONG_BINPUT": lambda data, start, end: self._put(int.from_bytes(data[start:end], "little")),
            "MEMOIZE": lambda data, start, end: self._put(len(self._memo)),
            "MARK": lambda data, start, end: self._marks.append(len(self._stack)),
            "EMPTY_TUPLE": lambda data, start, end: self._stack.append(_EMPTY_TUPLE),
            "PROTO": lambda data, start, end: None,
            "FRAME": lambda data, start, end: None,
        }
        self.actions = {ord(one.code): own.get(one.name) or self._action(one) for one in pickletools.opcodes}

    def _action(self, opcode: pickletools.OpcodeInfo) -> Action:
        before = [one.name for one in opcode.stack_before]
        if not before and opcode.name not in _CONTAINERS:
            return self._push_atom
        has_mark = "mark" in before
        count = before.index("mark") if has_mark else len(before)
        if opcode.name in _FILLS:
            return partial(self._fill, count, has_mark)
        if opcode.name == "POP" or not opcode.stack_after:
            return partial(self._drop, count, has_mark)
        return partial(self._make, opcode.name, count, has_mark)

    def _get(self, index: int) -> None:
        """Push the value of a memo index once more."""
        value = self._memo.get(index)
        if value is None:
            raise pickle.UnpicklingError(f"the memo has no value {index:,}")
        if isinstance(value, _Value):
            if value.is_open or value.size > SHARED_VALUES:
                reason = "can change" if value.is_open else "is large"
                raise pickle.UnpicklingError(f"it uses the memo's value {index:,} again, which {reason}")
            value.grows = False
        self._stack.append(value)

    def _put(self, index: int) -> None:
        """Write the top of the stack into the memo."""
        if len(self._stack) == (self._marks[-1] if self._marks else 0):
            raise pickle.UnpicklingError("an opcode takes more values than the stack has")
        self._memo[index] = self._stack[-1]

    def _push_atom(self, data: bytes, start: int, end: int) -> None:
        count = end - start
        self._stack.append(1)
        if count > _ATOM_BYTES:
            self._stack[-1] = _Value(1 + count // _BYTES_OF_A_VALUE, 1, grows=False, is_open=False)

    def _take(self, count: int, has_mark: bool) -> list[_Any]:
        """Pop `count` values, and before them all above the last mark."""
        stack = self._stack
        if has_mark and not self._marks:
            raise pickle.UnpicklingError("an opcode takes the values above a mark, and there is none")
        start = (self._marks.pop() if has_mark else len(stack)) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise pickle.UnpicklingError("an opcode takes more values than the stack has")
        parts = stack[start:]
        del stack[start:]
        return parts

    def _drop(self, count: int, has_mark: bool, data: bytes, start: int, end: int) -> None:
        if count and self._marks and self._marks[-1] == len(self._stack):  # POP, which pops also a mark
            self._marks.pop()
        else:
            self._take(count, has_mark)

    def _make(self, name: str, count: int, has_mark: bool, data: bytes, start: int, end: int) -> None:
        """Push the value that an opcode makes of the values that it takes."""
        parts = self._take(count, has_mark)
        size, depth, is_open = _measure(parts)
        is_container = name in _CONTAINERS
        # A class whose __new__ is given a value may return an old object: an enum returns its member.
        is_new = is_container or (name == "NEWOBJ" and parts[1] == _EMPTY_TUPLE)
        if is_new or is_open or size > _SMALL:
            value = _Value(size, depth, grows=is_new, is_open=is_container or is_open)
            self._stack.append(value)
        else:
            self._stack.append(size)

    def _fill(self, count: int, has_mark: bool, data: bytes, start: int, end: int) -> None:
        """Put the values that an opcode takes into the container or object below them."""
        target, *parts = self._take(count, has_mark)
        if not isinstance(target, _Value) or not target.grows:
            raise pickle.UnpicklingError("it changes a value that it did not just make")
        size, depth, _ = _measure(parts)
        target.size += size
        target.depth = max(target.depth, depth)
        target.is_open = True
        self._stack.append(target)


def _measure(parts: Sequence[_Any]) -> tuple[int, int, bool]:
    """Return size and depth of a value that holds `parts`, and whether one of them can change."""
    size, depth, is_open = 1, 0, False
    for one in parts:
        if isinstance(one, int):
            size += one
            deep = one
        else:
            size += one.size
            deep = one.depth
            is_open = is_open or one.is_open
        if deep > depth:
            depth = deep
    if depth >= MOST_DEPTH:
        raise pickle.UnpicklingError(f"its values are nested deeper than {MOST_DEPTH}")
    return size, depth + 1, is_open
