#!/usr/bin/env python3
"""Follows every local link of the built site: links.py build/docs/html

Sphinx knows the targets that it has made itself; this looks at what a browser would find, anchors,
pictures and rustdoc's pages included. (Links inside of rustdoc's pages are rustdoc's business.)
"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value:
                self.links.append(value)


def main() -> int:
    root = pathlib.Path(sys.argv[1]).resolve()
    pages: dict[pathlib.Path, Page] = {}

    def page(path: pathlib.Path) -> Page:
        if path not in pages:
            pages[path] = Page(path)
        return pages[path]

    folders = ("rust", "_static")  # of other tools
    own = [p for p in sorted(root.rglob("*.html")) if p.relative_to(root).parts[0] not in folders]
    broken, followed = [], 0
    for path in own:
        for link in page(path).links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            followed += 1
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = urllib.parse.unquote(url.fragment)
            if not target.is_file() or not target.is_relative_to(root):
                broken.append(f"{path.relative_to(root)}: nothing at {link}")
            elif anchor and target.suffix == ".html" and anchor not in page(target).anchors:
                broken.append(f"{path.relative_to(root)}: no such place: {link}")
    for line in sorted(set(broken)):
        print(line)
    print(f"{len(own)} pages, {followed} local links, {len(set(broken))} broken")
    return 1 if broken or not own else 0


if __name__ == "__main__":
    sys.exit(main())
