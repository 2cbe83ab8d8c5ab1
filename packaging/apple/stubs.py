#!/usr/bin/env python3
"""Text stubs of the system libraries of macOS that the program is linked against, made from our own list of symbols.

    packaging/apple/stubs.py FOLDER            writes FOLDER, for SDKROOT
    packaging/apple/stubs.py --missing < LOG   what a failed link wants and the list lacks, one symbol a line

A linker needs of a library its name and the names that it exports; the libraries themselves are on every Mac. Both are
in symbols.txt, so that nothing of Apple's SDK is needed or copied. libSystem is not among them: zig brings its own.
"""

import re
import sys
from pathlib import Path

LIST = Path(__file__).with_name("symbols.txt")
CLASS = "_OBJC_CLASS_$_"


def libraries(text):
    """The list: {name of the library at run time: its symbols}."""
    found, symbols = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if line.startswith("/"):
            symbols = found.setdefault(line, [])
        elif line:
            if symbols is None or not re.fullmatch(r"_[A-Za-z0-9_$]+", line):
                sys.exit(f"{LIST}, line {number}: {line!r} is neither a library nor a symbol of one")
            symbols.append(line)
    return found


def stub_path(library):
    """Where a linker looks for a library's stub: under the folder of its framework, or as lib*.tbd."""
    framework = re.match(r"/System/Library/Frameworks/(\w+)\.framework/", library)
    if framework:
        name = framework.group(1)
        return f"System/Library/Frameworks/{name}.framework/{name}.tbd"
    return "usr/lib/" + Path(library).name.split(".")[0] + ".tbd"


def stub(library, symbols):
    """A stub in Apple's text form, version 4. Compatibility version 1 suits every version of the library."""
    classes = sorted(name[len(CLASS):] for name in symbols if name.startswith(CLASS))
    plain = sorted(name for name in symbols if not name.startswith(CLASS))
    lines = [
        "--- !tapi-tbd",
        "tbd-version: 4",
        "targets: [ arm64-macos ]",
        f"install-name: '{library}'",
        "current-version: 1",
        "compatibility-version: 1",
        "exports:",
        "  - targets: [ arm64-macos ]",
    ]
    for key, names in (("symbols", plain), ("objc-classes", classes)):
        if names:
            lines.append(f"    {key}: [ {', '.join(names)} ]")
    return "\n".join([*lines, "...", ""])


def missing(log, known):
    """Symbols that a linker's error names as undefined and the list does not have."""
    named = set(re.findall(r"undefined symbol: (_[A-Za-z0-9_$]+)", log))
    return sorted(named - known)


def main():
    found = libraries(LIST.read_text())
    if sys.argv[1:] == ["--missing"]:
        for symbol in missing(sys.stdin.read(), {name for names in found.values() for name in names}):
            print(symbol)
        return
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for library, symbols in found.items():
        path = Path(sys.argv[1]) / stub_path(library)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stub(library, symbols))


if __name__ == "__main__":
    main()
