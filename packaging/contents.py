#!/usr/bin/env python3
"""Checks that release files hold what they are to hold, and nothing else.

    packaging/contents.py FILE... [--forbid PATH ...]

Of every archive, Debian package and wheel: the names are those listed here, each once; programs are executable, other
files are readable by all and writable by their owner alone; root owns them; there are no links, devices or names that
leave the folder. A wheel's RECORD has the checksum of each file. No file, packed or not, has a path of the machine
that built it (those of --forbid, the home folder, this folder, cargo's and rustup's), another user's home folder, a key
or a password, and no program an instruction where to look for libraries. Standard library and dpkg-deb; exit status 1
with every complaint. `packaging/contents_test.py` spoils files and sees that this complains.
"""

import argparse
import base64
import csv
import gzip
import hashlib
import io
import os
import pathlib
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PAPERS = ["LICENSE", "README.md", "flashmoe.1", "completions/flashmoe.bash", "completions/_flashmoe",
          "completions/flashmoe.fish"]
MODEL = ["README.md", "chat_template.jinja", "config.json", "eval.jsonl", "examples.json", "generation_config.json",
         "heldout.jsonl", "loss.png", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
MODEL = [f"models/demo/{name}" for name in MODEL]
DEBIAN = ["usr/bin/flashmoe", "usr/share/bash-completion/completions/flashmoe",
          "usr/share/zsh/vendor-completions/_flashmoe", "usr/share/fish/vendor_completions.d/flashmoe.fish",
          "usr/share/man/man1/flashmoe.1.gz", "usr/share/doc/flashmoe/copyright"]
WHEEL = ["{}.data/scripts/flashmoe", "{}.dist-info/licenses/LICENSE", "{}.dist-info/METADATA", "{}.dist-info/WHEEL",
         "{}.dist-info/RECORD"]
PROGRAM = re.compile(r"(^|/)flashmoe(\.exe)?$")


# Home folders, wherever the program was built.
HOMES = re.compile(rb"(?<![\w./~:-])/(?:home|Users)/[a-z_][\w.-]*/[\w.-]+|[A-Z]:\\\\?Users\\\\?[\w.-]+")
# What nobody may publish: keys by their form, and addresses with a password.
SECRETS = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=\s]{40}|\bhf_[A-Za-z]{34}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b"
    rb"|\bgithub_pat_\w{60}|\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{40}|\bAKIA[0-9A-Z]{16}\b|\bnpm_[A-Za-z0-9]{36}\b"
    rb"|\bpypi-AgE[\w-]{50}|\bxox[abp]-[0-9]+-\w+|[a-z]://[\w.%-]+:[^\s/@:{}<>\"']{6,}@[\w-]+\.")


def is_program(name):
    return bool(PROGRAM.search(name)) and "completions" not in name


