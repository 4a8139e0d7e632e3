"""A real browser without a window: Chromium, spoken to over two pipes (DevTools protocol), with nothing between.

``python -m tests.support.browser PAGE PICTURE WIDTH HEIGHT SCALE`` takes a picture of the top of a page.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

_FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--force-color-profile=srgb", "--font-render-hinting=none", "--lang=en-US"),
)


def program() -> str | None:
    """The browser of this machine; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One page of a running browser."""

    def __init__(self, write: int, read: BufferedReader) -> None:
        self._out, self._in = write, read
        self._rest = b""
        self._number = 0
        self._has_loaded = False
        self.said: list[str] = []
        """Console output, errors and network requests of the page."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the page for something; what happens meanwhile is noted."""
        return self._call(method, session=self._session, **parameters)

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Show a file."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self._has_loaded = False
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self._has_loaded:  # asked of the browser: a page may be without JavaScript
            self._result_path(self._next())

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        report = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in report, report
        return report["result"].get("value")

    def picture(self, *, height: float | None = None, scale: float = 1.0) -> bytes:
        """A PNG of the page: all of it, or its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": scale}
        report = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(report["data"])

    def paper(self) -> bytes:
        """A PDF, in the page's own paper size."""
        report = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(report["data"])

    def move(self, x: float, y: float) -> None:
        """Put the pointer somewhere."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        details = {"sessionId": session} if session else {}
        message = json.dumps({"id": self._number, "method": method, "params": parameters, **details}).encode() + b"\0"
        while message:
            message = message[os.write(self._out, message) :]
        while True:
            report = self._next()
            if report.get("id") == self._number:
                assert "error" not in report, (method, report["error"])
                result: dict[str, Any] = report["result"]
                return result
            self._result_path(report)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = self._in.read1(1 << 20)
            assert chunk, "the browser has ended"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        document: dict[str, Any] = json.loads(message)
        return document

    def _result_path(self, told: dict[str, Any]) -> None:
        details = told.get("params", {})
        match told.get("method"):
            case "Page.loadEventFired":
                self._has_loaded = True
            case "Runtime.exceptionThrown":
                self.said.append(f"exception: {details['exceptionDetails']}")
            case "Runtime.consoleAPICalled":
                self.said.append(f"console: {details['args']}")
            case "Log.entryAdded":
                self.said.append(f"log: {details['entry']['text']}")
            case "Network.requestWillBeSent" if not details["request"]["url"].startswith(("file:", "data:")):
                self.said.append(f"request: {details['request']['url']}")


@contextmanager
def browser() -> Iterator[Tab]:
    """A browser with one page, its profile its own. Raises FileNotFoundError where there is none."""
    name = program()
    if name is None:
        raise FileNotFoundError(f"None of {', '.join(NAMES)} is installed.")
    (to_read, write), (read, to_write) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        # The protocol's descriptors are 3 and 4 by agreement.
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        arguments = [*_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        with subprocess.Popen(
            ["bash", "-c", command, name, *arguments],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            os.close(to_read)
            os.close(to_write)
            with os.fdopen(read, "rb") as report:
                try:
                    yield Tab(write, report)
                finally:
                    os.close(write)
                    process.terminate()


def main(page: str, picture: str, width: str, height: str, scale: str) -> None:
    """Take a picture of the top of a page."""
    with browser() as tab:
        tab.open(Path(page), width=int(width))
        Path(picture).write_bytes(tab.picture(height=float(height), scale=float(scale)))


if __name__ == "__main__":
    main(*sys.argv[1:])
