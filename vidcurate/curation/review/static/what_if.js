// Thresholds to try: sliders over histograms, what they would keep, and the clips that change sides.

import { attempt, byId, count, delayed, element, get, hours, label, number, post } from "./dom.js";
import { valueOf } from "./filters.js";
import { Histogram } from "./histogram.js";
import * as query from "./query.js";

const STEPS = 200;

export class WhatIf {
  constructor(run) {
    this.run = run;
    this.root = byId("what-if-panel");
    this.columns = new Map(run.columns.map((column) => [column.name, column]));
    this.start = run.thresholds.limits;
    this.sliders = new Map();
    this.outcome = element("div", { class: "outcome", role: "status", "aria-live": "polite" });
    this.list = element("div");
    this.isOpen = false;
    this.side = query.query().side ?? "both";
    this.tryLater = delayed(() => this.try(), 120);
    this.showLater = delayed(() => this.showChanged(), 250);
    query.onChange(({ limits }) => { if (!limits) this.mark(null); });
  }

  async open() {
    if (this.isOpen) return;
    this.isOpen = true;
    this.root.append(
      element("p", { class: "note" }, "Move a threshold: nothing is written until you save it as a recipe."),
      this.outcome, this.list, this.adder(), this.saver());
    for (const name of Object.keys({ ...this.start, ...query.query().limits })) await this.add(name);
    const given = query.query().limits;
    this.before = await attempt(() => post("/api/trial", { limits: {} }));
    for (const [name, ends] of Object.entries(given ?? {})) this.sliders.get(name)?.set(ends.min ?? null, ends.max ?? null);
    await this.try();
  }

  adder() {
    const select = element("select", { id: "add-threshold" }, element("option", { value: "" }, "Try a threshold on …"));
    for (const { name, kind, meaning } of this.run.columns) if (kind === "number") select.append(element("option", { value: name, title: meaning }, label(name)));
    select.addEventListener("change", async () => {
      const name = select.value;
      select.value = "";
      if (name) (await this.add(name))?.focus();
    });
    return element("section", {}, element("label", { class: "hidden", for: "add-threshold" }, "Try a threshold on another column"), element("div", { class: "row" }, select));
  }

  async add(name) {
    if (!this.columns.has(name)) return undefined;
    if (!this.sliders.has(name)) {
      const found = await attempt(() => get("/api/histogram", { column: name }));
      if (!found) return undefined;
      const slider = new Slider(this.columns.get(name), found, this.start[name] ?? { min: null, max: null }, () => this.tryLater());
      this.sliders.set(name, slider);
      this.list.append(slider.root);
    }
    return this.sliders.get(name);
  }

  limits() {
    return Object.fromEntries([...this.sliders].filter(([, slider]) => slider.isMoved()).map(([name, slider]) => [name, slider.ends()]));
  }

  async try() {
    const limits = this.limits();
    const found = await attempt(() => post("/api/trial", { limits }));
    if (!found || JSON.stringify(limits) !== JSON.stringify(this.limits())) return;
    this.show(found);
    if (Object.keys(limits).length) this.showLater();
    else if (query.query().limits) query.change({ limits: null, side: null });
  }

  showChanged() {
    const limits = this.limits();
    if (Object.keys(limits).length) query.change({ limits, side: this.side, near: null, sort: null, descending: null, both_ends: null });
    this.mark(this.side);
  }

