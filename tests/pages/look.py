"""Open pages in a headless Chromium, and print as JSON what is wrong with each:

    python tests/pages/look.py CHROMIUM [--shots FOLDER] PAGE.html ...

A page is opened at 400 pixels in light colours, and at 1,400 in dark ones. Wrong are messages of the console, requests
to a network, requests that fail, pictures without content, texts outside their picture, code that is wider than its
box, and a page that is wider than its window. With ``--shots`` a
PNG of each is written, to be looked at.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

VIEWS = ((400, "light"), (1400, "dark"))
INSIDE = """() => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width) {
    const wide = [...document.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > width + 1);
    found.push(`wider than ${width}: ` + wide.slice(0, 3).map(one => one.tagName + "." + one.className).join(", "));
  }
  for (const picture of document.querySelectorAll("svg[role=img]")) {
    const box = picture.getBoundingClientRect();
    for (const text of picture.querySelectorAll("text")) {
      const place = text.getBoundingClientRect();
      if (place.left < box.left - 1 || place.right > box.right + 1 || place.top < box.top - 1 ||
          place.bottom > box.bottom + 1)
        found.push(`text outside its picture: ${text.textContent}`);
    }
  }
  for (const code of document.querySelectorAll("pre"))
    if (code.scrollWidth > code.clientWidth + 1)
      found.push(`code wider than its box: ${code.textContent.slice(0, 40)}`);
  for (const one of document.images)
    if (one.complete && one.naturalWidth === 0) found.push(`no picture: ${one.getAttribute("src")}`);
  return found;
}"""


def watched(page: Page) -> list[str]:
    """The list to which the page's messages and requests are added."""
    found: list[str] = []
    page.on("console", lambda one: found.append(f"console: {one.text}") if one.type in ("error", "warning") else None)
    page.on("pageerror", lambda one: found.append(f"error: {one}"))
    page.on("request", lambda one: None if one.url.startswith(("file:", "data:")) else found.append(f"asks {one.url}"))
    page.on("requestfailed", lambda one: found.append(f"failed: {one.url}"))
    return found


def main() -> None:
    """Open every page at every width."""
    parser = argparse.ArgumentParser(description="Open pages in a headless Chromium.")
    parser.add_argument("browser")
    parser.add_argument("--shots", type=Path)
    parser.add_argument("pages", nargs="+", type=Path)
    args = parser.parse_args()
    wrong: dict[str, list[str]] = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=args.browser, args=["--no-sandbox"])
        for width, colours in VIEWS:
            page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=colours).new_page()
            found = watched(page)
            for file in args.pages:
                found.clear()
                page.goto(file.resolve().as_uri())
                wrong.setdefault(str(file), []).extend(
                    f"{width} px, {colours}: {one}" for one in [*found, *page.evaluate(INSIDE)]
                )
                if args.shots:
                    page.screenshot(path=args.shots / f"{file.stem}-{width}-{colours}.png", full_page=True)
        browser.close()
    print(json.dumps(wrong))


if __name__ == "__main__":
    main()
