#!/usr/bin/env bash
# Runs the Windows build under Wine against the Linux build: the same answers, the same bytes in a pack, a server that
# answers, keeps prompts on disk and finds them again.
#
#   tests/windows.sh FLASHMOE.EXE FLASHMOE [STORE_UNIT_TESTS.EXE]
#   tests/windows.sh --short FLASHMOE.EXE MODEL
#
# The short form is for an archive (packaging/check.sh): version, doctor, CUDA's driver by its Windows name, an answer.
# Without Wine nothing is run, and that is said. Wine is no Windows: reads past the page cache, speed, NTFS and memory
# limits of job objects are not tested by it.
set -euo pipefail
cd "$(dirname "$0")/.."
short=
if [ "$1" = --short ]; then
    short=yes
    shift
fi
windows=$(realpath "$1")
linux=$(realpath "$2")
wine=$(command -v wine64 wine /usr/lib/wine/wine64 | head -1 || true)
wineserver=$(command -v wineserver /usr/lib/wine/wineserver /usr/lib/wine/wineserver64 | head -1 || true)
if [ -z "$wine" ] || [ -z "$wineserver" ]; then
    echo "windows: linked and not run, wine64 is not installed"
    exit
fi
work=$(mktemp -d)
export WINEPREFIX=$work/prefix WINEDEBUG=-all HOME=$work XDG_CACHE_HOME='' XDG_CONFIG_HOME='' XDG_STATE_HOME=''
trap '"$wineserver" -k 2> /dev/null || true; rm -rf "$work"' EXIT
demo=$PWD/models/demo
[ -z "$short" ] || demo=$linux
asked="What is 255 factored?"
failed=0

# Wine has bcryptprimitives.dll, which Rust's standard library takes its random numbers from, since version 9: older
# ones get one that asks the function behind it.
prepare() {
    local system=$WINEPREFIX/drive_c/windows/system32
    timeout 300 "$wine" wineboot --init > /dev/null 2>&1 < /dev/null
    [ ! -e "$system/bcryptprimitives.dll" ] || return 0
    x86_64-w64-mingw32-gcc -O1 -shared -x c - -o "$system/bcryptprimitives.dll" -ladvapi32 << 'SOURCE'
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T count) {
    return SystemFunction036(bytes, (ULONG)count);
}
SOURCE
}
prepare

exe() { timeout 300 "$wine" "$windows" "$@" < /dev/null; }

# `row WHAT COMMAND...`: the command has to succeed.
row() {
    local what=$1 begun=$SECONDS
    shift
    if "$@" > "$work/said" 2>&1; then
        printf 'ok      %s (%s s)\n' "$what" $((SECONDS - begun))
    else
        printf 'FAILED  %s\n' "$what"
        tail -5 "$work/said" | cut -c 1-300
        failed=$((failed + 1))
    fi
}

# Wine's console ends lines as Windows does.
plain() { tr -d '\r'; }

# A driver of CUDA's under its Windows name, which says that there is no device (error 100): flashmoe has asked it.
finds_cuda() {
    local place=$work/cuda
    mkdir -p "$place"
    cp "$windows" "$place/flashmoe.exe"
    x86_64-w64-mingw32-gcc -O1 -shared -x c - -o "$place/nvcuda.dll" << 'SOURCE'
__declspec(dllexport) int cuInit(unsigned flags) { return 100 + (int)flags; }
__declspec(dllexport) int cuGetErrorName(int error, const char **name) { *name = "NO_DEVICE"; return 0 * error; }
__declspec(dllexport) int cuGetErrorString(int error, const char **text) { *text = "no device"; return 0 * error; }
__declspec(dllexport) int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
SOURCE
    timeout 300 "$wine" "$place/flashmoe.exe" doctor < /dev/null | plain > "$place/with"
    exe doctor | plain > "$place/without"
    grep '^GPU ' "$place/without" "$place/with"
    grep -q 'no NVIDIA GPU' "$place/without" && ! grep -q 'no NVIDIA GPU' "$place/with"
}

