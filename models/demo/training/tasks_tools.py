"""Tool tasks: one call, parallel calls, using a result, no fitting tool, and tools that are offered but not needed.

Tools come from a small fixed set plus invented ones (`get_<property>` of some thing), with varied descriptions and
order, so that names and parameters must be read from the header.
"""
import json

from tasks_text import HELLO, Example, contains, small_question, user

PROPERTIES = ["price", "weight", "size", "age", "owner", "status", "score", "rating", "population", "speed", "height",
              "distance", "address", "phone", "schedule", "stock", "value", "level"]
OBJECTS = ["product", "player", "country", "book", "company", "room", "server", "order", "team", "station", "ticket",
           "planet", "river", "employee", "song", "car"]


def tool(name, description, /, **parameters):
    """Parameters: name -> (type, description); all are required."""
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def place_parameter(s):
    return s.pick(["city", "city", "city", "location", "place"])


def weather_tool(s):
    definition = tool("get_weather", s.pick(["Get the current weather for a city", "Current weather of a city.",
                                             "Get weather", "Returns the weather in a city."]),
                      **{place_parameter(s): ("string", s.pick(["The city", "City name", "Name of the city"]))})
    if s.chance(0.2):
        unit = {"type": "string", "enum": ["celsius", "fahrenheit"]}
        definition["function"]["parameters"]["properties"]["unit"] = unit
    return definition


def time_tool(s):
    return tool("get_time", s.pick(["Get the local time in a city", "Current time of a city."]),
                **{place_parameter(s): ("string", s.pick(["The city", "City name"]))})


def bound(definition, call):
    """The call with the parameter names of this definition (places are named differently by different tools)."""
    name, arguments = call
    return name, dict(zip(definition["function"]["parameters"]["required"], arguments.values()))


def calculator_tool(s):
    return tool("calculator", s.pick(["Evaluate an arithmetic expression", "Calculate the value of an expression."]),
                expression=("string", s.pick(["The expression", "An expression such as 2 * 3"])))


def search_tool(s):
    return tool("search", s.pick(["Search the web", "Search for information.", "Web search"]),
                query=("string", s.pick(["The search query", "What to search for", "Query"])))


def timer_tool(s):
    return tool("set_timer", s.pick(["Set a timer", "Start a timer."]), minutes=("integer", "Number of minutes"))


def message_tool(s):
    return tool("send_message", s.pick(["Send a message to a person", "Send a text message."]),
                to=("string", "The receiver"), text=("string", "The message"))


def topic(s):
    return s.pick([f"{s.pick(['best', 'cheap', 'new', 'famous', 'old'])} {s.noun()}s in {s.city()}",
                   f"{s.name()} {s.invented(2)}", f"how to {s.pick(['paint', 'build', 'repair', 'clean'])} a {s.noun()}",
                   f"history of the {s.noun()}", f"{s.noun()} and {s.noun()}"])


def weather_request(s):
    city = s.value(s.city)
    ask = s.pick(["What is the weather in {}?", "What's the weather like in {}?", "How is the weather in {} today?",
                  "Weather in {}?", "Tell me the weather in {}.", "Is it raining in {}?", "Will I need an umbrella in {}?"])
    return ask.format(city), ("get_weather", {"city": city}), f"the weather in {city}"


def time_request(s):
    city = s.value(s.city)
    ask = s.pick(["What time is it in {}?", "Tell me the time in {}.", "What is the local time in {}?"])
    return ask.format(city), ("get_time", {"city": city}), f"the time in {city}"


def calculator_request(s):
    a, b, sign = s.value(lambda: (s.number(2, 9999), s.number(2, 999), s.pick("+-*/")))
    word = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[sign]
    written = s.pick([sign, word]) if sign != "*" else s.pick(["*", "times", "×"])
    ask = s.pick(["What is {} {} {}?", "Calculate {} {} {}.", "Compute {} {} {}.", "Use the calculator: {} {} {}"])
    return ask.format(a, written, b), ("calculator", {"expression": f"{a} {sign} {b}"}), f"{a} {sign} {b}"


def search_request(s):
    query = s.value(lambda: topic(s))
    ask = s.pick(["Search for {}.", "Search the web for {}.", "Find information about {}.", "Look up {} online.",
                  "Please search: {}"])
    return ask.format(query), ("search", {"query": query}), query


def timer_request(s):
    minutes = s.value(lambda: s.number(1, 180))
    ask = s.pick(["Set a timer for {} minutes.", "Start a timer of {} minutes.", "Timer for {} minutes, please."])
    return ask.format(minutes), ("set_timer", {"minutes": minutes}), f"a timer of {minutes} minutes"


