# Sourced by the benches that need a server: `start_server LOG BINARY ARGUMENT...` starts `BINARY serve ARGUMENT...` on a
# free port, waits until it says where it listens, sets `url` and `server`, and has it ended with the script.

start_server() {
    local log=$1 binary=$2
    shift 2
    "$binary" serve "$@" --port 0 > "$log" 2>&1 &
    server=$!
    trap 'kill $server 2> /dev/null || true; wait $server 2> /dev/null || true' EXIT
    url=
    for _ in $(seq 600); do
        url=$(grep -o -m 1 'http://127.0.0.1:[0-9]*' "$log" || true)
        [ -n "$url" ] && return
        kill -0 $server 2> /dev/null || { cat "$log" >&2; exit 1; }
        sleep 0.1
    done
    echo "the server did not say where it listens:" >&2
    cat "$log" >&2
    exit 1
}
