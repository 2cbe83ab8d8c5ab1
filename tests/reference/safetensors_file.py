"""Read and write safetensors files in numpy, with control over what the libraries hide.

The tests need files that a library would not write: unpadded headers (MLX leaves the data at odd
offsets), any tensor order, and bfloat16, which numpy lacks. A tensor is held as a `Stored`: the
safetensors dtype name and an array of the stored bits (bfloat16 as uint16).
"""

import json
import struct
import typing

import numpy as np

BITS = {
    "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U32": np.uint32, "I32": np.int32,
    "I64": np.int64, "I8": np.int8, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "U8": np.uint8,
}


class Stored(typing.NamedTuple):
    """The bits of one tensor as a file holds them."""

    dtype: str
    bits: np.ndarray

    def values(self):
        """The tensor as float32 (integers as they are)."""
        if self.dtype == "BF16":
            return (self.bits.astype(np.uint32) << 16).view(np.float32)
        return self.bits.astype(np.float32) if self.dtype == "F16" else self.bits


def encode(values, dtype):
    """Rounds float32 values to `dtype` (to nearest, ties to even)."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "BF16":
        raw = values.view(np.uint32)
        return Stored(dtype, ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16))
    return Stored(dtype, values.astype(BITS[dtype]))


def round_to_bf16(values):
    return encode(values, "BF16").values()


def write(path, tensors, *, pad_header=True, metadata=None):
    """Writes {name: Stored} in the order of the mapping. Without padding the data may start at an
    odd offset, as in files that MLX writes."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, tensor in tensors.items():
        end = offset + tensor.bits.nbytes
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.bits.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    if pad_header:
        text += b" " * (-len(text) % 8)
    elif len(text) % 2 == 0:
        text += b" "  # an odd length: every tensor of the file is misaligned
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.bits).tobytes())


def read(path):
    """Returns {name: Stored}."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(data[begin:end], BITS[entry["dtype"]])
        tensors[name] = Stored(entry["dtype"], bits.reshape(entry["shape"]))
    return tensors
