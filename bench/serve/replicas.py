"""Several servers behind a router: rolling restarts, a server killed, clients that leave, streams, kept prompts.

    python bench/serve/replicas.py ROUTER BINARY MODEL [--clients 32] [--restarts 60] [--talks 200] [--only NAMES]

ROUTER is haproxy, nginx, litellm, smg, ray or none (one server, for comparison); its configuration is the one in
deploy/, with the ports of the run. BINARY is flashmoe, MODEL a small model that answers greedily (models/demo). Clients are threads
that speak HTTP/1.1 with nothing but the standard library. Prints a line per figure and fails with what did not hold.

    rolling   every server is restarted in turn under load: requests that failed (no [DONE], or no 200)
    random    a server is restarted at random moments, again and again: answers lost, doubled, or other than without it
    kill      one server gets SIGKILL under load: broken streams against those it was running
    leave     a client leaves in the middle of a stream: time until no server runs anything
    stream    a stream of some seconds: time to the first event, events that came apart from each other
    beats     a prompt that takes half a minute (the servers get 4 % of a processor): keep-alives that arrive
    talks     conversations of five turns, one key each: prompt tokens that were kept
    failover  servers share a folder (--cache-shared); after three turns one gets SIGKILL, two turns more at the others:
              prompt tokens that were kept, and how many one server alone keeps; every text as there
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
DEPLOY = HERE.parent.parent / "deploy"
KEY = "sk-replicas-0123456789abcdef0123456789"
QUESTIONS = [f"What is {a} factored?" for a in range(100, 160)]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def arguments(delay, shared=None):
    sharing = ["--cache-shared", str(shared)] if shared else []
    return [*sharing, "--device", "cpu", "--served-name", "demo", "--memory", "1G", "--threads", "1", "--sequences", "4",
            "--queue", "64", "--snapshots", "64", "--drain-delay", delay, "--drain-timeout", "60s", "--log-level", "warn"]


class Server:
    def __init__(self, binary, model, folder, delay, shared=None):
        self.port = free_port()
        self.command = [binary, "serve", model, "--port", str(self.port), *arguments(delay, shared)]
        self.log = open(pathlib.Path(folder) / f"server-{self.port}.log", "ab")
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self.log)
        wait_for(lambda: get(self.port, "/readyz")[0] == 200)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def restart(self):
        code = self.stop()
        self.start()
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()

    def pid(self):
        return self.process.pid

    def running(self):
        return len(json.loads(get(self.port, "/status")[1])["running"])

    def queued(self):
        return json.loads(get(self.port, "/status")[1])["queued"]


class Owned(Server):
    """A server that a replica of Ray Serve starts, and starts again when it ends."""

    def __init__(self, number, pids):
        self.process_id, self.pids = pids()[number], pids

    def pid(self):
        return self.process_id

    @property
    def port(self):
        sockets = {os.readlink(link) for link in pathlib.Path(f"/proc/{self.pid()}/fd").iterdir() if link.is_symlink()}
        for line in pathlib.Path(f"/proc/{self.pid()}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                return int(fields[1].split(":")[1], 16)
        raise OSError("it does not listen")

    def start(self):
        wait_for(lambda: get(self.port, "/readyz")[0] == 200)

    def restart(self):
        return self.signal(signal.SIGTERM)

    def kill(self):
        self.signal(signal.SIGKILL)

    def signal(self, number):
        """Ends it and waits for its successor."""
        before = self.pids()
        os.kill(self.process_id, number)
        wait_for(lambda: self.process_id not in self.pids() and len(self.pids()) == len(before))
        self.process_id = (set(self.pids()) - set(before)).pop()
        return 0


def wait_for(done, seconds=120):
    deadline = time.time() + seconds
    while time.time() < deadline:
        try:
            if done():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit("nothing happened")


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


SMG = re.findall(r"--(?:health-(?:check-interval|succ|fail)|retry|cb|disable|no-remove)\S+(?: \d+)?",
                 (DEPLOY / "smg" / "README.md").read_text())
SMG = [word for option in SMG for word in option.split()]


class Router:
    def __init__(self, kind, servers, folder, tools):
        self.process = None
        self.port = servers[0].port if kind == "none" else free_port()
        if kind == "none":
            return
        numbers = {8000: self.port} | {8081 + index: server.port for index, server in enumerate(servers)}
        renumber = lambda text: re.sub(r"\b80(00|8[1-3])\b", lambda it: str(numbers[int(it.group())]), text)
        here = lambda name: os.path.join(tools, name) if tools else name
        environment = dict(os.environ, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_MASTER_KEY=KEY)
        if kind == "smg":
            urls = [f"http://127.0.0.1:{server.port}" for server in servers]
            command = [here("smg"), "launch", "--worker-urls", *urls, "--policy", "cache_aware", "--host", "127.0.0.1",
                       "--port", str(self.port), "--health-check-endpoint", "/readyz", "--request-timeout-secs", "3600",
                       "--prometheus-port", str(free_port()), *SMG]
        else:
            name = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf", "litellm": "config.yaml"}[kind]
            file = pathlib.Path(folder) / name
            text = renumber((DEPLOY / kind / name).read_text())
            file.write_text(re.sub(r"^pid .*$", f"pid {folder}/pid;", text, flags=re.M))
            command = {"haproxy": ["haproxy", "-f", file], "nginx": ["nginx", "-c", file],
                       "litellm": [here("litellm"), "--config", file, "--port", str(self.port), "--host", "127.0.0.1"],
                       }[kind]
        self.log = open(pathlib.Path(folder) / "router.log", "ab")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)
        deadline = time.time() + 180
        while time.time() < deadline:
            try:
                if self.process.poll() is None and ask(self.port, "What is 255 factored?", words=4)["done"]:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise SystemExit(f"{kind} does not get ready: {pathlib.Path(self.log.name).read_text()[-2000:]}")

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait(30)


def lines(answer):
    """Lines as they come; a body that is cut is an error, which `readline` does not tell."""
    held = b""
    while piece := answer.read1(65536):
        *whole, held = (held + piece).split(b"\n")
        yield from whole


class Ray(Router):
    """Ray Serve, whose replicas own the servers."""

    def __init__(self, binary, model, folder, tools, delay):
        self.port, self.mark = 8000, f"REPLICAS_RUN={os.getpid()}"
        self.binary = os.path.realpath(binary)
        path = f"{tools}:{os.environ['PATH']}" if tools else os.environ["PATH"]
        environment = dict(os.environ, FLASHMOE=self.binary, MODEL=os.path.realpath(model), REPLICAS="3", PATH=path,
                           SERVE_ARGUMENTS=" ".join(arguments(delay)), RAY_USAGE_STATS_ENABLED="0",
                           REPLICAS_RUN=str(os.getpid()))
        self.log = open(pathlib.Path(folder) / "router.log", "ab")
        command = [os.path.join(tools, "serve"), "run", "--app-dir", DEPLOY / "ray", "application:application"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)
        wait_for(lambda: len(self.pids()) == 3 and ask(self.port, "What is 255 factored?", words=4)["done"], 180)

    def pids(self):
        """Processes of this run's servers, the oldest first."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(process / "exe") == self.binary and self.mark in (process / "environ").read_text():
                    found.append(((process / "stat").stat().st_ctime, int(process.name)))
            except OSError:
                pass
        return [pid for _, pid in sorted(found)]

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(90)