  show(found) {
    const rows = [];
    const before = this.before ?? found;
    const line = (name, now, then) => rows.push(element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, count(now)), element("td", { class: "soft" }, difference(then, now))));
    for (const [name, { clips }] of Object.entries(found.by_level ?? {})) line(name === "unknown" ? "no level" : `level ${name}`, clips, before.by_level?.[name]?.clips ?? 0);
    for (const rule of found.rules) if (rule.stage === "filter" && rule.rejected) rows.push(element("tr", {}, element("th", { scope: "row" }, label(rule.rule)), element("td", { colSpan: 2 }, `rejects ${count(rule.rejected)}`)));
    const side = (name, text) => element("button", { type: "button", "aria-pressed": String(Boolean(query.query().limits) && this.side === name), "data-side": name, onclick: () => { this.side = name; this.showChanged(); this.mark(name); } }, text);
    this.outcome.replaceChildren(
      element("div", { class: "big" }, `${count(found.kept.clips)} kept `, element("span", { class: "soft" }, difference(before.kept.clips, found.kept.clips))),
      element("div", { class: "soft" }, `${hours(found.kept.hours)} of video, ${number(100 * found.kept.share)} % of the clips`),
      element("table", {}, ...rows),
      element("div", { class: "sides" },
        side("both", "all that change"), side("kept", `newly kept ${count(found.newly_kept ?? 0)}`), side("rejected", `newly rejected ${count(found.newly_rejected ?? 0)}`)));
  }

  mark(side) {
    for (const button of this.outcome.querySelectorAll("[data-side]")) button.setAttribute("aria-pressed", String(button.dataset.side === side));
  }

  saver() {
    const name = element("input", { type: "text", id: "recipe-name", placeholder: "my-filter", maxlength: "60", autocomplete: "off" });
    const saved = element("p", { class: "saved", role: "status" });
    const save = async (event) => {
      event.preventDefault();
      const found = await attempt(() => post("/api/recipe", { limits: this.limits(), name: name.value.trim() }));
      if (found) saved.replaceChildren("Saved. Apply it with ", element("code", {}, found.command));
    };
    return element("section", {}, element("h3", {}, "Save as recipe"),
      element("form", { class: "row", id: "save-recipe", onsubmit: save }, element("label", { class: "hidden", for: "recipe-name" }, "Name of the recipe"), name, element("button", { class: "main" }, "Save")), saved);
  }
}

function difference(before, now) {
  if (before === null || before === undefined || before === now) return "";
  return `${now > before ? "+" : "−"}${count(Math.abs(now - before))}`;
}

class Slider {
  constructor(column, found, start, onMove) {
    this.name = column.name;
    this.begin = { min: start.min ?? null, max: start.max ?? null };
    this.onMove = onMove;
    this.low = Math.min(found.low ?? 0, this.begin.min ?? Infinity, this.begin.max ?? Infinity);
    this.high = Math.max(found.high ?? 1, this.begin.min ?? -Infinity, this.begin.max ?? -Infinity);
    this.isWhole = column.is_whole;
    this.histogram = new Histogram(column.name, column.unit, (min, max) => this.move(min, max));
    this.found = found;
    this.inputs = { min: this.end("min"), max: this.end("max") };
    const reset = element("button", { type: "button", class: "quiet", onclick: () => this.move(this.begin.min, this.begin.max) }, "reset");
    const unit = column.unit ? element("span", { class: "soft" }, ` ${column.unit}`) : null;
    this.root = element("section", { "aria-label": label(column.name), "data-threshold": column.name },
      element("h3", { title: column.meaning }, element("span", {}, label(column.name), unit), reset),
      this.histogram.root, element("div", { class: "sliders" }, this.inputs.min.root, this.inputs.max.root));
    this.set(this.begin.min, this.begin.max);
  }

  end(word) {
    const step = this.isWhole ? Math.max(1, Math.round((this.high - this.low) / STEPS)) : (this.high - this.low) / STEPS || 1;
    const range = element("input", { type: "range", min: String(this.low), max: String(this.high), step: String(step), "aria-label": `${word} ${label(this.name)}` });
    const typed = element("input", { type: "number", step: "any", placeholder: "none", "aria-label": `${word} ${label(this.name)} as a number` });
    range.addEventListener("input", () => {
      const value = Number(range.value);
      const isOpen = word === "min" ? value <= this.low : value > this.high - step / 2;
      const rounded = this.isWhole ? Math.round(value) : Number(value.toPrecision(6));
      this.move(...this.with(word, isOpen ? null : rounded));
    });
    typed.addEventListener("input", delayed(() => this.move(...this.with(word, valueOf(typed))), 300));
    return { root: element("label", {}, element("span", {}, word), range, typed), range, typed };
  }

  with(word, value) {
    return word === "min" ? [value, this.now.max] : [this.now.min, value];
  }

  move(min, max) {
    this.set(min, max);
    this.onMove();
  }

  set(min, max) {
    this.now = { min, max };
    this.histogram.show(this.found, this.now);
    for (const [word, open] of [["min", this.low], ["max", this.high]]) {
      const { range, typed } = this.inputs[word];
      range.value = String(this.now[word] ?? open);
      range.setAttribute("aria-valuetext", this.now[word] === null ? "none" : String(this.now[word]));
      if (document.activeElement !== typed) typed.value = this.now[word] ?? "";
    }
  }

  ends() {
    return this.now;
  }

  isMoved() {
    return this.now.min !== this.begin.min || this.now.max !== this.begin.max;
  }

  focus() {
    this.inputs.min.range.focus();
  }
}