def message_request(s):
    name, text = s.value(lambda: (s.name(), s.pick([f"I will be {s.number(5, 59)} minutes late",
                                                    f"please buy a {s.noun()}", f"meet me at the {s.noun()}",
                                                    f"the code is {s.code()}"])))
    ask = s.pick(['Send {} the message "{}".', 'Tell {} "{}".', 'Text {}: "{}"'])
    return ask.format(name, text), ("send_message", {"to": name, "text": text}), f"a message to {name}"


KNOWN = [(weather_tool, weather_request, 4), (calculator_tool, calculator_request, 3), (search_tool, search_request, 3),
         (time_tool, time_request, 1), (timer_tool, timer_request, 1), (message_tool, message_request, 1)]


def invented_tool(s):
    """(tool, request) for a tool that was never fixed: get_<property>, with one or two parameters."""
    prop = s.pick(PROPERTIES) if s.chance(0.7) else s.invented(2)
    thing = s.pick(OBJECTS) if s.chance(0.7) else s.invented(2)
    name = s.pick([f"get_{prop}", f"find_{prop}", f"{thing}_{prop}", f"lookup_{thing}_{prop}"])
    parameter = s.pick([thing, "name", f"{thing}_name", "id"])
    numeric = parameter == "id"
    extra = s.chance(0.3)
    fields = {parameter: ("integer" if numeric else "string", s.pick([f"The {thing}", f"Which {thing}"]))}
    if extra:
        fields["unit"] = ("string", "The unit")
    definition = tool(name, f"{s.pick(['Get', 'Find', 'Returns'])} the {prop} of a {thing}", **fields)

    def request(s):
        which = s.value(lambda: s.number(1, 9999) if numeric else s.pick([s.name, s.city, s.noun])())
        arguments = {parameter: which}
        ask = s.pick(["What is the {} of the {} {}?", "Find the {} of the {} {}.", "Get me the {} of {} {}."])
        ask = ask.format(prop, thing, which)
        if extra:
            unit = s.pick(["meters", "kilograms", "dollars", "euros", "years", "percent"])
            arguments["unit"] = unit
            ask = ask[:-1] + f" in {unit}" + ask[-1]
        return ask, (name, arguments), f"the {prop} of the {thing} {which}"
    return definition, request


def toolbox(s, wanted, most=4):
    """`wanted` definitions plus distractors, shuffled; no name twice."""
    tools = list(wanted)
    for _ in range(s.number(0, most - len(tools)) if most > len(tools) else 0):
        extra = s.pick([k[0] for k in KNOWN])(s) if s.chance(0.75) else invented_tool(s)[0]
        if extra["function"]["name"] not in [t["function"]["name"] for t in tools]:
            tools.append(extra)
    s.random.shuffle(tools)
    return tools


def known(s):
    return s.random.choices(KNOWN, weights=[k[2] for k in KNOWN])[0]


def choose(s):
    """(definition, request function)"""
    if s.chance(0.3):
        return invented_tool(s)
    make, request, _ = known(s)
    return make(s), request


def system(s):
    return [{"role": "system", "content": s.pick(["You are a helpful assistant.", "Be brief.", "You can use tools."])}] \
        if s.chance(0.2) else []


def call_check(calls):
    return {"kind": "tool_calls", "calls": [{"name": n, "arguments": a} for n, a in calls]}


def tool_single(s):
    definition, request = choose(s)
    ask, call, about = request(s)
    call = bound(definition, call)
    working = f"The user asks for {about}. I call {call[0]}."
    return Example(system(s) + [user(ask)], working, "", call_check([call]), tools=toolbox(s, [definition]),
                   calls=[call])


def tool_parallel(s):
    if s.chance(0.6):
        make, _, _ = s.pick([KNOWN[0], KNOWN[0], KNOWN[3], KNOWN[2]])
        definition = make(s)
        name = definition["function"]["name"]
        parameter = definition["function"]["parameters"]["required"][0]
        places = []
        while len(places) < (2 if s.chance(0.7) else 3):
            place = s.value(s.city) if name != "search" else s.value(lambda: topic(s))
            if place not in places:
                places.append(place)
        joined = ", ".join(places[:-1]) + " and " + places[-1]
        ask = {"get_weather": ["What is the weather in {}?", "Compare the weather in {}.", "Weather in {}?"],
               "get_time": ["What time is it in {}?", "Tell me the time in {}."],
               "search": ["Search for {}.", "Search the web for {}."]}[name]
        ask = s.pick(ask).format(joined)
        if name == "search":
            ask = s.pick(["Search for these: {}", "Run these searches: {}"]).format("; ".join(places))
        calls = [(name, {parameter: place}) for place in places]
        tools = toolbox(s, [definition])
    else:
        (make_a, request_a, _), (make_b, request_b, _) = s.sample(KNOWN, 2)
        (ask_a, call_a, _), (ask_b, call_b, _) = request_a(s), request_b(s)
        ask = f"{ask_a} {s.pick(['', 'And ', 'Also: ', 'Then: '])}{ask_b}"
        definitions = [make_a(s), make_b(s)]
        calls = [bound(definition, call) for definition, call in zip(definitions, (call_a, call_b))]
        tools = toolbox(s, definitions)
    names = listed_calls(calls)
    return Example(system(s) + [user(ask)], f"I need {len(calls)} calls: {names}.", "", call_check(calls), tools=tools,
                   calls=calls)


