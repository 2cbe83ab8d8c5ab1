"""What the page promises of a conversation: asked, stopped, failed, changed, kept, and sent as it was."""

from browser import until
from fake import Script

LONG = "\n\n".join(f"Paragraph {number} of an answer that is longer than the window." for number in range(60))
RICH = "# Title\n\nSome **bold** and `code`.\n\n```python\nprint('<b>')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nThe end."


def contents(request):
    return [(message["role"], message["content"]) for message in request["messages"]]


def greets_and_sends_an_example(tab, fake):
    until(lambda: tab.locator(".examples button").count() == 3, message="the model's examples are not shown")
    assert "A scripted model answers." in tab.inner_text(".greeting")
    example = tab.inner_text(".examples button >> nth=1")
    tab.click(".examples button >> nth=1")
    tab.idle()
    assert tab.turns() == [["You", example], ["flashmoe", "An answer."]]
    assert contents(fake.requests[-1]) == [("user", example)]
    assert "tools" not in fake.requests[-1]
    tab.new()
    tab.click(".examples button >> nth=2")
    tab.idle()
    assert fake.requests[-1]["tools"], "the example is about tools"


def renders_markdown_as_it_streams(tab, fake):
    fake.say(text=RICH + "\n\n" + LONG, piece=11, pause=0.004)
    tab.send("rich", wait=False)
    tab.wait_for_selector(".markdown h3")
    tab.evaluate("document.querySelector('.markdown h3').mark = 1")
    tab.idle()
    assert tab.evaluate("document.querySelector('.markdown h3').mark") == 1, "finished blocks are built again"
    assert tab.inner_text(".markdown strong") == "bold"
    assert tab.inner_text(".markdown pre") == "print('<b>')"
    assert tab.inner_text(".code-head span") == "python"
    assert tab.texts(".markdown td") == ["1", "2"]


def copies_code_and_answers(tab, fake):
    fake.say(text=RICH)
    tab.send("rich")
    tab.press(".code", "Copy the code in python")
    assert tab.evaluate("navigator.clipboard.readText()") == "print('<b>')"
    until(lambda: tab.inner_text(".code button") == "Copied")
    tab.press(".answer", "Copy the answer")
    assert tab.evaluate("navigator.clipboard.readText()") == RICH


def takes_no_markup_from_the_model(tab, fake):
    hostile = ("<img src=x onerror=alert(1)><script>window.ran = 1</script> [x](javascript:window.ran=1) "
               "![p](https://example.org/p.png) <style>body { display: none }</style>\n\n<iframe src=//example.org></iframe>")
    fake.say(text=hostile, thinking=hostile, calls=[("get_time<b>", hostile)])
    fake.say(text=hostile)
    tab.send(hostile)
    box = ".session "
    for tag in ("img", "script", "style", "iframe", "object", "form"):
        assert tab.locator(box + tag).count() == 0, tag
    assert tab.evaluate("window.ran") is None
    assert tab.get_attribute(".markdown a", "href") == "https://example.org/p.png"
    assert tab.get_attribute(".markdown a", "rel") == "noopener noreferrer nofollow"


def regenerates(tab, fake):
    tab.send("first")
    fake.say(text="Another answer.")
    tab.press(".answer", "Regenerate")
    tab.idle()
    assert tab.turns() == [["You", "first"], ["flashmoe", "Another answer."]]
    assert contents(fake.requests[-1]) == [("user", "first")]
    fake.say(refusal="the queue is full")
    tab.press(".answer", "Regenerate")
    tab.idle()
    assert tab.turns()[-1] == ["flashmoe", "Another answer."], "a failed attempt takes the answer away"


def edits_a_message(tab, fake):
    tab.send("first")
    tab.send("second")
    tab.locator(".user").first.get_by_role("button", name="Edit").click()
    tab.fill(".bubble textarea", "changed")
    tab.press(".bubble", "Send")
    tab.idle()
    assert tab.turns() == [["You", "changed"], ["flashmoe", "An answer."]]
    assert contents(fake.requests[-1]) == [("user", "changed")]
    tab.press(".user", "Edit")
    tab.press(".bubble", "Cancel")
    assert tab.turns()[0] == ["You", "changed"]


