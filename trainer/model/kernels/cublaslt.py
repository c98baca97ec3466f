"""Matmuls in bfloat16 by cuBLASLt through ctypes, with a fused GELU.

The interface is that of the cuBLAS documentation, chapter "Using the cuBLASLt API", through ctypes. Row-major
matrices are handed over as their column-major transposes: d = x w becomes dᵀ = wᵀ xᵀ.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

ROOM_BYTES = 64 << 20
PROPOSALS = 8
ALIGNED_BYTES = 256  # what the library takes for granted when it proposes

Kind = Literal["linear", "input", "weight"]
Epilogue = Literal["none", "bias", "gelu", "gelu backward"]

_EPILOGUES = {"none": 1, "bias": 4, "gelu": 32 | 128 | 4, "gelu backward": 64 | 128}
_BFLOAT16, _FLOAT32, _COMPUTE_FLOAT32 = 14, 0, 68
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS, _AUX, _AUX_ROW, _BIAS_DTYPE = 3, 4, 7, 8, 11, 12, 26
_MOST_ROOM = 1


@dataclass(frozen=True, slots=True)
class Product:
    """d [rows, columns], each a sum of `inner` products.

    `kind` says how the factors lie: linear, x [rows, inner] and w [columns, inner]; input, x [rows, inner]
    and w [inner, columns]; weight, x [inner, rows] and w [inner, columns]. A GELU (tanh) is after a bias.
    """

    kind: Kind
    rows: int
    columns: int
    inner: int
    epilogue: Epilogue = "none"
    adds: bool = False  # to what is in d


class Given(NamedTuple):
    """The matrices of a product, row-major; a bias [columns]; a GELU's input, which it leaves or takes."""

    x: Tensor
    w: Tensor
    d: Tensor
    bias: Tensor | None = None
    aux: Tensor | None = None


class _Proposal(ctypes.Structure):
    """What cublasLtMatmulAlgoGetHeuristic returns of one algorithm."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("room_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@cache
def _library() -> ctypes.PyDLL:
    """Return the library as torch has loaded it. Raises OSError where it is not."""
    if not torch.version.cuda or not torch.cuda.is_available():
        raise OSError("there is no GPU for cuBLASLt")
    library = ctypes.PyDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
    library.cublasLtMatmul.argtypes = [ctypes.c_void_p] * 14 + [ctypes.c_size_t, ctypes.c_void_p]
    return library


@cache
def _is_there() -> bool:
    try:
        _library()
    except OSError:
        return False
    return True


def takes(given: Given) -> bool:
    """Whether the library is there, and the matrices are such as it is asked about here."""
    return _is_there() and all(
        part.is_cuda
        and part.dtype == torch.bfloat16
        and part.is_contiguous()
        and part.data_ptr() % ALIGNED_BYTES == 0
        for part in given
        if part is not None
    )


def _did(code: int) -> None:
    if code:
        raise RuntimeError(f"cuBLASLt returned the status {code}")


def _made(create: str, *given: object) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _did(getattr(_library(), create)(ctypes.byref(made), *given))
    return made


@cache
def _handle(device: int) -> ctypes.c_void_p:
    with torch.cuda.device(device):
        return _made("cublasLtCreate")


@cache
def _room(device: int) -> Tensor:
    return torch.empty(ROOM_BYTES, dtype=torch.uint8, device=f"cuda:{device}")


def _matrix(rows: int, columns: int) -> ctypes.c_void_p:
    """Return the layout of a row-major matrix, which is column-major transposed."""
    sizes = ctypes.c_uint64(columns), ctypes.c_uint64(rows), ctypes.c_int64(columns)
    return _made("cublasLtMatrixLayoutCreate", _BFLOAT16, *sizes)


class Plan:
    """A product as cuBLASLt wants it, the number of algorithms that it proposes, and the one to take."""

    def __init__(self, product: Product, device: int) -> None:
        rows, columns, inner = product.rows, product.columns, product.inner
        self.product, self._device = product, device
        self._layer = _made("cublasLtMatmulDescCreate", _COMPUTE_FLOAT32, _FLOAT32)
        self._set(_TRANSPOSE_A, ctypes.c_int32(product.kind == "linear"))
        self._set(_TRANSPOSE_B, ctypes.c_int32(product.kind == "weight"))
        self._set(_EPILOGUE, ctypes.c_uint32(_EPILOGUES[product.epilogue]))
        if product.epilogue in ("bias", "gelu"):
            self._set(_BIAS_DTYPE, ctypes.c_int32(_BFLOAT16))
        if product.epilogue in ("gelu", "gelu backward"):
            self._set(_AUX_ROW, ctypes.c_int64(columns))
        self._w = _matrix(columns, inner) if product.kind == "linear" else _matrix(inner, columns)
        self._x = _matrix(inner, rows) if product.kind == "weight" else _matrix(rows, inner)
        self._d = _matrix(rows, columns)
        self._one, self._kept = ctypes.c_float(1), ctypes.c_float(product.adds)
        self._proposals = self._ask()
        self.proposals = len(self._proposals)
        self.best = 0

    def _set(self, name: int, value: "ctypes._SimpleCData[int]") -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _did(_library().cublasLtMatmulDescSetAttribute(self._layer, name, ctypes.byref(value), size))

    def _ask(self) -> list[_Proposal]:
        wanted, library = _made("cublasLtMatmulPreferenceCreate"), _library()
        room, found, count = ctypes.c_uint64(ROOM_BYTES), (_Proposal * PROPOSALS)(), ctypes.c_int()
        size = ctypes.c_size_t(ctypes.sizeof(room))
        _did(library.cublasLtMatmulPreferenceSetAttribute(wanted, _MOST_ROOM, ctypes.byref(room), size))
        code = library.cublasLtMatmulAlgoGetHeuristic(
            _handle(self._device), self._layer, self._w, self._x, self._d, self._d, wanted, PROPOSALS, found,
            ctypes.byref(count),
        )  # fmt: skip
        _did(library.cublasLtMatmulPreferenceDestroy(wanted))
        # A status other than 0 says that there is none for this product.
        return [] if code else [found[number] for number in range(count.value) if not found[number].state]

    def run(self, given: Given) -> None:
        """Write d, and aux for a GELU, by the algorithm `best`. `takes(given)` must be so."""
        x, w, d = given.x.data_ptr(), given.w.data_ptr(), given.d.data_ptr()
        if given.bias is not None:
            self._set(_BIAS, ctypes.c_uint64(given.bias.data_ptr()))
        if given.aux is not None:
            self._set(_AUX, ctypes.c_uint64(given.aux.data_ptr()))
        stream = torch.cuda.current_stream(self._device).cuda_stream
        _did(
            _library().cublasLtMatmul(
                _handle(self._device), self._layer, ctypes.byref(self._one), w, self._w, x, self._x,
                ctypes.byref(self._kept), d, self._d, d, self._d, ctypes.byref(self._proposals[self.best]),
                _room(self._device).data_ptr(), ROOM_BYTES, stream,
            )
        )  # fmt: skip
