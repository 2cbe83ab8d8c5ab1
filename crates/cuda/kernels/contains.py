#!/usr/bin/env python3
"""Whether images of kernels have every part of others, byte for byte: contains.py COMMITTED REBUILT (folders).

A fat binary is a header (magic, version, its length) and entries: kind and version (4 bytes), the entry's header's length
(u32), the length of its code (u64), and so on."""
import struct
import sys
from pathlib import Path


def entries(path):
    with open(path, "rb") as file:
        data = file.read()
    at, found = struct.unpack_from("<IHH", data)[2], []
    while at < len(data):
        header, size = struct.unpack_from("<4xIQ", data, at)
        found.append(data[at : at + header + size])
        at += header + size
    return found


if __name__ == "__main__":
    committed, rebuilt = Path(sys.argv[1]), Path(sys.argv[2])
    units = sorted(path.name for path in committed.glob("*.fatbin"))
    if units != sorted(path.name for path in rebuilt.glob("*.fatbin")) or not units:
        sys.exit(f"{rebuilt} has other units than {committed}")
    for unit in units:
        image, parts = entries(committed / unit), entries(rebuilt / unit)
        different = [index for index, part in enumerate(parts) if part not in image]
        if different or not parts:
            sys.exit(f"{unit}: of {len(parts)} parts {different} are not in the committed image: run kernels/build.sh")
        print(f"{unit}: {len(parts)} of {len(image)} parts compiled anew have the same bytes")
