"""A server of flashmoe on a GPU, started for one measurement: what programs of this folder share."""
import http.client
import json
import re
import subprocess
import sys
import threading

SECONDS = 300


class Server:
    """`serve MODEL --device DEVICE` on a free port; `tail` has its output."""

    def __init__(self, program, model, options, device="cuda"):
        command = [program, "serve", model, "--port", "0", "--device", device, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.tail = []
        for line in self.process.stdout:
            self.tail.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        else:
            sys.exit("the server did not start: " + "".join(self.tail[-5:]))
        threading.Thread(target=lambda: [self.tail.append(line) for line in self.process.stdout], daemon=True).start()

    def ask(self, method, path, body=None):
        """The body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().read().decode()

    def answer(self, request):
        """What programs compare of a text completion; of a refusal its body as `error`."""
        found = json.loads(self.ask("POST", "/v1/completions", request))
        if "choices" not in found:
            return {"error": found}
        choice = found["choices"][0]
        return {key: choice.get(key) for key in ("text", "finish_reason", "logprobs")}

    def stop(self):
        self.process.terminate()
        self.process.wait()


def words(chooser, count):
    """`count` random words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(chooser.choices(letters, k=chooser.randint(2, 9))) for _ in range(count))
