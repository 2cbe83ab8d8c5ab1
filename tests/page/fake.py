"""A scripted server for the page: the real files and content policy, answers that the test writes, and every failure."""

import contextlib
import functools
import json
import pathlib
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = pathlib.Path(__file__).resolve().parents[2] / "crates/server/src/page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
LAYERS, EXPERTS = 12, 64


@functools.cache
def content_policy():
    """The policy that the server sends, from its source."""
    source = (PAGE / "mod.rs").read_text()
    return re.sub(r"\\\n\s*", "", re.search(r'const POLICY: &str = "(.*?)";', source, re.S).group(1))


class Script:
    """What an answer does. `text` and `thinking` are cut into pieces of `piece` characters, `pause` seconds apart."""

    def __init__(self, text="", thinking="", piece=4, pause=0.0, calls=(), refusal=None, breaks_after=None, prefill=(),
                 waiting=None, finish=None):
        self.text, self.thinking, self.piece, self.pause = text, thinking, piece, pause
        self.calls, self.refusal, self.breaks_after = list(calls), refusal, breaks_after
        self.prefill, self.waiting, self.finish = list(prefill), waiting, finish


class Fake:
    """The server. `scripts` are the answers to come, in order; `requests` the bodies that came."""

    def __init__(self):
        self.scripts, self.requests = [], []
        self.key, self.down, self.aborted = None, False, 0
        self.polls = self.active = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            protocol_version = "HTTP/1.1"

            def do_GET(self):
                # A page that was left does not read what it asked for.
                with contextlib.suppress(ConnectionError):
                    fake.get(self)

            def do_POST(self):
                with contextlib.suppress(ConnectionError):
                    fake.post(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def say(self, *scripts, **script):
        self.scripts.extend(scripts or [Script(**script)])

    def send(self, handler, status, kind, body):
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Content-Security-Policy", content_policy())
        handler.end_headers()
        handler.wfile.write(body)

    def send_json(self, handler, status, value):
        self.send(handler, status, "application/json", json.dumps(value).encode())

    def admitted(self, handler):
        if self.key and handler.headers.get("Authorization") != f"Bearer {self.key}":
            self.send_json(handler, 401, {"error": {"message": "the key is wrong"}})
            return False
        return True

    def get(self, handler):
        if self.down:
            handler.close_connection = True
            return
        if handler.path == "/status":
            self.polls += 1
            if self.admitted(handler):
                self.send_json(handler, 200, self.status())
            return
        path = PAGE / (handler.path.lstrip("/") or "index.html")
        if path.parent == PAGE and path.suffix in TYPES and path.exists():
            self.send(handler, 200, TYPES[path.suffix], path.read_bytes())
        else:
            self.send_json(handler, 404, {"error": {"message": "there is nothing at this path"}})

    def status(self):
        heat = [[(layer * 7 + expert * expert) % 97 * (expert % 5) for expert in range(EXPERTS)] for layer in range(LAYERS)]
        phase = {"requests": 5000 * self.polls, "hits": 4200 * self.polls, "joined": 100 * self.polls,
                 "misses": 700 * self.polls, "wait_s": 0.21 * self.polls}
        return {
            "model": {"id": "scripted-35b-a3b", "context": 4096, "layers": LAYERS, "experts": EXPERTS,
                      "experts_per_token": 8, "bytes": 1, "approximations": [], "about": "A scripted model answers.",
                      "examples": [{"text": "What is 255 factored?", "tools": False},
                                   {"text": "Tell me a story.", "tools": False},
                                   {"text": "What is the weather in Oslo?", "tools": True}]},
            "loaded_percent": 100, "queued": 0, "sequences": 1,
            "running": [{"id": "one", "stage": "decode", "prompt": 30, "processed": 30, "cached": 20, "generated": 7,
                         "eta_s": None}] * self.active,
            "decode_rate": (9.1, 9.5, 0.0)[self.polls % 3], "prefill_rate": 0.0,
            "prompt_tokens": 1, "generated_tokens": 1,
            "prefix": {"snapshots": [], "snapshot_bytes": 0, "tokens_reused": 20, "tokens_computed": 30},
            "experts": {"prefill": phase, "decode": phase, "vram_hits": 2000 * self.polls,
                        "bytes_read": int(2.1e9) * self.polls, "read_us_median": 90},
            "expert_heat": heat,
        }

    def post(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if self.down:
            handler.close_connection = True
            return
        if not self.admitted(handler):
            return
        self.requests.append(body)
        script = self.scripts.pop(0) if self.scripts else Script("An answer.")
        if script.refusal:
            time.sleep(script.pause)
            self.send_json(handler, 400, {"error": {"message": script.refusal}})
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        self.active += 1
        try:
            self.stream(handler.wfile, script)
        except ConnectionError:
            self.aborted += 1
        finally:
            self.active -= 1

    def stream(self, out, script):
        def event(value):
            out.write(b"data: " + json.dumps(value).encode() + b"\n\n")
            out.flush()

        def delta(**fields):
            event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})

        def pieces(text):
            for at in range(0, len(text), script.piece):
                time.sleep(script.pause)
                yield text[at:at + script.piece]

        delta(role="assistant", content="")
        if script.waiting:
            out.write(f": queued position={script.waiting}\n\n".encode())
            out.flush()
            time.sleep(0.4)
        for processed, total in script.prefill:
            event({"choices": [{"index": 0, "delta": {}}], "prompt_progress": {
                "total": total, "cache": total // 8, "processed": processed, "time_ms": 1000, "eta_ms": (total - processed) * 9}})
            time.sleep(max(script.pause, 0.05))
        thought = said = 0
        for piece in pieces(script.thinking):
            thought += 1
            delta(reasoning_content=piece)
        for piece in pieces(script.text):
            said += 1
            if script.breaks_after is not None and said > script.breaks_after:
                return
            delta(content=piece)
        for index, (name, arguments) in enumerate(script.calls):
            function = {"name": name, "arguments": ""}
            delta(tool_calls=[{"index": index, "id": f"call_{index}", "type": "function", "function": function}])
            for at in range(0, len(arguments), 5):
                delta(tool_calls=[{"index": index, "function": {"arguments": arguments[at:at + 5]}}])
        reason = script.finish or ("tool_calls" if script.calls else "stop")
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        event({"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": thought + said,
                                        "completion_tokens_details": {"reasoning_tokens": thought}},
               "timings": {"queued_ms": 0, "prompt_ms": 1200, "predicted_per_second": 9.53, "cache_n": 20},
               "x_io": {"hit_ratio": 0.93, "bytes_read": 1.2e9}})
        out.write(b"data: [DONE]\n\n")

    def close(self):
        self.server.shutdown()