def deletes_and_undoes(tab, fake):
    tab.send("first")
    tab.send("second")
    before = tab.turns()
    tab.locator(".user").first.get_by_role("button", name="Delete").click()
    assert [text for _, text in tab.turns()] == ["second", "An answer."]
    tab.press("#notice", "Undo")
    assert tab.turns() == before
    tab.locator(".user").first.get_by_role("button", name="Delete").click()
    tab.send("third")
    assert [text for _, text in contents(fake.requests[-1])] == ["second", "An answer.", "third"]


def stopping_keeps_the_part(tab, fake):
    for stop in (lambda: tab.click("#stop"), lambda: tab.keyboard.press("Escape")):
        tab.new()
        fake.say(text=LONG, pause=0.02)
        tab.send("first", wait=False)
        tab.wait_for_selector(".markdown p")
        aborted = fake.aborted
        stop()
        tab.idle()
        part = tab.turns()[1][1]
        assert part and part in LONG and "Stopped." in tab.inner_text(".note")
        until(lambda: fake.aborted > aborted, message="the server was not told")
        tab.send("second")
        assert [role for role, _ in contents(fake.requests[-1])] == ["user", "assistant", "user"]
        assert LONG.startswith(contents(fake.requests[-1])[1][1]) and contents(fake.requests[-1])[1][1]


def stopping_before_the_answer_gives_the_message_back(tab, fake):
    fake.say(text="late", pause=5)
    tab.send("first", wait=False)
    tab.click("#stop")
    tab.idle()
    assert tab.input_value("#input") == "first" and tab.turns() == []


def a_failed_message_comes_back(tab, fake):
    tab.send("first")
    fake.say(refusal="the prompt has 12390 tokens, the context 4096")
    tab.send("far too long")
    assert "12390 tokens" in tab.notice() and "back in the box" in tab.notice()
    assert tab.input_value("#input") == "far too long"
    assert [text for _, text in tab.turns()] == ["first", "An answer."]
    tab.send("hello")
    assert [text for _, text in contents(fake.requests[-1])] == ["first", "An answer.", "hello"]
    assert tab.notice() == "", "an old failure is still shown"
    fake.say(refusal="no room", pause=1)
    tab.send("doomed", wait=False)
    tab.fill("#input", "written meanwhile")
    tab.idle()
    assert tab.input_value("#input") == "doomed\n\nwritten meanwhile"
    fake.say(refusal="no room", pause=2)
    tab.click("#send")
    tab.new()
    assert tab.input_value("#input") == ""
    until(lambda: "no room" in tab.notice())
    with tab.chats() as chats:
        chats.locator(".open").last.click()
    tab.idle()
    assert tab.input_value("#input") == "doomed\n\nwritten meanwhile"


def a_broken_answer_is_kept_as_far_as_it_came(tab, fake):
    fake.say(text=LONG, breaks_after=40, piece=10)
    tab.send("first")
    assert tab.turns()[1][1].startswith("Paragraph 0") and "broke" in tab.inner_text(".note")
    tab.press(".answer", "Regenerate")
    tab.idle()
    assert tab.turns() == [["You", "first"], ["flashmoe", "An answer."]]


def follows_only_at_the_end(tab, fake):
    fake.say(text=LONG, piece=12, pause=0.01)
    tab.send("long", wait=False)
    scroller = "document.getElementById('conversation')"
    until(lambda: tab.evaluate(f"{scroller}.scrollTop") > 200, message="it does not follow")
    tab.hover("#conversation")
    tab.mouse.wheel(0, -160)
    tab.wait_for_timeout(300)
    stays = tab.evaluate(f"{scroller}.scrollTop")
    tab.wait_for_timeout(800)
    assert tab.evaluate(f"{scroller}.scrollTop") == stays, "the reader is torn away"
    tab.click("#jump")
    until(lambda: tab.is_hidden("#jump"))
    tab.idle()
    left = tab.evaluate(f"{scroller}.scrollHeight - {scroller}.scrollTop - {scroller}.clientHeight")
    assert left < 2 and tab.is_hidden("#jump"), left
    tab.new()
    tab.send("short")
    with tab.chats() as chats:
        chats.get_by_text("long", exact=True).click()
    until(lambda: tab.evaluate(f"{scroller}.scrollTop") > 200, message="a conversation is not opened at its end")


