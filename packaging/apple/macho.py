#!/usr/bin/env python3
"""Lists the load commands of a program for macOS, as otool -l does, and checks that a Mac's loader would take it.

    packaging/apple/macho.py PROGRAM                   load commands, and the symbols taken from each library
    packaging/apple/macho.py --check 13.0 PROGRAM      also ends with 1 where something would keep it from starting

Checked: a program of 64 bits for arm64 that is placed anywhere (PIE); no newer macOS wanted than named; only libraries
and symbols of symbols.txt, and of libraries that zig knows; a signature whose hashes are those of the bytes, which an
arm64 Mac insists on.
"""

import hashlib
import struct
import sys

from stubs import LIST, libraries

ARM64, EXECUTE, PIE = 0x0100000C, 2, 0x200000
SYMTAB, DYLIB, SIGNATURE, BUILD, SEGMENT, MAIN, DYLD_INFO = 0x2, 0xC, 0x1D, 0x32, 0x19, 0x80000028, 0x80000022
NAMES = {
    SYMTAB: "LC_SYMTAB", 0xB: "LC_DYSYMTAB", DYLIB: "LC_LOAD_DYLIB", 0xE: "LC_LOAD_DYLINKER", SEGMENT: "LC_SEGMENT_64",
    0x1B: "LC_UUID", SIGNATURE: "LC_CODE_SIGNATURE", 0x26: "LC_FUNCTION_STARTS", 0x29: "LC_DATA_IN_CODE",
    0x2A: "LC_SOURCE_VERSION", BUILD: "LC_BUILD_VERSION", MAIN: "LC_MAIN", 0x80000018: "LC_LOAD_WEAK_DYLIB",
    DYLD_INFO: "LC_DYLD_INFO_ONLY", 0x80000033: "LC_DYLD_EXPORTS_TRIE", 0x80000034: "LC_DYLD_CHAINED_FIXUPS",
    0x8000001C: "LC_RPATH",
}
SYSTEM = ("/usr/lib/libSystem.B.dylib", "/usr/lib/libiconv.2.dylib", "/usr/lib/libcharset.1.dylib")
ADHOC = 2


def string(data, at):
    """Text up to its zero."""
    return data[at:data.index(b"\0", at)].decode()


def version(number):
    """x.y.z of its packed form, without a last zero."""
    major, minor, patch = number >> 16, number >> 8 & 255, number & 255
    return f"{major}.{minor}" + (f".{patch}" if patch else "")


class Program:
    """A program's load commands, its libraries and what it takes from each."""

    def __init__(self, data):
        self.data, self.lines, self.libraries = data, [], []
        self.minimum = self.signature = self.main = None
        self.binds = []
        if len(data) < 32:
            sys.exit("not a Mach-O program of 64 bits")
        magic, self.cpu, _, self.kind, count, _, self.flags = struct.unpack_from("<7I", data)
        if magic != 0xFEEDFACF:
            sys.exit("not a Mach-O program of 64 bits")
        at = 32
        for _ in range(count):
            command, size = struct.unpack_from("<2I", data, at)
            self.lines.append(f"{NAMES.get(command, hex(command)):<24} {self.read(command, at, size)}".rstrip())
            at += size

    def read(self, command, at, size):
        """What is shown of a command."""
        words = struct.unpack_from(f"<{size // 4}I", self.data, at)
        if command == SEGMENT:
            name = self.data[at + 8:at + 24].rstrip(b"\0").decode()
            memory, offset, length = struct.unpack_from("<8x3Q", self.data, at + 24)
            return f"{name}, {memory} bytes in memory, {length} of the file from {offset}"
        if command in (DYLIB, 0x80000018, 0xD):
            self.libraries.append(string(self.data, at + words[2]))
            return f"{self.libraries[-1]} (compatibility version {version(words[5])})"
        if command in (0xE, 0x8000001C):
            return string(self.data, at + words[2])
        if command == BUILD:
            self.minimum = words[3]
            return f"platform {words[2]}, macOS {version(words[3])} or newer, SDK {version(words[4])}"
        if command == SYMTAB:
            return f"{words[3]} symbols"
        if command == DYLD_INFO:
            # Bound at the start, weakly, and at the first call.
            self.binds = [(words[place], words[place + 1]) for place in (4, 6, 8)]
            return f"{sum(length for _, length in self.binds)} bytes of what is bound"
        if command == MAIN:
            self.main = struct.unpack_from("<2Q", self.data, at + 8)
            return f"entry at {self.main[0]}"
        if command == SIGNATURE:
            self.signature = words[2:4]
            return f"{words[3]} bytes at {words[2]}"
        return f"{words[3]} bytes" if len(words) == 4 else ""

    def taken(self):
        """{library: symbols that the loader looks up there}, and those of them that may be absent."""
        found, weak = {name: set() for name in self.libraries}, set()
        for start, length in self.binds:
            for ordinal, symbol, flags in self.bound(start, start + length):
                if not 0 < ordinal <= len(self.libraries):
                    sys.exit(f"{symbol} is looked up in library {ordinal} of {len(self.libraries)}")
                found[self.libraries[ordinal - 1]].add(symbol)
                if flags & 1:
                    weak.add(symbol)
        return found, weak

    def bound(self, at, end):
        """Library, name and flags of each symbol that the loader's little program binds."""
        ordinal, symbol, flags = 0, None, 0

        def uleb():
            nonlocal at
            value = shift = 0
            while True:
                byte = self.data[at]
                at += 1
                value |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    return value

        while at < end:
            code, low = self.data[at] & 0xF0, self.data[at] & 0xF
            at += 1
            if code == 0x10:
                ordinal = low
            elif code == 0x20:
                ordinal = uleb()
            elif code == 0x30:
                ordinal = -low
            elif code == 0x40:
                flags, symbol = low, string(self.data, at)
                at += len(symbol) + 1
            elif code in (0x60, 0x70, 0x80):
                uleb()
            elif code in (0x90, 0xA0, 0xB0, 0xC0):
                yield ordinal, symbol, flags
                for _ in range({0xA0: 1, 0xC0: 2}.get(code, 0)):
                    uleb()


