"""A real browser that a test drives by the WebDriver protocol: Debian's chromium and chromium-driver."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from helpers.processes import free_port

DRIVER = shutil.which("chromedriver") and shutil.which("chromium")
KEYS = {"Enter": "\ue007", "Space": "\ue00d", "Tab": "\ue004", "Escape": "\ue00c", "Control": "\ue009"}
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name of an element's id
_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")


class Browser:
    """A window of the browser."""

    def __init__(self, address: str):
        self._http = httpx.Client(base_url=address, timeout=60)
        chromium = {"binary": shutil.which("chromium"), "args": list(_OPTIONS)}
        wanted = {"goog:chromeOptions": chromium, "goog:loggingPrefs": {"browser": "ALL"}}
        started = self._http.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
        assert "sessionId" in started, started
        self._session = f"/session/{started['sessionId']}"

    def ask(self, method: str, path: str, **values: Any) -> Any:
        body = {"json": values} if method == "POST" else {}
        value = self._http.request(method, f"{self._session}/{path}", **body).json()["value"]
        assert not (isinstance(value, dict) and "error" in value), value
        return value

    def open(self, url: str, width: int = 1200, dark: bool = False) -> None:
        """Open the page in a window of this width, as a user who prefers a dark or light one."""
        sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **sizes)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("POST", "url", url="about:blank")  # a change of the fragment would not load the page
        self.ask("POST", "url", url=url)

    def command(self, name: str, **values: Any) -> Any:
        """Run a command of the DevTools protocol."""
        return self.ask("POST", "goog/cdp/execute", cmd=name, params=values)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript function's body."""
        return self.ask("POST", "execute/sync", script=script, args=list(arguments))

    def find(self, selector: str) -> str:
        return self.ask("POST", "element", using="css selector", value=selector)[_ELEMENT]

    def click(self, selector: str) -> None:
        self.ask("POST", f"element/{self.find(selector)}/click")

    def write(self, selector: str, text: str) -> None:
        self.ask("POST", f"element/{self.find(selector)}/value", text=text)

    def press(self, *keys: str) -> None:
        """Press keys together on the focused element."""
        codes = [KEYS.get(key, key) for key in keys]
        downs = [{"type": "keyDown", "value": code} for code in codes]
        ups = [{"type": "keyUp", "value": code} for code in reversed(codes)]
        self.ask("POST", "actions", actions=[{"type": "key", "id": "keyboard", "actions": downs + ups}])

    def text(self, selector: str) -> str:
        """The text of the first element as a browser shows it."""
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def wait(self, script: str, seconds: float = 30) -> None:
        """Wait until the expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"return Boolean({script})"):
            assert time.monotonic() < deadline, f"{script}: {self.run('return document.body.innerText')}"
            time.sleep(0.05)

    def console(self) -> list[str]:
        """The messages since the last call: errors of scripts, of the network, and of the page's policy."""
        return [entry["message"] for entry in self.ask("POST", "se/log", type="browser")]

    def clipboard(self) -> str:
        """The text in the clipboard, if the page may read it."""
        script = "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](`${error}`))"
        return self.ask("POST", "execute/async", script=script, args=[])

    def screenshot(self, file: Path) -> None:
        """Write the whole page as a PNG."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def accessible(self) -> list[dict[str, Any]]:
        """The page as a screen reader gets it: nodes with role, name and properties."""
        nodes = self.command("Accessibility.getFullAXTree")["nodes"]
        return [node for node in nodes if not node["ignored"]]

    def close(self) -> None:
        self._http.delete(self._session)
        self._http.close()


@contextmanager
def browsing() -> Iterator[Browser]:
    port = free_port()
    process = subprocess.Popen(["chromedriver", f"--port={port}", "--log-level=SEVERE"], stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                if httpx.get(f"{address}/status", timeout=5).json()["value"]["ready"]:
                    break
            except (httpx.TransportError, json.JSONDecodeError):
                pass
            assert time.monotonic() < deadline, "chromedriver does not start"
            time.sleep(0.1)
        browser = Browser(address)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait(timeout=20)
