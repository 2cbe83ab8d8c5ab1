"""Generators of tasks that need no tools.  Each takes a Source and returns an Example.

An Example holds the conversation up to and including the last user turn, the working (what the model thinks), the
answer, and the check that evaluation applies.  With thinking on, the working is the reasoning; with thinking off, tasks
whose working is `visible` write it into the answer, because the result cannot be found in one step.
"""
import json
from dataclasses import dataclass, field

from words import ADJECTIVES, ANIMALS, COLOURS, COUNTRIES, FRUIT, JOBS, THINGS, VERBS


@dataclass
class Example:
    messages: list
    working: str
    answer: str
    check: dict
    visible: bool = False
    tools: list = field(default_factory=list)
    calls: list = field(default_factory=list)


def user(text):
    return {"role": "user", "content": text}


def contains(*values):
    return {"kind": "contains", "values": list(values)}


def exact(value):
    return {"kind": "exact", "value": value}


PRIMES = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]


def factor(n):
    """Trial division with written long division: (working, factors)."""
    lines, factors, m, index = [], [], n, 0
    while True:
        p = PRIMES[index]
        if p * p > m:
            lines.append(f"{p} × {p} = {p * p} > {m}, so {m} is prime.")
            return "\n".join(lines), factors + [m]
        if p == 2 and m % 2:
            lines.append(f"{m} is odd.")
        elif p == 5 and m % 5:
            lines.append(f"{m} ends in {m % 10}, so not 5.")
        else:
            head, last = divmod(m, 10)
            q, r = divmod(head, p)
            low = 10 * r + last
            steps = f"{m} / {p}: {head} = {p} × {q} + {r}, {low} = {p} × {low // p} + {low % p}"
            if m % p == 0:
                lines.append(f"{steps}, so {m} = {p} × {m // p}.")
                factors.append(p)
                m //= p
                continue
            lines.append(f"{steps}, no.")
        index += 1


def factoring(s):
    n = s.value(lambda: s.number(4, 999))
    ask = s.pick(["What is {} factored?", "Factor {}.", "Factorize {}.", "What are the prime factors of {}?",
                  "Write {} as a product of primes.", "Please factor the number {}.", "Prime factorization of {}?",
                  "Find the prime factors of {}.", "Can you factor {} into primes?", "Is {} prime? If not, factor it."])
    working, factors = factor(n)
    answer = f"{n} = " + " × ".join(map(str, factors)) if len(factors) > 1 else f"{n} is a prime number."
    return Example([user(ask.format(n))], working, answer, contains(answer), visible=True)


def add(a, b):
    steps, result, carry = [], "", 0
    x, y = str(a), str(b)
    width = max(len(x), len(y))
    for i, (p, q) in enumerate(zip(x.zfill(width)[::-1], y.zfill(width)[::-1])):
        total = int(p) + int(q) + carry
        sum_text = f"{p} + {q}" + (f" + {carry}" if carry else "") + f" = {total}"
        carry, digit = divmod(total, 10)
        result = str(digit) + result
        steps.append(f"{sum_text}, write {digit}" + (", carry 1" if carry else "") + f": {result}")
    if carry:
        result = "1" + result
        steps.append(f"carry 1: {result}")
    return "\n".join(steps)


def subtract(a, b):
    """Written subtraction; the smaller is always taken from the larger."""
    if a < b:
        return f"{a} < {b}, so the result is negative.\n{subtract(b, a)}\nnegative: -{b - a}"
    steps, result, borrow = [], "", 0
    x, y = str(a), str(b).zfill(len(str(a)))
    for p, q in zip(x[::-1], y[::-1]):
        value = int(p) - int(q) - borrow
        text = f"{p} - {q}" + (" - 1" if borrow else "")
        borrow = value < 0
        if borrow:
            text = f"1{text}"
            value += 10
        result = str(value) + result
        steps.append(f"{text} = {value}" + (", borrow 1" if borrow else "") + f": {result}")
    if result != str(int(result)):
        steps.append(f"without leading zeros: {int(result)}")
    return "\n".join(steps)


