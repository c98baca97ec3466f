"""Triton's interpreter, made to patch its language once a launch, or to run nothing.

Triton 3.9 patches it at each call of a device function and takes back only what a launch began with: with
every call an operation goes through one more wrapper, for as long as the process lives. That was a third of
the kernels' tests.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang


class _Launch(interpreter._LangPatchScope):
    """What was patched since a launch began, which takes it back at its end."""

    now: "_Launch | None" = None

    def __init__(self) -> None:
        super().__init__()
        self.modules: frozenset[int] = frozenset()

    def restore(self) -> None:
        super().restore()
        _Launch.now = None


@cache
def _named(function: Callable[..., Any]) -> frozenset[int]:
    """Return which of the two modules of the language the function can name."""
    names = {id(value) for value in function.__globals__.values() if inspect.ismodule(value)}
    return frozenset(names & {id(tl), id(tl.core)})


def _patch_once(function: Callable[..., Any]) -> _Launch:
    """Patch what `function` can name and the launch has not patched yet."""
    launch = _Launch.now = _Launch.now or _Launch()
    if not _named(function) <= launch.modules:
        launch._changes += _patch(function)._changes
        launch.modules |= _named(function)
    return launch


def no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let launches do nothing, for tests of what is launched or kept: numbers are what memory held."""
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", lambda *_, **__: None)


def patch_once_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let launches in this test, and the device functions that they call, patch the language once."""
    monkeypatch.setattr(interpreter, "_patch_lang", _patch_once)
