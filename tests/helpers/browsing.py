"""Pages as a browser makes them: by a parser, and in a real one."""

import json
import re
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
EMPTY = {"meta", "link", "br", "input"}


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


def browse(url: str, profile: Path, *more: str) -> subprocess.CompletedProcess:
    """The browser's run on ``url`` with an empty ``profile``: stdout has the page, stderr what its console says."""
    quiet = ["--disable-quic", "--no-first-run", "--disable-sync", "--disable-background-networking"]
    options = ["--headless", "--no-sandbox", "--disable-gpu", *quiet, "--disable-component-update"]
    command = [str(BROWSER), *options, "--enable-logging=stderr", f"--user-data-dir={profile}", *more]
    return subprocess.run([*command, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=True)


def look(file: Path, width: int, scheme: int, *more: str) -> tuple[dict, list[str], str]:
    """What the page's own look at itself found, what it asked for over the network, what the browser said."""
    profile = Path(tempfile.mkdtemp(prefix="profile-", dir=file.parent))
    log = profile.with_name(f"{profile.name}.json")
    options = [f"--log-net-log={log}", f"--blink-settings=preferredColorScheme={scheme}", f"--window-size={width},900"]
    done = browse(file.as_uri(), profile, *options, *more)
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title, done.stdout[:500]
    return json.loads(title[1]), requests_of_pages(log.read_text()), done.stderr


_LOOK = """<script>
const sizes = [...document.querySelectorAll("svg")].map((svg) => Math.max(0, ...[...svg.querySelectorAll(".mark")].map(
  (mark) => { const box = mark.getBoundingClientRect(); return Math.max(box.width, box.height); })));
document.querySelector(".s.n1")?.dispatchEvent(new PointerEvent("pointerenter"));
const lit = [...document.querySelectorAll("mark.on, .cell.on")].length;
const dark = getComputedStyle(document.body).backgroundColor;
document.title = JSON.stringify({sizes, lit, wide: document.documentElement.scrollWidth - innerWidth, dark});
</script>"""


def look_everywhere(file: Path, text: str) -> dict:
    """What the page ``text`` shows: wide, narrow, light and dark, without errors, requests and empty drawings."""
    file.write_text(text.replace("</body>", f"{_LOOK}</body>"))
    backgrounds, found = set(), dict()
    for width, scheme in ((1280, 1), (1280, 0), (390, 1)):
        found, requests, said = look(file, width, scheme)
        assert "CONSOLE" not in said and not requests, said
        assert all(found["sizes"]) and found["wide"] <= 0
        backgrounds.add(found["dark"])
    assert len(backgrounds) == 2  # light and dark
    return found


def requests_of_pages(log: str) -> list[str]:
    """The URLs that pages asked for: requests of the browser itself (updates, time, accounts) have no origin."""
    return re.findall(r'"initiator":"(?!not an origin)[^\n]*?"url":"([^"]+)"', log)