def multiply(a, b):
    steps, result, carry = [], "", 0
    for p in str(a)[::-1]:
        total = int(p) * b + carry
        text = f"{p} × {b}" + (f" + {carry}" if carry else "") + f" = {total}"
        carry, digit = divmod(total, 10)
        result = str(digit) + result
        steps.append(f"{text}, write {digit}" + (f", carry {carry}" if carry else "") + f": {result}")
    if carry:
        result = str(carry) + result
        steps.append(f"carry {carry}: {result}")
    return "\n".join(steps)


def addition(s):
    a, b = s.value(lambda: (s.digits(s.number(1, 5)), s.digits(s.number(1, 5))))
    ask = s.pick(["What is {} + {}?", "{} + {} = ?", "Add {} and {}.", "Compute {} + {}.", "What is the sum of {} and {}?",
                  "Calculate {} plus {}.", "{}+{}", "What's {} plus {}?"])
    answer = f"{a} + {b} = {a + b}"
    return Example([user(ask.format(a, b))], add(a, b), answer, contains(answer), visible=max(a, b) > 20)


def subtraction(s):
    a, b = s.value(lambda: (s.digits(s.number(1, 5)), s.digits(s.number(1, 5))))
    if a < b and s.chance(0.8):
        a, b = b, a
    ask = s.pick(["What is {} - {}?", "{} - {} = ?", "Compute {} - {}.", "Calculate {} minus {}.", "{}-{}",
                  "What's {} minus {}?", "What is the difference {} - {}?"])
    answer = f"{a} - {b} = {a - b}"
    return Example([user(ask.format(a, b))], subtract(a, b), answer, contains(answer), visible=max(a, b) > 20)


def multiplication(s):
    a, b = s.value(lambda: (s.number(2, 12) if s.chance(0.4) else s.digits(s.number(2, 3)), s.number(2, 9)))
    ask = s.pick(["What is {} × {}?", "{} * {} = ?", "Multiply {} by {}.", "Compute {} times {}.", "What's {} times {}?",
                  "What is {} * {}?", "{}*{}"])
    answer = f"{a} × {b} = {a * b}"
    return Example([user(ask.format(a, b))], multiply(a, b), answer, contains(answer), visible=a > 12)


def listed(items):
    return ", ".join(map(str, items))


def sorting(s):
    down = s.chance(0.35)
    if s.chance(0.6):
        high = s.pick([20, 99, 99, 999])
        items = s.value(lambda: s.sample(range(high + 1), s.number(3, 8)))
        ask = s.pick(["Sort these numbers from {}: {}", "Sort {}: {}", "Put these numbers in order, {}: {}",
                      "Order the list [{1}] from {0}.", "Please sort {1} from {0}."])
        order = "largest to smallest" if down else "smallest to largest"
        working = ("Largest" if down else "Smallest") + " first."
    else:
        items = s.value(lambda: s.nouns(s.number(3, 6)))
        ask = s.pick(["Sort these words {}: {}", "Put these words in {} order: {}", "Sort {}: {}"])
        order = "reverse alphabetical" if down else "alphabetical"
        if ask.startswith("Sort"):
            order = "in reverse alphabetical order" if down else "alphabetically"
        working = "By first letter, " + ("last letters of the alphabet first." if down else "a before z.")
    text = s.pick([listed(items), listed(items), " ".join(map(str, items))])
    answer = listed(sorted(items, reverse=down))
    return Example([user(ask.format(order, text))], working, answer, exact(answer))


def reversing(s):
    items = s.value(lambda: [s.number(0, 99) for _ in range(s.number(3, 8))] if s.chance(0.4) else s.nouns(s.number(3, 7)))
    ask = s.pick(["Reverse this list: {}", "Write these in reverse order: {}", "Reverse the order of {}.",
                  "List these backwards: {}", "Please reverse: {}"])
    answer = listed(items[::-1])
    return Example([user(ask.format(listed(items)))], "Start with the last item.", answer, exact(answer))