def signature_faults(data, place):
    """What is wrong with a signature: hashes of the file's pages, and that it is ad hoc (names no developer)."""
    if place is None:
        return ["no signature: an arm64 Mac kills it"]
    start = place[0]
    magic, _, count = struct.unpack_from(">3I", data, start)
    if magic != 0xFADE0CC0:
        return [f"the signature begins with {magic:#x}"]
    for index in range(count):
        _, offset = struct.unpack_from(">2I", data, start + 12 + 8 * index)
        at = start + offset
        fields = struct.unpack_from(">9I4BI", data, at)
        if fields[0] != 0xFADE0C02:
            continue
        hashes, pages, limit = fields[4], fields[7], fields[8]
        width, kind, page = fields[9], fields[10], 1 << fields[12]
        if (width, kind) != (32, 2):
            return [f"hashes of kind {kind} and {width} bytes, not SHA-256"]
        faults = [] if fields[3] & ADHOC else ["the signature is not ad hoc"]
        if limit != start or pages != -(-limit // page):
            faults.append(f"the signature covers {limit} bytes in {pages} pages of {page}, the code has {start}")
        for number in range(pages):
            found = hashlib.sha256(data[number * page:min((number + 1) * page, limit)]).digest()
            if found != data[at + hashes + 32 * number:at + hashes + 32 * (number + 1)]:
                return [*faults, f"page {number} of {pages} is not what was signed"]
        return faults
    return ["the signature has no code directory"]


def faults(program, newest):
    """What would keep a Mac from starting it."""
    found = signature_faults(program.data, program.signature)
    if (program.cpu, program.kind) != (ARM64, EXECUTE) or not program.flags & PIE or program.main is None:
        found.append("no program for arm64 that can be placed anywhere")
    major, minor = (int(part) for part in newest.split("."))
    if program.minimum is None or program.minimum > major << 16 | minor << 8:
        wanted = "no version of macOS" if program.minimum is None else f"macOS {version(program.minimum)}"
        found.append(f"wants {wanted}, not {newest}")
    if not program.binds:
        found.append("no symbols are bound by LC_DYLD_INFO, the one form that is read here")
    known = libraries(LIST.read_text())
    for library, symbols in program.taken()[0].items():
        if library in SYSTEM:
            continue
        if library not in known:
            found.append(f"wants {library}, which is not in {LIST.name}")
        strange = sorted(set(symbols) - set(known.get(library, [])))
        found += [f"wants {symbol} of {library}, which is not in {LIST.name}" for symbol in strange]
    return found


def main():
    arguments = sys.argv[1:]
    newest = None
    if arguments[:1] == ["--check"] and len(arguments) == 3:
        newest, arguments = arguments[1], arguments[2:]
    if len(arguments) != 1:
        sys.exit(__doc__)
    with open(arguments[0], "rb") as file:
        program = Program(file.read())
    print("\n".join(program.lines))
    taken, weak = program.taken()
    for library, symbols in taken.items():
        absent = sum(symbol in weak for symbol in symbols)
        print(f"{library}: {len(symbols)} symbols" + (f", {absent} of them may be absent" if absent else ""))
        if library not in SYSTEM:
            print("    " + " ".join(sorted(symbols)))
    wrong = faults(program, newest) if newest else []
    for fault in wrong:
        print(f"WRONG: {fault}", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
