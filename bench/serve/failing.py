"""A file system that fails on demand: shows a folder through FUSE and does to its files what a line on standard input says.

    sudo bench/serve/failing.py FOLDER MOUNT

    hang            nothing is answered until another line comes; what waited is answered then
    slow SECONDS    every answer takes so long
    eio SHARE       so large a share of reads, look-ups, lists and writes fails with EIO
    full SHARE      so large a share of what takes room (creating, writing, syncing) fails with ENOSPC
    fullat N        all that takes room fails so from the N-th such request on
    kill N          who makes the N-th request that changes something is killed before it is done; `killed N` after it
    well            all is as in FOLDER

Prints "ready" when it is mounted and, after each line, "done", how many requests changed something since the line before
and how many took room; the end of standard input unmounts it. It speaks the
kernel's protocol on /dev/fuse itself, version 7.31: nothing but the standard library, Linux, root. One thread serves
one request at a time, in their order, so a slow answer delays those behind it, as a busy server of files does. Files
belong to whom they belong to in FOLDER; what is made belongs to who makes it. Nothing is cached by the kernel but pages.
"""

import ctypes
import errno
import os
import random
import signal
import stat
import struct
import sys
import threading
import time

HEADER = struct.Struct("<IIQQIIIHH")
ATTRIBUTES = struct.Struct("<6Q10I")
MAX_WRITE = 128 << 10
LIBC = ctypes.CDLL(None, use_errno=True)
NOT_ANSWERED = object()
READING = {"lookup", "getattr", "open", "read", "opendir", "readdir"}
TAKING_ROOM = {"mknod", "mkdir", "create", "write", "setattr", "fallocate", "fsync", "link", "symlink"}
CHANGING = TAKING_ROOM | {"unlink", "rmdir", "rename", "rename2"}


def call(number):
    """Notes that a method answers the request of this number."""
    def mark(method):
        method.number = number
        return method
    return mark


