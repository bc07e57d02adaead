// What the pages need besides htmx: text while it is written, keys, and marks at what was changed.
// Data only ever becomes text here, never markup.
"use strict";

// A stream is over with the run's last event; the browser would come back for more. With each event the
// page looks again: it is told of all after the last one that was rendered.
const LAST_EVENTS = ["run.completed", "run.failed", "run.cancelled"];
htmx.createEventSource = (address) => {
  const source = new EventSource(address);
  const live = document.getElementById("live");
  for (const name of LAST_EVENTS) source.addEventListener(name, () => source.close());
  for (const name of live.dataset.news.split(" ")) source.addEventListener(name, () => htmx.trigger(live, "news"));
  return source;
};

// A page that fetches itself again leaves what a person has opened or typed as it is.
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
  !(name === "open" && element.tagName === "DETAILS");
Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => !isBeingFilledIn(node);

function isBeingFilledIn(node) {
  if (node.nodeName !== "FORM" || !node.hasAttribute("data-keep")) return false;
  return [...node.querySelectorAll("textarea, input:not([type=hidden])")].some((field) => field.value !== field.defaultValue);
}

// Text in progress, by the four rules of docs/streaming.md.

let writing = null; // the attempt that is shown, and how many of its pieces

document.addEventListener("htmx:sseBeforeMessage", (event) => {
  if (event.target.id !== "writing") return;
  event.preventDefault();
  const message = event.detail;
  const told = JSON.parse(message.data);
  if (message.type === "text.delta") addPiece(told);
  else if (message.type === "model.answered" || isShown(told)) showText(null);
});

function isShown(told) {
  return writing !== null && writing.step === told.step && writing.epoch === told.epoch;
}

function addPiece(told) {
  if (isShown(told) && told.index === writing.pieces) {
    writing.pieces += 1;
    document.getElementById("writing").append(told.text);
  } else if (told.index === 0 && !isShown(told)) {
    writing = { step: told.step, epoch: told.epoch, pieces: 1 };
    showText(told.text);
  }
}

function showText(text) {
  const box = document.getElementById("writing");
  if (text === null) writing = null;
  box.textContent = text ?? "";
  box.parentElement.hidden = text === null;
}

// What an edit changes, beside the field.

document.addEventListener("input", (event) => markChange(event.target.closest("[data-proposed]")));
for (const field of document.querySelectorAll("[data-proposed]")) markChange(field);

function markChange(field) {
  if (field === null) return;
  const now = field.querySelector("textarea").value;
  const was = field.querySelector(".was");
  const isChanged = now !== field.dataset.proposed;
  field.classList.toggle("changed", isChanged);
  was.hidden = !isChanged;
  was.querySelector("del").textContent = field.dataset.proposed;
  was.querySelector("ins").textContent = now;
}

// Keys. None of them sends anything: they lead to where Enter does.

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "j" || event.key === "k") return moveTo(event.key === "j" ? 1 : -1);
  const named = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (named === null) return;
  event.preventDefault();
  const fold = named.closest("details");
  if (fold !== null) fold.open = true;
  (fold?.querySelector("textarea:not([readonly])") ?? named).focus();
});

function moveTo(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at + by))]?.focus();
}
