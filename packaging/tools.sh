# Sourced after names.sh: `tools` puts zig (the linker with old glibc versions, and for macOS), cargo-zigbuild and wheel
# into target/packages/.tools, as wheels, and into the path.

tools() {
    local wanted="ziglang==0.17.1 cargo-zigbuild==0.24.0 wheel==0.48.0"
    if [ "$(cat "$dist/.tools/.stamp" 2> /dev/null || true)" != "$wanted" ]; then
        rm -rf "$dist/.tools"
        mkdir -p "$dist"
        python3 -m venv "$dist/.tools"
        # shellcheck disable=SC2086 # a list of names
        "$dist/.tools/bin/pip" install --quiet --disable-pip-version-check $wanted
        echo "$wanted" > "$dist/.tools/.stamp"
    fi
    PATH=$dist/.tools/bin:$PATH
}