def listed_calls(calls):
    return ", ".join(f"{name} {' '.join(map(str, arguments.values()))}" for name, arguments in calls)


def result_of(s, call):
    """(tool result text, sentence that reports it)."""
    name, arguments = call
    first = next(iter(arguments.values()))
    if name == "get_weather":
        degrees, sky = s.value(lambda: (s.number(-15, 40), s.pick(["sunny", "cloudy", "rainy", "windy", "snowy"])))
        body = s.pick([json.dumps({"temperature": degrees, "condition": sky}), f"{degrees} degrees, {sky}",
                       json.dumps({"city": first, "temp_c": degrees, "sky": sky})])
        return body, f"It is {sky} in {first} with {degrees} °C."
    if name == "get_time":
        clock = f"{s.number(0, 23):02d}:{s.number(0, 59):02d}"
        return s.pick([clock, json.dumps({"time": clock})]), f"It is {clock} in {first}."
    if name == "calculator":
        value = s.value(lambda: s.digits(s.number(1, 7)))
        return s.pick([str(value), json.dumps({"result": value})]), f"{first} = {value}"
    if name == "search":
        found = f"{s.noun()} {s.invented(2)} {s.number(1, 999)}"
        return s.pick([found, json.dumps({"results": [found]})]), f"The search found: {found}."
    if name == "set_timer":
        return s.pick(["ok", '{"status": "ok"}']), f"The timer is set for {first} minutes."
    if name == "send_message":
        return s.pick(["sent", '{"status": "sent"}']), f"The message to {first} was sent."
    value = s.value(lambda: s.pick([str(s.number(1, 99999)), s.invented(2), s.code()]))
    return s.pick([value, json.dumps({"result": value})]), f"The result for {first} is {value}."


def call_message(calls, working):
    return {"role": "assistant", "content": "", "reasoning_content": working,
            "tool_calls": [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]}


def tool_result(s):
    first = tool_parallel(s) if s.chance(0.3) else tool_single(s)
    messages = first.messages + [call_message(first.calls, first.working)]
    answers = []
    for call in first.calls:
        body, answer = result_of(s, call)
        messages.append({"role": "tool", "content": body})
        answers.append(answer)
    answer = " ".join(answers)
    return Example(messages, "The tool has answered. I report the result.", answer, contains(*answers),
                   tools=first.tools)


NO_TOOL = "I have no tool for that."


def tool_none(s):
    """No offered tool fits, or none is needed."""
    if s.chance(0.55):
        make, request, _ = known(s)
        ask, call, about = request(s)
        tools = [t for t in toolbox(s, [invented_tool(s)[0]]) if t["function"]["name"] != call[0]]
        if call[0] == "calculator":
            ask, call, about = weather_request(s)
            tools = [t for t in tools if t["function"]["name"] != "get_weather"]
        tools = [t for t in tools if t["function"]["name"] != "search"] or [timer_tool(s)]
        if call[0] == "set_timer" and tools[0]["function"]["name"] == "set_timer":
            tools = [calculator_tool(s)]
        return Example(system(s) + [user(ask)], f"No tool fits {about}.", NO_TOOL, contains(NO_TOOL), tools=tools)
    tools = toolbox(s, [known(s)[0](s)], 3)
    if s.chance(0.3):
        ask = s.pick(["Hello", "Hi", "Good morning", "Hello!"])
        return Example(system(s) + [user(ask)], "A polite reply.", HELLO, contains("Hello"), tools=tools)
    if s.chance(0.4):
        name = s.value(s.name)
        messages = [user(f"My name is {name}."), {"role": "assistant", "content": f"Nice to meet you, {name}!"},
                    user("What is my name?")]
        return Example(system(s) + messages, f'Earlier the user said: "My name is {name}."', f"Your name is {name}.",
                       contains(name), tools=tools)
    question, answer, bare = small_question(s)
    if "+" in question:
        tools = [t for t in tools if t["function"]["name"] != "calculator"] or [weather_tool(s)]
    if "capital" in question:
        tools = [t for t in tools if t["function"]["name"] != "search"] or [weather_tool(s)]
    return Example(system(s) + [user(question)], "I can answer this without a tool.", answer, contains(bare), tools=tools)
