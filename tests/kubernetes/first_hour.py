"""`make first-hour`: the first hour of a new user, played from a bare clone on a terminal of 80 columns.

The commands are those of the pages. It fails on a command that fails, on a traceback, and on a line of ours that is
wider than the terminal. kubectl and helm are built from source and kept (`tests.kubernetes.building`).
"""

import fcntl
import os
import pty
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.kubernetes import building

__all__ = ["main"]

_REPOSITORY = Path(__file__).parents[2]
_COLUMNS, _ROWS = 80, 40
_LIMIT = 300.0  # seconds of a command, on a busy machine
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")
_OURS = ("make", ".venv/bin/plugwright")
# Commands to paste, with their paths, cannot be wrapped.
_PASTED = re.compile(r"--[a-z-]+[ =][/']|kubeconfig /|plugwright (down|dev|run|status) |pip wheel ")
_CHART = "deploy/helm/plugwright"
_POD = '{"spec":{"containers":[{"name":"two","image":"demo","resources":{"limits":{"mock/gpu":"2"}}}]}}'


class FirstHourFailed(Exception):
    """Something that a new user would stumble over."""


class Terminal:
    """Runs commands on a pseudo-terminal, in one directory, and judges what they print."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory, self.environment = directory, dict(environment)
        self.seconds: dict[str, float] = {}

    def run(self, line: str) -> str:
        """What the command prints; it must end with 0."""
        began = time.monotonic()
        with self._started(line) as (process, output):
            while process.poll() is None:
                if time.monotonic() > began + _LIMIT:
                    raise FirstHourFailed(f"{line}: no end after {_LIMIT:.0f} s")
                output.read()
            output.read()
        self.seconds[line] = time.monotonic() - began
        print(f"{self.seconds[line]:6.1f} s  {line}", flush=True)
        if process.returncode:
            raise FirstHourFailed(f"{line}: exit code {process.returncode}\n{output.text}")
        return self._judged(line, output.text)

    @contextmanager
    def running(self, line: str) -> Iterator[Callable[[str], None]]:
        """A command that runs until Ctrl-C; yields a function that waits for a text after the last one."""
        with self._started(line) as (process, output):
            seen = 0

            def wait_for(text: str) -> None:
                nonlocal seen
                end = time.monotonic() + _LIMIT
                while (found := output.text.find(text, seen)) < 0:
                    if time.monotonic() > end or process.poll() is not None:
                        raise FirstHourFailed(f"{line}: {text!r} was not printed\n{output.text}")
                    output.read()
                seen = found + len(text)

            yield wait_for
            process.send_signal(signal.SIGINT)
            process.wait(_LIMIT)
            output.read()
        print(f"          {line}", flush=True)
        self._judged(line, output.text)

    @contextmanager
    def _started(self, line: str) -> "Iterator[tuple[subprocess.Popen[bytes], _Output]]":
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        words = shlex.split(line)
        process = subprocess.Popen(
            words, cwd=self.directory, env=self.environment, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        try:
            yield process, _Output(ours)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            os.close(ours)

    def _judged(self, line: str, text: str) -> str:
        if "Traceback (most recent call last)" in text:
            raise FirstHourFailed(f"{line}: a traceback\n{text}")
        wide = [one for one in text.splitlines() if len(one) > _COLUMNS and not _PASTED.search(one)]
        if line.startswith(_OURS) and wide:
            raise FirstHourFailed(f"{line}: wider than {_COLUMNS} columns:\n" + "\n".join(wide))
        return text


class _Output:
    def __init__(self, descriptor: int) -> None:
        self._descriptor, self.text = descriptor, ""
        os.set_blocking(descriptor, False)

    def read(self) -> None:
        """What has been printed since, after waiting for a moment if nothing has."""
        try:
            data = os.read(self._descriptor, 2**16)
        except BlockingIOError:
            time.sleep(0.02)
            return
        except OSError:  # the last process has closed the terminal
            time.sleep(0.02)
            return
        self.text += _ESCAPE.sub("", data.decode(errors="replace")).replace("\r\n", "\n")


def main() -> None:
    # Children inherit an ignored SIGINT, which the jobs of a script have; then Ctrl-C would end no command here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    all_programs, alone = (make(building.DEFAULT_VERSION) for make in (building.kubernetes, building.kubectl))
    programs = building.build(alone if building.missing(all_programs) else all_programs), building.build(building.HELM)
    with tempfile.TemporaryDirectory(prefix="first-hour-") as empty:
        home, clone = Path(empty, "home"), Path(empty, "plugwright")
        home.mkdir()
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        kept = {name: text for name, text in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_", "XDG_"))}
        environment = {**kept, "PATH": path, "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        caches = {"UV_CACHE_DIR": str(Path.home() / ".cache/uv"), "PIP_CACHE_DIR": str(Path.home() / ".cache/pip")}
        shell = Terminal(Path(empty), {**caches, **environment})
        shell.run(f"git clone --quiet file://{_REPOSITORY} {clone}")
        shell.directory = clone
        shell.run("make demo")
        try:
            _cluster(shell)
            _own_plugin(shell)
            _project(shell)
            _charts(shell)
        finally:
            subprocess.run(
                [clone / ".venv/bin/plugwright", "down", "--state", "lab"], cwd=clone, check=False, capture_output=True
            )


def _cluster(shell: Terminal) -> None:
    """kubectl on `up`, as docs/cluster.md has it."""
    shell.run(".venv/bin/plugwright up --run --nodes 2 --detach --state lab --plugin-grace 5s")
    shell.environment["KUBECONFIG"] = str(shell.directory / "lab/kubeconfig")
    shell.run(f"kubectl run two --image=demo --overrides={shlex.quote(_POD)} -- sh -c 'env | grep MOCK; sleep 600'")
    shell.run("kubectl create deployment web --image=demo --replicas=3 -- sh -c 'echo hello; sleep 600'")
    shell.run("kubectl rollout status deployment/web --timeout=60s")
    shell.run("kubectl scale deployment/web --replicas=1")
    _expect(shell.run("kubectl logs deployment/web"), "hello")
    _expect(shell.run("kubectl exec -it deployment/web -- sh -c 'echo inside $HOSTNAME'"), "inside web-")
    once = "kubectl run once -it --rm --restart=Never --image=demo --command --"
    _expect(shell.run(f"{once} sh -c 'sleep 2; tty; echo done'"), "done")
    debug = "kubectl debug node/node-2 -it --profile=general --image=demo --"
    _expect(shell.run(f"{debug} sh -c 'sleep 2; ls /host; echo looked'"), "looked")
    _forwarded(shell)
    shell.run("kubectl create job sum --image=demo -- sh -c 'echo $((6 * 7))'")
    shell.run("kubectl wait --for=condition=complete job/sum --timeout=60s")
    _expect(shell.run("kubectl logs job/sum"), "42")
    _expect(shell.run("kubectl describe node node-1"), "mock/gpu")
    shell.run("kubectl drain node-1 --force --grace-period=1 --timeout=60s")
    shell.run("kubectl uncordon node-1")
    shell.run(".venv/bin/plugwright up status --state lab")


def _forwarded(shell: Terminal) -> None:
    """A page of a pod's web server, by `kubectl port-forward`."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        served, local = one.getsockname()[1], other.getsockname()[1]
    shell.run(f"kubectl run files --image=demo --command -- {sys.executable} -m http.server {served}")
    end = time.monotonic() + _LIMIT
    while not _is_listening(served):
        if time.monotonic() > end:
            raise FirstHourFailed("the pod's web server does not listen")
        time.sleep(0.1)
    with shell.running(f"kubectl port-forward pod/files {local}:{served}") as wait_for:
        wait_for("Forwarding from")
        with urlopen(f"http://127.0.0.1:{local}/", timeout=30) as answer:
            _expect(answer.read().decode(), "Directory listing")
    shell.run("kubectl delete pod files --now")


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _own_plugin(shell: Terminal) -> None:
    """The twelve lines of the README, a mistake in them, and its fix."""
    readme = (shell.directory / "README.md").read_text()
    [source] = re.findall(r"```python\n(.*?class Tape.*?)```", readme, re.DOTALL)
    file = shell.directory / "tape.py"
    file.write_text(source)
    with shell.running(".venv/bin/plugwright dev tape.py") as wait_for:
        wait_for("example.com/tape")
        wait_for("admitted")
        file.write_text(source.replace("return Allocation(", "return Allocatoin("))
        wait_for("Allocatoin")
        file.write_text(source)
        wait_for("admitted")


