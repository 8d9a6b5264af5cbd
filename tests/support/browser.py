"""A page in headless Chromium, by the DevTools protocol over a pipe: it needs no driver and no port."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_SECONDS = 240
#: The page must not make a request, and the browser must not make its own.
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)


class Page:
    """The page of a tab.

    Attributes:
        requests: addresses of all requests of the page, the document's own first.
        complaints: errors and warnings of the console and of the page.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._commands, self._answers = commands, answers
        self._number, self._session, self._rest = 0, "", b""
        self._events: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._send(f"{domain}.enable")

    def show(self, address: str, *, width: int = 1000, dark: bool = False, paper: bool = False) -> None:
        """Load an address in a window of this width, and wait until it is loaded."""
        self.requests.clear()
        self.complaints.clear()
        self._send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])
        self._events.clear()
        self._send("Page.navigate", url=address)
        while "Page.loadEventFired" not in self._events:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        outcome = self._send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in outcome, outcome
        return outcome["result"].get("value")

    def picture(self, file: Path) -> None:
        """Write the whole page as a PNG."""
        shot = self._send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def print(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self._send("Page.printToPDF", printBackground=True)["data"])

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        command = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])

    def _receive(self) -> Mapping[str, Any]:
        while b"\0" not in self._rest:
            received = os.read(self._answers, 1 << 16)
            assert received, "the browser ended"
            self._rest += received
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, details: Mapping[str, Any]) -> None:
        self._events.append(event)
        if event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(details["args"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])


@contextmanager
def opened() -> Iterator[Page]:
    """A browser with an empty page; the test is skipped where no Chromium is installed."""
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads commands from descriptor 3 and answers on 4; `timeout` ends a browser that hangs.
        shell = f'exec timeout --kill-after=5 {TIMEOUT_SECONDS} "$@" 3<&{command_end} 4>&{answer_end}'
        browser = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *_OPTIONS, f"--user-data-dir={profile}"],
            pass_fds=(command_end, answer_end),
            stderr=subprocess.DEVNULL,
        )
        os.close(command_end)
        os.close(answer_end)
        try:
            yield Page(commands, answers)
        finally:
            os.close(commands)  # which ends the browser
            os.close(answers)
            browser.terminate()
            browser.wait()
