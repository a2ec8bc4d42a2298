"""Pages as a browser makes them: by a parser, and in a real one."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
EMPTY = {"meta", "link", "br"}


class Page(HTMLParser):
    """What a browser would make of a page, as far as tests ask."""

    def __init__(self, page: Path | str):
        super().__init__()
        self.open: list[tuple[str, dict]] = []
        self.tags: list[tuple[str, dict]] = []
        self.marks: list[int] = []  # of each drawing
        self.cells: dict[str, list[list[str]]] = {}  # rows of tables by section
        self.texts: dict[str, str] = {}  # by section
        self.feed(page if isinstance(page, str) else page.read_text())
        self.close()
        assert not self.open, f"not closed: {self.open}"

    @property
    def section(self) -> str:
        return next((own["id"] for tag, own in self.open if tag == "section"), "")

    def handle_starttag(self, tag, attrs):
        own = dict(attrs)
        self.tags.append((tag, own))
        if tag not in EMPTY:
            self.open.append((tag, own))
        if tag == "svg":
            self.marks.append(0)
        elif "mark" in own.get("class", "").split():
            self.marks[-1] += 1
        elif tag == "tr":
            self.cells.setdefault(self.section, []).append([])
        elif tag in ("td", "th"):
            self.cells[self.section][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self.handle_endtag(tag)

    def handle_data(self, data):
        inside = {tag for tag, _ in self.open}
        if inside & {"td", "th"}:
            self.cells[self.section][-1][-1] += data
        if not inside & {"script", "style"}:
            self.texts[self.section] = self.texts.get(self.section, "") + data


def look(file: Path, width: int, scheme: int, *more: str) -> tuple[dict, list[str], str]:
    """What the page's own look at itself found, what was asked for over the network, what the browser said."""
    log = file.with_name("net.json")
    options = ["--no-sandbox", "--headless", "--disable-gpu", "--enable-logging=stderr", f"--log-net-log={log}"]
    options += [f"--user-data-dir={file.with_name('profile')}", f"--blink-settings=preferredColorScheme={scheme}"]
    command = [str(BROWSER), *options, f"--window-size={width},900", *more, "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title, done.stdout[:500]
    return json.loads(title[1]), re.findall(r'"url":"([^"]+)"', log.read_text()), done.stderr
