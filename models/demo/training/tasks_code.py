"""Tiny Python functions from a fixed family: write one from a description, or complete one from its first lines.

A function has a name, arguments, a description and a body; constants and many names are drawn, so that held-out
combinations exist.  The answer is one fenced code block and nothing else.
"""
from tasks_text import Example, exact, user
from words import VERBS

# (default name, arguments, description, body); {n} and {m} are drawn constants, {word} a drawn word
FAMILY = [
    ("add", "a, b", "returns the sum of a and b", "return a + b"),
    ("subtract", "a, b", "returns a minus b", "return a - b"),
    ("multiply", "a, b", "returns the product of a and b", "return a * b"),
    ("average", "a, b", "returns the mean of a and b", "return (a + b) / 2"),
    ("add_{n}", "x", "returns x plus {n}", "return x + {n}"),
    ("times_{n}", "x", "returns x times {n}", "return x * {n}"),
    ("minus_{n}", "x", "returns x minus {n}", "return x - {n}"),
    ("line", "x", "returns {n} times x plus {m}", "return {n} * x + {m}"),
    ("square", "x", "returns the square of x", "return x * x"),
    ("cube", "x", "returns the cube of x", "return x ** 3"),
    ("power_{n}", "x", "returns x to the power {n}", "return x ** {n}"),
    ("is_even", "n", "checks whether n is even", "return n % 2 == 0"),
    ("is_odd", "n", "checks whether n is odd", "return n % 2 == 1"),
    ("divides_{n}", "x", "checks whether x is divisible by {n}", "return x % {n} == 0"),
    ("above_{n}", "x", "checks whether x is greater than {n}", "return x > {n}"),
    ("below_{n}", "x", "checks whether x is less than {n}", "return x < {n}"),
    ("between", "x", "checks whether x is between {n} and {m}", "return {n} <= x <= {m}"),
    ("is_positive", "x", "checks whether x is positive", "return x > 0"),
    ("negate", "x", "returns the negative of x", "return -x"),
    ("larger", "a, b", "returns the larger of a and b", "return a if a > b else b"),
    ("smaller", "a, b", "returns the smaller of a and b", "return a if a < b else b"),
    ("absolute", "x", "returns the absolute value of x", "return x if x >= 0 else -x"),
    ("largest", "items", "returns the largest item of a list", "return max(items)"),
    ("smallest", "items", "returns the smallest item of a list", "return min(items)"),
    ("total", "items", "returns the sum of a list", "return sum(items)"),
    ("mean", "items", "returns the mean of a list", "return sum(items) / len(items)"),
    ("count", "items", "returns the number of items in a list", "return len(items)"),
    ("first", "items", "returns the first item of a list", "return items[0]"),
    ("last", "items", "returns the last item of a list", "return items[-1]"),
    ("first_{n}", "items", "returns the first {n} items of a list", "return items[:{n}]"),
    ("backwards", "items", "returns a list in reverse order", "return items[::-1]"),
    ("in_order", "items", "returns a sorted copy of a list", "return sorted(items)"),
    ("unique", "items", "returns a list without duplicates", "return list(dict.fromkeys(items))"),
    ("evens", "items", "returns the even numbers of a list", "return [x for x in items if x % 2 == 0]"),
    ("odds", "items", "returns the odd numbers of a list", "return [x for x in items if x % 2 == 1]"),
    ("over_{n}", "items", "returns the numbers of a list greater than {n}", "return [x for x in items if x > {n}]"),
    ("squares", "items", "returns the squares of the numbers in a list", "return [x * x for x in items]"),
    ("add_to_all", "items", "adds {n} to every number in a list", "return [x + {n} for x in items]"),
    ("up_to", "n", "returns the numbers from 1 to n", "return list(range(1, n + 1))"),
    ("reverse_text", "text", "reverses a string", "return text[::-1]"),
    ("shout", "text", "returns a string in uppercase", "return text.upper()"),
    ("whisper", "text", "returns a string in lowercase", "return text.lower()"),
    ("words", "text", "splits a string into words", "return text.split()"),
    ("count_words", "text", "counts the words in a string", "return len(text.split())"),
    ("count_vowels", "text", "counts the vowels in a string", 'return sum(c in "aeiou" for c in text.lower())'),
    ("is_palindrome", "text", "checks whether a string is a palindrome", "return text == text[::-1]"),
    ("starts_with", "text", "checks whether a string starts with {word}", 'return text.startswith("{word}")'),
    ("contains_word", "text", "checks whether a string contains {word}", 'return "{word}" in text'),
    ("greet", "name", "greets a person by name", 'return f"Hello, {name}!"'),
    ("repeat", "text", "repeats a string {n} times", "return text * {n}"),
    ("factorial", "n", "returns the factorial of n",
     "result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result"),
    ("fibonacci", "n", "returns the n-th Fibonacci number",
     "a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"),
    ("gcd", "a, b", "returns the greatest common divisor of a and b", "while b:\n        a, b = b, a % b\n    return a"),
    ("is_prime", "n", "checks whether n is prime",
     "if n < 2:\n        return False\n    return all(n % i for i in range(2, int(n ** 0.5) + 1))"),
    ("clamp", "x", "limits x to the range from {n} to {m}", "return max({n}, min(x, {m}))"),
    ("to_celsius", "f", "converts Fahrenheit to Celsius", "return (f - 32) * 5 / 9"),
    ("to_fahrenheit", "c", "converts Celsius to Fahrenheit", "return c * 9 / 5 + 32"),
    ("countdown", "n", "prints the numbers from n down to 1", "for i in range(n, 0, -1):\n        print(i)"),
    ("print_each", "items", "prints every item of a list", "for item in items:\n        print(item)"),
    ("sum_to", "n", "returns the sum of the numbers from 1 to n", "return n * (n + 1) // 2"),
    ("count_value", "items, value", "counts how often a value is in a list", "return items.count(value)"),
    ("swap", "a, b", "returns b and a", "return b, a"),
    ("get", "table, key", "returns the value of a key or None", "return table.get(key)")]


def fill(text, values):
    for key, value in values.items():
        text = text.replace("{" + key + "}", str(value))
    return text


def python_functions(s):
    def draw():
        n = s.number(2, 99)
        own_name = f"{s.pick(VERBS)}_{s.noun()}" if s.chance(0.35) else None
        return s.number(0, len(FAMILY) - 1), n, n + s.number(1, 99), s.noun(), own_name
    index, n, m, word, own_name = s.value(draw)
    default, arguments, description, body = FAMILY[index]
    values = {"n": n, "m": m, "word": word}
    hidden_constant = "{n}" in description and "{n}" not in default or "{word}" in description
    name, description, body = own_name or fill(default, values), fill(description, values), fill(body, values)
    head = f"def {name}({arguments}):"
    if s.chance(0.6):
        if own_name or s.chance(0.5):
            ask = s.pick(["Write a Python function {} that {}.", "Write a function {} in Python that {}.",
                          "Please write a Python function {} which {}.", "I need a Python function {} that {}."])
        else:
            ask = s.pick(["Write a Python function that {1}.", "Write Python code for a function that {1}."])
        ask = ask.format(name, description)
        working = f"The function takes {arguments} and {description}."
    else:
        if own_name or hidden_constant:
            head = f'{head}\n    """{description[0].upper()}{description[1:]}."""'
        ask = s.pick(["Complete this function:\n{}", "Complete this Python function.\n```python\n{}\n```",
                      "Finish the code:\n```python\n{}\n```"]).format(head)
        working = f"The function {description}."
    code = f"```python\n{head}\n    {body}\n```"
    return Example([user(ask)], working, code, exact(code))
