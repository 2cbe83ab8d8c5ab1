"""The page on the real server with the demo model: what a scripted server cannot show, that the two understand each other.

    python tests/page/real.py BINARY [--browser chromium] [--pictures FOLDER]
"""

import argparse
import pathlib
import re
import subprocess
import sys
import urllib.error
import urllib.request

from browser import DESKTOP, Tab, until
from playwright.sync_api import sync_playwright

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models/demo"
LONG = "The quick brown fox jumps over the lazy dog. "


def files_are_served(url):
    """Types, content policy, and 304 for a version that the browser has."""
    for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"), ("/page.css", "text/css")):
        with urllib.request.urlopen(url + path) as response:
            headers = response.headers
            assert headers["Content-Type"].startswith(kind) and headers["Cache-Control"] == "no-cache", headers
            assert "default-src 'none'" in headers["Content-Security-Policy"]
        known = urllib.request.Request(url + path, headers={"If-None-Match": headers["ETag"]})
        try:
            urllib.request.urlopen(known)
            raise AssertionError(f"{path} is sent again")
        except urllib.error.HTTPError as error:
            assert error.code == 304, error


def talks(tab, pictures):
    tab.send("What is 255 factored?")
    assert "3 × 5 × 17" in tab.turns()[1][1], tab.turns()
    figures = tab.inner_text(".figures").replace("\u00a0", " ")
    assert re.search(r"\d+ tokens · [\d.]+ tok/s · first after .* GB read", figures), figures
    until(lambda: tab.inner_text("#model") == "demo")
    until(lambda: "most used: layer" in tab.inner_text("#heat-text"))
    tab.new()
    tab.options(**{"use-tools": True})
    tab.send("What is the weather in Paris?")
    assert tab.locator(".made-up").count() > 0 and tab.inner_text(".call b") == "get_weather", tab.turns()
    if pictures:
        tab.wait_for_timeout(1500)
        tab.screenshot(path=f"{pictures}/page-chat.png")
    before = tab.turns()
    tab.reload()
    until(lambda: tab.turns() == before)
    tab.send("What is 255 factored?")
    assert len(tab.turns()) > len(before), "a conversation with tools does not go on"


def long_prompts(tab, pictures):
    tab.new()
    tab.send(LONG * 2000)
    assert "context" in tab.notice() and tab.input_value("#input").startswith(LONG), tab.notice()
    tab.fill("#input", "Summarise.")
    tab.set_input_files("#files", [{"name": "report.txt", "mimeType": "text/plain", "buffer": (LONG * 150).encode()}])
    tab.wait_for_selector("#attached li")
    tab.click("#send")
    until(lambda: "Reading the prompt" in tab.text_content(".prefill") and tab.evaluate(
        "document.querySelector('progress').value > document.querySelector('progress').max / 4"), 60)
    if pictures:
        tab.screenshot(path=f"{pictures}/page-prefill.png")
    tab.keyboard.press("Escape")
    tab.idle()
    tab.send("What is 255 factored?")
    assert tab.turns()[-1][1], tab.turns()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--pictures")
    arguments = parser.parse_args()
    command = [arguments.binary, "serve", str(MODEL), "--port", "0", "--served-name", "demo"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        url = next(found[0] for line in server.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        files_are_served(url)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=arguments.browser)
            context = browser.new_context(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
            tab = Tab(context, url, DESKTOP)
            talks(tab, arguments.pictures)
            long_prompts(tab, arguments.pictures)
            assert tab.faults == [], tab.faults
            browser.close()
    finally:
        server.terminate()
        server.communicate()
    print("3 passed, 0 failed")


if __name__ == "__main__":
    sys.exit(main())