class Check:
    def __init__(self, file, forbidden):
        self.file, self.forbidden, self.found = file, forbidden, []

    def complain(self, text):
        self.found.append(f"{self.file.name}: {text}")

    def names(self, found, expected):
        for name in sorted(set(found) | set(expected)):
            if found.count(name) != 1 or name not in expected:
                times = f"{name} is there {found.count(name)} times"
                self.complain(times if name in expected else f"{name} is not expected")

    def mode(self, name, mode):
        wanted = 0o755 if is_program(name) else 0o644
        if stat.S_IMODE(mode) != wanted:
            self.complain(f"{name} has mode {stat.S_IMODE(mode):o}, not {wanted:o}")

    def content(self, name, body):
        if not body:
            self.complain(f"{name} is empty")
        if name.endswith(".gz"):
            body = gzip.decompress(body)
        for path in self.forbidden:
            count = body.count(path.encode())
            if count:
                at = body.index(path.encode())
                piece = re.split(rb"[\0\n]", body[at:at + 200])[0].decode(errors="replace")
                self.complain(f"{name} has {count} paths below {path}, as {piece}")
        for what, form in (("home folder", HOMES), ("key or password", SECRETS)):
            if found := form.search(body):
                # Of a key no more than what it is one of.
                self.complain(f"{name} has a {what} at byte {found.start()}, {found[0][:12].decode(errors='replace')}...")
        if is_program(name) and body.startswith(b"\x7fELF"):
            self.program(name, body)

    def program(self, name, body):
        """Of a program for Linux: libraries are looked for where the system has them."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(body)
            file.flush()
            found = subprocess.run(["readelf", "--dynamic", "--wide", file.name], capture_output=True, text=True)
        for line in found.stdout.splitlines():
            if "(RPATH)" in line or "(RUNPATH)" in line:
                self.complain(f"{name} looks for libraries in {line.split('[')[-1].rstrip(']')}")

    def tar(self, archive, expected, prefix):
        """A tar's members; folders are those of the files."""
        folders = {str(folder) for name in expected for folder in pathlib.PurePosixPath(name).parents} | {prefix or "."}
        files = []
        for member in archive.getmembers():
            name = os.path.normpath(member.name)
            if name.startswith(("/", "..")):
                self.complain(f"{member.name} leaves the folder")
            if (member.uid, member.gid) != (0, 0):
                self.complain(f"{name} belongs to {member.uid}:{member.gid}")
            if member.uname not in ("", "root") or member.gname not in ("", "root"):
                self.complain(f"{name} belongs to {member.uname}:{member.gname}")
            if member.isdir():
                if name not in folders:
                    self.complain(f"folder {name} is not expected")
                if member.mode & 0o7777 != 0o755:
                    self.complain(f"folder {name} has mode {member.mode & 0o7777:o}, not 755")
            elif member.isreg():
                files.append(name)
                self.mode(name, member.mode)
                self.content(name, archive.extractfile(member).read())
            else:
                self.complain(f"{name} is neither a file nor a folder")
        self.names(files, expected)

    def archive(self):
        folder = self.file.name.removesuffix(".tar.gz")
        more = [*MODEL, "apple.md"] if folder.endswith("-macos") else []
        expected = [f"{folder}/{name}" for name in ["flashmoe", *PAPERS, *more]]
        with tarfile.open(self.file) as archive:
            self.tar(archive, expected, folder)

    def windows(self):
        folder = self.file.name.removesuffix(".zip")
        with zipfile.ZipFile(self.file) as archive:
            self.names(archive.namelist(), [f"{folder}/{name}" for name in ["flashmoe.exe", *PAPERS, *MODEL]])
            for name in archive.namelist():
                self.content(name, archive.read(name))

    def debian(self):
        def part(option):
            body = subprocess.run(["dpkg-deb", option, self.file], capture_output=True, check=True).stdout
            return tarfile.open(fileobj=io.BytesIO(body))

        with part("--fsys-tarfile") as archive:
            self.tar(archive, DEBIAN, None)
        with part("--ctrl-tarfile") as archive:
            # Nothing of it runs when the package is installed.
            self.tar(archive, ["control"], None)

    def wheel(self):
        name = "-".join(self.file.name.split("-")[:2])
        with zipfile.ZipFile(self.file) as archive:
            self.names(archive.namelist(), [entry.format(name) for entry in WHEEL])
            for entry in archive.infolist():
                mode = entry.external_attr >> 16
                if not stat.S_ISREG(mode):
                    self.complain(f"{entry.filename} is no file")
                # The tool gives the list of files a mode of its own; installers take no mode but who may run a file.
                if not entry.filename.endswith("/RECORD"):
                    self.mode(entry.filename, mode)
                self.content(entry.filename, archive.read(entry))
            record = f"{name}.dist-info/RECORD"
            rows = {path: (digest, size) for path, digest, size in csv.reader(io.StringIO(archive.read(record).decode()))}
            for path in archive.namelist():
                body = archive.read(path)
                digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
                wanted = ("", "") if path == record else (f"sha256={digest}", str(len(body)))
                if rows.pop(path, None) != wanted:
                    self.complain(f"RECORD has another line for {path}")
            for path in rows:
                self.complain(f"RECORD names {path}, which is not there")

    def run(self):
        kinds = {".tar.gz": self.archive, ".zip": self.windows, ".deb": self.debian, ".whl": self.wheel}
        for suffix, check in kinds.items():
            if self.file.name.endswith(suffix):
                check()
                return self.found
        self.complain("is no release file")
        return self.found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--forbid", nargs="*", default=[])
    options = parser.parse_args()
    tools = [os.environ.get(f"{tool.upper()}_HOME", os.path.expanduser(f"~/.{tool}")) for tool in ("cargo", "rustup")]
    here = str(pathlib.Path(__file__).resolve().parent.parent)
    forbidden = {f"{path}/" for path in (*tools, os.path.expanduser("~"), here)} | set(options.forbid)
    found = [line for file in options.files for line in Check(file, sorted(forbidden)).run()]
    print("\n".join(found) or f"{len(options.files)} release files hold what they are to hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
