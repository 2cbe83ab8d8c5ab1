"""Let the PyPI build of torch import on a machine without the CUDA libraries.

The Linux x86-64 wheel on PyPI links against some fourteen NVIDIA libraries, three gigabytes of
further wheels, and a CPU calls none of them. `pip install --no-deps torch` leaves them out, and
the dynamic loader then refuses to load libtorch. This script writes a stand-in for each missing
library into torch/lib: a shared object that defines every symbol torch wants from it, under the
symbol version torch was linked against. Each function returns 100 (cudaErrorNoDevice), so torch
finds no device; the registration hooks that static initialisers call return 0.

Needs readelf and nm (binutils) and a C compiler. A second run finds nothing missing and does
nothing.

    python torch_without_cuda.py        # finds torch beside the running interpreter
"""

import collections
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

NO_DEVICE = 100
CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
CUDA_SYMBOL = re.compile(r"(cu[A-Z_a-z]|nv[A-Zrst]|nccl|cupti|__cuda)")
# Symbol version nodes that are not named after the library that owns them.
VERSION_NODE = {"libnvshmem_host.so.3": "NVSHMEM"}


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def dynamic_symbols(library):
    """Yields (kind, name, version) for each dynamic symbol; kind U, w or v is undefined."""
    for line in output_of("nm", "-D", str(library)).splitlines():
        *_, kind, symbol = line.split()
        name, _, version = symbol.partition("@")
        yield kind, name, version.lstrip("@")


def write_stand_in(target, node, versioned, unversioned):
    """Compiles a shared object named `target` that defines the given symbols."""

    def definition(name):
        if node == "NVSHMEM":  # torch takes addresses of NVSHMEM objects, so these are data
            return f"long {name}[64];"
        return f"long {name}(void) {{ return {0 if name.startswith('__cuda') else NO_DEVICE}; }}"

    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "stand_in.c")
        source.write_text("\n".join(definition(n) for n in sorted(versioned | unversioned)) + "\n")
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{target.name}"]
        if versioned:
            script = pathlib.Path(folder, "versions.map")
            script.write_text(f"{node} {{ global: {' '.join(s + ';' for s in sorted(versioned))} }};\n")
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([*command, "-o", str(target), str(source)], check=True)


def main():
    folder = pathlib.Path(sysconfig.get_paths()["platlib"], "torch", "lib")
    libraries = sorted(folder.glob("*.so*"))
    if not libraries:
        sys.exit(f"{folder}: no shared libraries; is torch installed?")
    needed, defined, by_version, unversioned = set(), set(), collections.defaultdict(set), set()
    for library in libraries:
        needed.update(re.findall(r"NEEDED.*\[(.*?)\]", output_of("readelf", "-d", str(library))))
        for kind, name, version in dynamic_symbols(library):
            if kind not in "Uvw":
                defined.add(name)
            elif version:
                by_version[version].add(name)
            elif CUDA_SYMBOL.match(name):
                unversioned.add(name)
    present = {library.name for library in libraries}
    missing = sorted(n for n in needed if CUDA_LIBRARY.match(n) and n not in present)
    orphans = unversioned - defined  # one library defines them all: the loader does not mind which
    for name in missing:
        node = VERSION_NODE.get(name, name)
        write_stand_in(folder / name, node, by_version[node], orphans)
        orphans = set()
    print(f"torch: stand-ins for {len(missing)} CUDA libraries")


if __name__ == "__main__":
    main()
