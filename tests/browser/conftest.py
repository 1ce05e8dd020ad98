"""A cluster of `plugwright up` with its page, and a Chromium that looks at it."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from tests.requirements import unavailable

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
MARKUP = "<img src=x onerror=hacked=1>"
CONFIG = f"""\
resources:
  - name: mock/gpu
    mock: {{count: 6, model: "{MARKUP}", numa: 2, links: pairs}}
  - name: lab/gpu
    serve: dra
    mock: {{count: 2, model: H200}}
"""
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1200,900",
)  # fmt: skip
_LIMIT = 120.0  # seconds for anything to be seen, on a busy machine too
# Only the font of the pictures, drawn alike on every machine.
_FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts/truetype/dejavu</dir>
  <cachedir>{cache}</cachedir>
  <match target="font">
    <edit name="antialias" mode="assign"><bool>true</bool></edit>
    <edit name="hinting" mode="assign"><bool>false</bool></edit>
    <edit name="rgba" mode="assign"><const>none</const></edit>
  </match>
</fontconfig>
"""


class LivePage(msgspec.Struct, frozen=True):
    """The address of a page, and plugwright's commands for its cluster."""

    address: str
    environment: Mapping[str, str]

    @property
    def base(self) -> str:
        return self.address.partition("/?")[0]

    def plugwright(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "plugwright", *arguments]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def devices(self) -> list[dict[str, Any]]:
        return list(json.loads(self.plugwright("devices", "-o", "json"))["devices"])


class Look:
    """What a person sees and does in the browser."""

    def __init__(self, driver: Any, page: LivePage) -> None:
        self.driver, self.page = driver, page

    def at(self, path: str) -> None:
        self.driver.get(self.page.base + path)

    def script(self, text: str, *arguments: object) -> Any:
        return self.driver.execute_script(text, *arguments)

    def until(self, script: str, *arguments: object) -> Any:
        """The first true value of a script."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, _LIMIT, 0.05).until(lambda _: self.script(script, *arguments))

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def problems(self) -> list[str]:
        """Messages of the console since the last call."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    missing = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
    missing += [name for name in ("selenium", "axe_core_python") if importlib.util.find_spec(name) is None]
    if missing:
        unavailable("chromium", f"{', '.join(missing)} missing: `make chromium` installs them")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with TemporaryDirectory(prefix="plugwright-chromium-") as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        fonts = Path(profile, "fonts.conf")
        fonts.write_text(_FONTS.format(cache=profile))
        environment = {**os.environ, "FONTCONFIG_FILE": str(fonts)}
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER), env=environment))
        driver.set_script_timeout(_LIMIT)
        try:
            yield driver
        finally:
            driver.quit()


@pytest.fixture(scope="session")
def live_page(chromium: Any) -> Iterator[LivePage]:
    with TemporaryDirectory(prefix="plugwright-page-") as name:
        directory = Path(name)
        config = directory / "plugwright.yaml"
        config.write_text(CONFIG)
        environment = {**os.environ, "XDG_RUNTIME_DIR": name, "HOME": name, "KUBECONFIG": ""}
        state = ("--state", str(directory / "state"))
        command = [sys.executable, "-m", "plugwright", "up", "-c", str(config), "--nodes", "2", *state, "-o", "json"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as up:
            assert up.stdout is not None
            facts = json.loads(up.stdout.readline())
            try:
                yield LivePage(facts["page"], {**environment, "KUBECONFIG": facts["kubeconfig"]})
            finally:
                up.terminate()
        assert up.returncode == 0


@pytest.fixture
def look(chromium: Any, live_page: LivePage) -> Look:
    """The fleet, opened by its address; all devices are listed and free, whatever an earlier test has done."""
    chromium.get(live_page.address)
    looking = Look(chromium, live_page)
    cells = "[...document.querySelectorAll('#cells a.c')]"
    looking.until(f"return {cells}.filter((cell) => cell.matches('.s-free')).length === 16")
    looking.problems()
    return looking


_SCALE = 8  # pixels of a picture that are compared as one
_COMPARE = """
const [made, reference, scale, done] = arguments;
const drawn = (data) => new Promise((resolve, reject) => {
  const image = new Image();
  image.onerror = () => reject("not a picture");
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = image.width / scale; canvas.height = image.height / scale;
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    resolve([image.width, image.height, context.getImageData(0, 0, canvas.width, canvas.height).data]);
  };
  image.src = "data:image/png;base64," + data;
});
Promise.all([drawn(made), drawn(reference)]).then(([one, other]) => {
  if (one[0] !== other[0] || one[1] !== other[1]) return done(1);
  let differing = 0;
  for (let at = 0; at < one[2].length; at += 4) {
    const channels = [0, 1, 2].map((channel) => Math.abs(one[2][at + channel] - other[2][at + channel]));
    if (Math.max(...channels) > 40) differing += 1;
  }
  done(differing / (one[2].length / 4));
}, (error) => done(`${error}`));
"""


def difference(driver: Any, made: str, reference: str) -> float:
    """The share of two pictures that differs, 1 if their sizes do; both as base64. Leaves the page."""
    driver.get("about:blank")
    found = driver.execute_async_script(_COMPARE, made, reference, _SCALE)
    assert isinstance(found, int | float), found
    return found


Axe = Callable[[], list[str]]


@pytest.fixture
def axe(look: Look) -> Axe:
    """What axe-core finds serious on the page that is shown."""
    spec = importlib.util.find_spec("axe_core_python")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("axe.min.js").read_text()
    return partial(_findings, look, source)


def _findings(look: Look, source: str) -> list[str]:
    look.script(source)
    result = look.driver.execute_async_script(
        "const done = arguments[0]; axe.run().then(done, (e) => done({error: `${e}`}))"
    )
    assert "error" not in result, result
    serious = [found for found in result["violations"] if found["impact"] in ("serious", "critical")]
    return [f"{found['id']}: {found['help']}: {found['nodes'][0]['html']}" for found in serious]
