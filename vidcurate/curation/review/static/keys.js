// Keys of the page. Typing into a field is left alone.

import { byId, element } from "./dom.js";

const KEYS = [
  ["← → ↑ ↓", "another clip; Home, End, Page Up, Page Down"],
  ["Space", "play or stop"],
  ["Enter", "look at the clip, with every score"],
  ["/", "search the captions"],
  ["Esc", "close; leave a field"],
  ["?", "this list"],
];

function isTyping(target) {
  return Boolean(target.closest?.("input, textarea, select, [contenteditable]")) && target.type !== "checkbox" && target.type !== "range";
}

export function listenToKeys(grid, view, more) {
  const help = byId("help");
  const listed = [...KEYS.slice(0, 3), ...(more.listed ?? []), ...KEYS.slice(3)];
  byId("keys").replaceChildren(...listed.flatMap(([key, what]) => [element("dt", {}, key), element("dd", {}, what)]));
  byId("help-button").addEventListener("click", () => help.showModal());

  const moves = {
    ArrowLeft: () => grid.move(-1), ArrowRight: () => grid.move(1),
    ArrowUp: () => grid.move(-grid.columns), ArrowDown: () => grid.move(grid.columns),
    PageUp: () => grid.move(-grid.columns * grid.rowsInView()), PageDown: () => grid.move(grid.columns * grid.rowsInView()),
    Home: () => grid.choose(0), End: () => grid.choose(grid.total - 1),
    Enter: () => grid.open(grid.cursor), " ": () => grid.toggle(),
  };
  const inView = { ArrowLeft: () => view.step(-1), ArrowRight: () => view.step(1), " ": () => view.toggle() };

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (isTyping(target)) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (document.querySelector("#decide[open]")) return;
    let work = null;
    if (view.isOpen) {
      const isOnControl = target.closest("button, summary, video") && event.key === " ";
      work = isOnControl ? null : inView[event.key] ?? more.keys?.[event.key];
    } else if (!help.open && !document.querySelector("dialog[open]")) {
      if (event.key === "/") work = () => byId("text")?.focus();
      else if (event.key === "?") work = () => help.showModal();
      else if (target === grid.root || target === document.body) work = moves[event.key] ?? more.keys?.[event.key];
    }
    if (!work) return;
    event.preventDefault();
    work();
  });
}
