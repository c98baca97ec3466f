"""A net of the form of DBNet as an ONNX file, byte by byte: no package that writes one is needed."""

from pathlib import Path

import numpy as np


def field(number: int, value: int | bytes | str) -> bytes:
    """Return one field of a protobuf message."""

    def varint(whole: int) -> bytes:
        data = bytearray()
        while whole > 127:
            data.append(whole & 127 | 128)
            whole >>= 7
        return bytes([*data, whole])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def onnx_net(path: Path) -> Path:
    """Write an ONNX net of DBNet's form, (1, 3, H, W) to (1, 1, H, W): how likely it is that a pixel is
    bright.

    ModelProto 1 ir_version, 7 graph, 8 opset; GraphProto 1 node, 5 initializer, 11 input, 12 output.
    """

    def node(operation: str, inputs: str, output: str, *attributes: bytes) -> bytes:
        names = b"".join(field(1, name) for name in inputs)
        return names + field(2, output) + field(4, operation) + b"".join(field(5, one) for one in attributes)

    def integers(name: str, *values: int) -> bytes:
        return field(1, name) + b"".join(field(8, value) for value in values) + field(20, 7)

    def tensor(name: str, values: np.ndarray) -> bytes:
        sizes = b"".join(field(1, size) for size in values.shape)
        return sizes + field(2, 1) + field(8, name) + field(9, values.astype("<f4").tobytes())

    def picture(name: str, channels: int) -> bytes:
        sizes = [field(1, 1), field(1, channels), field(2, "h"), field(2, "w")]
        shape = b"".join(field(1, size) for size in sizes)
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))

    graph = (
        field(1, node("Conv", "xwb", "c", integers("kernel_shape", 3, 3), integers("pads", 1, 1, 1, 1)))
        + field(1, node("Mul", "cs", "g"))
        + field(1, node("Sigmoid", "g", "y"))
        + field(2, "bright")
        + field(5, tensor("w", np.full((1, 3, 3, 3), 2 / 27)))
        + field(5, tensor("b", np.array([-1.5])))
        + field(5, tensor("s", np.array([4.0])))
        + field(11, picture("x", 3))
        + field(12, picture("y", 1))
    )
    path.write_bytes(field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13)))
    return path