def follows_when_the_thinking_folds(tab, fake):
    scroller = "document.getElementById('conversation')"
    for number in range(6):
        # Taller than the window while it is thought, shorter after, and text at once.
        fake.say(text="\n\n".join(f"Part {part}." for part in range(12 + number)), thinking="One line.\n" * 60, piece=40)
        tab.send(f"story {number}")
        left = tab.evaluate(f"{scroller}.scrollHeight - {scroller}.scrollTop - {scroller}.clientHeight")
        assert left < 2 and tab.is_hidden("#jump"), f"answer {number} ends {left} px below"
    # The browser moves the page up by itself, and it has grown again before that is said.
    fake.say(text=LONG, piece=12, pause=0.01)
    tab.send("long", wait=False)
    height = "document.querySelector('.turn:last-child .markdown')?.offsetHeight ?? 0"
    until(lambda: tab.evaluate(height) > 300, message="there is no answer")
    tab.evaluate("""() => {
        const view = document.getElementById("conversation");
        const last = document.querySelector(".turn:last-child .markdown");
        last.style.display = "none";
        void view.scrollTop;
        last.style.display = "";
    }""")
    tab.idle()
    left = tab.evaluate(f"{scroller}.scrollHeight - {scroller}.scrollTop - {scroller}.clientHeight")
    assert left < 2 and tab.is_hidden("#jump"), left


def says_what_is_over_in_sentences(tab, fake):
    fake.say(refusal="the prompt has 604 tokens, the context 600")
    tab.send("too long")
    assert "The prompt has 604 tokens, the context 600. The message is back in the box." in tab.notice(), tab.notice()
    fake.say(text="Yes.", thinking="So it is. ")
    tab.send("short")
    figures = tab.inner_text(".figures")
    assert "\u00a0tokens" in figures, figures
    said = tab.inner_text(".thinking summary")
    tab.reload()
    tab.wait_for_selector(".thinking summary")
    assert tab.inner_text(".thinking summary") == said


def shows_thinking_as_it_runs(tab, fake):
    fake.say(text="Done.", thinking="I think about it. " * 40, piece=6, pause=0.015)
    tab.send("think", wait=False)
    tab.wait_for_selector(".thinking summary:visible")
    until(lambda: "Thinking…" in tab.inner_text(".thinking summary"))
    counts = []
    until(lambda: counts.append(tab.inner_text(".thinking summary")) or len(set(counts)) > 2)
    assert tab.evaluate("document.querySelector('.thinking').open"), "thinking is folded while it runs"
    assert "I think" in tab.inner_text(".thinking .plain")
    tab.idle()
    summary = tab.inner_text(".thinking summary")
    assert summary.startswith("Thought for ") and "120 tokens" in summary, summary
    assert tab.evaluate("!document.querySelector('.thinking').open")
    tab.click(".thinking summary")
    assert tab.is_visible(".thinking .plain")
    tab.reload()
    tab.wait_for_selector(".thinking summary")
    assert tab.inner_text(".thinking summary") == summary, "the time is lost by a reload"
    tab.send("second")
    assert fake.requests[-1]["messages"][1]["reasoning_content"] == "I think about it. " * 40