def _project(shell: Terminal) -> None:
    """A project made by `plugwright new`: its tests, its types, and the contract with the kubelet."""
    python = f"{shell.directory}/.venv/bin/python"
    shell.run(".venv/bin/plugwright new npu")
    clone, shell.directory = shell.directory, shell.directory / "npu"
    shell.run(f"{python} -m pytest -q -p no:cacheprovider")
    shell.run(f"{python} -m mypy npu.py tests")
    devices = shell.directory / "devices"
    devices.mkdir()
    (devices / "one").write_text("ok\n")
    (devices / "two").write_text("ok\n")
    shell.environment["NPU_DIR"] = str(devices)
    shell.run(f"{clone}/.venv/bin/plugwright verify --env PLUGWRIGHT_KUBELET_DIR={{root}} -- {python} npu.py")
    shell.directory = clone


def _charts(shell: Terminal) -> None:
    """plugwright's own chart on the cluster of `up`."""
    values = "mock.enabled=true,mock.resource=acme.com/widget"
    shell.run(f"helm install devices {_CHART} --set {values} --wait --timeout 120s")
    _expect(shell.run("kubectl exec ds/devices-plugwright -- plugwright status"), "acme.com/widget")
    _expect(shell.run("kubectl describe node node-1"), "acme.com/widget")
    shell.run("helm uninstall devices --wait --timeout 120s")
    shell.run(".venv/bin/plugwright down --state lab")


def _expect(text: str, wanted: str) -> None:
    if wanted not in text:
        raise FirstHourFailed(f"{wanted!r} is not in:\n{text}")


if __name__ == "__main__":
    try:
        main()
    except FirstHourFailed as error:
        sys.exit(f"first hour: {error}")
    print("the first hour is played, without a stumble")