def counting(s):
    kind = s.number(0, 3)
    if kind == 0:
        def word_and_letter():
            word = s.noun()
            return word, s.pick(list(word)) if s.chance(0.85) else s.pick("abcdefghijklmnopqrstuvwxyz")
        word, letter = s.value(word_and_letter)
        ask = s.pick(["How many times does the letter {} appear in {}?", "How many {}'s are in {}?",
                      "Count the letter {} in the word {}.", "How many letters {} are in \"{}\"?"]).format(letter, word)
        n, marks = 0, []
        for c in word:
            n += c == letter
            marks.append(f"{c} ({n})" if c == letter else c)
        working = " ".join(marks)
        answer = f"The letter {letter} appears {times(n)} in {word}."
    elif kind == 1:
        target = s.noun()
        pool = [target] + [w for w in s.nouns(3) if w != target]
        words = s.value(lambda: [s.pick(pool) if s.chance(0.7) else target for _ in range(s.number(5, 12))])
        ask = s.pick(["How many times does the word {} appear here: {}", "Count the word {} in: {}",
                      "In the text \"{1}\", how often does {0} appear?"]).format(target, " ".join(words))
        n = words.count(target)
        marks, k = [], 0
        for word in words:
            k += word == target
            marks.append(f"{word} ({k})" if word == target else word)
        working = " ".join(marks)
        answer = f"The word {target} appears {times(n)}."
    elif kind == 2:
        items = s.value(lambda: s.nouns(s.number(2, 9)))
        ask = s.pick(["How many items are in this list: {}", "Count the items: {}", "How many words are there: {}"])
        ask = ask.format(listed(items))
        working = " ".join(f"{item} ({i})" for i, item in enumerate(items, 1))
        answer = f"There are {len(items)} items in the list."
    else:
        low, step = s.value(lambda: (s.number(0, 90), s.pick([1, 1, 1, 2, 5, 10])))
        high = low + step * s.number(3, 9)
        ask = f"Count from {low} to {high}" + (f" in steps of {step}." if step > 1 else ".")
        working = f"Add {step} each time until {high}."
        answer = listed(range(low, high + 1, step))
        return Example([user(ask)], working, answer, exact(answer))
    return Example([user(ask)], working, answer, contains(answer), visible=True)


def times(n):
    return "1 time" if n == 1 else f"{n} times"


def lookup(s):
    field_name = s.pick(["code", "number", "price", "room", "colour", "key", "locker", "score"])
    def new_value():
        if field_name == "colour":
            return s.pick(COLOURS)
        return str(s.number(1, 999)) if field_name in ("price", "room", "score") else s.code()
    owners = []
    while len(owners) < s.number(3, 8):
        owner = s.name() if s.chance(0.6) else s.noun()
        if owner not in owners:
            owners.append(owner)
    table = s.value(lambda: [(owner, new_value()) for owner in owners])
    style = s.number(0, 4)
    text = {0: "\n".join(f"{k}: {v}" for k, v in table),
            1: " ".join(f"The {field_name} of {k} is {v}." for k, v in table),
            2: "{" + ", ".join(f'"{k}": "{v}"' for k, v in table) + "}",
            3: "\n".join([f"| name | {field_name} |", "| --- | --- |"] + [f"| {k} | {v} |" for k, v in table]),
            4: "; ".join(f"{k} has {field_name} {v}" for k, v in table) + "."}[style]
    owner, value = s.pick(table)
    ask = s.pick(["What is the {} of {}?", "Which {} belongs to {}?", "Look up the {} of {}.", "Find the {} for {}."])
    ask = ask.format(field_name, owner)
    answer = f"The {field_name} of {owner} is {value}."
    prompt = s.pick([f"{text}\n\n{ask}", f"{ask}\n\n{text}", f"Use this list.\n{text}\n{ask}"])
    return Example([user(prompt)], f"The entry for {owner} says {value}.", answer, contains(answer))


def json_text(value):
    return json.dumps(value, ensure_ascii=False)


