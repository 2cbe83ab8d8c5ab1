"""Word pools and the seeded source of values.

Every value that must not leak from training into evaluation is drawn with `Source.value`: a checksum of the value
decides to which of the two sides it belongs, so both sides can be drawn independently and never share one.
About a quarter of all names and places are invented from syllables, which makes the model copy instead of recall.
"""
import random
import zlib

HELD_OUT_ONE_IN = 12

NAMES = """Alice Bob Clara David Emma Felix Grace Henry Iris Jack Kira Leo Mia Noah Olivia Paul Quinn Rosa Sam Tara Uma Victor
Wendy Xavier Yara Zoe Anna Ben Carlos Diana Eric Fiona George Hana Ivan Julia Karim Laura Max Nina Oscar Petra Ravi Sofia Tom
Ursula Vera Will Yuki Zara Amir Bella Chen Dora Elif Frank Greta Hugo Ines Jonas Kofi Lena Marco Nadia Omar Priya Rita Sven
Tina Viktor Wanda Aisha Boris Cleo Dmitri Esther Farid Gina Hassan Ingrid Jamal Kate Luis Mona Nils Olga Pedro Ruth Stefan
Theo Lucy Mark Sarah John Maria Peter Linda James Susan""".split()
CITIES = """Tokyo Paris Berlin Madrid Rome London Oslo Vienna Lisbon Dublin Cairo Delhi Lima Quito Bogota Toronto Boston Chicago
Seattle Denver Austin Miami Sydney Melbourne Auckland Nairobi Lagos Accra Tunis Rabat Athens Sofia Warsaw Prague Budapest
Zurich Geneva Munich Hamburg Milan Naples Venice Porto Seville Valencia Lyon Nice Brussels Amsterdam Copenhagen Stockholm
Helsinki Tallinn Riga Vilnius Kyiv Istanbul Ankara Tehran Baghdad Doha Dubai Mumbai Bangkok Hanoi Manila Jakarta Seoul
Osaka Kyoto Beijing Shanghai Taipei Havana Santiago Montreal Vancouver Reykjavik""".split() + [
    "New York", "San Francisco", "Mexico City", "Cape Town", "Buenos Aires", "Hong Kong", "Los Angeles", "Kuala Lumpur"]
FRUIT = """apple banana cherry grape lemon mango melon orange papaya peach pear plum strawberry blueberry raspberry kiwi fig date
lime apricot coconut pineapple""".split()
ANIMALS = """cat dog fox rabbit owl bear mouse horse duck frog turtle wolf sheep goat hen lion tiger zebra otter badger squirrel
hedgehog penguin elephant monkey parrot""".split()
THINGS = """book chair table lamp pencil cup spoon window door bottle candle basket hammer ladder mirror blanket button clock coin
drum feather guitar hat jacket kettle lantern map needle paper ribbon rope shoe stone ticket umbrella violin wallet key box
bell""".split()
COLOURS = "red blue green yellow purple orange pink brown black white grey silver gold violet".split()
JOBS = """teacher nurse baker farmer pilot painter doctor engineer lawyer gardener librarian plumber singer chemist driver
carpenter""".split()
ADJECTIVES = "big small old new bright dark quiet loud soft heavy warm cold round tall shiny tiny".split()
VERBS = "jump walk read write sing dance swim climb build paint cook sleep laugh listen travel rest".split()
COUNTRIES = {
    "France": "Paris", "Japan": "Tokyo", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome", "Norway": "Oslo",
    "Austria": "Vienna", "Portugal": "Lisbon", "Ireland": "Dublin", "Egypt": "Cairo", "Peru": "Lima", "Cuba": "Havana",
    "Greece": "Athens", "Poland": "Warsaw", "Hungary": "Budapest", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Estonia": "Tallinn", "Latvia": "Riga", "Turkey": "Ankara", "Iran": "Tehran",
    "Thailand": "Bangkok", "Vietnam": "Hanoi", "Kenya": "Nairobi", "Ghana": "Accra", "Chile": "Santiago",
    "Belgium": "Brussels", "Bulgaria": "Sofia", "Iceland": "Reykjavik", "England": "London", "China": "Beijing"}
_ONSETS = "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr kr pl sh sk st th tr".split()
_VOWELS = "a e i o u ai ea ee io oo ou".split()
_CODAS = ["", "", "", "l", "m", "n", "r", "s", "t", "k", "x", "nd", "rt", "sh", "ck"]


class Source:
    """Seeded draws for one side of the split."""

    def __init__(self, seed, held_out=False):
        self.random = random.Random(seed)
        self.held_out = held_out

    def value(self, make):
        """Draws with `make` until the value belongs to this side."""
        while True:
            value = make()
            if (zlib.crc32(repr(value).encode()) % HELD_OUT_ONE_IN == 0) == self.held_out:
                return value

    def chance(self, p):
        return self.random.random() < p

    def pick(self, options):
        return self.random.choice(options)

    def sample(self, options, n):
        return self.random.sample(options, n)

    def number(self, low, high):
        return self.random.randint(low, high)

    def digits(self, n):
        """An n-digit number without a leading zero."""
        return self.random.randint(10 ** (n - 1) if n > 1 else 0, 10 ** n - 1)

    def invented(self, syllables=None):
        parts = [self.pick(_ONSETS) + self.pick(_VOWELS) + self.pick(_CODAS)
                 for _ in range(syllables or self.number(1, 3))]
        return "".join(parts)

    def name(self):
        return self.pick(NAMES) if self.chance(0.7) else self.invented(self.number(2, 3)).capitalize()

    def city(self):
        return self.pick(CITIES) if self.chance(0.7) else self.invented(self.number(2, 3)).capitalize()

    def noun(self):
        kind = self.random.random()
        return self.invented(2) if kind < 0.2 else self.pick(self.pick([FRUIT, ANIMALS, THINGS]))

    def nouns(self, n):
        chosen = []
        while len(chosen) < n:
            word = self.noun()
            if word not in chosen:
                chosen.append(word)
        return chosen

    def code(self):
        letters = "".join(self.random.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=2))
        return f"{letters}-{self.number(10, 999)}" if self.chance(0.6) else str(self.digits(4))
