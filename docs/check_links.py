"""Checks that every internal link of the built sites leads to a page and an anchor that exist."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx_settings import OUTPUT


class Page(HTMLParser):
    """The links of a page, and the anchors that links may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        """Note the links and anchors of one tag."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)


def main(sites: list[str]) -> int:
    """Check the sites; print what is broken; return 1 if anything is."""
    pages: dict[Path, Page] = {}
    broken: list[str] = []
    count = 0
    absent: set[str] = set()
    for site in sites:
        for path in sorted((OUTPUT / site).rglob("*.html")):
            if "_static" in path.relative_to(OUTPUT / site).parts:
                continue  # the theme's templates
            page = pages.setdefault(path, Page(path))
            for link in page.links:
                parts = urlsplit(link)
                if parts.scheme or parts.netloc:
                    continue
                count += 1
                target = (
                    (path.parent / unquote(parts.path)).resolve()
                    if parts.path
                    else path
                )
                owner = target.relative_to(OUTPUT).parts[0]
                if not (OUTPUT / owner).is_dir():
                    absent.add(owner)
                elif not target.is_file():
                    broken.append(
                        f"{path.relative_to(OUTPUT)}: {link} leads to no file"
                    )
                elif parts.fragment and target.suffix == ".html":
                    known = pages.setdefault(target, Page(target))
                    if unquote(parts.fragment) not in known.anchors:
                        broken.append(
                            f"{path.relative_to(OUTPUT)}: {link} has no such anchor"
                        )
    for owner in sorted(absent):
        sys.stdout.write(
            f"links to the site {owner} are not checked: it is not built\n"
        )
    sys.stdout.write("".join(f"{line}\n" for line in broken))
    sys.stdout.write(
        f"{count} internal links in {', '.join(sites)}, {len(broken)} broken\n"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