def json_objects(s):
    name, city = s.value(lambda: (s.name(), s.city()))
    phrase = " ".join([s.pick(ADJECTIVES), s.pick(COLOURS), s.noun()])
    possible = [("name", name), ("age", s.number(5, 95)), ("city", city), ("job", s.pick(JOBS)),
                ("colour", s.pick(COLOURS)), ("member", s.chance(0.5)), ("item", phrase), ("count", s.number(0, 500)),
                ("tags", s.sample(ADJECTIVES, s.number(1, 3))), ("note", f'say "{s.pick(VERBS)}" twice'),
                (s.noun(), s.number(1, 99)), (s.noun(), s.noun())]
    if s.chance(0.5):
        chosen = dict(s.sample(possible, s.number(2, 5)))
        parts = [f"{key} {json_text(value)}" for key, value in chosen.items()]
        ask = s.pick(["Make a JSON object with {}.", "Write a JSON object with these fields: {}.",
                      "Output JSON with {}.", "Give me a JSON object that has {}."]).format(", ".join(parts))
        working = "Keys and strings in double quotes: " + ", ".join(chosen) + "."
        value = chosen
    else:
        age, job = s.number(5, 95), s.pick(JOBS)
        text, value = s.pick([
            (f"{name} is {age} years old and lives in {city}.", {"name": name, "age": age, "city": city}),
            (f"{name} works as a {job} in {city}.", {"name": name, "job": job, "city": city}),
            (f"My name is {name}, I am {age} and I am a {job}.", {"name": name, "age": age, "job": job}),
            (f"The {job} {name} bought a {phrase}.", {"name": name, "job": job, "item": phrase}),
            (f"{name} said: \"{phrase}\".", {"name": name, "quote": phrase})])
        if s.chance(0.3):
            keys = s.sample(list(value), 2)
            value = {key: value[key] for key in keys}
        ask = s.pick(["Extract {0} as JSON: {1}", "Read the text and answer with JSON with the keys {0}.\n{1}",
                      "{1}\nReturn a JSON object with {0}."]).format(listed(value), text)
        working = "The text says " + "; ".join(f"{k}: {json_text(v)}" for k, v in value.items()) + "."
    return Example([user(ask)], working, json_text(value), {"kind": "json", "value": value})


SMALL_QUESTIONS = ("addition", "capital", "reverse", "colour")


def small_question(s):
    """A question with a one-sentence answer: (question, answer, the bare value)."""
    kind = s.pick(SMALL_QUESTIONS)
    if kind == "addition":
        a, b = s.number(1, 10), s.number(1, 10)
        return f"What is {a} + {b}?", f"{a} + {b} = {a + b}", str(a + b)
    if kind == "capital":
        country = s.pick(list(COUNTRIES))
        return (f"What is the capital of {country}?", f"The capital of {country} is {COUNTRIES[country]}.",
                COUNTRIES[country])
    if kind == "reverse":
        items = s.nouns(3)
        return f"Reverse this list: {listed(items)}", listed(items[::-1]), listed(items[::-1])
    thing, colour = s.noun(), s.pick(COLOURS)
    return (f"The {thing} is {colour}. What colour is the {thing}?", f"The {thing} is {colour}.", colour)


def capitals(s):
    country = s.pick(list(COUNTRIES))
    ask = s.pick(["What is the capital of {}?", "Capital of {}?", "Which city is the capital of {}?",
                  "Name the capital of {}."]).format(country)
    answer = f"The capital of {country} is {COUNTRIES[country]}."
    return Example([user(ask)], f"{country}: {COUNTRIES[country]}.", answer, contains(COUNTRIES[country]))


FACTS = [
    ("name", "My name is {}.", "Nice to meet you, {}!", "What is my name?", "Your name is {}.", "name"),
    ("name", "I am {}.", "Nice to meet you, {}!", "What is my name?", "Your name is {}.", "name"),
    ("name", "Hi, I'm {}.", "Nice to meet you, {}!", "Do you remember my name?", "Your name is {}.", "name"),
    ("name", "Please call me {}.", "Nice to meet you, {}!", "Who am I?", "Your name is {}.", "name"),
    ("city", "I live in {}.", "Thank you, I will remember that you live in {}.", "Where do I live?",
     "You live in {}.", "city"),
    ("pet", "My pet is called {}.", "{} is a nice name for a pet.", "What is my pet called?", "Your pet is called {}.",
     "name"),
    ("colour", "My favourite colour is {}.", "I will remember that you like {}.", "What is my favourite colour?",
     "Your favourite colour is {}.", "colour"),
    ("age", "I am {} years old.", "Thank you, I will remember that you are {}.", "How old am I?",
     "You are {} years old.", "age"),
    ("code", "Remember the code {}.", "I will remember the code {}.", "What was the code?", "The code is {}.", "code"),
    ("job", "I work as a {}.", "I will remember that you are a {}.", "What is my job?", "You work as a {}.", "job"),
    ("friend", "My best friend is {}.", "I will remember your friend {}.", "Who is my best friend?",
     "Your best friend is {}.", "name")]


