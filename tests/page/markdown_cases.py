"""Markdown as the page shows it: what becomes which nodes, that pieces make no difference, and that hostile text is text.

Everything runs in the page itself, on the modules that the server sends.
"""

import random

# Source, and the nodes it becomes. Attributes other than href, start and class are left out; code is shown in short.
CASES = [
    ("plain", "<p>plain</p>"),
    ("one\ntwo", "<p>one<br>two</p>"),
    ("one\n\ntwo", "<p>one</p><p>two</p>"),
    ("*a* **b** ***c*** ~~d~~ _e_ __f__", "<p><em>a</em> <strong>b</strong> <strong><em>c</em></strong> <del>d</del> "
     "<em>e</em> <strong>f</strong></p>"),
    ("snake_case_name 2 * 3 * 4 **open", "<p>snake_case_name 2 * 3 * 4 **open</p>"),
    ("**a *b** c*", "<p>**a <em>b</em>* c*</p>"),
    ("`a*b*` ``c`d`` `open", "<p><code>a*b*</code> <code>c`d</code> `open</p>"),
    (r"\*a\* \`b\` \<i\>", "<p>*a* `b` &lt;i&gt;</p>"),
    ("<b>bold</b> <script>alert(1)</script>", "<p>&lt;b&gt;bold&lt;/b&gt; &lt;script&gt;alert(1)&lt;/script&gt;</p>"),
    ("a<br>b &amp; c", "<p>a<br>b &amp;amp; c</p>"),
    ("[t](https://a.b/c_(d)) [u](<http://a.b/> 'title')", '<p><a href="https://a.b/c_(d)">t</a> <a href="http://a.b/">u</a></p>'),
    ("[**t** `x`](https://a.b)", '<p><a href="https://a.b/"><strong>t</strong> <code>x</code></a></p>'),
    ("see https://a.b/c. (https://d.e)", '<p>see <a href="https://a.b/c">https://a.b/c</a>. '
     '(<a href="https://d.e/">https://d.e</a>)</p>'),
    ("**https://a.b/**", '<p><strong><a href="https://a.b/">https://a.b/</a></strong></p>'),
    ("[x](javascript:alert(1)) [y](data:text/html,z) [z](/local)",
     "<p>[x](javascript:alert(1)) [y](data:text/html,z) [z](/local)</p>"),
    ("[x](JaVaScRiPt:alert(1)) <javascript:alert(1)> [y](vbscript:z)",
     "<p>[x](JaVaScRiPt:alert(1)) &lt;javascript:alert(1)&gt; [y](vbscript:z)</p>"),
    ("![a cat](https://a.b/cat.png)", '<p><a href="https://a.b/cat.png">a cat</a></p>'),
    ("[![badge](https://a.b/x)](https://c.d)", '<p><a href="https://c.d/">badge</a></p>'),
    ("a[0] and [b] and [c", "<p>a[0] and [b] and [c</p>"),
    (r"$x_1 * y_1$ costs $5 and $6 \(a_b\) \[c\]", '<p><span class="formula">$x_1 * y_1$</span> costs $5 and $6 '
     r'<span class="formula">\(a_b\)</span> <span class="formula">\[c\]</span></p>'),
    ("# One\n### Three ###\n#hash", '<h3 class="level1">One</h3><h4 class="level3">Three</h4><p>#hash</p>'),
    ("a\n---\nb\n* * *", "<p>a</p><hr><p>b</p><hr>"),
    ("- a\n- b\n  more\n- c", "<ul><li><p>a</p></li><li><p>b<br>more</p></li><li><p>c</p></li></ul>"),
    ("- a\n  - b\n    - c\n- d", "<ul><li><p>a</p><ul><li><p>b</p><ul><li><p>c</p></li></ul></li></ul></li>"
     "<li><p>d</p></li></ul>"),
    ("3. a\n4. b", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'),
    ("1. a\n\n   b\n2. c", '<ol class="loose"><li><p>a</p><p>b</p></li><li><p>c</p></li></ol>'),
    ("1. a\n   ```sh\n   ls\n     -l\n   ```\n2. b", "<ol><li><p>a</p><CODE sh>ls\n  -l</CODE></li><li><p>b</p></li></ol>"),
    ("- [ ] a\n- [x] b", "<ul><li><p>☐ a</p></li><li><p>☑ b</p></li></ul>"),
    ("It was in\n1984. Then\n- x", "<p>It was in<br>1984. Then</p><ul><li><p>x</p></li></ul>"),
    ("> a\nlazy\n> > b", "<blockquote><p>a<br>lazy</p><blockquote><p>b</p></blockquote></blockquote>"),
    ("```python\nx = '<b>'\n\n\ty\n```\nafter", "<CODE python>x = '&lt;b&gt;'\n\n\ty</CODE><p>after</p>"),
    ("````\n```\n````\n~~~\nopen", "<CODE text>```</CODE><CODE text>open</CODE>"),
    ("| a | b |\n|:-:|--:|\n| 1 | `x\\|y` |\n| 2\n\nend", '<table><thead><tr><th class="center">a</th><th class="right">b'
     '</th></tr></thead><tbody><tr><td class="center">1</td><td class="right"><code>x|y</code></td></tr><tr>'
     '<td class="center">2</td></tr></tbody></table><p>end</p>'),
    ("a | b\n--|--\n1 | 2 | 3", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2 | 3</td>"
     "</tr></tbody></table>"),
    ("not | a table\nno", "<p>not | a table<br>no</p>"),
    ("a\r\nb\r\n", "<p>a<br>b</p>"),
]

# Puts helpers into the page: `shape`, a short form of what was rendered, and `streamed`, in pieces with views between.
HELPERS = """async () => {
  const { Markdown, render } = await import("/markdown.js");
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const shape = (node) => {
    if (node.nodeType === 3) return escape(node.data);
    const inside = [...node.childNodes].map(shape).join("");
    if (node.className === "code") {
      const pieces = [...node.querySelectorAll("code > span")].map((span) => span.textContent).join("\\n");
      return `<CODE ${node.querySelector(".code-head span").textContent}>${escape(pieces)}</CODE>`;
    }
    if (node.className === "table") return inside;
    const tag = node.tagName.toLowerCase();
    const kept = ["href", "start", "class"].filter((name) => node.hasAttribute(name));
    const attributes = kept.map((name) => ` ${name}="${node.getAttribute(name)}"`).join("");
    return ["br", "hr"].includes(tag) ? `<${tag}>` : `<${tag}${attributes}>${inside}</${tag}>`;
  };
  const shapes = (box) => [...box.childNodes].map(shape).join("");
  window.whole = (text) => {
    const box = document.createElement("div");
    render(box, text);
    return box;
  };
  window.shapeOf = (text) => shapes(whole(text));
  window.streamed = (text, cuts) => {
    const box = document.createElement("div");
    const markdown = new Markdown(box);
    let from = 0;
    for (const cut of [...cuts, text.length]) {
      markdown.push(text.slice(from, cut));
      markdown.show();
      from = cut;
    }
    markdown.finish();
    return shapes(box);
  };
  window.strange = (box) => {
    const tags = new Set(("A P BR HR EM STRONG DEL CODE PRE SPAN DIV BUTTON UL OL LI BLOCKQUOTE TABLE THEAD TBODY TR TH TD "
      + "H3 H4 H5 H6").split(" "));
    const names = new Set("class href rel target start tabindex role aria-label type scope".split(" "));
    for (const node of box.querySelectorAll("*")) {
      if (!tags.has(node.tagName)) return node.tagName;
      for (const { name } of node.attributes) if (!names.has(name)) return `${node.tagName} ${name}`;
      if (node.tagName === "A" && !/^https?:$/.test(new URL(node.getAttribute("href")).protocol)) return node.outerHTML;
    }
    return null;
  };
}"""

# Text that costs a careless renderer the square of its length or more.
HOSTILE = {
    "open brackets": "[", "images": "![", "brackets with addresses": "[a](", "closed brackets": "]", "nested links": "[](",
    "stars": "*", "stars and letters": "*a", "double stars": "**a ", "mixed signs": "*_~~a", "underscores": "_a ",
    "backticks": "`", "growing backticks": None, "fences": "```\n", "tildes": "~", "quotes": ">", "quotes and blanks": "> ",
    "lines of quotes": "> > > > > > > > > > a\n", "nested items": "- ", "lists": "- a\n", "deep lists": None,
    "numbers": "1. ", "hashes": "#", "headings": "# ", "headings in lines": "# a #\n", "pipes": "|", "rules": "- - -\n",
    "wide tables": None, "tables": None, "blanks": " ", "lines": "\n", "tabs": "\t", "escapes": "\\", "formulas": "\\(",
    "dollars": "$a", "less than": "<", "addresses": "<https://", "schemes": "https://", "parentheses": "https://a.b/)",
    "titles": "](a \"", "angled": "](<", "breaks": "<br>", "letters": "a", "lone surrogates": "\ud800",
}


def hostile(name, size):
    if name == "growing backticks":
        text, length = [], 0
        while sum(map(len, text[-1:])) + length < size:
            text.append("`" * (len(text) + 1) + " ")
            length += len(text[-1])
        return "".join(text)
    if name == "deep lists":
        return "".join(" " * (2 * (depth % 400)) + "- a\n" for depth in range(size // 400))
    if name == "wide tables":
        return "|a" * 4000 + "|\n" + "|-" * 4000 + "|\n" + "|\n" * ((size - 16000) // 2)
    if name == "tables":
        return "|a|\n|-|\n\n" * (size // 9)
    return (HOSTILE[name] * (size // len(HOSTILE[name]) + 1))[:size]


def prepare(page):
    page.evaluate(HELPERS)


def check_cases(page):
    """Every case gives its nodes, whole and in every pair of pieces."""
    for source, expected in CASES:
        shown = page.evaluate("(text) => shapeOf(text)", source)
        assert shown == expected, f"{source!r}\n  shown    {shown}\n  expected {expected}"
        pieces = page.evaluate(
            "(text) => [...Array(text.length + 1).keys()].map((cut) => streamed(text, [cut]))"
            ".concat([streamed(text, [...text].map((_, at) => at))])", source)
        assert set(pieces) == {expected}, (source, set(pieces))


def check_fuzz(page, seed=1, rounds=3000):
    """Random text of signs that mean something: no strange nodes, and no difference between whole and pieces."""
    draw = random.Random(seed)
    parts = ["*", "**", "_", "`", "```", "~~", "[", "]", "](", "](https://a.b)", ")", "(", "!", "<", ">", "> ", "#", "# ",
             "- ", "1. ", "|", "|-|", "\n", "\n\n", "\n  ", "\n    ", "\t", " ", "a", "b c", "https://x.y", "javascript:z",
             "\\", "$", "\\(", "\\)", "é", "𝒳", "-", "---", "<script>", "<img src=x onerror=y>", "\r\n", "[ ] ", ":-:|", "\0"]
    texts = ["".join(draw.choice(parts) for _ in range(draw.randrange(1, 40))) for _ in range(rounds)]
    wrong = page.evaluate("""(texts) => {
      let random = 1;
      const draw = (below) => { random = (random * 48271) % 2147483647; return random % below; };
      for (const text of texts) {
        const odd = strange(whole(text));
        if (odd) return [text, odd];
        const cuts = [draw(text.length + 1), draw(text.length + 1), draw(text.length + 1)].sort((a, b) => a - b);
        const [one, other] = [shapeOf(text), streamed(text, cuts)];
        if (one !== other) return [text, cuts, one, other];
      }
      return null;
    }""", texts)
    assert wrong is None, wrong


def check_hostile(page, size=300_000, most_ms=20_000):
    """The bound is far above what a slow machine needs for linear cost (a second at most), and far below what quadratic
    cost takes (10^11 steps)."""
    took = {}
    for name in HOSTILE:
        text = hostile(name, size)
        ms, odd = page.evaluate("""(text) => {
          const begin = performance.now();
          const box = whole(text);
          return [performance.now() - begin, strange(box)];
        }""", text)
        assert odd is None, (name, odd)
        assert ms < most_ms, f"{name}: {ms:.0f} ms"
        took[name] = ms
    return took


def check_no_text_lost(page):
    """What is no sign of Markdown is on the page, whatever cuts a long line and a long block."""
    draw = random.Random(2)
    words = [f"w{draw.randrange(10**6)}" for _ in range(30_000)]
    for text in (" ".join(words), "\n".join(words), "- " + "\n- ".join(words), "> " + "\n> ".join(words),
                 "```\n" + "\n".join(words), "```\n" + " ".join(words), "|a|\n|-|\n|" + "|\n|".join(words) + "|"):
        shown = page.evaluate("(text) => whole(text).textContent", text)
        found = [word for word in shown.replace("w", " w").split() if word.startswith("w")]
        assert found == words, (text[:20], len(found))
    # Blocks end by themselves, so that what is built again while it grows is never long.
    longest = page.evaluate("(text) => Math.max(...[...whole(text).children].map((block) => block.textContent.length))",
                            "word " * 40_000)
    assert longest < 30_000, longest
    emoji = "😀" * 30_000
    assert page.evaluate("(text) => whole(text).textContent", emoji) == emoji


CHECKS = [check_cases, check_fuzz, check_no_text_lost, check_hostile]
