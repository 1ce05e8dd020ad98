"""`make pictures`: the pictures of the documentation, from a real session on `plugwright up`. Needs kubectl."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

__all__: list[str] = []

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 150
CONFIG = """
resources:
  - name: nvidia.com/gpu
    mock: {count: 4, model: H100, memory: 80Gi, numa: 2}
"""
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
        finally:
            session.run("plugwright down --state lab")


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
                console.print(Text(f"$ {command}", style="bold"))
                console.print(Text.from_ansi(self.run(command).rstrip()))
            PICTURES.mkdir(exist_ok=True)
            console.save_svg(str(PICTURES / name), title=title, code_format=SVG, unique_id="p")


if __name__ == "__main__":
    main()
