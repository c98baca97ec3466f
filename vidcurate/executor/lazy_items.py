"""Lazy sequence: items made when needed, so that a million take no memory."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T")


class LazyItems(Sequence[T]):
    """Items `make(place)` of each of `places`; a slice is lazy too. An item is made anew at each access."""

    __slots__ = ("_make", "_places")

    def __init__(self, make: Callable[[int], T], places: Any) -> None:
        self._make, self._places = make, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> "LazyItems[T]": ...
    def __getitem__(self, at: int | slice) -> "T | LazyItems[T]":
        if isinstance(at, slice):
            return LazyItems(self._make, self._places[at])
        return self._make(int(self._places[at]))
