#!/usr/bin/env python3
"""Makes the pictures of docs/images: the status page while examples/digits trains, and with --sweep the charts of `transfer-bench sweep` and `scale`.

    scripts/pictures.py [--build FOLDER] [--images FOLDER] [--steps N] [--sweep]

It runs the demo, whose sidecars serve the page, opens that of node B in a browser without a screen, and ends the demo when it has the pictures.
FOLDER is where the programs are: target/demo, or target/debug. `make pictures` builds them. The browser is one of those that scripts/test-tools.sh
looks for. The sweep wants a quiet machine and takes half an hour.
"""

import argparse
import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BROWSERS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1", "--remote-debugging-pipe"]
# Name, width, height, whether it is a phone, whether it is dark.
PICTURES = [("light", 1280, 900, False, False), ("dark", 1280, 900, False, True), ("phone", 390, 844, True, False)]
# How long the job trains before the pictures are made, in seconds: the curves have something to show then.
TRAINED = 60
# How long anything else may take, in seconds.
WAIT_LIMIT = 300
LARGEST_BYTES = 300_000


class Browser:
    """One page, commanded by the DevTools protocol over two pipes."""

    def __init__(self, folder):
        path = next((path for path in map(shutil.which, BROWSERS) if path), None)
        if path is None:
            sys.exit(f"pictures: a browser is missing, one of {', '.join(BROWSERS)}: scripts/test-tools.sh gets it")
        theirs_in, self.to = os.pipe()
        self.came, theirs_out = os.pipe()
        # It reads from descriptor 3 and writes to 4.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["bash", "-c", shell, "browser", path, *FLAGS, f"--user-data-dir={folder}/profile"]
        self.process = subprocess.Popen(command, pass_fds=[theirs_in, theirs_out], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.heard, self.number, self.session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.heard:
                some = os.read(self.came, 1 << 20)
                if not some:
                    sys.exit(f"pictures: the browser has ended during {method}")
                self.heard += some
            answer, self.heard = self.heard.split(b"\0", 1)
            answer = json.loads(answer)
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"pictures: {method}: {answer['error']}")
                return answer["result"]

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression, alive):
        wait_for(f"the page to say {expression}", lambda: alive() and self.evaluate(expression) is True)

    def picture(self, width, height, phone, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.evaluate("dispatchEvent(new Event('resize'))")
        # The next sample draws the curves at this width.
        time.sleep(3)
        whole = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(whole["data"])


def wait_for(what, look):
    until = time.monotonic() + WAIT_LIMIT
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    sys.exit(f"pictures: waited {WAIT_LIMIT} s in vain for {what}")


def status_page(build, images, folder, steps):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRANSFER_")}
    # Both sidecars are told so. The one that starts last is B's, and its line is the one that stays.
    environment |= {"TMPDIR": folder, "TRANSFER_HTTP_LISTEN": "127.0.0.1:0", "TRANSFER_READY_FILE": "ready"}
    # First in one process, for comparison; then through the sidecars, for longer than it takes to make the pictures.
    command = [build / "digits", "demo", "--transferd", build / "transferd", "--rounds", "1", "--steps", steps]
    with open(f"{folder}/demo.log", "w") as log:
        demo = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def runs():
        if demo.poll() is not None:
            sys.exit(f"pictures: the demo has ended:\n{pathlib.Path(folder, 'demo.log').read_text()}")
        return True

    def page_of_b():
        runs()
        lines = [path.read_text() for path in pathlib.Path(folder).glob("digits-*/ready")]
        words = [line.split() for line in lines if " node=B " in line]
        return next((word.removeprefix("http=") for line in words for word in line if word.startswith("http=")), None)

    try:
        address = wait_for("node B", page_of_b)
        browser = Browser(folder)
        try:
            browser.call("Page.navigate", url=f"http://{address}/")
            browser.until("document.getElementById('state')?.textContent === 'ready'", runs)
            browser.until("document.querySelectorAll('#links-rows tr').length === 1 && document.querySelectorAll('#workers-rows tr').length > 0", runs)
            print(f"pictures: the job trains for {TRAINED} s", flush=True)
            time.sleep(TRAINED)
            runs()
            for name, *look in PICTURES:
                path = images / f"status-page-{name}.png"
                picture = browser.picture(*look)
                if len(picture) > LARGEST_BYTES:
                    sys.exit(f"pictures: {path} would have {len(picture)} bytes, and {LARGEST_BYTES} are the most")
                path.write_bytes(picture)
                print(f"pictures: {path}, {len(picture)} bytes", flush=True)
        finally:
            browser.process.kill()
            browser.process.wait()
    finally:
        demo.send_signal(signal.SIGINT)
        try:
            demo.wait(WAIT_LIMIT)
        except subprocess.TimeoutExpired:
            demo.kill()


def main():
    home = pathlib.Path(__file__).resolve().parent.parent
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", home / "target"))
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--build", type=pathlib.Path, default=target / "demo")
    arguments.add_argument("--images", type=pathlib.Path, default=home / "docs/images")
    arguments.add_argument("--steps", type=int, default=100_000, help="how many the job has; fewer where programs are slow")
    arguments.add_argument("--sweep", action="store_true")
    arguments = arguments.parse_args()
    build = arguments.build.resolve()
    programs = ["digits", "transferd"]
    for program in programs:
        if not (build / program).is_file():
            sys.exit(f"pictures: {build / program} is missing: `make pictures` builds it, or give --build FOLDER")
    with tempfile.TemporaryDirectory(prefix="pictures-", ignore_cleanup_errors=True) as folder:
        status_page(build, arguments.images, folder, str(arguments.steps))
    if arguments.sweep:
        for suite in ["sweep", "scale"]:
            chart = [target / "release/transfer-bench", suite, "--runs", "3", "--svg", arguments.images / f"{suite}.svg"]
            subprocess.run(chart, check=True)


main()
