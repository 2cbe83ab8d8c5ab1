#!/usr/bin/env bash
# cargo for Macs with a chip of Apple's, on Linux, without Apple's SDK:
#
#   packaging/apple/cargo.sh COMMAND OPTIONS...
#
# COMMAND is one of cargo-zigbuild's: zigbuild links, clippy looks; both with one environment, so that neither makes the
# other compile again. A symbol that symbols.txt lacks ends it with the symbol's name: it belongs to the list, with its
# library, if macOS 13 has it.
set -euo pipefail
cd "$(dirname "$0")/../.."
. packaging/names.sh
. packaging/tools.sh

tools
stubs=$PWD/target/apple-stubs
command=$1
shift
rm -rf "$stubs"
packaging/apple/stubs.py "$stubs"
# The linker's words, which cargo prints once and which name what is missing.
log=$stubs/log
if ! SDKROOT=$stubs MACOSX_DEPLOYMENT_TARGET=$macos \
    cargo-zigbuild "$command" --locked --target aarch64-apple-darwin "$@" 2>&1 | tee "$log" >&2; then
    missing=$(packaging/apple/stubs.py --missing < "$log")
    [ -z "$missing" ] || printf 'packaging/apple/symbols.txt lacks:\n%s\n' "$missing" >&2
    exit 1
fi