def ask(port, text, key=None, words=24, messages=None, temperature=0, leave_after=None):
    """A streamed answer: its text, whether it ended, when its pieces came."""
    body = {"model": "demo", "stream": True, "max_tokens": words, "temperature": temperature,
            "messages": messages or [{"role": "user", "content": text}], "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": False}}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    if key:
        headers["X-Session-Id"] = key
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    found = {"status": 0, "text": "", "done": False, "times": [], "error": "", "cached": 0, "prompt": 0, "id": "",
             "beats": []}
    begun = time.time()
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        found["status"] = answer.status
        if answer.status != 200:
            found["error"] = answer.read(400).decode(errors="replace")
            return found
        for line in lines(answer):
            if not line.startswith(b"data: "):
                if line.startswith(b":"):
                    found["beats"].append(time.time() - begun)
                continue
            found["times"].append(time.time() - begun)
            if leave_after and len(found["times"]) >= leave_after:
                return found
            if line.strip() == b"data: [DONE]":
                found["done"], found["error"] = True, ""
                break
            event = json.loads(line[6:])
            if "error" in event:
                found["error"] = json.dumps(event["error"])
                break
            found["id"] = event.get("id", "")
            for choice in event.get("choices", []):
                found["text"] += choice["delta"].get("content") or ""
            found["error"] = "the stream ended before its end"
            if event.get("usage"):
                found["prompt"] = event["usage"]["prompt_tokens"]
                found["cached"] = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    except (OSError, http.client.HTTPException, ValueError) as error:
        found["error"] = repr(error)
    finally:
        connection.close()
    return found