def keeps_several_conversations(tab, fake):
    tab.send("apples")
    tab.new()
    assert tab.is_visible(".greeting")
    tab.send("pears")
    with tab.chats() as chats:
        assert [name for name in chats.locator(".open").all_inner_texts()] == ["pears", "apples"]
        chats.get_by_text("apples", exact=True).click()
    with tab.chats() as chats:
        chats.locator("li", has_text="apples").get_by_role("button", name="Rename").click()
        tab.keyboard.type("fruit")
        tab.keyboard.press("Enter")
        assert chats.locator(".open").all_inner_texts() == ["pears", "fruit"]
        chats.get_by_text("pears", exact=True).click()
    with tab.chats() as chats:
        chats.get_by_text("fruit", exact=True).click()
    assert tab.turns()[0] == ["You", "apples"]
    tab.reload()
    tab.wait_for_selector(".turn")
    assert tab.turns() == [["You", "apples"], ["flashmoe", "An answer."]] and "fruit" in tab.title()
    with tab.chats() as chats:
        chats.locator("li", has_text="fruit").get_by_role("button", name="Delete").click()
        assert chats.locator(".open").all_inner_texts() == ["pears"]
        assert "1 conversation in this browser" in tab.inner_text("#room")
    tab.press("#notice", "Undo")
    assert tab.turns()[0] == ["You", "apples"]


def finds_and_exports_conversations(tab, fake):
    fake.say(text="They grow in `Kent`.", thinking="Apples.")
    tab.send("apples")
    tab.new()
    fake.say(text="", calls=[("get_time", '{"zone": "UTC"}')])
    fake.say(text="Now.")
    tab.options(**{"use-tools": True})
    tab.send("what time is it")
    with tab.chats() as chats:
        def found(words):
            tab.fill("#find", words)
            return chats.locator(".open").all_inner_texts()
        assert found("kent APPLES") == ["apples"], "the words of answers count, in any case and order"
        assert found("") == ["what time is it", "apples"]
        assert found("nowhere") == [] and "No conversation has these words." in chats.inner_text()
        assert "2 conversations in this browser" in tab.inner_text("#room")
        found("")
        def file_of(title):
            with tab.expect_download() as download:
                chats.locator("li", has_text=title).get_by_role("button", name="Export").click()
            return download.value.suggested_filename, download.value.path().read_text()
        name, text = file_of("what time")
        assert name == "what-time-is-it.md", name
        assert text.startswith("# what time is it\n\n## You\n\nwhat time is it\n\n## flashmoe\n\n```\nget_time"), text
        assert "## Result\n\n```\n" in text and text.endswith("## flashmoe\n\nNow.\n"), text
        chats.get_by_text("apples", exact=True).click()
    with tab.chats():
        name, text = file_of("apples")
    assert text == "# apples\n\n## You\n\napples\n\n## flashmoe\n\nThey grow in `Kent`.\n", text


def settings_belong_to_a_conversation(tab, fake):
    tab.options(system="Be brief.", temperature=0.3, top_p=0.9, max_tokens=50, thinking="off")
    tab.send("first")
    request = fake.requests[-1]
    assert contents(request)[0] == ("system", "Be brief.")
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.3, 0.9, 50)
    assert request["chat_template_kwargs"] == {"enable_thinking": False}
    tab.reload()
    tab.wait_for_selector(".turn")
    tab.send("second")
    assert fake.requests[-1]["temperature"] == 0.3, "settings are lost by a reload"
    tab.new()
    tab.send("plain")
    request = fake.requests[-1]
    assert not {"temperature", "top_p", "max_tokens", "chat_template_kwargs", "tools"} & request.keys()
    assert contents(request) == [("user", "plain")]
    tab.options(temperature=7)
    count = len(fake.requests)
    tab.fill("#input", "too hot")
    tab.click("#send")
    assert tab.is_visible("#options") and len(fake.requests) == count and tab.input_value("#input") == "too hot"


