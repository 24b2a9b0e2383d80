"""A headless Chromium that tests drive over its debugging pipe: no port, no driver, no package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE_S = 60.0
KEY_CODES = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}


class Browser:
    """One process; `page` opens pages. A context manager."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._write_fd = os.pipe()
        self._read_fd, from_browser = os.pipe()
        options = f"--headless --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={profile}"
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" {options} 3<&{to_browser} 4>&{from_browser}', CHROMIUM],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._ids = itertools.count(1)
        self._pages: dict[str, Page] = {}
        self.call("Browser.getVersion")

    def page(self, url: str, width: int = 1280, height: int = 860, scheme: str = "light") -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.call("Page.navigate", url=url)
        page.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        return page

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        message: dict[str, Any] = {"id": next(self._ids), "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            page = self._pages.get(answer.get("sessionId", ""))
            if page is not None and "method" in answer:
                page.note(answer["method"], answer["params"])

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._read_fd, 1 << 16)
            if not piece:
                raise RuntimeError("chromium has ended")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write_fd)  # it ends with its pipe
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read_fd)


class Page:
    """One page.

    Attributes:
        complaints: exceptions, and what the browser has refused or could not load.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise AssertionError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until the expression is true."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.evaluate(f"Boolean({expression})"):
            if time.monotonic() > deadline:
                body = self.evaluate("document.body.innerText.slice(0, 2000)")
                raise AssertionError(f"{expression} did not come true; {self.complaints}; the page says: {body}")
            time.sleep(0.05)

    def leave(self) -> None:
        """Close what it has open with a server."""
        self.call("Page.navigate", url="about:blank")

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, text: str, selector: str | None = None) -> None:
        if selector is not None:
            self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        """A key of the keyboard; modifiers: 1 alt, 2 control, 8 shift."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = KEY_CODES.get(key, ord(key[0].upper()))
        common = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


def start_browser(profile: Path) -> Browser:
    """Skips the test where there is none, or it does not start."""
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    try:
        return Browser(profile)
    except RuntimeError:
        pytest.skip("chromium does not start here")
