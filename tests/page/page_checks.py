"""What the page promises beyond the conversation: sizes, names, keys of the keyboard and of the server, the engine."""

import json
import pathlib

from browser import until
from chat_checks import RICH

# Elements that are touched and are smaller than a finger: inline links, and the content of scrolled boxes, are exempt.
SMALL = """() => [...document.querySelectorAll("button, input:not([type=file]), select, textarea, summary")]
  .filter((node) => node.checkVisibility({ visibilityProperty: true }))
  .map((node) => [node, (node.closest("label.check") ?? node).getBoundingClientRect()])
  .filter(([, box]) => box.width > 0 && (box.height < 43.9 || box.width < 43.9))
  .map(([node, box]) => `${node.id || node.textContent || node.tagName} ${box.width}x${box.height}`)"""


def fits_its_window(tab, fake):
    fake.say(text=RICH + "\n\n" + "| a long heading |" * 12 + "\n" + "|-|" * 12 + "\n\n```\n" + "x" * 300 + "\n```\n",
             thinking="Hm. ")
    tab.set_input_files("#files", [{"name": "a" * 60 + ".txt", "mimeType": "text/plain", "buffer": b"text"}])
    tab.send("w" * 300)
    for _ in range(2):
        width, height = tab.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        assert width <= tab.size[0] and height <= tab.size[1], (width, height)
        for control in ("#input", "#send", "#show-options", "#attach"):
            box = tab.locator(control).bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= tab.size[0], (control, box)
            assert box["y"] + box["height"] <= tab.size[1], (control, box)
        figures = tab.locator(".answer .figures").bounding_box()
        assert figures["height"] < 80 and figures["width"] > 300, f"figures under the answer: {figures}"
        tab.click("#show-options")
    if not tab.is_phone:
        return
    for panel in (None, "#show-options", "#show-chats", "#show-engine"):
        if panel:
            tab.click(panel)
        assert tab.evaluate(SMALL) == [], (panel, tab.evaluate(SMALL))
        if panel in ("#show-chats", "#show-engine"):
            tab.keyboard.press("Escape")
        elif panel:
            tab.click(panel)
    sizes = tab.evaluate("""[...document.querySelectorAll("input, textarea, select")].map(
      (node) => parseFloat(getComputedStyle(node).fontSize))""")
    assert min(sizes) >= 16, sizes


def panels_keep_to_themselves(tab, fake):
    if tab.is_phone:
        for name in ("chats", "engine"):
            assert tab.is_hidden(f"#{name}")
            tab.click(f"#show-{name}")
            assert tab.is_visible(f"#{name}") and tab.evaluate("document.getElementById('form').inert")
            assert tab.evaluate(f"document.getElementById('{name}').contains(document.activeElement)")
            tab.keyboard.press("Escape")
            assert tab.is_hidden(f"#{name}") and not tab.evaluate("document.getElementById('form').inert")
            assert tab.evaluate("document.activeElement.id") == f"show-{name}"
    else:
        for name in ("chats", "engine"):
            assert tab.is_visible(f"#{name}") and tab.get_attribute(f"#show-{name}", "aria-expanded") == "true"
            tab.click(f"#show-{name}")
            assert tab.is_hidden(f"#{name}") and tab.get_attribute(f"#show-{name}", "aria-expanded") == "false"


def everything_has_a_name(tab, fake):
    tab.send("first")
    nameless = tab.evaluate("""() => [...document.querySelectorAll("canvas, button, input, select, textarea")]
      .filter((node) => !(node.ariaLabel || node.textContent.trim() || node.labels?.length || node.id === "files"))
      .map((node) => node.outerHTML)""")
    assert nameless == [], nameless
    assert [who for who, _ in tab.turns()] == ["You", "flashmoe"]
    assert tab.texts(".turn > h2") == ["You", "flashmoe"]


def announces_begin_and_end_only(tab, fake):
    assert tab.locator("#conversation[aria-live], #conversation [aria-live], #conversation [role=log]").count() == 0
    tab.evaluate("""() => {
      window.said = [];
      for (const region of document.querySelectorAll("[role=status], [aria-live]")) {
        new MutationObserver(() => said.push(region.textContent)).observe(region, { childList: true, characterData: true, subtree: true });
      }
    }""")
    fake.say(text="Words and words. " * 30, thinking="Thoughts. " * 30)
    tab.send("first")
    said = [text for text in tab.evaluate("said") if text]
    assert said == ["flashmoe is answering.", "The answer is complete."], said


