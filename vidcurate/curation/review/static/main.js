// The page: reads the run, joins search, sort, panels, grid and keys.

import { attempt, byId, count, delayed, element, get, label, number, plural } from "./dom.js";
import { ClipView } from "./clip_view.js";
import { Decisions } from "./decide.js";
import { Filters, decidedName, title, valueName } from "./filters.js";
import { Grid } from "./grid.js";
import { listenToKeys } from "./keys.js";
import { WhatIf } from "./what_if.js";
import * as query from "./query.js";

let nearName = null; // the clip that the others look like

function showTotal(run, found) {
  nearName = found.near ?? null;
  if (run.blind) return;
  byId("count").textContent = found.total === run.rows ? plural(run.rows, "clip") : `${count(found.total)} of ${plural(run.rows, "clip")}`;
}

function setUpSorting(run) {
  const sort = byId("sort");
  const direction = byId("direction");
  sort.append(element("option", { value: "" }, "table order"));
  for (const { name, kind, meaning } of run.columns) if (kind !== "list") sort.append(element("option", { value: name, title: meaning }, label(name)));
  const apply = () => query.change({ sort: sort.value || null, descending: Boolean(sort.value) && direction.value === "down", both_ends: Boolean(sort.value) && direction.value === "ends", near: null });
  sort.addEventListener("change", apply);
  direction.addEventListener("change", apply);
  const follow = ({ sort: name, descending, both_ends: ends, limits, near }) => {
    sort.options[0].textContent = limits ? "borderline first" : near === undefined ? "table order" : "most alike first";
    sort.value = name ?? "";
    direction.value = ends ? "ends" : descending ? "down" : "up";
    direction.disabled = !name;
  };
  query.onChange(follow);
  follow(query.query());
}

function setUpSearch() {
  const input = byId("text");
  input.value = query.query().text ?? "";
  input.addEventListener("input", delayed(() => query.change({ text: input.value.trim() }), 250));
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    query.change({ text: input.value.trim() });
    byId("grid").focus();
  });
  query.onChange(({ text }) => { if (document.activeElement !== input) input.value = text ?? ""; });
}

function limitText(name, { min = null, max = null }, none = "without a limit") {
  const ends = [min === null ? "" : `≥ ${number(min)}`, max === null ? "" : `≤ ${number(max)}`].filter(Boolean);
  return `${label(name)} ${ends.join(" and ") || none}`;
}

// The parts of the query as chips; each takes its part away.
function showActive(run) {
  const now = query.query();
  const made = [];
  const chip = (text, away) => made.push(element("button", { type: "button", class: "chip", title: "Remove", onclick: away }, element("bdi", {}, text)));
  if (now.text) chip(`caption: ${now.text}`, () => { byId("text").value = ""; query.change({ text: "" }); });
  for (const [name, values] of Object.entries(now.words ?? {})) chip(`${title(name)}: ${values.map((one) => valueName(name, one)).join(", ")}`, () => query.changeIn("words", name, null));
  for (const [name, { min = null, max = null }] of Object.entries(now.ranges ?? {})) chip(limitText(name, { min, max }, "is known"), () => query.changeIn("ranges", name, null));
  for (const [name, text] of Object.entries(now.contains ?? {})) chip(`${label(name)}: ${text}`, () => query.changeIn("contains", name, null));
  if (now.clips) chip(now.clips.length === 1 ? `clip: ${now.clips[0]}` : `${count(now.clips.length)} chosen clips`, () => query.change({ clips: null }));
  if (now.cluster) chip(`copies of ${now.cluster}`, () => query.change({ cluster: null }));
  if (now.near !== undefined) chip(`looks like ${nearName ?? `row ${count(now.near)}`}`, () => query.change({ near: null }));
  if (now.decided) chip(`decided: ${decidedName(now.decided)}`, () => query.change({ decided: null }));
  if (now.sample) chip(`sample of ${count(now.sample.size)}${now.sample.by ? ` by ${label(now.sample.by)}` : ""}`, () => query.change({ sample: null }));
  if (now.limits) chip(`${now.side && now.side !== "both" ? `newly ${now.side}` : "changes sides"} with ${Object.entries(now.limits).map(([name, ends]) => limitText(name, ends)).join(", ") || "other limits"}`, () => query.change({ limits: null, side: null }));
  byId("active").replaceChildren(...made);
  document.title = `Review of ${run.name}`;
}

