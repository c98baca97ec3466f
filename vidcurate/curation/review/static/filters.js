// The filter panel: values with their counts, histograms, words in a column, random samples.

import { attempt, byId, count, delayed, element, get, label } from "./dom.js";
import { Histogram } from "./histogram.js";
import * as query from "./query.js";

const TITLES = {
  is_kept: "Verdict", reject_rule: "Rejected by", source_dataset: "Source", level: "Level", fold: "Fold",
  duplicate_kind: "Copies", decision: "Decided",
};
const VALUES = {
  is_kept: { true: "kept", false: "rejected", unknown: "not filtered" },
  reject_rule: { unknown: "no rule" }, level: { unknown: "no level" }, fold: { unknown: "no fold" },
  duplicate_kind: { unknown: "no copy" },
};

export function valueName(column, value) {
  return VALUES[column]?.[value] ?? value;
}

const DECIDED = { "": "all clips", any: "decided", none: "not decided", keep: "kept by eye", reject: "rejected by eye", caption: "caption edited", tag: "tagged", disputed: "reviewers differ" };

export function decidedName(value) {
  return DECIDED[value] ?? value;
}

export function title(column) {
  return TITLES[column] ?? label(column);
}

export class Filters {
  constructor(run) {
    this.run = run;
    this.columns = new Map(run.columns.map((column) => [column.name, column]));
    this.facets = element("div");
    this.charts = element("div");
    this.histograms = new Map();
    this.root = byId("filter-panel");
    this.root.append(this.decided(), this.facets, this.charts, this.adder(), this.sampler());
    for (const name of ["duration_seconds", "noun_count"]) if (this.columns.get(name)?.kind === "number") this.add(name);
    query.onChange(() => this.refresh());
  }

  async refresh() {
    for (const name of [...Object.keys(query.query().ranges ?? {}), ...Object.keys(query.query().contains ?? {})]) this.add(name);
    const asked = query.text();
    const found = await attempt(() => get("/api/facets", { q: asked }));
    if (found && asked === query.text()) {
      this.showFacets(found.columns);
      this.showDecided(found.decided);
    }
    for (const chart of this.histograms.values()) await chart.refresh(asked);
  }

  showFacets(found) {
    const focused = document.activeElement?.dataset?.facet;
    this.facets.replaceChildren(...Object.entries(found).map(([name, values]) => this.facet(name, values)));
    if (focused) this.facets.querySelector(`[data-facet="${CSS.escape(focused)}"]`)?.focus();
  }

  decided() {
    this.select = element("select", { id: "decided", onchange: () => query.change({ decided: this.select.value }) }, ...Object.keys(DECIDED).map((value) => element("option", { value }, decidedName(value))));
    return element("section", {}, element("h3", {}, element("label", { for: "decided" }, "Decisions")), element("div", { class: "row" }, this.select), element("p", { class: "note" }, "You decide as ", element("bdi", {}, this.run.reviewer), "."));
  }

  showDecided(counts) {
    this.select.value = query.query().decided ?? "";
    for (const option of this.select.options) if (option.value in counts) option.textContent = `${decidedName(option.value)} (${count(counts[option.value])})`;
  }

  facet(name, values) {
    const chosen = new Set(query.query().words?.[name] ?? []);
    const last = (one) => (one.value === "unknown" ? 2 : one.value === "false" ? 1 : 0);
    const items = values.toSorted((a, b) => last(a) - last(b)).map(({ value, rows }) => {
      const box = element("input", { type: "checkbox", checked: chosen.has(value), "data-facet": `${name}=${value}`, onchange: () => {
        if (box.checked) chosen.add(value);
        else chosen.delete(value);
        query.changeIn("words", name, [...chosen]);
      } });
      return element("li", {}, element("label", {}, box, element("span", { class: "name", title: value }, element("bdi", {}, valueName(name, value))), element("span", { class: "rows" }, count(rows))));
    });
    return element("section", { "aria-label": title(name) }, element("h3", {}, title(name)), element("ul", { class: "facet" }, ...items));
  }

