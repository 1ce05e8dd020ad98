"use strict";
// The page works without this script; with it, it follows the cluster, copies lines, and moves over cells by arrow keys.

const live = document.getElementById("live");

let fading = 0;

// "live" while the page follows the cluster; a message gives way to it after some seconds, a problem stays.
function say(words, kind) {
  clearTimeout(fading);
  if (live.textContent !== words) live.textContent = words;
  live.className = kind || "";
  if (!kind) fading = setTimeout(() => say("live", "on"), 8000);
}

// How long ago each time was. It is no text of the page, so that nothing is announced every few seconds.
function tellAges() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const seconds = Math.max(0, (Date.now() - Date.parse(time.dateTime)) / 1000);
    const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => seconds >= size) || [1, "s"];
    const age = `${Math.floor(seconds / size)} ${unit} ago`;
    if (time.dataset.age !== age) time.dataset.age = age;
  }
}

function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// Focus, scrolling and what was typed stay where they are.
function replace(pieces) {
  const focused = document.activeElement;
  const place = focused && focused !== document.body ? focusPlace(focused) : null;
  for (const [name, html] of Object.entries(pieces)) {
    const old = document.getElementById(name);
    if (!old) continue;
    if (name === "main") {
      const typed = [...old.querySelectorAll("input:not([type=hidden]), select")].map((field) => [field.id, field.value]);
      old.replaceChildren(element(html));
      for (const [id, value] of typed) {
        const field = id && document.getElementById(id);
        if (field) field.value = value;
      }
    } else {
      old.replaceWith(element(html));
    }
  }
  if (place && !document.contains(focused)) restoreFocus(place);
  rove();
  tellAges();
}

function focusPlace(focused) {
  const path = focused.getAttribute("href") || focused.dataset.copy || focused.value || "";
  return { id: focused.id, tag: focused.tagName, path };
}

function restoreFocus(place) {
  const same = place.id
    ? document.getElementById(place.id)
    : [...document.querySelectorAll(`main ${place.tag}`)].find((other) =>
        (other.getAttribute("href") || other.dataset.copy || other.value || "") === place.path);
  if (same) {
    if (same.classList.contains("c")) current = same;
    same.focus({ preventScroll: true });
  }
}

// All cells are one stop of the tab key; arrow keys move between them.
let current = null;

function rove() {
  const cells = document.querySelectorAll("#cells a.c");
  if (!current || !document.contains(current)) current = cells[0] || null;
  for (const cell of cells) if (cell !== current && cell.tabIndex !== -1) cell.tabIndex = -1;
  if (current) current.tabIndex = 0;
}

function move(event) {
  const from = event.target.closest("#cells a.c");
  if (!from || event.ctrlKey || event.altKey || event.metaKey) return;
  const cells = [...document.querySelectorAll("#cells a.c")];
  const at = cells.indexOf(from);
  let to = null;
  if (event.key === "ArrowRight") to = cells[at + 1];
  else if (event.key === "ArrowLeft") to = cells[at - 1];
  else if (event.key === "Home") to = cells[0];
  else if (event.key === "End") to = cells[cells.length - 1];
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") to = inNextGroup(cells, at, event.key === "ArrowDown");
  else return;
  event.preventDefault();
  if (!to) return;
  from.tabIndex = -1;
  current = to;
  to.tabIndex = 0;
  to.focus();
}

function inNextGroup(cells, at, isDown) {
  const group = cells[at].closest(".group");
  const step = isDown ? 1 : -1;
  let index = at;
  while (cells[index] && cells[index].closest(".group") === group) index += step;
  const found = cells[index];
  return found && (isDown ? found : found.closest(".group").querySelector("a.c"));
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    say("copied");
  } catch {
    say("the browser does not allow copying: select the line instead", "lost");
  }
}

async function send(form) {
  say("…");
  try {
    const answer = await fetch(form.action, {
      method: "POST", headers: { Accept: "application/json" }, body: new URLSearchParams(new FormData(form)),
    });
    const body = await answer.json();
    say(body.done || body.error, answer.ok ? "" : "lost");
  } catch {
    say("the page's server does not answer", "lost");
  }
}

function follow() {
  const version = encodeURIComponent(document.body.dataset.version);
  const query = location.search ? location.search + "&" : "?";
  const events = new EventSource(`/events${location.pathname}${query}version=${version}`);
  let isLost = false;
  events.onopen = () => { if (isLost) say("up to date again"); else if (!live.textContent) say("live", "on"); isLost = false; };
  events.onmessage = (event) => replace(JSON.parse(event.data));
  events.onerror = () => {
    isLost = true;
    document.body.dataset.version = "";
    say("not up to date: the connection to plugwright is lost", "lost");
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 3000);
  };
  addEventListener("pagehide", () => events.close());
}

document.addEventListener("keydown", move);
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (button) copy(button);
});
document.addEventListener("mouseover", (event) => {
  const cell = event.target.closest("a.c");
  if (cell && !cell.title) cell.title = cell.getAttribute("aria-label");
});
document.addEventListener("submit", (event) => {
  if (event.target.matches("form.command")) {
    event.preventDefault();
    send(event.target);
  }
});
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
setInterval(tellAges, 10000);
tellAges();
rove();
follow();