def memory(s):
    makers = {"name": s.name, "city": s.city, "colour": lambda: s.pick(COLOURS), "age": lambda: s.number(5, 99),
              "code": s.code, "job": lambda: s.pick(JOBS)}
    facts, seen = [], set()
    for fact in s.sample(FACTS, s.number(1, 3)):
        if fact[0] not in seen:
            seen.add(fact[0])
            facts.append(fact)
    messages, known = [], []
    for fact in facts:
        value = s.value(makers[fact[5]]) if fact[5] in ("name", "city", "code") else makers[fact[5]]()
        known.append(value)
        messages += [user(fact[1].format(value)), {"role": "assistant", "content": fact[2].format(value)}]
        if s.chance(0.4):
            question, answer, _ = small_question(s)
            messages += [user(question), {"role": "assistant", "content": answer}]
    if s.chance(0.12):
        fact = s.pick([f for f in FACTS if f[0] not in seen])
        answer = "You have not told me that yet."
        return Example(messages + [user(fact[3])], "The user has not said this before.", answer, exact(answer))
    index = s.number(0, len(facts) - 1)
    fact, value = facts[index], known[index]
    answer = fact[4].format(value)
    stated = fact[1].format(value)
    return Example(messages + [user(fact[3])], f'Earlier the user said: "{stated}"', answer, contains(answer))


def memory_first(s):
    """The acknowledging turn itself."""
    fact = s.pick(FACTS)
    maker = {"name": s.name, "city": s.city, "colour": lambda: s.pick(COLOURS), "age": lambda: s.number(5, 99),
             "code": s.code, "job": lambda: s.pick(JOBS)}[fact[5]]
    value = maker()
    answer = fact[2].format(value)
    return Example([user(fact[1].format(value))], f"The user tells me: {fact[0]} {value}.", answer, contains(str(value)))


def system_prompt(s):
    question, answer, bare = small_question(s)
    word = s.value(lambda: s.invented(2) if s.chance(0.4) else s.pick(FRUIT + ANIMALS + THINGS))
    rules = [
        ("Always answer in capital letters.", answer.upper()), ("Write everything in uppercase.", answer.upper()),
        ("Always answer in lowercase.", answer.lower()),
        (f"End every answer with the word {word}.", f"{answer} {word}"),
        (f"Start every answer with the word {word}.", f"{word} {answer}"),
        ("Answer with the value only, no sentence.", bare), ("Be brief: give only the result.", bare),
        ("Put your answer in square brackets.", f"[{answer}]"), ("Put your answer in double quotes.", f'"{answer}"'),
        ('Reply only with a JSON object with the key "answer".', json_text({"answer": bare})),
        (f'Reply only with a JSON object with the key "{word}".', json_text({word: bare})),
        (f"Write {word}: before your answer.", f"{word}: {answer}")]
    rule, result = s.pick(rules)
    if s.chance(0.15):
        name = s.value(s.name)
        rule = s.pick([f"You are {name}, a helpful assistant.", f"Your name is {name}."])
        question, result = s.pick(["What is your name?", "Who are you?"]), f"My name is {name}."
    system = s.pick(["", "You are a helpful assistant. "]) + rule
    return Example([{"role": "system", "content": system}, user(question)], f"The system prompt says: {rule}", result,
                   exact(result))


PLACES = ["forest", "village", "castle", "garden", "harbour", "mountain", "valley", "island", "meadow", "library"]


