#!/usr/bin/env bash
# Checks what packaging/release.sh made: symbols no newer than the promised glibc, an answer of the demo model from
# each piece, installed as a user would, without a compiler and without network, and what each piece holds (contents.py).
#
#   packaging/check.sh [x86_64] [aarch64] [macos] [windows]
#
# Another processor's programs run under qemu (which takes minutes), and its wheel is installed into a folder instead of
# an environment. As root, this processor's program also answers in a folder with nothing but it, the C library, the
# model, /proc and /dev/null.
#
# The program for macOS cannot run here: its load commands, libraries and signature are checked. That for Windows
# answers under Wine where that is installed; the libraries that it wants are checked in any case.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/names.sh

expected='255 = 3 × 5 × 17'
[ $# -gt 0 ] || set -- x86_64 aarch64 macos windows
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# `answers WHAT MACHINE PROGRAM`: its version, the answer, and how long that took.
answers() {
    local start=$SECONDS
    is_own "$2" || again "$2" "$3"
    run_as "$2" "$3" --version | head -1 | grep -qF "flashmoe $version"
    run_as "$2" "$3" run "$demo" "What is 255 factored?" --slots 200 2> /dev/null | grep -q "$expected"
    echo "$2 $1: answers, $((SECONDS - start)) s"
}

# Lets a program of another processor start itself again (own_program.c).
again() {
    local script=$work/$1/again
    printf '#!/bin/sh\nexec qemu-%s -cpu max -L /usr/%s-linux-gnu %s "$@"\n' "$1" "$1" "$2" > "$script"
    chmod +x "$script"
    "$1-linux-gnu-gcc" -shared -fPIC -O1 "-DOWN_PROGRAM=\"$script\"" packaging/own_program.c -o "$work/$1/own.so" -ldl
    export QEMU_SET_ENV=LD_PRELOAD=$work/$1/own.so
}

# The newest version of a glibc symbol that a program wants.
newest() {
    readelf --version-info "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2
}

papers_are_there() {
    local paper
    for paper in LICENSE README.md flashmoe.1 completions/{flashmoe.bash,_flashmoe,flashmoe.fish}; do
        [ -s "$1/$paper" ]
    done
}

check_macos() {
    local folder=$work/macos/$macos_archive
    mkdir "$work/macos"
    tar -C "$work/macos" -xzf "$dist/$macos_archive.tar.gz"
    papers_are_there "$folder"
    [ -s "$folder/models/demo/model.safetensors" ] && [ -s "$folder/apple.md" ]
    packaging/apple/macho.py --check "$macos" "$folder/flashmoe" > "$dist/$macos_archive.txt"
    echo "macos program: $(stat -c %s "$folder/flashmoe") bytes, wants macOS $macos, signed ad hoc; not run"
}

# Libraries that every Windows has; `nvcuda.dll` and Vulkan's loader are looked for at run time.
windows_libraries='advapi32|api-ms-win-[a-z0-9-]*|bcrypt|bcryptprimitives|cfgmgr32|combase|crypt32|d3d12|dxgi|gdi32'
windows_libraries+='|iphlpapi|kernel32|mincore|msvcrt|ncrypt|netapi32|ntdll|ole32|oleaut32|opengl32|pdh|powrprof'
windows_libraries+='|propsys|psapi|secur32|setupapi|shell32|user32|userenv|ws2_32'

check_windows() {
    local folder=$work/windows/$windows_archive strange
    mkdir "$work/windows"
    python3 -m zipfile -e "$dist/$windows_archive.zip" "$work/windows"
    papers_are_there "$folder"
    strange=$(x86_64-w64-mingw32-objdump -p "$folder/flashmoe.exe" | sed -n 's/^\tDLL Name: //p' |
        grep -viE "^($windows_libraries)\.dll$" || true)
    if [ -n "$strange" ]; then
        echo "windows: wants libraries that not every Windows has: $strange" >&2
        exit 1
    fi
    echo "windows program: $(stat -c %s "$folder/flashmoe.exe") bytes, wants the system's libraries alone"
    tests/windows.sh --short "$folder/flashmoe.exe" "$folder/models/demo"
}

for machine in "$@"; do
    case $machine in
        macos | windows)
            "check_$machine"
            continue
            ;;
    esac
    place=$work/$machine
    mkdir "$place"
    tar -C "$place" -xzf "$dist/$(archive_of "$machine").tar.gz"
    folder=$place/$(archive_of "$machine")
    program=$folder/flashmoe
    found=$(newest "$program")
    echo "$machine program: $(stat -c %s "$program") bytes, wants glibc $found"
    [ "$(printf '%s\n' "$found" $glibc | sort -V | tail -1)" = $glibc ]
    if readelf --sections "$program" | grep -q '\.debug_info'; then
        echo "$machine: not stripped" >&2
        exit 1
    fi
    papers_are_there "$folder"
    answers "archive" "$machine" "$program"
    dpkg-deb -x "$dist/$(package_of "$machine")" "$place/deb"
    answers "Debian package" "$machine" "$place/deb/usr/bin/flashmoe"
    if is_own "$machine"; then
        python3 -m venv "$place/venv"
        "$place/venv/bin/pip" install --quiet --no-index "$dist/$(wheel_of "$machine")"
        answers "wheel" "$machine" "$place/venv/bin/flashmoe"
    else
        python3 -m pip install --quiet --root-user-action ignore --no-index --no-deps --only-binary :all: \
            --platform "manylinux_${glibc/./_}_$machine" --target "$place/wheel" "$dist/$(wheel_of "$machine")"
        answers "wheel" "$machine" "$place/wheel/bin/flashmoe"
    fi
    if is_own "$machine" && [ "$(id -u)" = 0 ]; then
        root=$place/root
        mkdir -p "$root/proc" "$root/dev" "$root/tmp" "$root/models"
        cp -r "$demo" "$root/models/demo"
        cp "$program" "$root/flashmoe"
        for library in $(ldd "$program" | grep -o '/[^ ]*'); do
            install -D "$library" "$root$library"
        done
        touch "$root/dev/null"
        unshare --mount --net --pid --fork -- sh -c "mount -t proc proc '$root/proc' &&
            mount --bind /dev/null '$root/dev/null' && exec chroot '$root' \
            /flashmoe run /models/demo 'What is 255 factored?' --slots 200" 2> /dev/null | grep -q "$expected"
        echo "$machine empty folder: answers"
    fi
done
# What each file holds, with which modes and owners, and that no program has a path of this machine.
(cd "$dist" && cut -c 67- SHA256SUMS | xargs ../../packaging/contents.py)
(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
echo "all checked"
