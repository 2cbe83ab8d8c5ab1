"""What it costs to compute a model in several processes: hops, and tokens a second of one stream.

    bench/serve/hosts.py FLASHMOE MODEL LAYERS [--hop HOP] [--rounds N] [--tokens N] [--rates 1gbit,100mbit]
        [--burst 64kb] [--messages 8192] [--devices cuda:0,cuda:1] [--more=OPTIONS]

HOP is the example of the crate wire (cargo build --release -p flashmoe-wire --example hop). Measured, interleaved, N
rounds each, medians: one process on the first device; two stages in one process (--devices); two processes over
loopback without TLS and with. As root also two processes in network namespaces of their own, joined by a pair of
virtual cards, at full speed and at each of the rates (tc tbf; at 1 Gb/s a burst of 64 kB runs dry between two looks of
the shaper, 256 kB do not), with a hop of each of `--messages`. All answers must be the same text. Prints a line for each setting.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = ["--context", "2048", "--prefill-chunk", "256"]
SPACES = ["fmfirst", "fmsecond"]
ADDRESSES = ["10.199.7.1", "10.199.7.2"]


def in_space(space):
    """The words before a command that run it in a namespace."""
    return ["ip", "netns", "exec", space] if space else []


@contextlib.contextmanager
def namespaces(rate, burst):
    """Two namespaces joined by a pair of cards, held to a rate each way."""
    def ip(*words):
        subprocess.run(["ip", *words], check=True)
    for space in SPACES:
        ip("netns", "add", space)
    try:
        ip("link", "add", "fmv0", "type", "veth", "peer", "name", "fmv1")
        for card, space, address in zip(["fmv0", "fmv1"], SPACES, ADDRESSES):
            ip("link", "set", card, "netns", space)
            ip("-n", space, "addr", "add", f"{address}/30", "dev", card)
            ip("-n", space, "link", "set", card, "up")
            ip("-n", space, "link", "set", "lo", "up")
            if rate:
                shape = ["tc", "qdisc", "add", "dev", card, "root", "tbf", "rate", rate, "burst", burst, "latency", "100ms"]
                subprocess.run(in_space(space) + shape, check=True)
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False)


class Stages:
    """A stage in a process of its own, and the file that names it."""

    def __init__(self, options, layers, folder, tls, spaces):
        self.options, self.layers, self.folder = options, layers, folder
        self.tls, self.spaces = tls, spaces

    def __enter__(self):
        cut = self.layers // 2
        host = ADDRESSES[1] if self.spaces else "127.0.0.1"
        command = in_space(self.spaces and SPACES[1]) + [
            self.options.flashmoe, "stage", self.options.model, "--layers", f"{cut}:{self.layers}",
            "--listen", f"{host}:0", "--sequences", "1", "--device", self.options.second, *self.options.sizes,
        ]
        if self.tls:
            command += ["--identity", f"{self.folder}/second", "--trust", f"{self.folder}/first/certificate.pem"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        address = self.process.stdout.readline().strip().rsplit(" ", 1)[-1]
        lines = [f'identity = "{self.folder}/first"' if self.tls else "", "[[stage]]", f'address = "{address}"',
                 f'layers = "{cut}:{self.layers}"',
                 f'certificate = "{self.folder}/second/certificate.pem"' if self.tls else ""]
        path = pathlib.Path(self.folder, "stages.toml")
        path.write_text("\n".join(lines))
        return ["--stages", str(path)]

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def answer(options, more, space=None, device=None):
    """Tokens a second of an answer, and its text."""
    command = in_space(space) + [
        options.flashmoe, "run", options.model, "Tell me a long story.", "-n", str(options.tokens), "--seed", "3",
        "--json", "--device", device or options.first, *options.sizes, *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.returncode}: {done.stderr}")
    result = json.loads(done.stdout)
    return result["timings"]["predicted_per_second"], result["content"]


def hops(options, folder, tls, spaces):
    """Microseconds of a hop of each size, as the example prints them."""
    return "; ".join(hop(options, folder, tls, spaces, size) for size in options.messages.split(","))


def hop(options, folder, tls, spaces, size):
    """Of one size: many of small ones, as long as they take otherwise."""
    if not options.hop:
        return "-"
    port = 20000 + os.getpid() % 20000
    address = f"{ADDRESSES[1] if spaces else '127.0.0.1'}:{port}"
    far, near = [[f"{folder}/{own}", f"{folder}/{other}"] if tls else [] for own, other in [("second", "first"), ("first", "second")]]
    listening = subprocess.Popen(in_space(spaces and SPACES[1]) + [options.hop, "listen", address, *far])
    time.sleep(0.5)
    command = in_space(spaces and SPACES[0]) + [options.hop, address, size, str(min(5000, max(10, (200 << 20) // int(size)))), *near]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    listening.wait()
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flashmoe")
    parser.add_argument("model")
    parser.add_argument("layers", type=int)
    parser.add_argument("--hop")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rates", default="")
    parser.add_argument("--burst", default="64kb", help="of the shapers")
    parser.add_argument("--messages", default="8192", help="bytes of hops")
    parser.add_argument("--devices", default="cpu,cpu", help="of the first stage and of the second")
    parser.add_argument("--more", default="", help="options of all processes")
    options = parser.parse_args()
    options.first, options.second = options.devices.split(",")
    options.sizes = [*SIZES, *options.more.split()]
    with tempfile.TemporaryDirectory() as folder:
        for name in ["first", "second"]:
            subprocess.run([options.flashmoe, "stage", "--identity", f"{folder}/{name}"], check=True, capture_output=True)
        settings = {
            "one process": lambda: answer(options, []),
            "two stages in one process": lambda: answer(options, [], device=options.devices),
        }

        def processes(tls, spaces):
            with Stages(options, options.layers, folder, tls, spaces) as more:
                return answer(options, more, spaces and SPACES[0])

        settings["two processes, loopback"] = lambda: processes(False, False)
        settings["two processes, loopback, TLS"] = lambda: processes(True, False)
        found, texts = {name: [] for name in settings}, set()
        for _ in range(options.rounds):
            for name, measure in settings.items():
                speed, text = measure()
                found[name].append(speed)
                texts.add(text)
        for name, speeds in found.items():
            print(f"{name}: {statistics.median(speeds):.1f} tok/s ({min(speeds):.1f} to {max(speeds):.1f})", flush=True)
        print(f"hop over loopback: {hops(options, folder, False, False)}; TLS {hops(options, folder, True, False)}", flush=True)
        if os.geteuid() == 0:
            for rate in ["", *filter(None, options.rates.split(","))]:
                with namespaces(rate, options.burst):
                    speeds = []
                    for _ in range(options.rounds):
                        speed, text = processes(True, True)
                        speeds.append(speed)
                        texts.add(text)
                    hop = hops(options, folder, True, True)
                print(f"two namespaces, TLS, {rate or 'full speed'}: {statistics.median(speeds):.1f} tok/s "
                      f"({min(speeds):.1f} to {max(speeds):.1f}); hop {hop}", flush=True)
        if len(texts) != 1:
            sys.exit(f"{len(texts)} different texts")


if __name__ == "__main__":
    main()
