"""A campaign of faults against a server of the demo model: eight clients whose answers are compared to the bit, and
beside them cancels, hostile bodies, pipes and rubbish in the place of kept prompts, a stopped template's process, and a
second server on the same shared folder.

    bench/serve/faults.py FLASHMOE MODEL [--faults 10000] [--minutes 20] [--seed 1]

Loopback only. It ends after so many faults or minutes, whichever is first, with 0 when every answer was right, every
good request after a fault was answered within five seconds, and threads and descriptors are what they were.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SOON = 5.0
CLIENTS = 8


class Server:
    """A server of the model on a free port."""

    def __init__(self, program, model, folder, name):
        self.log = open(folder / f"{name}.log", "wb")
        arguments = [program, "serve", model, "--port", "0", "--device", "cpu", "--sequences", "4"]
        arguments += ["--cache-disk", str(folder / f"{name}-kept"), "--cache-shared", str(folder / "shared")]
        self.child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self.log)
        line = self.child.stdout.readline().decode()
        self.port = int(line.strip().rsplit(":", 1)[1])

    def ask(self, body, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def facts(self):
        """Threads and descriptors."""
        place = pathlib.Path(f"/proc/{self.child.pid}")
        return len(list((place / "task").iterdir())), len(list((place / "fd").iterdir()))

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(60)


def question(number):
    text = f"What are the factors of {number}? " + "word " * (number % 7 * 40)
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": True,
    }


def said(answer):
    choice = answer["choices"][0]
    tokens = [(token["token"], token["logprob"]) for token in choice["logprobs"]["content"]]
    return choice["message"]["content"], tokens


class Campaign:
    """Counts and the faults themselves."""

    def __init__(self, servers, folder, seed):
        self.servers, self.folder, self.random = servers, folder, random.Random(seed)
        self.lock = threading.Lock()
        self.wrong, self.compared, self.counts = [], 0, {}
        self.over = threading.Event()
        self.right = {number: said(servers[0].ask(question(number))[1]) for number in range(20)}

    def complain(self, text):
        with self.lock:
            self.wrong.append(text)

    def client(self, index):
        source = random.Random(index)
        while not self.over.is_set():
            number = source.randrange(20)
            server = self.servers[index % len(self.servers)]
            try:
                status, answer = server.ask(question(number))
            except (OSError, http.client.HTTPException) as error:
                self.complain(f"client {index}: {error!r}")
                continue
            if status == 200:
                with self.lock:
                    self.compared += 1
                if said(answer) != self.right[number]:
                    self.complain(f"client {index}: another answer to {number}")
            elif status not in (429, 503):
                self.complain(f"client {index}: {status} {answer}")

    def cancel(self, server):
        body = json.dumps({**question(self.random.randrange(20)), "stream": True, "max_tokens": 64}).encode()
        with socket.create_connection(("127.0.0.1", server.port), 10) as stream:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            stream.sendall(head.encode() + body)
            stream.settimeout(self.random.random() / 5)
            try:
                stream.recv(100)
            except TimeoutError:
                pass

    def rubbish(self, server):
        size = self.random.randrange(1, 3000)
        with socket.create_connection(("127.0.0.1", server.port), 10) as stream:
            stream.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n")
            stream.sendall(self.random.randbytes(size))

    def kept(self, _server):
        """A pipe, nothing, or other bytes in the place of a kept file."""
        files = [path for path in self.folder.rglob("*") if path.suffix in (".page", ".prefix")]
        if not files:
            return
        path = self.random.choice(files)
        kind = self.random.randrange(4)
        try:
            if kind == 0:
                path.unlink()
                os.mkfifo(path)
            elif kind == 1:
                path.unlink()
            elif kind == 2:
                os.truncate(path, self.random.randrange(200))
            elif path.is_file():
                with open(path, "r+b") as file:
                    file.seek(self.random.randrange(max(1, path.stat().st_size)))
                    file.write(b"\x55")
        except OSError:
            pass  # A server has removed it.

    def clock(self, _server):
        """Times of use in other years."""
        for path in self.folder.rglob("*.prefix"):
            when = time.time() + self.random.uniform(-4e8, 4e8)
            try:
                os.utime(path, (when, when), follow_symlinks=False)
            except OSError:
                pass

    def template(self, server):
        """Stops a template's process for a moment; a good request meanwhile may fail, but not others."""
        children = pathlib.Path(f"/proc/{server.child.pid}/task/{server.child.pid}/children").read_text().split()
        for child in children:
            try:
                os.kill(int(child), signal.SIGSTOP)
                time.sleep(0.2)
                os.kill(int(child), signal.SIGCONT)
            except ProcessLookupError:
                pass

    def run(self, faults, minutes):
        kinds = [(self.cancel, 60), (self.rubbish, 25), (self.kept, 13), (self.clock, 1), (self.template, 1)]
        clients = [threading.Thread(target=self.client, args=(index,)) for index in range(CLIENTS)]
        for client in clients:
            client.start()
        begun, done = time.time(), 0
        while done < faults and time.time() - begun < 60 * minutes:
            server = self.random.choice(self.servers)
            kind = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
            try:
                kind(server)
            except OSError as error:
                self.complain(f"{kind.__name__}: {error!r}")
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
            done += 1
        self.over.set()
        for client in clients:
            client.join()
        return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.chmod(folder, 0o700)
        servers = [Server(options.program, options.model, folder, name) for name in ("first", "second")]
        try:
            campaign = Campaign(servers, folder, options.seed)
            before = [server.facts() for server in servers]
            done = campaign.run(options.faults, options.minutes)
            time.sleep(1)
            for server in servers:
                begun = time.time()
                status, answer = server.ask(question(3))
                if status != 200 or said(answer) != campaign.right[3] or time.time() - begun > SOON:
                    campaign.complain(f"the next good request: {status} after {time.time() - begun:.1f} s")
            after = [server.facts() for server in servers]
            for (threads, files), (threads_then, files_then) in zip(before, after):
                if threads_then > threads + 2 or files_then > files + 10:
                    campaign.complain(f"threads {threads} to {threads_then}, descriptors {files} to {files_then}")
            codes = [server.end() for server in servers]
            if codes != [0, 0]:
                campaign.complain(f"exit codes {codes}")
        finally:
            for server in servers:
                server.child.kill()
        print(json.dumps({"faults": done, "kinds": campaign.counts, "answers compared": campaign.compared,
                          "wrong": len(campaign.wrong), "first": campaign.wrong[:10]}, indent=1))
        return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