class Failing:
    """The answers. `nodes` has the path of each number that the kernel knows, and counts how often it was given."""

    def __init__(self, root, device):
        self.root, self.device = root, device
        self.nodes, self.numbers, self.next_node = {1: root}, {}, 2
        self.files, self.next_file = {}, 1
        self.fault, self.amount, self.random = "well", 0.0, random.Random(1)
        self.changes, self.taken = 0, 0
        self.changed = threading.Condition()
        methods = (getattr(self, name) for name in dir(self))
        self.methods = {method.number: method for method in methods if hasattr(method, "number")}

    def serve(self):
        while True:
            try:
                request = os.read(self.device, MAX_WRITE + 65536)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return  # unmounted
            _, number, unique, node, uid, gid, process, *_ = HEADER.unpack_from(request)
            method = self.methods.get(number)
            if number not in (2, 26, 36, 42):
                self.wait()
            code, answer = 0, b""
            try:
                if method is None:
                    code = errno.ENOSYS
                else:
                    after = self.fail(method.__name__, process)
                    answer = method(node, memoryview(request)[HEADER.size:], (uid, gid))
                    after()
            except OSError as error:
                code = error.errno
            except KeyError:
                code = errno.ESTALE
            if answer is NOT_ANSWERED:
                continue
            answer = b"" if code else answer or b""
            try:
                os.write(self.device, struct.pack("<IiQ", 16 + len(answer), -code, unique) + answer)
            except OSError:
                pass  # who asked has gone

    def wait(self):
        with self.changed:
            self.changed.wait_for(lambda: self.fault != "hang")
            pause = self.amount if self.fault == "slow" else 0
        time.sleep(pause)

    def fail(self, name, process):
        """Fails as the fault says, or gives what to do after the request."""
        with self.changed:
            fault, amount = self.fault, self.amount
            self.changes += name in CHANGING
            self.taken += name in TAKING_ROOM
            change = name in CHANGING and self.changes == amount
            full = name in TAKING_ROOM and self.taken >= amount
        if fault == "eio" and name in READING | TAKING_ROOM and self.random.random() < amount:
            raise OSError(errno.EIO, "asked for")
        if name in TAKING_ROOM and (fault == "full" and self.random.random() < amount or fault == "fullat" and full):
            raise OSError(errno.ENOSPC, "asked for")
        # The kernel's own requests have no process.
        change = change and process > 1
        if fault == "kill" and change:
            os.kill(process, signal.SIGKILL)
            # It is gone before the change could be seen.
            raise OSError(errno.EINTR, "killed")
        return lambda: os.kill(process, signal.SIGKILL) if fault == "killed" and change else None

    def set(self, fault, amount):
        with self.changed:
            self.fault, self.amount = fault, amount
            before, self.changes, self.taken = (self.changes, self.taken), 0, 0
            self.changed.notify_all()
        return before

    def child(self, node, name):
        return os.path.join(self.nodes[node], os.fsdecode(bytes(name).split(b"\0", 1)[0]))

    def attributes(self, path):
        at = os.lstat(path)
        times = (at.st_atime_ns, at.st_mtime_ns, at.st_ctime_ns)
        return ATTRIBUTES.pack(at.st_ino, at.st_size, at.st_blocks, *(max(t, 0) // 10**9 for t in times),
                               *(t % 10**9 for t in times), at.st_mode, at.st_nlink, at.st_uid, at.st_gid,
                               at.st_rdev & 0xFFFFFFFF, 4096, 0)

    def entry(self, path):
        attributes = self.attributes(path)
        key = (path, os.lstat(path).st_ino)
        node = self.numbers.get(key)
        if node is None:
            node = self.numbers[key] = self.next_node
            self.next_node += 1
            self.nodes[node] = path
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + attributes

    def made(self, path, owner):
        os.lchown(path, *owner)
        return self.entry(path)

    def moved(self, old, new):
        """What the kernel knows under the old path is under the new one."""
        for node, path in list(self.nodes.items()):
            if path == old or path.startswith(old + "/"):
                self.nodes[node] = new + path[len(old):]
        for (path, inode), node in list(self.numbers.items()):
            if path == old or path.startswith(old + "/"):
                self.numbers[(new + path[len(old):], inode)] = self.numbers.pop((path, inode))

    def opened(self, value):
        number = self.next_file
        self.next_file += 1
        self.files[number] = value
        return struct.pack("<QII", number, 0, 0)

    @call(26)
    def init(self, _node, body, _owner):
        major, _, readahead, _ = struct.unpack_from("<IIII", body)
        # Writes of more than a page.
        return struct.pack("<IIIIHHIIHHI28x", major, 31, readahead, 1 << 5, 16, 12, MAX_WRITE, 1, 32, 0, 0)

    @call(1)
    def lookup(self, node, body, _owner):
        return self.entry(self.child(node, body))

    @call(2)
    def forget(self, _node, _body, _owner):
        return NOT_ANSWERED

    @call(42)
    def batch_forget(self, _node, _body, _owner):
        return NOT_ANSWERED

    @call(36)
    def interrupt(self, _node, _body, _owner):
        return NOT_ANSWERED

    @call(3)
    def getattr(self, node, _body, _owner):
        return struct.pack("<QII", 0, 0, 0) + self.attributes(self.nodes[node])

    @call(4)
    def setattr(self, node, body, _owner):
        (valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _) = struct.unpack_from(
            "<IIQQQQQQ8I", body)
        path = self.nodes[node]
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1, follow_symlinks=False)
        if valid & 8:
            os.truncate(self.files[handle] if valid & 64 and handle in self.files else path, size)
        if valid & 0x1B0:
            now, at = time.time_ns(), os.lstat(path)
            first = now if valid & 128 else atime * 10**9 + atime_ns if valid & 16 else at.st_atime_ns
            second = now if valid & 256 else mtime * 10**9 + mtime_ns if valid & 32 else at.st_mtime_ns
            os.utime(path, ns=(first, second), follow_symlinks=False)
        return struct.pack("<QII", 0, 0, 0) + self.attributes(path)

    @call(5)
    def readlink(self, node, _body, _owner):
        return os.fsencode(os.readlink(self.nodes[node]))

    @call(6)
    def symlink(self, node, body, owner):
        name, target, *_ = bytes(body).split(b"\0")
        path = self.child(node, name)
        os.symlink(os.fsdecode(target), path)
        return self.made(path, owner)

    @call(8)
    def mknod(self, node, body, owner):
        mode, device, umask = struct.unpack_from("<III", body)
        path = self.child(node, body[16:])
        os.mknod(path, mode & ~umask, device)
        return self.made(path, owner)

    @call(9)
    def mkdir(self, node, body, owner):
        mode, umask = struct.unpack_from("<II", body)
        path = self.child(node, body[8:])
        os.mkdir(path, mode & ~umask)
        return self.made(path, owner)

    @call(10)
    def unlink(self, node, body, _owner):
        os.unlink(self.child(node, body))

    @call(11)
    def rmdir(self, node, body, _owner):
        os.rmdir(self.child(node, body))

    @call(12)
    def rename(self, node, body, _owner, offset=8):
        (target,) = struct.unpack_from("<Q", body)
        old, new, *_ = bytes(body[offset:]).split(b"\0")
        old, new = self.child(node, old), self.child(target, new)
        os.rename(old, new)
        self.moved(old, new)

    @call(45)
    def rename2(self, node, body, owner):
        target, flags = struct.unpack_from("<QI", body)
        new = bytes(body[16:]).split(b"\0")[1]
        if flags & ~1:
            raise OSError(errno.EINVAL, "exchange")
        if flags & 1 and os.path.lexists(self.child(target, new)):
            raise OSError(errno.EEXIST, "there is one")
        self.rename(node, body, owner, 16)

    @call(13)
    def link(self, node, body, owner):
        (old,) = struct.unpack_from("<Q", body)
        path = self.child(node, body[8:])
        os.link(self.nodes[old], path, follow_symlinks=False)
        return self.made(path, owner)

    @call(14)
    def open(self, node, body, _owner):
        (flags,) = struct.unpack_from("<I", body)
        flags &= os.O_ACCMODE | os.O_APPEND | os.O_TRUNC
        return self.opened(os.open(self.nodes[node], (flags & ~os.O_APPEND) | os.O_NOFOLLOW | os.O_NONBLOCK))

    @call(35)
    def create(self, node, body, owner):
        flags, mode, umask = struct.unpack_from("<III", body)
        path = self.child(node, body[16:])
        made = not os.path.lexists(path)
        file = os.open(path, (flags & (os.O_ACCMODE | os.O_EXCL)) | os.O_CREAT | os.O_NOFOLLOW, mode & ~umask)
        entry = self.made(path, owner) if made else self.entry(path)
        return entry + self.opened(file)

    @call(15)
    def read(self, _node, body, _owner):
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(self.files[handle], size, offset)

    @call(16)
    def write(self, _node, body, _owner):
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(self.files[handle], body[40:40 + size], offset), 0)

    @call(17)
    def statfs(self, node, _body, _owner):
        at = os.statvfs(self.nodes[node])
        return struct.pack("<5Q4I24x", at.f_blocks, at.f_bfree, at.f_bavail, at.f_files, at.f_ffree, at.f_bsize,
                           at.f_namemax, at.f_frsize, 0)

    @call(18)
    def release(self, _node, body, _owner):
        os.close(self.files.pop(struct.unpack_from("<Q", body)[0]))

    @call(20)
    def fsync(self, _node, body, _owner):
        os.fsync(self.files[struct.unpack_from("<Q", body)[0]])

    @call(25)
    def flush(self, _node, _body, _owner):
        pass

    @call(43)
    def fallocate(self, _node, body, _owner):
        handle, offset, length, mode = struct.unpack_from("<QQQI", body)
        if mode:
            raise OSError(errno.EOPNOTSUPP, "only plain room is taken")
        os.posix_fallocate(self.files[handle], offset, length)

    @call(27)
    def opendir(self, node, _body, _owner):
        path = self.nodes[node]
        return self.opened([".", "..", *os.listdir(path)])

    @call(28)
    def readdir(self, node, body, _owner):
        handle, offset, size = struct.unpack_from("<QQI", body)
        out = b""
        for number, name in enumerate(self.files[handle][offset:], offset + 1):
            try:
                at = os.lstat(os.path.join(self.nodes[node], name))
            except FileNotFoundError:
                continue
            raw = os.fsencode(name)
            piece = struct.pack("<QQII", at.st_ino, number, len(raw), at.st_mode >> 12) + raw
            piece += bytes(-len(piece) % 8)
            if len(out) + len(piece) > size:
                break
            out += piece
        return out

    @call(29)
    def releasedir(self, _node, body, _owner):
        self.files.pop(struct.unpack_from("<Q", body)[0])

    @call(30)
    def fsyncdir(self, node, _body, _owner):
        folder = os.open(self.nodes[node], os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def main():
    root, mount = (os.path.realpath(path) for path in sys.argv[1:3])
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    if LIBC.mount(b"failing", mount.encode(), b"fuse.failing", 6, options.encode()):
        sys.exit(f"{mount}: {os.strerror(ctypes.get_errno())}")
    os.umask(0)
    # Then it is unmounted as at the end of standard input.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failing = Failing(root, device)
    threading.Thread(target=failing.serve, daemon=True).start()
    print("ready", flush=True)
    try:
        for line in sys.stdin:
            fault, _, amount = line.strip().partition(" ")
            print("done", *failing.set(fault, float(amount or 0)), flush=True)
    finally:
        failing.set("well", 0.0)
        LIBC.umount2(mount.encode(), 2)


if __name__ == "__main__":
    main()
