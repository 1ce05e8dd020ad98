"""`make pictures`: the pictures of the documentation, from real sessions on `plugwright up`.

Terminals as SVG, and the page as Chromium shows it. Needs kubectl.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rich.console import Console
from rich.text import Text

__all__: list[str] = []

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 150
ENDED = "timeout 4 "  # instead of Ctrl-C
CONFIG = """
resources:
  - name: nvidia.com/gpu
    mock: {count: 4, model: H100, memory: 80Gi, numa: 2}
"""
MACHINES = """
resources:
  - name: nvidia.com/gpu
    nvidia: {simulate: hgx-h100}
"""
CHROMIUM = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
READY = "return document.querySelector('.s-unhealthy') && document.querySelector('#live.on')"
PAGES = {"page-fleet.png": "body", "page-node.png": ".topology", "page-device.png": "body"}  # the element that is shown
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - {name: main, image: demo, resources: {limits: {nvidia.com/gpu: COUNT}}}
"""
# Rich's own template without the fonts that it would load from another host.
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
  aria-label="a terminal session">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  white-space: pre;
  line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        session = Session(Path(directory))
        try:
            session.begin()
            session.picture("devices.svg", "who holds which device", ["plugwright devices"])
            session.picture("why.svg", "why a pod waits", ["kubectl get pod eval", "plugwright why eval"])
            session.picture("watch.svg", "the live view", [f"{ENDED}plugwright devices --watch"])
        finally:
            session.run("plugwright down --state lab")
    with tempfile.TemporaryDirectory() as directory:
        session = Session(Path(directory))
        try:
            address = session.begin_machines()
            with tempfile.TemporaryDirectory(prefix="plugwright-chromium-") as profile:
                show_page(session, address, profile)
        finally:
            session.run("plugwright down --state lab")


def show_page(session: "Session", address: str, profile: str) -> None:
    """Screenshots of the page's views."""
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*CHROMIUM, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver: Any = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        driver.get(address)
        base = address.partition("/?")[0]
        failed = next(device for device in session.devices() if device["state"] == "unhealthy")
        device = urlencode({key: failed[key] for key in ("node", "resource", "id")})
        views = ("/", "/node?" + urlencode({"name": failed["node"]}), f"/device?{device}")
        for (name, shown), view in zip(PAGES.items(), views, strict=True):
            driver.set_window_size(1280, 1200)
            driver.get(base + view)
            WebDriverWait(driver, 30, 0.1).until(lambda driver: driver.execute_script(READY))
            driver.find_element("css selector", shown).screenshot(str(PICTURES / name))
    finally:
        driver.quit()


class Session:
    def __init__(self, home: Path) -> None:
        self._home = home
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"KUBECONFIG": f"{home}/lab/kubeconfig", "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "PATH": programs}
        self._environment = {**os.environ, **own, "HOME": str(home)}

    def begin(self) -> None:
        (self._home / "plugwright.yaml").write_text(CONFIG)
        self.run("plugwright up --detach --state lab --nodes 2 -c plugwright.yaml")
        for name, count in (("train-a", 2), ("train-b", 3), ("serve", 1), ("eval", 3)):
            (self._home / "pod.yaml").write_text(POD.replace("NAME", name).replace("COUNT", str(count)))
            self.run("kubectl apply -f pod.yaml")
            if name != "eval":
                self.run(f"kubectl wait --for=condition=PodScheduled pod/{name} --timeout=30s")
        self.run("plugwright mock fail 3 --node node-2 --reason 'Xid 79'")
        self.run("for n in $(seq 60); do plugwright devices | grep -q Xid && break; sleep 0.5; done; sleep 3")

    def begin_machines(self) -> str:
        """Three machines with eight GPUs each, and their page; returns its address."""
        (self._home / "plugwright.yaml").write_text(MACHINES)
        self.run("plugwright up --detach --state lab --nodes 3 -c plugwright.yaml")
        for name, count in (("train-a", 4), ("train-b", 8), ("serve", 2), ("eval", 6), ("sweep", 8)):
            (self._home / "pod.yaml").write_text(POD.replace("NAME", name).replace("COUNT", str(count)))
            self.run("kubectl apply -f pod.yaml")
            if name != "sweep":
                self.run(f"kubectl wait --for=condition=PodScheduled pod/{name} --timeout=30s")
        held = next(device for device in self.devices() if device["holders"])
        self.run(f"plugwright nvidia simulate xid {held['index']} xid=79 --node {held['node']}")
        free = next(device for device in self.devices() if device["state"] == "free")
        named = f"{free['resource']} {free['id']} --node {free['node']}"
        self.run(f"plugwright cordon {named} --reason 'fan to be replaced' --by anna")
        end = time.monotonic() + 60
        while len(json.loads(self.run("plugwright history --all-nodes -o json") or "[]")) < 22:
            if time.monotonic() > end:
                raise TimeoutError("the daemons have not written what happened")
        status = json.loads(self.run("plugwright up status --state lab -o json"))
        return str(status["page"])

    def devices(self) -> list[dict[str, Any]]:
        return list(json.loads(self.run("plugwright devices -o json"))["devices"])

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._home,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def picture(self, name: str, title: str, commands: list[str]) -> None:
        with Path(os.devnull).open("w") as nowhere:
            console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="standard")
            for command in commands:
                console.print(Text(f"$ {command.removeprefix(ENDED)}", style="bold"))
                console.print(Text.from_ansi(self.run(command).rstrip()))
            PICTURES.mkdir(exist_ok=True)
            console.save_svg(str(PICTURES / name), title=title, code_format=SVG, unique_id="p")


if __name__ == "__main__":
    main()