def axe_finds_nothing(tab, fake, axe):
    """No violation of any rule that axe-core has, best practices included, in every state of the page."""
    if not axe:
        return "skipped: no axe-core"
    script = pathlib.Path(axe).read_text()
    passed = set()

    def look(state):
        tab.evaluate(script)
        result = tab.evaluate("axe.run(document, { resultTypes: ['violations', 'passes'] })")
        found = [(violation["id"], [node["target"] for node in violation["nodes"]][:3]) for violation in result["violations"]]
        assert found == [], f"{state}: {json.dumps(found, indent=1)}"
        passed.update(rule["id"] for rule in result["passes"])

    look("empty")
    fake.say(text=RICH + "\n\n> quote\n\n- [a](https://a.b)\n", thinking="Hm. ")
    tab.set_input_files("#files", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"text"}])
    tab.send("first")
    tab.click(".thinking summary")
    look("an answer")
    tab.options(**{"use-tools": True})
    fake.say(text="I look.", calls=[("get_weather", '{"city":"Rome"}')])
    tab.send("second")
    fake.say(refusal="no room")
    tab.click("#show-options")
    tab.send("third")
    look("tools, a failure, options")
    tab.press(".user", "Edit")
    look("editing")
    if tab.is_phone:
        for panel in ("#show-chats", "#show-engine"):
            tab.click(panel)
            look(panel)
            tab.keyboard.press("Escape")
    fake.down = True
    tab.wait_for_selector("#banner:visible")
    look("the server is gone")
    fake.down = False
    return f"{len(passed)} rules passed, 0 violations"


def the_theme_is_the_systems_or_the_users(tab, fake):
    ground = "getComputedStyle(document.body).backgroundColor"
    system = tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    dark = tab.evaluate(ground) == "rgb(21, 22, 26)"
    assert dark == system
    with tab.chats():
        while tab.inner_text("#theme") != f"Theme: {'light' if dark else 'dark'}":
            tab.click("#theme")
    other = tab.evaluate(ground)
    assert (other == "rgb(21, 22, 26)") != dark
    tab.reload()
    assert tab.evaluate(ground) == other, "the theme is lost by a reload"


def the_heat_map_tells_its_counts(tab, fake):
    if tab.is_phone:
        tab.click("#show-engine")
    tab.wait_for_selector("#heat:visible")
    box = tab.locator("#heat").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 3.5 / 64, box["y"] + box["height"] * 2.5 / 12)
    heat = fake.status()["expert_heat"]
    assert tab.inner_text("#heat-here") == f"layer 2, expert 3: {heat[2][3]} times"
    most = max(map(max, heat))
    assert tab.inner_text("#heat-least") == "0" and tab.inner_text("#heat-most") == f"{most} times"
    assert "most used: layer" in tab.get_attribute("#heat", "aria-label")
    assert "Tokens per second" in tab.get_attribute("#rate", "aria-label")


def the_last_rate_stays(tab, fake):
    until(lambda: tab.text_content("#decode-rate") in ("9.1 tok/s", "9.5 tok/s"), 30)
    until(lambda: tab.text_content("#decode-rate") == "9.5 tok/s (last)", 30)


def says_when_the_server_is_gone(tab, fake):
    tab.wait_for_selector("#heat", state="attached")
    fake.down = True
    tab.wait_for_selector("#banner:visible")
    assert tab.inner_text("#banner-text") == "The server does not answer, trying again."
    assert tab.locator("#engine-view.stale").count() == 1
    tab.send("anyone?")
    assert "does not answer" in tab.notice() and tab.input_value("#input") == "anyone?"
    fake.down = False
    tab.wait_for_selector("#banner", state="hidden")
    assert tab.locator("#engine-view.stale").count() == 0
    tab.click("#send")
    tab.idle()
    assert tab.turns() == [["You", "anyone?"], ["flashmoe", "An answer."]]


def a_rejected_key_says_so(tab, fake):
    fake.key = "right"
    tab.wait_for_selector("#ask-key[open]")
    assert tab.is_hidden("#key-rejected")
    tab.fill("#key", "wrong")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#key-rejected:visible")
    tab.keyboard.press("Escape")
    until(lambda: tab.inner_text("#banner-text") == "This server wants its key.")
    tab.wait_for_timeout(2500)
    assert tab.locator("#ask-key[open]").count() == 0, "polling asks again and again"
    tab.click("#banner-action button")
    tab.fill("#key", "right")
    tab.click("#ask-key .main")
    tab.wait_for_selector("#banner", state="hidden")
    tab.send("first")
    assert tab.turns()[1] == ["flashmoe", "An answer."]


def asks_no_other_server(tab, fake):
    fake.say(text="![p](https://example.org/p.png) https://example.org")
    tab.send("picture")
    foreign = [url for url in tab.asked if not url.startswith((fake.url, "data:"))]
    assert foreign == [], foreign


def another_tab_is_heard(tab, fake):
    tab.send("first")
    other = tab.context.new_page()
    other.goto(fake.url)
    other.wait_for_selector(".turn")
    tab.fill("#input", "not sent yet")
    other.fill("#input", "from the other tab")
    other.click("#send")
    until(lambda: len(tab.turns()) == 4)
    assert tab.input_value("#input") == "not sent yet"
    other.close()


CHECKS = [
    fits_its_window, panels_keep_to_themselves, everything_has_a_name, announces_begin_and_end_only,
    the_theme_is_the_systems_or_the_users, the_heat_map_tells_its_counts, the_last_rate_stays,
    says_when_the_server_is_gone, a_rejected_key_says_so, asks_no_other_server, another_tab_is_heard,
]