def attaches_text_files(tab, fake):
    tab.set_input_files("#files", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": "Köln\n```\n".encode()}])
    tab.wait_for_selector("#attached li")
    for name, content, words in (("big.txt", b"a" * 1_100_000, "has 1.1 MB; at most 1.0 MB"), ("cat.png", b"\x89PNG\0", "is not text"),
                                 ("zero.txt", b"a\0b", "is not text")):
        tab.set_input_files("#files", [{"name": name, "mimeType": "text/plain", "buffer": content}])
        until(lambda: name in tab.notice() and words in tab.notice(), message=f"{name}: {tab.notice()}")
    assert tab.locator("#attached li").count() == 1
    fake.say(refusal="no room")
    tab.send("Summarise.")
    assert tab.locator("#attached li").count() == 1, "a failure loses the file"
    tab.click("#send")
    tab.idle()
    assert contents(fake.requests[-1])[0][1] == 'File "notes.txt":\n````\nKöln\n```\n````\n\nSummarise.'
    assert tab.locator("#attached li").count() == 0
    tab.click(".file summary")
    assert "Köln" in tab.inner_text(".file pre")


def labels_example_tools(tab, fake):
    tab.options(**{"use-tools": True})
    fake.say(text="I look.", calls=[("get_weather", '{"city":"Rome"}'), ("get_time", '{"city":"Rome"}')])
    fake.say(text="It is sunny.")
    tab.send("Weather in Rome?")
    assert tab.texts(".made-up") == ["made-up result"] * 2 and "makes up" in tab.text_content("#options")
    messages = fake.requests[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    calls = messages[1]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"city":"Rome"}'] * 2
    assert [call["id"] for call in calls] == [message["tool_call_id"] for message in messages[2:]]
    before = tab.turns()
    tab.reload()
    tab.wait_for_selector(".call")
    until(lambda: tab.turns() == before)
    assert tab.locator(".made-up").count() == 2


def a_reload_keeps_the_part(tab, fake):
    fake.say(text=LONG, pause=0.02)
    tab.send("first", wait=False)
    tab.wait_for_selector(".markdown p")
    tab.reload()
    tab.wait_for_selector(".answer .markdown p")
    assert "page was closed" in tab.inner_text(".note")
    tab.send("second")
    assert [role for role, _ in contents(fake.requests[-1])] == ["user", "assistant", "user"]


def answers_while_another_conversation_is_open(tab, fake):
    fake.say(text="Slow words. " * 30, pause=0.01)
    tab.send("slow", wait=False)
    tab.wait_for_selector(".markdown p")
    tab.new()
    tab.send("quick")
    assert tab.turns() == [["You", "quick"], ["flashmoe", "An answer."]]
    with tab.chats() as chats:
        chats.locator(".open", has_text="slow").click()
    tab.idle()
    assert tab.turns()[1][1] == ("Slow words. " * 30).strip()


def says_when_an_answer_was_cut(tab, fake):
    fake.say(text="Half a", finish="length")
    tab.send("first")
    assert "cut off" in tab.inner_text(".note")
    fake.say(text="")
    tab.send("second")
    assert "is empty" in tab.inner_text(".note >> nth=1")
    tab.send("third")
    assert [text for _, text in contents(fake.requests[-1])] == ["first", "Half a", "second", "", "third"]


def shows_what_is_waited_for(tab, fake):
    fake.say(Script("Done.", waiting=2, prefill=[(at, 4000) for at in range(500, 4001, 500)], pause=0.1))
    tab.send("long", wait=False)
    until(lambda: "2 requests before" in tab.inner_text(".prefill"))
    until(lambda: "of 4000 tokens (500 reused)" in tab.inner_text(".prefill"))
    assert 0 < tab.evaluate("document.querySelector('progress').value") <= 4000
    tab.idle()
    assert tab.is_hidden(".prefill")
    figures = tab.inner_text(".figures").replace("\u00a0", " ")
    assert "first after 1.2 s" in figures and "9.5 tok/s" in figures


def what_a_full_context_says_leaves_the_buttons_whole(tab, fake):
    tab.evaluate("""() => {
      const gauge = document.getElementById("fullness");
      gauge.hidden = false;
      gauge.textContent = "Context 100 % full: Options can leave out the oldest turns";
    }""")
    cut = tab.evaluate("""() => [...document.querySelectorAll(".controls button")]
      .filter((it) => it.offsetParent && it.scrollWidth > it.clientWidth).map((it) => it.textContent)""")
    assert cut == [], f"too narrow for their words: {cut}"
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than the window"


def storage_that_is_full_is_said(tab, fake):
    tab.evaluate("""localStorage.setItem("flashmoe-chats",
      JSON.stringify([{ id: "other", title: "huge", updated: 1, size: 3_999_990 }]))""")
    tab.send("first")
    assert "too long to be kept" in tab.notice() and "not kept" in tab.notice()
    assert tab.turns()[1] == ["flashmoe", "An answer."], "a full storage stops the conversation"
    tab.evaluate("""() => {
      localStorage.clear();
      for (let size = 4 << 20, key = 0; size >= 1; size >>= 1) {
        try { while (key < 60) localStorage.setItem(`x${key++}`, "x".repeat(size)); } catch {}
      }
    }""")
    tab.press("#notice", "Close")
    tab.reload()
    tab.send("second")
    assert "keeps nothing more" in tab.notice() and tab.turns()[1] == ["flashmoe", "An answer."]
    tab.evaluate("localStorage.clear()")
    tab.send("third")
    assert tab.notice() == "" and len(tab.turns()) == 4
    tab.reload()
    tab.wait_for_selector(".turn")
    assert len(tab.turns()) == 4


def damaged_storage_is_said(tab, fake):
    tab.send("first")
    tab.evaluate("""() => {
      const entries = JSON.parse(localStorage.getItem("flashmoe-chats"));
      entries.push({ id: "bad", title: "damaged", updated: 1, size: 1 });
      localStorage.setItem("flashmoe-chats", JSON.stringify(entries));
      localStorage.setItem("flashmoe-chat-bad", '{"id": "bad", "messages": [null, 3]}');
    }""")
    tab.reload()
    with tab.chats() as chats:
        chats.locator(".open", has_text="damaged").click()
    until(lambda: "damaged" in tab.notice())
    tab.press("#notice", "Delete it")
    with tab.chats() as chats:
        assert chats.locator(".open").all_inner_texts() == ["first"]
    assert tab.turns()[0] == ["You", "first"]


def a_huge_answer_leaves_the_page_responsive(tab, fake):
    words = ("A sentence of a very long answer, with **bold** words.\n\n" * 9000
             + "- item\n" * 20_000 + "\n```\n" + "code " * 60_000)
    assert len(words) > 900_000
    fake.say(text=words, piece=4096)
    tab.evaluate("""() => {
      window.longest = 0;
      let last = performance.now();
      setInterval(() => {
        window.longest = Math.max(window.longest, performance.now() - last);
        last = performance.now();
      }, 20);
    }""")
    tab.send("huge", wait=False)
    tab.wait_for_selector("#send:visible", timeout=180_000)
    expected = words.count("code ")
    until(lambda: tab.evaluate("document.querySelector('.code pre')?.textContent.split('code ').length") == expected + 1, 120)
    assert tab.evaluate("window.longest") < 5000, tab.evaluate("window.longest")
    assert tab.evaluate("document.querySelectorAll('.markdown li').length") == 20_000
    return f"longest pause {tab.evaluate('window.longest'):.0f} ms"


CHECKS = [
    greets_and_sends_an_example, renders_markdown_as_it_streams, copies_code_and_answers, takes_no_markup_from_the_model,
    regenerates, edits_a_message, deletes_and_undoes, stopping_keeps_the_part,
    stopping_before_the_answer_gives_the_message_back, a_failed_message_comes_back,
    a_broken_answer_is_kept_as_far_as_it_came, follows_only_at_the_end, follows_when_the_thinking_folds,
    says_what_is_over_in_sentences, shows_thinking_as_it_runs,
    keeps_several_conversations, finds_and_exports_conversations, settings_belong_to_a_conversation, attaches_text_files, labels_example_tools,
    a_reload_keeps_the_part, answers_while_another_conversation_is_open, says_when_an_answer_was_cut,
    shows_what_is_waited_for, what_a_full_context_says_leaves_the_buttons_whole, storage_that_is_full_is_said, damaged_storage_is_said,
    a_huge_answer_leaves_the_page_responsive,
]
# What does not depend on the window, and takes long.
ONCE = [a_huge_answer_leaves_the_page_responsive]