answers_alone() {
    exe run "$demo" "$asked" --device cpu | plain | grep '3 × 5 × 17'
}

answers() {
    local expected found
    expected=$("$linux" run "$1" "$asked" --device cpu 2> /dev/null)
    found=$(exe run "$1" "$asked" --device cpu "${@:2}" | plain)
    echo "found: $found"
    grep -q '3 × 5 × 17' <<< "$found" && [ "$expected" = "$found" ]
}

inspects() {
    diff <("$linux" inspect "$demo" --json | sed -E 's/"(path|tokenizer)":"[^"]*"//g') \
        <(exe inspect "$demo" --json | plain | sed -E 's/"(path|tokenizer)":"[^"]*"//g')
}

packs() {
    "$linux" pack "$demo" "$work/linux.pack"
    exe pack "$demo" "$work/windows.pack"
    diff -r "$work/linux.pack" "$work/windows.pack"
    [ ! -e "$work/windows.pack.partial.lock" ]
}

damaged_is_found() {
    cp -r "$work/windows.pack" "$work/damaged.pack"
    printf x | dd of="$work/damaged.pack/trunk.bin" bs=1 seek=5000 conv=notrunc status=none
    ! exe verify "$work/damaged.pack"
}

# `serve_until FUNCTION`: a server with kept prompts, and what is asked of it.
serve_until() {
    local url='' ok=0
    # A disk that is nearly full keeps its reserve, and nothing would be kept.
    "$wine" "$windows" serve "$demo" --port 0 --device cpu --log-level info --cache-disk "$work/kept" \
        --cache-disk-reserve 0 > "$work/log" 2>&1 < /dev/null &
    for _ in $(seq 300); do
        url=$(grep -a -o -m 1 'http://127.0.0.1:[0-9]*' "$work/log" || true)
        [ -z "$url" ] || break
        sleep 0.2
    done
    [ -n "$url" ] && "$1" "$url" || ok=1
    [ $ok = 0 ] || tail -5 "$work/log"
    "$wineserver" -k
    wait
    return $ok
}

post() {
    curl -sf --retry 30 --retry-connrefused "$1/v1/chat/completions" -H 'Content-Type: application/json' \
        -d "{\"messages\":[{\"role\":\"user\",\"content\":\"$2\"}],\"temperature\":0,\"max_tokens\":200}"
}

# Long enough for a page of kept prompt.
long=$(seq -s ' ' 1 400)

answered() {
    post "$1" "$asked" | grep -a '3 × 5 × 17'
    post "$1" "$long"
    # Written after ten idle seconds, the last made first: where the second answer ended, where its prompt did.
    for _ in $(seq 300); do
        [ "$(find "$work/kept" -name '*.prefix' | wc -l)" -lt 2 ] || return 0
        sleep 0.1
    done
    ls -l "$work"/kept/*
    return 1
}

restored() {
    post "$1" "$long" | grep -aE '"cached_tokens":[1-9]'
}

if [ -n "$short" ]; then
    row "version" exe --version
    row "doctor" exe doctor
    row "CUDA's driver by its Windows name" finds_cuda
    row "an answer" answers_alone
    [ $failed = 0 ]
    exit
fi
[ -z "${3:-}" ] || row "unit tests of the store" timeout 300 "$wine" "$3" --quiet
row "version" exe --version
row "doctor" exe doctor
row "CUDA's driver by its Windows name" finds_cuda
row "an answer, as on Linux" answers "$demo"
row "experts that come from disk" answers "$demo" --slots 200
row "inspect, as on Linux" inspects
row "verify" exe verify "$demo"
row "pack, to the same bytes as on Linux" packs
row "verify a pack" exe verify "$work/windows.pack"
row "a pack's answer" answers "$work/windows.pack"
row "a damaged pack is found" damaged_is_found
row "a server answers and keeps its prompts" serve_until answered
row "another finds them" serve_until restored
row "what is kept is whole" exe cache verify "$work/kept"
[ $failed = 0 ]
