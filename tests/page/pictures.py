"""Pictures of scripted answers for the documentation: code and a table, a phone, light and dark, thinking."""

from browser import DESKTOP, PHONE

ASKED = "How do I check whether a number is prime, and what does it cost?"
ANSWER = """Try every divisor up to the **square root**. For large numbers use the Miller–Rabin test instead.

```python
def is_prime(n: int) -> bool:
    if n < 2:
        return False
    return all(n % d for d in range(2, int(n ** 0.5) + 1))
```

| method | steps | `n` = 10^12 |
|:-------|:-----:|------------:|
| trial division | √n | 1,000,000 |
| sieve up to n | n log log n | 3.3 · 10^12 |
| Miller–Rabin | k log³ n | 600,000 |

1. Below 10^12, trial division takes a few milliseconds.
2. A sieve pays off only if you need *all* the primes.
"""
THOUGHT = "The user asks for a primality test and its cost. Trial division is simplest; a table can compare the methods. "


def answer(tab, fake):
    fake.say(text="255 = 3 × 5 × 17.")
    tab.send("What is 255 factored?")
    tab.new()
    fake.say(text=ANSWER, thinking=THOUGHT, piece=9, pause=0.04)
    tab.send(ASKED)


def take(visit, folder):
    """Writes every picture; `visit(check, size, scheme)` gives a page."""
    def picture(name, size, scheme, prepare):
        def shoot(tab, fake):
            prepare(tab, fake)
            tab.wait_for_timeout(1200)
            tab.evaluate("document.activeElement.blur()")
            tab.screenshot(path=f"{folder}/{name}.png")
        visit(shoot, size, scheme)

    def thinking(tab, fake):
        fake.say(text="Done.", thinking=THOUGHT * 20, piece=6, pause=0.05)
        tab.send(ASKED, wait=False)
        tab.wait_for_timeout(6000)

    picture("page-answer", DESKTOP, "dark", answer)
    picture("page-phone-light", PHONE, "light", answer)
    picture("page-phone-dark", PHONE, "dark", thinking)