class Load:
    """Clients that ask until they are told to stop."""

    def __init__(self, port, clients, words=24):
        self.over, self.answers, self.lock = threading.Event(), [], threading.Lock()
        self.threads = [threading.Thread(target=self.client, args=(port, number, words)) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def client(self, port, number, words):
        chance = random.Random(number)
        while not self.over.is_set():
            question = chance.choice(QUESTIONS)
            found = ask(port, question, key=f"client-{number}", words=words)
            found["question"] = question
            with self.lock:
                self.answers.append(found)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        return self.answers


failures = []


def report(name, text, holds=True):
    print(f"{name:8s} {text}{'' if holds else '   <- does not hold'}", flush=True)
    if not holds:
        failures.append(name)


def failed(answers):
    return [answer for answer in answers if not (answer["status"] == 200 and answer["done"])]


def rolling(port, servers, options):
    load = Load(port, options.clients)
    time.sleep(2)
    codes = []
    for server in servers:
        codes.append(server.restart())
        # Until the router has seen it: orchestrators wait for that too.
        time.sleep(options.settle)
    answers = load.end()
    bad = failed(answers)
    report("rolling", f"{len(servers)} restarts, {len(answers)} requests of {options.clients} clients, {len(bad)} failed, "
           f"exit codes {codes}{'; ' + bad[0]['error'][:200] if bad else ''}", not bad and not any(codes))


def random_restarts(port, servers, options):
    wanted = {question: ask(port, question)["text"] for question in QUESTIONS}
    load = Load(port, options.clients)
    chance = random.Random(options.seed)
    codes = []
    for _ in range(options.restarts):
        time.sleep(chance.uniform(0, 0.6))
        codes.append(chance.choice(servers).restart())
    answers = load.end()
    bad = failed(answers)
    other = [answer for answer in answers if answer["done"] and answer["text"] != wanted[answer["question"]]]
    ids = [answer["id"] for answer in answers if answer["done"]]
    report("random", f"{len(codes)} restarts, {len(answers)} requests, {len(bad)} lost, {len(ids) - len(set(ids))} doubled, "
           f"{len(other)} other than expected{'; ' + bad[0]['error'][:200] if bad else ''}",
           not bad and not other and len(ids) == len(set(ids)) and not any(codes))


def kill(port, servers, options):
    load = Load(port, options.clients)
    time.sleep(3)
    running, queued, last = max((server.running(), server.queued(), number) for number, server in enumerate(servers))
    servers[last].kill()
    time.sleep(3)
    answers = load.end()
    bad = failed(answers)
    servers[last].start()
    # Streams that wait have begun too. Some come and go between the look and the kill.
    report("kill", f"{running} ran and {queued} waited on the one that was killed, {len(bad)} of {len(answers)} requests "
           f"broke{': ' if bad else ''}{sorted({one['error'][:90] for one in bad})}", len(bad) <= running + queued + 4)


def leave(port, servers, options):
    took = []
    for _ in range(5):
        ask(port, "Tell me a story.", words=1500, temperature=1, leave_after=5)
        begun = time.time()
        while any(server.running() for server in servers):
            if time.time() - begun > 20:
                break
            time.sleep(0.01)
        took.append(time.time() - begun)
    report("leave", f"a slot is free {max(took):.2f} s after its client left, at the most of {len(took)}", max(took) <= 1)


def stream(port, servers, options):
    found = ask(port, "Tell me a story.", words=300, temperature=1)
    times = found["times"]
    apart = sum(1 for one, next in zip(times, times[1:]) if next - one > 0.001)
    report("stream", f"first event after {times[0]:.3f} s, {len(times)} events in {times[-1]:.2f} s, {apart} apart from the "
           "one before", found["done"] and times[0] < times[-1] / 2 and apart > len(times) / 4)


def beats(port, servers, options):
    chance = random.Random(7)
    text = " ".join(chance.choice(QUESTIONS) for _ in range(330))
    group = pathlib.Path(f"/sys/fs/cgroup/cpu/replicas-{os.getpid()}")
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("20000")
        (group / "cpu.cfs_quota_us").write_text(str(800 * len(servers)))
        for server in servers:
            (group / "cgroup.procs").write_text(str(server.pid()))
        found = ask(port, text, words=4)
    finally:
        for server in servers:
            (group.parent / "cgroup.procs").write_text(str(server.pid()))
        group.rmdir()
    first = found["times"][-1] if found["times"] else 0
    waits = [next - one for one, next in zip([0] + found["beats"], found["beats"])]
    report("beats", f"a prompt of {found['prompt']} tokens took {first:.0f} s, {len(found['beats'])} keep-alives, "
           f"the longest wait {max(waits, default=first):.1f} s{'; ' + found['error'][:200] if found['error'] else ''}",
           found["done"])


def talks(port, servers, options):
    totals = {"prompt": 0, "cached": 0}
    lock = threading.Lock()
    numbers = iter(range(options.talks))

    def client():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            chance, messages = random.Random(number), []
            for _ in range(5):
                messages.append({"role": "user", "content": f"{chance.choice(QUESTIONS)} This is talk {number}."})
                found = ask(port, "", key=f"talk-{number}", words=12, messages=messages)
                with lock:
                    totals["prompt"] += found["prompt"]
                    totals["cached"] += found["cached"]
                if not found["done"]:
                    report("talks", f"talk {number} broke: {found['error'][:200]}", False)
                    return
                messages.append({"role": "assistant", "content": found["text"]})

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    share = totals["cached"] / max(totals["prompt"], 1)
    report("talks", f"{options.talks} talks of five turns over {len(servers)} servers: {totals['cached']} of "
           f"{totals['prompt']} prompt tokens were kept, {100 * share:.1f} %")


def failover(port, servers, options):
    def turns(port, talks, count):
        """Goes on with every talk; prompt tokens that were kept, of all."""
        kept = asked = 0
        for number, (chance, messages) in enumerate(talks):
            for _ in range(count):
                text = " ".join(chance.choice(QUESTIONS) for _ in range(8 if messages else 40))
                messages.append({"role": "user", "content": f"{text} This is talk {number}."})
                found = ask(port, "", key=f"talk-{number}", words=12, messages=messages)
                if not found["done"]:
                    report("failover", f"talk {number} broke: {found['error'][:200]}", False)
                messages.append({"role": "assistant", "content": found["text"]})
                kept, asked = kept + found["cached"], asked + found["prompt"]
        return kept, asked

    talks = [(random.Random(number), []) for number in range(options.failover)]
    turns(port, talks, 3)
    time.sleep(2)
    servers[0].kill()
    kept, asked = turns(port, talks, 2)
    restored = sum(int(float(line.split()[-1])) for server in servers[1:]
                   for line in get(server.port, "/metrics")[1].decode().splitlines()
                   if line.startswith('flashmoe_snapshot_restored_total{tier="shared"}'))
    with tempfile.TemporaryDirectory() as folder:
        alone = Server(options.binary, options.model, folder, options.delay, pathlib.Path(folder) / "shared")
        others = [(random.Random(number), []) for number in range(options.failover)]
        turns(alone.port, others, 3)
        wanted, _ = turns(alone.port, others, 2)
        alone.kill()
    same = [one[1] for one in talks] == [other[1] for other in others]
    report("failover", f"{options.failover} talks, one of {len(servers)} servers killed after three turns: {kept} of {asked} "
           f"prompt tokens of two turns more were kept, {100 * kept / max(wanted, 1):.1f} % of what one server alone keeps "
           f"({wanted}); {restored} snapshots came from the shared folder; texts equal: {same}",
           same and kept >= 0.9 * wanted and restored > 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("router", choices=["haproxy", "nginx", "litellm", "smg", "ray", "none"])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--restarts", type=int, default=60)
    parser.add_argument("--talks", type=int, default=200)
    parser.add_argument("--failover", type=int, default=24, help="talks of failover")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delay", default="2s", help="--drain-delay of the servers")
    parser.add_argument("--settle", type=float, default=5, help="seconds between the restarts of a rolling one")
    parser.add_argument("--tools", default="", help="folder of smg and litellm, if they are not on the PATH")
    parser.add_argument("--only", default="stream,leave,beats,talks,rolling,kill,random")
    options = parser.parse_args()
    parts = {"rolling": rolling, "random": random_restarts, "kill": kill, "leave": leave, "stream": stream,
             "beats": beats, "talks": talks, "failover": failover}
    with tempfile.TemporaryDirectory() as folder:
        count = 1 if options.router == "none" else 3
        servers, router = [], None
        try:
            if options.router == "ray":
                router = Ray(options.binary, options.model, folder, options.tools, options.delay)
                servers = [Owned(number, router.pids) for number in range(count)]
            else:
                for _ in range(count):
                    shared = pathlib.Path(folder) / "shared" if "failover" in options.only else None
                    servers.append(Server(options.binary, options.model, folder, options.delay, shared))
                router = Router(options.router, servers, folder, options.tools)
            for name in options.only.split(","):
                parts[name](router.port, servers, options)
        finally:
            if router:
                router.stop()
            for server in servers if options.router != "ray" else []:
                server.process.kill()
    raise SystemExit(len(failures))


if __name__ == "__main__":
    main()
