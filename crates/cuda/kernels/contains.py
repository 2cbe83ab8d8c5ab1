#!/usr/bin/env python3
"""Whether an image of kernels has every part of another one, byte for byte: contains.py IMAGE PARTS.

A fat binary is a header (magic, version, its length) and entries: kind and version (4 bytes), the entry's header's length
(u32), the length of its code (u64), and so on."""
import struct
import sys


def entries(path):
    with open(path, "rb") as file:
        data = file.read()
    at, found = struct.unpack_from("<IHH", data)[2], []
    while at < len(data):
        header, size = struct.unpack_from("<4xIQ", data, at)
        found.append(data[at : at + header + size])
        at += header + size
    return found


image, parts = entries(sys.argv[1]), entries(sys.argv[2])
different = [index for index, part in enumerate(parts) if part not in image]
if different or not parts:
    sys.exit(f"{sys.argv[2]}: of {len(parts)} parts {different} are not in {sys.argv[1]}: run kernels/build.sh")
print(f"{len(parts)} of {len(image)} parts compiled anew have the same bytes")
