"""Walks through the page in headless Chromium: every promise, on a desktop and a phone, light and dark.

    python tests/page/walk.py [--browser chromium] [--axe axe.min.js] [--only NAME] [--part K/N]

Answers come from a scripted server with the page's real files and content policy. Ends with the count of checks; a check
that fails is shown with its reason, and a fault that the page reports fails the check it happened in.
"""

import argparse
import sys
import time
import traceback

import chat_checks
import markdown_cases
import page_checks
import pictures
from browser import DESKTOP, PHONE, Tab
from fake import Fake
from playwright.sync_api import sync_playwright


def checks(axe):
    """Every check, as `(name, check, size, scheme)`."""
    def on_markdown(check):
        def prepared(tab, _):
            markdown_cases.prepare(tab.page)
            check(tab.page)
        return prepared

    def on_accessibility(tab, fake):
        return page_checks.axe_finds_nothing(tab, fake, axe)

    made = [(f"markdown {check.__name__}", on_markdown(check), DESKTOP, "light") for check in markdown_cases.CHECKS]
    for kind, size, scheme in (("desktop", DESKTOP, "light"), ("phone", PHONE, "dark")):
        for check in chat_checks.CHECKS + page_checks.CHECKS:
            if check in chat_checks.ONCE and size == PHONE:
                continue
            made.append((f"{kind} {check.__name__}", check, size, scheme))
    for kind, size in (("desktop", DESKTOP), ("phone", PHONE)):
        for scheme in ("light", "dark"):
            made.append((f"{kind} {scheme} axe", on_accessibility, size, scheme))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--browser", default="/usr/bin/chromium", help="the browser's program")
    parser.add_argument("--axe", help="axe.min.js of axe-core, for the accessibility rules")
    parser.add_argument("--only", help="only checks whose name contains this")
    parser.add_argument("--part", default="1/1", help="only the Kth check of every N, as K/N: several of these run at once")
    parser.add_argument("--pictures", help="take the pictures of the documentation into this folder")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    failed = passed = 0

    def attempt(name, check):
        nonlocal failed, passed
        if arguments.only and arguments.only not in name:
            return
        begin = time.monotonic()
        try:
            said = check()
            passed += 1
            print(f"ok     {name} ({time.monotonic() - begin:.1f} s){f': {said}' if isinstance(said, str) else ''}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc(limit=-3)}", flush=True)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=arguments.browser)

        def visit(check, size, scheme):
            """A check on a page of its own, with a server of its own."""
            fake = Fake()
            context = browser.new_context(
                viewport={"width": size[0], "height": size[1]}, color_scheme=scheme,
                has_touch=size == PHONE, is_mobile=size == PHONE,
                permissions=["clipboard-read", "clipboard-write"])
            context.set_default_timeout(20_000)
            try:
                tab = Tab(context, fake.url, size)
                said = check(tab, fake)
                assert tab.faults == [], tab.faults
                return said
            finally:
                context.close()
                fake.close()

        if arguments.pictures:
            pictures.take(visit, arguments.pictures)
            return 0
        for name, check, size, scheme in checks(arguments.axe)[part - 1::parts]:
            attempt(name, lambda check=check, size=size, scheme=scheme: visit(check, size, scheme))
        browser.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
