#!/usr/bin/env python3
"""Sees that contents.py takes right release files and complains of each kind of wrong one.

The files are made here, with a few bytes in the place of the program. Standard library and dpkg-deb.
"""

import base64
import gzip
import hashlib
import io
import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest
import zipfile

import contents

HOME = "/srv/builder/"
NAME = "flashmoe-1.2.3"
KEY = b"-----BEGIN PRIVATE KEY-----\n" + b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 3


def body(name):
    text = b"what " + name.encode() + b" holds: ~/.config, /usr/lib, https://host/path:1@2, \0/home/ and sk-learn\n"
    return gzip.compress(text) if name.endswith(".gz") else text


def right(names):
    """Name, bytes and mode of each file."""
    return [[name, body(name), 0o755 if contents.is_program(name) else 0o644] for name in names]


def tar(folder, files, member=lambda info: None):
    with tarfile.open(folder, "w:gz") as archive:
        for name, text, mode in files:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), mode
            member(info)
            archive.addfile(info, io.BytesIO(text))


def wheel(path, files, record=lambda rows: rows):
    rows = []
    with zipfile.ZipFile(path, "w") as archive:
        for name, text, mode in files:
            digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(text)}")
            if name.endswith("/RECORD"):
                rows[-1] = f"{name},,"
                text = "\n".join(record(rows)).encode()
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100000 | mode) << 16
            archive.writestr(info, text)


class Contents(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.place = pathlib.Path(self.folder.name)

    def found(self, path):
        return contents.Check(path, [HOME]).run()

    def spoilt(self, make, files):
        """Every way in which files can be wrong; `make` packs them."""
        self.assertEqual(self.found(make(files)), [])
        # A list of a wheel's files is checked by itself.
        places = [at for at, (name, _, _) in enumerate(files) if not name.endswith("/RECORD")]
        for at in places:
            name, text, mode = files[at]

            def other(*entry):
                return [entry if index == at else tuple(file) for index, file in enumerate(files)]

            def packed(added):
                plain = gzip.decompress(text) if name.endswith(".gz") else text
                return gzip.compress(plain + added) if name.endswith(".gz") else plain + added

            wrong = {
                "is there 0 times": [tuple(file) for index, file in enumerate(files) if index != at],
                "is empty": other(name, b"", mode),
                "has mode": other(name, text, mode ^ 0o111),
                f"paths below {HOME}": other(name, packed(b"\0" + HOME.encode() + b"src/main.rs\0"), mode),
                "has a home folder": other(name, packed(b"\0/home/someone/src/main.rs"), mode),
                "has a key or password": other(name, packed(KEY), mode),
                "a key or password": other(name, packed(b" https://user:hunter22@host.example/"), mode),
            }
            for said, spoiled in wrong.items():
                if said == "is empty" and name.endswith(".gz"):
                    continue  # No file that a program could unpack.
                complaints = self.found(make(spoiled))
                self.assertTrue(any(said in line for line in complaints), f"{name}: {said}: {complaints}")
        where = files[0][0].rpartition("/")[0]
        for strange in (f"{where}/.env", f"{where}/flashmoe.pdb", "etc/passwd"):
            complaints = self.found(make([*map(tuple, files), (strange, b"x", 0o644)]))
            self.assertTrue(any(f"{strange} is not expected" in line for line in complaints), complaints)

    def test_archives(self):
        def make(files, **more):
            path = self.place / f"{NAME}-x86_64-linux.tar.gz"
            tar(path, files, **more)
            return path

        names = [f"{NAME}-x86_64-linux/{name}" for name in ["flashmoe", *contents.PAPERS]]
        files = right(names)
        self.spoilt(make, files)

        def owned(info):
            info.uid, info.uname = 1000, "builder"

        self.assertTrue(any("belongs to" in line for line in self.found(make(files, member=owned))))

        def linked(info):
            if info.name.endswith("README.md"):
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"

        self.assertTrue(any("neither a file nor a folder" in line for line in self.found(make(files, member=linked))))

        def outside(info):
            if info.name.endswith("README.md"):
                info.name = "../README.md"

        self.assertTrue(any("leaves the folder" in line for line in self.found(make(files, member=outside))))

    def test_wheels(self):
        def make(files, **more):
            path = self.place / f"{NAME}-py3-none-manylinux_2_28_x86_64.whl"
            wheel(path, files, **more)
            return path

        files = right([name.format(NAME) for name in contents.WHEEL])
        self.spoilt(make, files)
        for record, said in (
            (lambda rows: rows[1:], "another line"),
            (lambda rows: [*rows, "setup.py,sha256=x,1"], "not there"),
            (lambda rows: [rows[0].replace("sha256=", "sha256=A"), *rows[1:]], "another line"),
        ):
            complaints = self.found(make(files, record=record))
            self.assertTrue(any(said in line for line in complaints), complaints)

    def test_debian_packages(self):
        def make(files, scripts=(), owner="--root-owner-group"):
            root, path = self.place / "root", self.place / "flashmoe_1.2.3_amd64.deb"
            subprocess.run(["rm", "-rf", root], check=True)
            (root / "DEBIAN").mkdir(parents=True)
            control = "Package: flashmoe\nVersion: 1.2.3\nArchitecture: amd64\nMaintainer: x\nDescription: x\n"
            (root / "DEBIAN/control").write_text(control)
            for name, text, mode in [*files, *scripts]:
                file = root / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text)
                file.chmod(mode)
            command = ["dpkg-deb", *filter(None, [owner]), "-Zgzip", "-z1", "--build", root, path]
            subprocess.run(command, check=True, capture_output=True)
            return path

        umask = os.umask(0o022)
        self.addCleanup(os.umask, umask)
        files = right(contents.DEBIAN)
        self.spoilt(make, files)
        complaints = self.found(make(files, scripts=[("DEBIAN/postinst", b"#!/bin/sh\n", 0o755)]))
        self.assertTrue(any("postinst is not expected" in line for line in complaints), complaints)

    def test_other_files(self):
        path = self.place / "flashmoe.exe"
        path.write_bytes(b"x")
        self.assertEqual(self.found(path), ["flashmoe.exe: is no release file"])


if __name__ == "__main__":
    unittest.main()