  adder() {
    const select = element("select", { id: "add-column" }, element("option", { value: "" }, "Filter by another column …"));
    for (const { name, kind, meaning } of this.run.columns) {
      if (kind !== "list") select.append(element("option", { value: name, title: meaning }, label(name)));
    }
    select.addEventListener("change", () => {
      if (select.value) this.add(select.value, true);
      select.value = "";
    });
    return element("section", {}, element("label", { class: "hidden", for: "add-column" }, "Filter by another column"), element("div", { class: "row" }, select));
  }

  add(name, isWanted = false) {
    const column = this.columns.get(name);
    if (!column || this.histograms.has(name)) {
      if (isWanted) this.histograms.get(name)?.focus();
      return;
    }
    const chart = column.kind === "number" ? new RangeFilter(column) : new TextFilter(column);
    this.histograms.set(name, chart);
    this.charts.append(chart.root);
    if (isWanted) {
      chart.refresh(query.text());
      chart.focus();
    }
  }

  reveal(name) {
    this.histograms.get(name)?.root.scrollIntoView({ block: "center" });
  }

  sampler() {
    const size = element("input", { type: "number", min: "1", max: "10000", value: "60", id: "sample-size" });
    const by = element("select", { id: "sample-by" }, element("option", { value: "" }, "all clips"));
    for (const { name, kind } of this.run.columns) if (kind !== "list") by.append(element("option", { value: name }, label(name)));
    const draw = () => query.change({ sample: { size: Math.min(10000, Math.max(1, Number(size.value) || 60)), by: by.value || null, seed: Math.floor(Math.random() * 2 ** 31) }, near: null, limits: null });
    return element("section", { "aria-label": "Random sample" },
      element("h3", {}, "Random sample"),
      element("div", { class: "row" }, element("label", { for: "sample-size" }, "Clips"), size, element("button", { type: "button", id: "draw", onclick: draw }, "Draw")),
      element("div", { class: "row" }, element("label", { for: "sample-by" }, "As many of each"), by));
  }
}

class RangeFilter {
  constructor(column) {
    this.name = column.name;
    this.histogram = new Histogram(column.name, column.unit, (min, max) => this.set(min, max));
    this.min = element("input", { type: "number", step: "any", "aria-label": `least ${label(column.name)}` });
    this.max = element("input", { type: "number", step: "any", "aria-label": `most ${label(column.name)}` });
    const typed = delayed(() => this.set(valueOf(this.min), valueOf(this.max)), 300);
    this.min.addEventListener("input", typed);
    this.max.addEventListener("input", typed);
    this.clear = element("button", { type: "button", class: "quiet", onclick: () => this.set(null, null) }, "clear");
    const unit = column.unit ? element("span", { class: "soft" }, ` ${column.unit}`) : null;
    this.root = element("section", { "aria-label": label(column.name), "data-column": column.name },
      element("h3", { title: column.meaning }, element("span", {}, label(column.name), unit), this.clear),
      this.histogram.root,
      element("div", { class: "ends" }, element("label", {}, "from", this.min), element("label", {}, "to", this.max)));
  }

  set(min, max) {
    query.changeIn("ranges", this.name, min === null && max === null ? null : { min, max });
  }

  async refresh(asked) {
    const found = await attempt(() => get("/api/histogram", { q: asked, column: this.name }));
    if (!found || asked !== query.text()) return;
    const range = query.query().ranges?.[this.name];
    this.histogram.show(found, range);
    for (const end of ["min", "max"]) if (document.activeElement !== this[end]) this[end].value = range?.[end] ?? "";
    this.clear.hidden = !range;
  }

  focus() {
    this.min.focus();
  }
}

class TextFilter {
  constructor(column) {
    this.name = column.name;
    this.input = element("input", { type: "search", "aria-label": `words in ${label(column.name)}`, placeholder: "contains …" });
    this.input.addEventListener("input", delayed(() => query.changeIn("contains", this.name, this.input.value.trim()), 300));
    this.root = element("section", { "data-column": column.name }, element("h3", { title: column.meaning }, label(column.name)), element("div", { class: "row" }, this.input));
  }

  async refresh() {
    if (document.activeElement !== this.input) this.input.value = query.query().contains?.[this.name] ?? "";
  }

  focus() {
    this.input.focus();
  }
}

export function valueOf(input) {
  return input.value.trim() === "" || !Number.isFinite(Number(input.value)) ? null : Number(input.value);
}
