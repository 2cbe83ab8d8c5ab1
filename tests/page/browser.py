"""What the checks of the page share: a browser's page on a server, and the short ways to use it."""

import contextlib
import time

DESKTOP, PHONE = (1280, 800), (390, 844)


def until(what, seconds=15, message="it did not happen"):
    """Waits for `what()` to be true; the time is generous, because machines are slow."""
    end = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > end:
            raise AssertionError(message)
        time.sleep(0.05)
    return found


class Tab:
    """A page, with the faults that it reports and the requests that it makes."""

    def __init__(self, context, url, size):
        self.page = context.new_page()
        self.url, self.size = url, size
        self.faults, self.asked = [], []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda message: self.note(message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector(".session", state="attached")

    def note(self, message):
        # Refused and failed requests are logged by the browser itself.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    @property
    def is_phone(self):
        return self.size == PHONE

    def __getattr__(self, name):
        return getattr(self.page, name)

    def send(self, text, wait=True):
        self.page.fill("#input", text)
        self.page.click("#send")
        if wait:
            self.idle()

    def idle(self):
        """Waits for the end of the answer, and for its last words."""
        self.page.wait_for_selector("#send:visible", timeout=60_000)
        self.page.wait_for_timeout(150)

    def texts(self, selector):
        return self.page.locator(selector).all_inner_texts()

    def turns(self):
        """Who said what, as the page shows it."""
        return self.page.evaluate("""() => [...document.querySelectorAll(".turn")].map((turn) => [
          turn.getAttribute("aria-label"),
          (turn.querySelector(".markdown") ?? turn.querySelector(".plain"))?.innerText.trim() ?? ""])""")

    def notice(self):
        """What the notice says. Chromium 156 has a no-break space between a number and its unit, older ones a plain one."""
        return self.page.inner_text("#notice").replace("\N{NO-BREAK SPACE}", " ")

    def press(self, selector, label):
        """The last button of that label within the selector."""
        self.page.locator(selector).get_by_role("button", name=label).last.click()

    @contextlib.contextmanager
    def chats(self):
        """The list of conversations, which lies over the page on a phone."""
        if self.page.is_hidden("#chats"):
            self.page.click("#show-chats")
        yield self.page.locator("#chat-list")
        if self.is_phone and self.page.is_visible("#close-chats"):
            self.page.click("#close-chats")

    def new(self):
        with self.chats():
            self.page.click("#new")

    def options(self, **values):
        """Sets options by their fields' names."""
        self.page.click("#show-options")
        for name, value in values.items():
            field = self.page.locator(f"#{name}")
            if name == "thinking":
                field.select_option(value)
            elif name == "use-tools":
                field.set_checked(value)
            else:
                field.fill(str(value))
                field.blur()
        self.page.click("#show-options")
