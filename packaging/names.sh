# Sourced by the scripts of this folder: where the release files are and what they are called.

dist=$PWD/target/packages
demo=$PWD/models/demo
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# The oldest C library that a program may want: 2018, Debian 10, Ubuntu 20.04, RHEL 8.
glibc=2.28

# The oldest macOS that starts the program: 2022, on every Mac with a chip of Apple's.
macos=13.0

# The archives of other systems, without their suffix.
macos_archive=flashmoe-$version-aarch64-macos
windows_archive=flashmoe-$version-x86_64-windows

# Of a processor (x86_64, aarch64): the archive's name without its suffix, the package and the wheel.
archive_of() { echo "flashmoe-$version-$1-linux"; }
package_of() { echo "flashmoe_${version}_$(case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; esac).deb"; }
wheel_of() { echo "flashmoe-$version-py3-none-manylinux_${glibc/./_}_$1.whl"; }

# Whether programs of a processor run here as they are.
is_own() { [ "$1" = "$(uname -m)" ]; }

# Starts a program of a processor, under an emulator where it is not this machine's.
run_as() {
    local machine=$1
    shift
    if is_own "$machine"; then
        "$@"
    else
        "qemu-$machine" -cpu max -L "/usr/$machine-linux-gnu" "$@"
    fi
}
