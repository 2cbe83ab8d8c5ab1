#!/usr/bin/env bash
# A newcomer's way from each release file to an answer, timed, on a machine that is this one without its past.
#
#   packaging/newcomer.sh        as root, after packaging/release.sh
#
# Each way runs in namespaces of its own: no network, a writable copy of this system's files that is thrown away, nothing
# of the builder's home, no environment, an empty home. Only the release file and the demo model are carried in.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/names.sh

archive=$(archive_of "$(uname -m)")
package=$(package_of "$(uname -m)")
wheel=$(wheel_of "$(uname -m)")

# A copy of the system in an overlay, in which the words of $3 run as a script beside the file $2.
newcomer() {
    local name=$1 file=$2 script=$3
    local place
    place=$(mktemp -d)
    echo "== $name"
    unshare --mount --net --pid --fork bash -euc '
        place=$1
        mount --make-rprivate /
        mount -t tmpfs newcomer "$place"
        mkdir "$place/upper" "$place/work" "$place/root"
        mount -t overlay overlay -o "lowerdir=/,upperdir=$place/upper,workdir=$place/work" "$place/root"
        cd "$place/root"
        for folder in root home work tmp opt mnt srv; do
            [ -d "$folder" ] && mount -t tmpfs newcomer "$folder"
        done
        mount -t proc proc proc
        mount --rbind /dev dev
        mkdir -p newcomer/demo
        cp "$2" newcomer/
        cp "$3"/*.json "$3"/*.jinja "$3"/*.safetensors newcomer/demo/
        exec chroot . /usr/bin/env -i HOME=/newcomer PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb bash -euc "
            cd
            start=\$(date +%s.%N)
            did() { printf \"%6.1f s  %s\\n\" \"\$(echo \"\$(date +%s.%N) - \$start\" | bc)\" \"\$*\"; }
            $4
        "
    ' newcomer "$place" "$file" "$demo" "$script"
    rmdir "$place"
}

# What each newcomer does next: ask what it is, ask the model, read the answer.
asks='
    flashmoe | sed -n 1,3p; did "flashmoe says what it is"
    flashmoe run demo "What is 255 factored?" 2> said; did "the answer; on the way it said: $(wc -l < said) lines"
    flashmoe plan demo --memory 1G | tail -n 6; did "plan"
'
newcomer archive "$dist/$archive.tar.gz" "
    tar xzf $archive.tar.gz; PATH=\$HOME/$archive:\$PATH; did 'tar xzf'
    $asks"
newcomer "Debian package" "$dist/$package" "
    dpkg -i $package > /dev/null; did 'dpkg -i'
    $asks"
newcomer wheel "$dist/$wheel" "
    python3 -m venv venv; did 'python3 -m venv'
    venv/bin/pip install --quiet --no-index $wheel; PATH=\$HOME/venv/bin:\$PATH; did 'pip install'
    $asks"
