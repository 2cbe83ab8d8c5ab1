"""The official Python clients against a running server: openai (all three protocols), anthropic, litellm, and
Prometheus' parser.

    python check.py http://127.0.0.1:8080

Every client does the same: a whole answer and a streamed one, which must be equal; one call, parallel calls, arguments in
pieces; the agent's loop of question, call, result and answer, whose second turn must find tokens in the cache;
what was said before; a demanded format; thinking; mistakes; sums of tokens; leaving in the middle. Greedy, so
that answers can be compared. Prints a line per check and fails with the number of those that did not hold.
"""

import json
import os
import sys
import time
import traceback
import urllib.request

# litellm would fetch a table of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import anthropic
import litellm
import openai
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

URL = sys.argv[1]
MODEL = "demo"
CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}
DESCRIPTION = "Get the current weather for a city"
FUNCTION = {"name": "get_weather", "description": DESCRIPTION, "parameters": CITY}
TOOL = {"type": "function", "function": FUNCTION}
QUESTION = "What is the weather in Tokyo?"
TWO = "Compare the weather in Milan and Manila."
RESULT = "21 degrees, sunny"
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}

failures = []


def check(name, holds, shown=""):
    print(f"{'ok  ' if holds else 'FAIL'} {name}{'' if holds else f': {shown!r}'}", flush=True)
    if not holds:
        failures.append(name)


def status():
    with urllib.request.urlopen(f"{URL}/status") as answer:
        return json.load(answer)


def idle_soon(name):
    deadline = time.time() + 2
    while time.time() < deadline and status()["running"]:
        time.sleep(0.02)
    check(name, not status()["running"], status()["running"])


class Person(BaseModel):
    name: str
    age: int


def user(text):
    return [{"role": "user", "content": text}]


