"""The page in a real Chromium: every view without errors, by keyboard alone, hostile texts and other origins."""

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.browser.conftest import MARKUP, Axe, Look, difference

PICTURES = Path(__file__).with_name("pictures")
HOSTILE = f"{MARKUP} \u202egnp \u0007"
FIRST = "/device?" + urlencode({"node": "node-1", "resource": "mock/gpu"})
_PRESSED = "return document.activeElement.closest('form.command')?.elements.namedItem('name').value"
CELLS = "return [...document.querySelectorAll('#cells a.c')].filter((cell) => cell.textContent === arguments[0]).length"


def mock_device(look: Look, index: int) -> str:
    return next(
        str(device["id"])
        for device in look.page.devices()
        if (device["node"], device["resource"], device["index"]) == ("node-1", "mock/gpu", str(index))
    )


def device_path(device: str) -> str:
    return f"{FIRST}&{urlencode({'id': device})}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_without_errors_and_serious_findings(look: Look, axe: Axe, scheme: str) -> None:
    look.page.plugwright("mock", "fail", mock_device(look, 5), "--node", "node-1", "--resource", "mock/gpu")
    look.until(f"{CELLS} === 1", "U")
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    look.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    try:
        paths = ["/", "/?by=model", "/?state=unhealthy", "/?q=nothing", "/node?name=node-1", "/node?name=none"]
        paths += [device_path(mock_device(look, 5)), device_path("none"), "/waiting", "/claims"]
        for path in paths:
            look.at(path)
            assert axe() == [], path
            assert look.problems() == [], path
    finally:
        look.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    look.page.plugwright("mock", "recover", mock_device(look, 5), "--node", "node-1", "--resource", "mock/gpu")


# Everything that differs from run to run is hidden, and the font is one that `make chromium` installs.
_STEADY = """
const sheet = new CSSStyleSheet();
sheet.replaceSync(`
  body { font-family: "DejaVu Sans" !important; } .c, code { font-family: "DejaVu Sans Mono" !important; }
  #events, #waiting > [href="#events"], #unseen, .timeline, .server { display: none !important; }
  dl, time, #live { visibility: hidden !important; }
`);
document.adoptedStyleSheets = [sheet];
"""