function setUpPanel(whatIf) {
  const panel = byId("panel");
  const button = byId("open-panel");
  const open = (isOpen) => {
    panel.classList.toggle("open", isOpen);
    button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) panel.querySelector("[role=tab][aria-selected=true]").focus();
  };
  button.addEventListener("click", () => open(!panel.classList.contains("open")));
  byId("close-panel").addEventListener("click", () => { open(false); button.focus(); });
  addEventListener("keydown", (event) => { if (event.key === "Escape" && panel.classList.contains("open")) { open(false); button.focus(); } });
  byId("grid").addEventListener("pointerdown", () => open(false));
  const tabs = [["tab-filter", "filter-panel"], ["tab-what-if", "what-if-panel"]];
  const choose = (chosen) => {
    for (const [tab, content] of tabs) {
      const isChosen = tab === chosen;
      byId(tab).setAttribute("aria-selected", String(isChosen));
      byId(tab).tabIndex = isChosen ? 0 : -1;
      byId(content).hidden = !isChosen;
    }
    if (chosen === "tab-what-if") whatIf.open();
  };
  for (const [tab] of tabs) {
    byId(tab).addEventListener("click", () => choose(tab));
    byId(tab).addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = tabs.find(([name]) => name !== tab)[0];
      choose(other);
      byId(other).focus();
    });
  }
  if (query.query().limits) choose("tab-what-if");
}

// What the cards show besides: the columns that the query is about.
function columnsOfInterest() {
  const { sort, ranges, limits } = query.query();
  return [...new Set([...(sort ? [sort] : []), ...Object.keys(limits ?? {}), ...Object.keys(ranges ?? {})])];
}

async function start() {
  const run = await attempt(() => get("/api/run"));
  if (!run) return;
  byId("title").replaceChildren("Review of ", element("bdi", {}, run.name));
  let view = null;
  const grid = new Grid((found) => { showTotal(run, found); showActive(run); }, (clip) => view.show(clip));
  grid.shown = columnsOfInterest;
  const decisions = new Decisions(run, grid);
  view = new ClipView(run, grid, () => decisions.buttons());
  decisions.view = view;
  if (run.blind) {
    decisions.onCounts = (counts) => { byId("count").textContent = `blind sample ${run.blind}: ${counts.keep + counts.reject} of ${plural(run.rows, "clip")} decided`; };
    decisions.onCounts((await attempt(() => get("/api/facets")))?.decided ?? { keep: 0, reject: 0 });
    for (const id of ["panel", "search", "open-panel"]) byId(id).remove();
    document.querySelector(".sorting").remove();
    listenToKeys(grid, view, decisions.keys());
    query.onChange(() => grid.reset());
    await grid.reset();
    grid.root.focus({ preventScroll: true });
    return;
  }
  const filters = new Filters(run);
  const whatIf = new WhatIf(run);
  setUpSorting(run);
  setUpSearch();
  setUpPanel(whatIf);
  listenToKeys(grid, view, decisions.keys());
  query.onChange(() => { showActive(run); grid.reset(); });
  showActive(run);
  await grid.reset();
  grid.root.focus({ preventScroll: true });
  if (query.query().clips?.length === 1 && grid.current()) view.show(grid.current()); // a link to one clip opens it
  await filters.refresh();
  filters.reveal(Object.keys(query.query().ranges ?? {})[0]);
}

start();