def openai_chat():
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)

    def ask(messages, **options):
        options.setdefault("extra_body", NO_THINKING)
        return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **options)

    check("openai models", [model.id for model in client.models.list()] == [MODEL])
    whole = ask(user("What is 255 factored?"))
    text = whole.choices[0].message.content
    check("openai chat whole", "3 × 5 × 17" in text and whole.choices[0].finish_reason == "stop", text)
    usage = whole.usage
    check("openai chat usage", usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
    chunks = list(ask(user("What is 255 factored?"), stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check("openai chat streamed", streamed == text, streamed)
    check("openai chat streamed usage", chunks[-1].usage.completion_tokens == usage.completion_tokens, chunks[-1])
    thought = ask(user("What is 255 factored?"), extra_body={})
    check("openai chat thinking", thought.choices[0].message.reasoning_content, thought)
    details = thought.usage.completion_tokens_details
    check("openai chat thinking usage", 0 < details.reasoning_tokens < thought.usage.completion_tokens, details)

    messages = user(QUESTION)
    first = ask(messages, tools=[TOOL])
    message = first.choices[0].message
    call = message.tool_calls[0] if message.tool_calls else None
    check("openai chat call", call and json.loads(call.function.arguments) == {"city": "Tokyo"}, first)
    check("openai chat call reason", first.choices[0].finish_reason == "tool_calls", first.choices[0].finish_reason)
    with client.chat.completions.stream(
        model=MODEL, messages=messages, tools=[TOOL], temperature=0, extra_body=NO_THINKING
    ) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_completion().choices[0].message
    check("openai chat streamed call", final.tool_calls[0].function.arguments == call.function.arguments, final)
    check("openai chat argument pieces", "tool_calls.function.arguments.delta" in names, names)
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    second = ask(messages, tools=[TOOL])
    check("openai chat loop", "21" in second.choices[0].message.content, second)
    check("openai chat loop cached", second.usage.prompt_tokens_details.cached_tokens > 0, second.usage)
    both = ask(user(TWO), tools=[TOOL]).choices[0].message.tool_calls
    cities = [json.loads(call.function.arguments)["city"] for call in both]
    check("openai chat parallel", cities == ["Milan", "Manila"] and both[0].id != both[1].id, both)
    single = ask(user(TWO), tools=[TOOL], parallel_tool_calls=False).choices[0].message.tool_calls
    check("openai chat not parallel", len(single) == 1, single)
    forced = ask(user("Hello"), tools=[TOOL], tool_choice="required", max_tokens=60).choices[0].message
    check("openai chat required", forced.tool_calls and forced.tool_calls[0].function.name == "get_weather", forced)
    forbidden = ask(messages[:1], tools=[TOOL], tool_choice="none", max_tokens=40).choices[0].message
    check("openai chat none", not forbidden.tool_calls, forbidden)

    talk = user("My name is Alice.")
    reply = ask(talk)
    talk += [reply.choices[0].message, *user("What is my name?")]
    named = ask(talk)
    check("openai chat memory", "Alice" in named.choices[0].message.content, named)
    check("openai chat memory cached", named.usage.prompt_tokens_details.cached_tokens > 0, named.usage)
    extract = user("Extract age, name as JSON: Greta is 58 years old and lives in Accra.")
    parsed = client.chat.completions.parse(
        model=MODEL, messages=extract, response_format=Person, temperature=0, max_tokens=80, extra_body=NO_THINKING
    ).choices[0].message.parsed
    check("openai chat schema", isinstance(parsed, Person), parsed)
    free = ask(user("Hello"), response_format={"type": "json_object"}, max_tokens=60).choices[0]
    valid = free.finish_reason == "length" or isinstance(json.loads(free.message.content), dict)
    check("openai chat json", valid and free.message.content.startswith("{"), free)
    tokens = ask(user("Hello"), logprobs=True, top_logprobs=2).choices[0]
    spelled = "".join(token.token for token in tokens.logprobs.content)
    check("openai chat logprobs", tokens.message.content in spelled, tokens)
    check("openai chat top", all(len(token.top_logprobs) == 2 for token in tokens.logprobs.content))
    cut = ask(user("What is 255 factored?"), max_tokens=2)
    check("openai chat length", cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 2, cut)
    stopped = ask(user("What is 255 factored?"), stop=["×"]).choices[0]
    check("openai chat stop", "×" not in stopped.message.content and stopped.finish_reason == "stop", stopped)

    for name, options, expected in [
        ("n", {"n": 2}, "n"),
        ("temperature", {"extra_body": {"temperature": -1}}, "temperature"),
        ("schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ]:
        try:
            ask(user("Hello"), **options)
            check(f"openai chat error {name}", False)
        except openai.BadRequestError as error:
            check(f"openai chat error {name}", error.param == expected, error.param)
    context = client.models.list().data[0].context_length
    try:
        ask(user("word " * (context + 100)))
        check("openai chat overflow", False)
    except openai.BadRequestError as error:
        check("openai chat overflow", error.code == "context_length_exceeded", error)
    try:
        client.models.retrieve("no/such/model")
        check("openai missing model", False)
    except openai.NotFoundError as error:
        check("openai missing model", error.code == "not_found", error)
    stream = ask(user("Write a short story about Rosa the fox and Max the frog."), stream=True)
    for _ in range(4):
        next(iter(stream))
    stream.close()
    idle_soon("openai chat leaving")


def openai_responses():
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    flat = {"type": "function", **FUNCTION, "strict": False}

    def ask(given, **options):
        options.setdefault("reasoning", {"effort": "none"})
        return client.responses.create(model=MODEL, input=given, temperature=0, store=False, **options)

    whole = ask("What is 255 factored?")
    check("openai responses whole", "3 × 5 × 17" in whole.output_text and whole.status == "completed", whole)
    usage = whole.usage
    check("openai responses usage", usage.total_tokens == usage.input_tokens + usage.output_tokens, usage)
    events = list(ask("What is 255 factored?", stream=True))
    streamed = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    check("openai responses streamed", streamed == whole.output_text, streamed)
    check("openai responses end", events[-1].type == "response.completed", events[-1].type)
    numbers = [event.sequence_number for event in events]
    check("openai responses numbers", numbers == list(range(len(events))), numbers)
    thought = ask("What is 255 factored?", reasoning={"effort": "medium", "summary": "auto"})
    check("openai responses thinking", thought.output[0].type == "reasoning" and thought.output[0].summary, thought)

    items = user(QUESTION)
    first = ask(items, tools=[flat, {"type": "web_search"}])
    calls = [item for item in first.output if item.type == "function_call"]
    check("openai responses call", calls and json.loads(calls[0].arguments) == {"city": "Tokyo"}, first.output)
    with client.responses.stream(
        model=MODEL, input=items, tools=[flat], temperature=0, reasoning={"effort": "none"}
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    check("openai responses argument pieces", "".join(pieces) == calls[0].arguments == final.output[-1].arguments, pieces)
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": calls[0].call_id, "output": RESULT})
    second = ask(items, tools=[flat])
    check("openai responses loop", "21" in second.output_text, second.output)
    check("openai responses loop cached", second.usage.input_tokens_details.cached_tokens > 0, second.usage)
    both = [item for item in ask(TWO, tools=[flat]).output if item.type == "function_call"]
    check("openai responses parallel", len(both) == 2, both)
    named = ask([*user("My name is Alice."), {"role": "assistant", "content": "Nice to meet you, Alice!"}, *user("What is my name?")])
    check("openai responses memory", "Alice" in named.output_text, named)
    parsed = client.responses.parse(
        model=MODEL,
        input="Extract age, name as JSON: Greta is 58 years old and lives in Accra.",
        text_format=Person, temperature=0, max_output_tokens=80, reasoning={"effort": "none"},
    ).output_parsed
    check("openai responses schema", isinstance(parsed, Person), parsed)
    cut = ask("What is 255 factored?", max_output_tokens=2)
    check("openai responses length", cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut)
    try:
        ask("Hello", previous_response_id="resp_1")
        check("openai responses error", False)
    except openai.BadRequestError as error:
        check("openai responses error", error.param == "previous_response_id", error)
    stream = ask("Write a short story about Rosa the fox and Max the frog.", stream=True)
    for _ in range(8):
        next(iter(stream))
    stream.close()
    idle_soon("openai responses leaving")


def anthropic_messages():
    client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    tool = {"name": "get_weather", "description": DESCRIPTION, "input_schema": CITY}

    def ask(messages, **options):
        options.setdefault("max_tokens", 200)
        return client.messages.create(model=MODEL, messages=messages, extra_body={"temperature": 0}, **options)

    whole = ask(user("What is 255 factored?"))
    text = whole.content[0].text
    check("anthropic whole", "3 × 5 × 17" in text and whole.stop_reason == "end_turn", whole)
    counted = client.messages.count_tokens(model=MODEL, messages=user("What is 255 factored?")).input_tokens
    total = whole.usage.input_tokens + whole.usage.cache_read_input_tokens + whole.usage.cache_creation_input_tokens
    check("anthropic count", counted == total, (counted, whole.usage))

    def stream(messages, **options):
        options.setdefault("max_tokens", 200)
        return client.messages.stream(model=MODEL, messages=messages, extra_body={"temperature": 0}, **options)

    with stream(user("What is 255 factored?")) as streaming:
        pieces = list(streaming.text_stream)
        final = streaming.get_final_message()
    check("anthropic streamed", "".join(pieces) == text == final.content[0].text, pieces)
    check("anthropic streamed usage", final.usage.output_tokens == whole.usage.output_tokens, final.usage)
    with stream(user("What is 255 factored?"), max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024}) as streaming:
        kinds = [event.type for event in streaming]
        thought = streaming.get_final_message()
    check("anthropic thinking", thought.content[0].type == "thinking" and thought.content[0].signature, thought)
    check("anthropic thinking pieces", "thinking" in kinds and "signature" in kinds, kinds)

    messages = user(QUESTION)
    first = ask(messages, tools=[tool])
    call = first.content[-1]
    check("anthropic call", call.type == "tool_use" and call.input == {"city": "Tokyo"}, first)
    check("anthropic call reason", first.stop_reason == "tool_use", first.stop_reason)
    with stream(messages, tools=[tool]) as streaming:
        kinds = [event.type for event in streaming]
        final = streaming.get_final_message()
    check("anthropic argument pieces", "input_json" in kinds and final.content[-1].input == call.input, final)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = ask(messages, tools=[tool])
    check("anthropic loop", "21" in second.content[0].text, second)
    check("anthropic loop cached", second.usage.cache_read_input_tokens > 0, second.usage)
    both = [block for block in ask(user(TWO), tools=[tool]).content if block.type == "tool_use"]
    check("anthropic parallel", len(both) == 2, both)
    choice = {"type": "tool", "name": "get_weather"}
    forced = ask(user("Hello"), tools=[tool], tool_choice=choice, max_tokens=60)
    check("anthropic forced", any(block.type == "tool_use" for block in forced.content), forced)
    talk = [*user("My name is Alice."), {"role": "assistant", "content": "Nice to meet you, Alice!"}, *user("What is my name?")]
    check("anthropic memory", "Alice" in ask(talk).content[0].text)
    stopped = ask(user("What is 255 factored?"), stop_sequences=["×"])
    check("anthropic stop", stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "×", stopped)
    check("anthropic length", ask(user("Hello"), max_tokens=1).stop_reason == "max_tokens")
    try:
        ask([])
        check("anthropic error", False)
    except anthropic.BadRequestError as error:
        check("anthropic error", error.body["error"]["type"] == "invalid_request_error", error.body)
    try:
        ask(user("word " * 300_000))
        check("anthropic overflow", False)
    except anthropic.BadRequestError as error:
        check("anthropic overflow", "prompt is too long: " in error.message, error.message)
    with stream(user("Write a short story about Rosa the fox and Max the frog.")) as streaming:
        for _ in range(4):
            next(iter(streaming))
    idle_soon("anthropic leaving")


def litellm_both():
    for name, model, base in [("openai", f"openai/{MODEL}", f"{URL}/v1"), ("anthropic", f"anthropic/{MODEL}", URL)]:
        def ask(messages, **options):
            return litellm.completion(
                model=model, api_base=base, api_key="none", messages=messages, temperature=0, max_tokens=300, num_retries=0, **options
            )

        text = ask(user("What is 255 factored?")).choices[0].message.content
        check(f"litellm {name} whole", "3 × 5 × 17" in text, text)
        chunks = list(ask(user("What is 255 factored?"), stream=True))
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        check(f"litellm {name} streamed", streamed == text, streamed)
        messages = user(QUESTION)
        message = ask(messages, tools=[TOOL]).choices[0].message
        check(f"litellm {name} call", json.loads(message.tool_calls[0].function.arguments) == {"city": "Tokyo"}, message)
        chunks = list(ask(messages, tools=[TOOL], stream=True))
        rebuilt = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
        check(f"litellm {name} streamed call", rebuilt.tool_calls[0].function.name == "get_weather", rebuilt)
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}]
        answer = ask(messages, tools=[TOOL]).choices[0].message.content
        check(f"litellm {name} loop", "21" in answer, answer)


def text_completions():
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    prompt = "<|im_start|>user\nWhat is 255 factored?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

    def ask(**options):
        return client.completions.create(**{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 200} | options)

    whole = ask()
    check("openai completions whole", "3 × 5 × 17" in whole.choices[0].text, whole.choices[0].text)
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    streamed = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    check("openai completions streamed", streamed == whole.choices[0].text, streamed)
    check("openai completions usage", chunks[-1].usage == whole.usage, chunks[-1].usage)
    both = ask(prompt=[prompt, "Once"], max_tokens=5)
    check("openai completions list", [choice.index for choice in both.choices] == [0, 1], both.choices)
    echo = ask(echo=True, logprobs=2, max_tokens=1).choices[0]
    lists = echo.logprobs
    equal = len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset)
    check("openai completions echo", equal and echo.text.startswith(prompt) and lists.token_logprobs[0] is None, echo)
    try:
        client.embeddings.create(model=MODEL, input="a")
        check("openai embeddings are refused", False)
    except openai.APIStatusError as error:
        check("openai embeddings are refused", error.status_code == 501, error)


def prometheus():
    with urllib.request.urlopen(f"{URL}/metrics") as answer:
        page = answer.read().decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    ours = [name for name in families if name.startswith("flashmoe_")]
    theirs = [name for name in families if name.startswith("vllm:")]
    check("prometheus reads both sets of names", len(ours) > 40 and len(theirs) > 8, (len(ours), len(theirs)))
    labels = [sample.labels.get("model_name") for name in theirs for sample in families[name].samples]
    check("prometheus model_name", set(labels) == {MODEL}, set(labels))


litellm.suppress_debug_info = True
litellm.drop_params = True
for part in [openai_chat, openai_responses, anthropic_messages, litellm_both, text_completions, prometheus]:
    try:
        part()
    except Exception as error:  # the other clients are still worth checking
        check(f"{part.__name__} to its end", False, error)
        traceback.print_exc()
if failures:
    sys.exit(f"{len(failures)} failed: {', '.join(failures)}")