@pytest.mark.parametrize(
    ("name", "path", "width", "scheme"),
    [
        ("fleet", "/", 1200, "light"),
        ("fleet-dark", "/", 1200, "dark"),
        ("fleet-narrow", "/", 390, "light"),
        ("node", "/node?name=node-1", 1200, "light"),
        ("device", "", 1200, "light"),
        ("waiting", "/waiting", 1200, "light"),
        ("claims", "/claims", 1200, "dark"),
    ],
)
def test_views_look_as_in_their_pictures(look: Look, name: str, path: str, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    look.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    look.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    try:
        look.at(path or device_path(mock_device(look, 0)))
        look.script(_STEADY)
        made = look.driver.get_screenshot_as_base64()
    finally:
        look.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        look.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    picture = PICTURES / f"{name}.png"
    if not picture.exists():
        PICTURES.mkdir(exist_ok=True)
        picture.write_bytes(base64.b64decode(made))
        pytest.fail(f"{picture.name} did not exist; it is written, look at it")
    reference = base64.b64encode(picture.read_bytes()).decode()
    differing = difference(look.driver, made, reference)
    assert differing < 0.005, f"if {picture.name} is to change, remove it, and run the test to have it written"


# A row as of a GPU that a pod holds: a long id, a holder, a time and a PCIe root.
_LONGER = """
for (const row of document.querySelectorAll('.wide tbody tr')) {
  row.cells[0].querySelector('bdi').textContent = 'GPU-57ce1a13-0f28-196d-f4b2-bf4ecc4781a1';
  row.cells[4].innerHTML = '<a href="/"><bdi>default/train-a/main</bdi></a>';
  row.cells[5].innerHTML = '<time data-age="12 minutes ago">2026-11-20 00:07:41Z</time>';
  row.cells[7].textContent = 'pci0000:18';
}
return [...document.querySelectorAll('.wide')].map((table) => table.scrollWidth - table.clientWidth);
"""


def test_the_devices_of_a_node_need_no_scrolling_sideways(look: Look) -> None:
    size = {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    look.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        look.at("/node?name=node-1")
        assert look.script(_LONGER) == [0]
    finally:
        look.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_device_is_found_and_made_to_fail_by_keyboard_alone(look: Look) -> None:
    from selenium.webdriver import Keys

    for _ in range(30):
        look.press(Keys.TAB)
        if look.script("return document.activeElement.matches('#cells a.c')"):
            break
    first = look.script("return document.activeElement.href")
    look.press(Keys.ARROW_RIGHT)
    second = look.script("return document.activeElement.href")
    assert second != first
    look.press(Keys.END, Keys.HOME)
    assert look.script("return document.activeElement.href") == first
    look.press(Keys.TAB)
    assert not look.script("return document.activeElement.matches('#cells a.c')")  # the cells are one stop
    look.press(Keys.SHIFT, Keys.TAB, Keys.NULL)

    look.at(device_path(mock_device(look, 0)))
    for command, shown in (("fail", "unhealthy"), ("recover", "free")):
        for _ in range(60):
            look.press(Keys.TAB)
            if look.script(
                f"return document.activeElement.closest('form.command')?.elements.name?.value === '{command}'"
            ):
                break
        look.press(Keys.ENTER)
        look.until("return document.querySelector('#main .state').textContent.includes(arguments[0])", shown)
        look.until("return document.getElementById('live').textContent.includes('is now')")
    assert look.problems() == []


def test_a_change_shows_without_a_reload_and_keeps_the_focus(look: Look) -> None:
    look.script("window.same = true; document.querySelector('#cells a.c').focus()")
    focused = look.script("return document.activeElement.href")
    device = mock_device(look, 1)
    look.page.plugwright("mock", "fail", device, "--node", "node-1", "--resource", "mock/gpu")
    look.until(f"{CELLS} === 1", "U")
    assert look.script("return window.same")
    assert look.script("return document.activeElement.href") == focused
    look.page.plugwright("mock", "recover", device, "--node", "node-1", "--resource", "mock/gpu")
    look.until(f"{CELLS} === 0", "U")


def test_texts_from_outside_are_inert(look: Look) -> None:
    device = mock_device(look, 2)
    look.page.plugwright("mock", "fail", device, "--node", "node-1", "--resource", "mock/gpu", "--reason", HOSTILE)
    look.until(f"{CELLS} === 1", "U")
    for path in ("/", "/?by=model", "/node?name=node-1", device_path(device), f"/?{urlencode({'q': HOSTILE})}"):
        look.at(path)
        seen = look.script("return [window.hacked, document.images.length, document.body.innerText]")
        assert seen[:2] == [None, 0], path
        assert not set("\u202e\u0007") & set(seen[2]), path
    look.at(device_path(device))
    assert MARKUP in look.script("return document.body.innerText")
    assert look.problems() == []
    look.page.plugwright("mock", "recover", device, "--node", "node-1", "--resource", "mock/gpu")


@pytest.fixture
def other_site(look: Look) -> Iterator[str]:
    """A site on another port of this host, which tries to make a device fail and to read the page."""
    fields = {"node": "node-1", "resource": "mock/gpu", "name": "fail", "id": mock_device(look, 3), "token": "guess"}
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    base = look.page.base
    body = f"""<!doctype html><title>other</title>
<iframe name="frame"></iframe><iframe id="shown" src="{base}/"></iframe>
<form method="post" action="{base}/command" target="frame">{inputs}</form>
<script>
window.found = [];
document.forms[0].submit();
const body = new URLSearchParams(new FormData(document.forms[0]));
const tries = [
  fetch("{base}/command", {{method: "POST", credentials: "include", body}}),
  fetch("{base}/", {{credentials: "include"}}),
];
const events = new EventSource("{base}/events/", {{withCredentials: true}});
events.onmessage = () => found.push("events");
Promise.allSettled(tries).then((all) => {{
  for (const one of all) if (one.status === "fulfilled") found.push("answer");
  window.done = true;
}});
</script>"""

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # joined at the end, and so no connection is left open

    class Handler(BaseHTTPRequestHandler):
        timeout = 1.0  # browsers open connections without a request

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the base class's name
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_a_page_of_another_origin_can_neither_change_nor_read_anything(look: Look, other_site: str) -> None:
    look.driver.get(other_site)
    look.until("return window.done")
    assert look.script("return window.found") == []
    look.problems()
    states = {device["state"] for device in look.page.devices()}
    assert states == {"free"}
    look.at("/")  # the visitor's own page goes on
    look.until(f"{CELLS} === 0", "U")
