"""A long talk: a hundred turns with tools that end at 90 % of the context, on one server.

    python bench/serve/soak.py BINARY MODEL [--turns 100] [--context 8192] [--sequences 2] [--fill 0.9] [--recall]
        [OPTIONS OF serve ...]

Every turn asks something, every second one has the model call a tool whose result goes back. Texts are sized so that
the last turn's prompt has the asked share of the context. A model whose template drops the thinking of earlier turns
goes on from before its last turn, so that old and new keys and values are kept for a while: with `--sequences 1`
there is room for one context of them and from about 80 % on prompts are computed again. Prints a line for every tenth
turn and at the end:

    again     prompt tokens that were computed although an earlier prompt of the talk had them (no re-prefill: 0 but for
              what follows the last kept point, at most --slack tokens a turn)
    memory    resident bytes after a fifth of the turns and at the end; keys and values that grow are in the plan
    recall    whether the answer to the last question has the word of the first turn (--recall fails where it has not;
              small models have not)

Fails with what did not hold. Nothing but the standard library.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import time

WORD = "heliotrope"
# Calls that are answered within a turn.
ROUNDS = 3
TOOL = {"type": "function", "function": {
    "name": "look_up", "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string", "maxLength": 12}},
                   "required": ["word"], "additionalProperties": False}}}


class Server:
    def __init__(self, binary, model, options):
        command = [binary, "serve", model, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if not found:
            sys.exit("the server did not start")
        self.port = int(found[1])

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            sys.exit(f"{path}: {response.status} {text}")
        return json.loads(text)

    def resident(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) << 10

    def end(self):
        self.process.terminate()
        self.process.wait(120)


class Talk:
    def __init__(self, server):
        self.server = server
        self.messages = [{"role": "system", "content": "You are patient and brief."}]
        self.prompt = 0
        self.again = []

    def ask(self, call):
        body = {"messages": self.messages, "tools": [TOOL], "temperature": 0, "max_tokens": 24,
                "tool_choice": "required" if call else "auto"}
        answer = self.server.post("/v1/chat/completions", body)
        usage = answer["usage"]
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        # What the last prompt had is known; its answer may be written otherwise when it comes back.
        self.again.append(max(self.prompt - cached, 0))
        self.prompt = usage["prompt_tokens"]
        message = answer["choices"][0]["message"]
        self.messages.append({key: value for key, value in message.items() if value is not None})
        return message

    def turn(self, text, call):
        self.messages.append({"role": "user", "content": text})
        message = self.ask(call)
        for _ in range(ROUNDS):
            for made in message.get("tool_calls") or []:
                result = json.dumps({"found": "a word of ten letters"})
                self.messages.append({"role": "tool", "tool_call_id": made["id"], "content": result})
            if not message.get("tool_calls"):
                break
            message = self.ask(False)
        return message.get("content") or ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--fill", type=float, default=0.9)
    parser.add_argument("--slack", type=int, default=64)
    parser.add_argument("--growth", type=float, default=0.1, help="share by which memory may grow after a fifth")
    parser.add_argument("--recall", action="store_true")
    arguments, options = parser.parse_known_args()
    sizes = ["--context", str(arguments.context), "--sequences", str(arguments.sequences)]
    server = Server(arguments.binary, arguments.model, [*sizes, *options])
    talk = Talk(server)
    begun, early = time.monotonic(), None
    talk.turn(f"Remember the word {WORD}.", False)
    for number in range(2, arguments.turns):
        # What is left until the wished fill, shared among the turns that are left; a turn has about 60 tokens by itself.
        left = arguments.fill * arguments.context - talk.prompt
        words = max(int(left / (arguments.turns - number + 1)) - 60, 1)
        talk.turn("Read this: " + "one " * words, number % 2 == 0)
        if number == arguments.turns // 5:
            early = server.resident()
        if number % 10 == 0:
            print(f"turn {number}: prompt {talk.prompt}, again {sum(talk.again)}, {server.resident() >> 20} MiB", flush=True)
    answer = talk.turn("Which word was I to have you remember in the first turn?", False)
    late, spent = server.resident(), time.monotonic() - begun
    server.end()
    recalled = WORD in answer.lower()
    fill = talk.prompt / arguments.context
    print(f"{arguments.turns} turns in {spent:.0f} s, the last prompt fills {100 * fill:.0f} % of the context")
    print(f"again {sum(talk.again)} tokens, at most {max(talk.again)} a turn")
    print(f"memory {early >> 20} MiB after a fifth, {late >> 20} MiB at the end")
    print(f"recall {'yes' if recalled else 'no'}")
    wrong = []
    if max(talk.again) > arguments.slack:
        wrong.append("prompts were computed again")
    if late > early * (1 + arguments.growth):
        wrong.append("memory grew")
    if arguments.recall and not recalled:
        wrong.append("the first turn's word was not recalled")
    if wrong:
        sys.exit("; ".join(wrong))


if __name__ == "__main__":
    main()