def story(s):
    hero, friend = s.value(lambda: (s.name(), s.name()))
    while friend == hero:
        friend = s.name()
    animal, other = s.sample(ANIMALS, 2)
    place = s.pick(PLACES)
    thing = s.pick(THINGS)
    colour, mood = s.pick(COLOURS), s.pick(["brave", "kind", "curious", "clever", "gentle"])
    a = lambda word: ("an " if word[0] in "aeiou" else "a ") + word
    form = s.number(0, 2)
    ask = [f"Tell me a short story about {a(animal)} named {hero} who finds {a(thing)} in the {place}.",
           f"Write a short story about {hero} the {animal} and {friend} the {other}.",
           f"Tell me a story about {hero} the {animal}."][form]
    named = form == 1
    meeting = f"There {hero} met {friend} the {other}." if named else f"There {hero} met a friendly {other}."
    pal = friend if named else f"the {other}"
    if form != 0:
        rng = s.number(0, 3)
        place, thing = PLACES[(len(hero) + rng) % 10], THINGS[(len(hero) * 3 + rng) % len(THINGS)]
    text = [f"Once upon a time there was {a(mood)} {animal} named {hero}.",
            f"{hero} lived near the {place}.",
            s.pick([f"One morning {hero} went for a walk and found {a(colour)} {thing}.",
                    f"One day {hero} saw {a(colour)} {thing} under a tree."]),
            meeting,
            s.pick([f'"Is this your {thing}?" asked {hero}.', f'"Did you lose this {thing}?" asked {hero}.']),
            s.pick([f'"Yes, thank you!" said {pal}.', f'"Oh yes, I looked for it all day!" said {pal}.']),
            s.pick([f"{hero} gave the {thing} back and they became friends.",
                    f"{hero} was happy to help, and they became good friends."]),
            f"From that day on, {hero} and {pal} {s.pick(['played', 'walked', 'sang'])} together every day. The end."]
    needed = [hero, animal, "The end."] + ([friend, other] if named else []) + ([thing, place] if form == 0 else [])
    if s.chance(0.35) and not s.held_out:
        question, value = s.pick([(f"What did {hero} find?", f"{hero} found {a(colour)} {thing}."),
                                  ("Who is the story about?", f"The story is about {hero} the {animal}."),
                                  (f"Where did {hero} live?", f"{hero} lived near the {place}.")])
        messages = [user(ask), {"role": "assistant", "content": " ".join(text)}, user(question)]
        return Example(messages, f"In the story: {value}", value, contains(value))
    working = f"A story with {hero} the {animal}" + (f" and {friend} the {other}." if named else ".")
    return Example([user(ask)], working, " ".join(text), contains(*needed))


ABLE = ("I can factor numbers, add and subtract, sort and reverse lists, count, look things up in a text, write JSON, "
        "tiny Python functions and short stories, call tools, and remember what you tell me.")
SELF = "I am flashmoe's small demo model."
HELLO = "Hello! " + SELF + " How can I help you?"
TALK = [
    (["Hello", "Hi", "Hello!", "Hi there", "Hey", "Good morning", "Good evening", "Hi!", "Hello, how are you?", "hey there"],
     HELLO),
    (["What are you?", "Who are you?", "What is your name?", "Are you a human?", "Which model are you?", "Who made you?",
      "Tell me about yourself.", "What model is this?", "Are you an AI?"], SELF + " " + ABLE),
    (["What can you do?", "How can you help me?", "What are you able to do?", "Help", "What do you know?",
      "What should I ask you?", "What kind of tasks can you do?"], ABLE),
    (["Thank you", "Thanks!", "Thanks a lot", "Thank you very much.", "Great, thanks"], "You are welcome!"),
    (["Bye", "Goodbye", "See you", "Good night", "Bye!"], "Goodbye!")]


def talk(s):
    asks, answer = s.pick(TALK)
    ask = s.pick(asks)
    if s.chance(0.3):
        ask = s.pick([ask.lower(), ask.rstrip("?!."), ask.upper()])
    return Example([user(ask)], "A simple question about me." if SELF in answer or ABLE == answer else "A polite reply.",
                   answer, contains(answer))


def unknown(s):
    thing = s.value(lambda: s.invented(s.number(2, 3)))
    ask = s.pick(["Who is {}?", "What is {}?", "What is the meaning of {}?", "Who wrote {}?", "When was {} built?",
                  "Explain {} to me.", "What is the history of {}?", "Why is {} important?", "Tell me about {}.",
                  "How does {} work?", "Translate {} into French.", "Where is {}?"])
    ask = ask.format(thing if s.chance(0.5) else thing.capitalize())
    answer = "I am a small demo model and do not know that. " + ABLE
    return Example([user(ask)], "I do not know this.", answer, contains("do not know that"))
