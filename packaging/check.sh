#!/usr/bin/env bash
# Checks what packaging/release.sh made: symbols no newer than the promised glibc, and an answer of the demo model from
# each piece, installed as a user would, without a compiler and without network.
#
#   packaging/check.sh [x86_64] [aarch64]
#
# Another processor's program runs under qemu (its answer takes minutes; there `--version` and `doctor` are asked for).
# As root, the archive's program also answers in an empty folder that holds nothing but it, the C library and the model.
set -euo pipefail
cd "$(dirname "$0")/.."

dist=$PWD/target/packages
demo=$PWD/models/demo
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
glibc=2.28
expected='255 = 3 × 5 × 17'
[ $# -gt 0 ] || set -- x86_64 aarch64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

answers() {
    echo "$1"
    shift
    "$@" run "$demo" "What is 255 factored?" --slots 200 2> /dev/null | grep -q "$expected"
}

# The newest version of a glibc symbol that a program wants.
newest() {
    readelf --version-info "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2
}

for machine in "$@"; do
    tar -C "$work" -xzf "$dist/flashmoe-$version-$machine-linux.tar.gz"
    folder=$work/flashmoe-$version-$machine-linux
    program=$folder/flashmoe
    found=$(newest "$program")
    echo "$machine: $(stat -c %s "$program") bytes, glibc $found"
    [ "$(printf '%s\n' "$found" $glibc | sort -V | tail -1)" = $glibc ]
    if readelf --sections "$program" | grep -q '\.debug_info'; then
        echo "$machine: not stripped" >&2
        exit 1
    fi
    for paper in LICENSE README.md flashmoe.1 completions/flashmoe.bash completions/_flashmoe completions/flashmoe.fish; do
        [ -s "$folder/$paper" ]
    done
    if [ "$machine" != "$(uname -m)" ]; then
        run=("qemu-$machine" -cpu max -L "/usr/$machine-linux-gnu" "$program")
        "${run[@]}" --version
        "${run[@]}" doctor | head -2
        continue
    fi
    answers "archive" "$program"
    dpkg-deb -x "$dist"/flashmoe_"$version"_*"$(dpkg --print-architecture)".deb "$work/deb"
    answers "Debian package" "$work/deb/usr/bin/flashmoe"
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --no-index --find-links "$dist" flashmoe
    answers "wheel" "$work/venv/bin/flashmoe"
    if [ "$(id -u)" = 0 ]; then
        root=$work/root
        mkdir -p "$root/proc" "$root/dev" "$root/tmp" "$root/models"
        cp -r "$demo" "$root/models/demo"
        cp "$program" "$root/flashmoe"
        for library in $(ldd "$program" | grep -o '/[^ ]*'); do
            install -D "$library" "$root$library"
        done
        echo "an empty folder"
        unshare --mount --net --pid --fork -- sh -c "mount -t proc proc '$root/proc' && exec chroot '$root' \
            /flashmoe run /models/demo 'What is 255 factored?' --slots 200" 2> /dev/null | grep -q "$expected"
    fi
done
(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
echo "all checked"
