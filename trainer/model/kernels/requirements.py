"""Requirements of Triton's kernels beside a GPU. Imports no Triton."""

import importlib.util
import os
import shutil


def missing(*, on_gpu: bool) -> str:
    """Return what is missing, as text for an error; empty if nothing is.

    On a GPU Triton compiles a launcher for each kernel: with CC, gcc or clang (triton/runtime/build.py). Its
    interpreter needs none.
    """
    if importlib.util.find_spec("triton") is None:
        return "Triton (torch for CUDA brings it)"
    if on_gpu and not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "a C compiler for Triton (gcc, clang, or the one that CC names)"
    return ""
