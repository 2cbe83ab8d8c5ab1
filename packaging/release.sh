#!/usr/bin/env bash
# Builds everything that a release consists of, into target/packages, and checks each piece (packaging/check.sh).
#
#   packaging/release.sh [x86_64] [aarch64] [macos] [windows]      all without an argument
#
# One program per processor, linked against the old glibc that packaging/names.sh names. Not musl: a static program
# cannot load the driver of an NVIDIA GPU. Nothing but the C library is needed. Each program becomes an archive with
# manual page and completions, a Debian package and a wheel; SHA256SUMS lists them all. For Macs with a chip of Apple's
# and for Windows there is an archive each: linked here, and run nowhere that we know of (docs/apple.md,
# docs/install.md).
#
# Needs cargo, rustup, Python and, for another processor, qemu-user with its C library (`.ci/run aarch64` installs
# them); for Windows the compiler of `.ci/run windows`. zig (the linker with old glibc versions), cargo-zigbuild and
# wheel come as wheels into target/packages/.tools. After that and `cargo fetch` no network is used.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/names.sh
. packaging/tools.sh

[ $# -gt 0 ] || set -- x86_64 aarch64 macos windows

# Files are readable by all whatever the builder's shell says, and programs name no folder of the builder's: the standard
# library's paths are short already, those of dependencies begin with the home folder.
umask 022
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$PWD=/flashmoe"

# The program, stripped.
program() {
    rustup target add "$1-unknown-linux-gnu" > /dev/null 2>&1
    cargo zigbuild --locked --offline --profile dist --package flashmoe --target "$1-unknown-linux-gnu.$glibc"
}

# For Macs with a chip of Apple's: zig's linker, with stubs of the system's libraries that a script of ours makes, and
# an ad-hoc signature, without which such a Mac ends a program at once.
program_macos() {
    rustup target add aarch64-apple-darwin > /dev/null 2>&1
    packaging/apple/cargo.sh zigbuild --offline --profile dist --package flashmoe
}

program_windows() {
    rustup target add x86_64-pc-windows-gnu > /dev/null 2>&1
    cargo build --locked --offline --profile dist --package flashmoe --target x86_64-pc-windows-gnu
}

# The folder of a system whose programs do not run here: `foreign NAME PROGRAM FILE`. Manual page and completions are
# those that this machine's program prints, which are the same.
foreign() {
    local own
    own=$dist/$(archive_of "$(uname -m)")/flashmoe
    if [ ! -x "$own" ]; then
        cargo build --locked --offline --package flashmoe
        own=target/debug/flashmoe
    fi
    rm -rf "${dist:?}/$1"
    mkdir -p "$dist/$1/models"
    papers "$(uname -m)" "$own" "$dist/$1"
    cp "$2" "$dist/$1/$3"
    # An owner's first report needs a model (docs/apple.md).
    cp -r "$demo" "$dist/$1/models/demo"
    rm -rf "$dist/$1/models/demo/training"
    # A clone may be the builder's alone.
    chmod -R u=rwX,go=rX "$dist/$1"
}

zipped() {
    python3 - "$dist" "$1" << 'END'
import pathlib, sys, zipfile
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    for path in sorted(path for path in (folder / name).rglob("*") if path.is_file()):
        entry = zipfile.ZipInfo(str(path.relative_to(folder)), (1980, 1, 1, 0, 0, 0))
        entry.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(entry, path.read_bytes())
END
}

tarred() {
    tar -C "$dist" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -czf "$dist/$1.tar.gz" "$1"
}

# What lies beside the program: made by the program itself, or by an emulator of its processor.
papers() {
    mkdir -p "$3/completions"
    run_as "$1" "$2" man > "$3/flashmoe.1"
    run_as "$1" "$2" completions bash > "$3/completions/flashmoe.bash"
    run_as "$1" "$2" completions zsh > "$3/completions/_flashmoe"
    run_as "$1" "$2" completions fish > "$3/completions/flashmoe.fish"
    cp LICENSE README.md "$3/"
}

archive() {
    local name
    name=$(archive_of "$1")
    rm -rf "${dist:?}/$name"
    mkdir -p "$dist/$name"
    cp "$2" "$dist/$name/flashmoe"
    papers "$1" "$2" "$dist/$name"
    tarred "$name"
}

debian() {
    local from root=$dist/.deb-$1 package architecture
    from=$dist/$(archive_of "$1")
    package=$(package_of "$1")
    architecture=${package##*_}
    rm -rf "$root"
    install -D -m 755 "$from/flashmoe" "$root/usr/bin/flashmoe"
    install -D -m 644 "$from/completions/flashmoe.bash" "$root/usr/share/bash-completion/completions/flashmoe"
    install -D -m 644 "$from/completions/_flashmoe" "$root/usr/share/zsh/vendor-completions/_flashmoe"
    install -D -m 644 "$from/completions/flashmoe.fish" "$root/usr/share/fish/vendor_completions.d/flashmoe.fish"
    install -D -m 644 "$from/flashmoe.1" "$root/usr/share/man/man1/flashmoe.1"
    install -D -m 644 LICENSE "$root/usr/share/doc/flashmoe/copyright"
    gzip -9n "$root/usr/share/man/man1/flashmoe.1"
    mkdir "$root/DEBIAN"
    cat > "$root/DEBIAN/control" << END
Package: flashmoe
Version: $version
Architecture: ${architecture%.deb}
Maintainer: the flashmoe developers
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: libc6 (>= $glibc)
Section: science
Priority: optional
Description: Mixture-of-Experts models larger than memory, on one ordinary machine
 The dense trunk of a model stays in memory, its experts stream from an SSD, and
 the answer is exactly the model's. Chat, an HTTP server for OpenAI's and
 Anthropic's protocols, settings for coding agents.
END
    dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/$package" > /dev/null
}

# The program as a script of a package without a line of Python. Not by maturin: it compiles all of the program again.
wheel() {
    local root=$dist/.wheel-$1 name=flashmoe-$version tag
    tag=$(wheel_of "$1")
    tag=${tag#"$name"-}
    rm -rf "$root"
    install -D -m 755 "$dist/$(archive_of "$1")/flashmoe" "$root/$name.data/scripts/flashmoe"
    install -D -m 644 LICENSE "$root/$name.dist-info/licenses/LICENSE"
    cat > "$root/$name.dist-info/METADATA" << END
Metadata-Version: 2.4
Name: flashmoe
Version: $version
Summary: Runs Mixture-of-Experts models larger than memory on one ordinary machine.
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.9
END
    cat > "$root/$name.dist-info/WHEEL" << END
Wheel-Version: 1.0
Generator: flashmoe/packaging
Root-Is-Purelib: false
Tag: ${tag%.whl}
END
    "$dist/.tools/bin/wheel" pack --dest-dir "$dist" "$root" > /dev/null
}

tools
mkdir -p $dist
for machine in "$@"; do
    case $machine in
        macos)
            program_macos
            foreign "$macos_archive" target/aarch64-apple-darwin/dist/flashmoe flashmoe
            cp docs/apple.md "$dist/$macos_archive/"
            tarred "$macos_archive"
            ;;
        windows)
            program_windows
            foreign "$windows_archive" target/x86_64-pc-windows-gnu/dist/flashmoe.exe flashmoe.exe
            zipped "$windows_archive"
            ;;
        *)
            program "$machine"
            built=target/$machine-unknown-linux-gnu/dist/flashmoe
            archive "$machine" "$built"
            debian "$machine"
            wheel "$machine"
            ;;
    esac
done
(cd "$dist" && find . -maxdepth 1 \( -name '*.tar.gz' -o -name '*.zip' -o -name '*.deb' -o -name '*.whl' \) \
    -printf '%f\n' | sort | xargs sha256sum > SHA256SUMS)
packaging/check.sh "$@"
