// A histogram whose range is dragged with the mouse or typed.

import { element, label, number, plural, svg } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 66;

export class Histogram {
  // `onRange(min, max)` hears of a new range; null is an open end.
  constructor(name, unit, onRange) {
    this.name = name;
    this.unit = unit;
    this.onRange = onRange;
    this.range = { min: null, max: null };
    this.chart = svg("svg", { class: "histogram", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.low = element("span");
    this.high = element("span");
    this.axis = element("div", { class: "axis" }, this.low, this.high);
    this.root = element("div", {}, this.chart, this.axis);
    this.listen();
  }

  show(found, range) {
    this.found = found;
    this.range = { min: range?.min ?? null, max: range?.max ?? null };
    this.low.textContent = number(found.edges[0] + (this.isWhole() ? 0.5 : 0));
    const last = found.edges.at(-1) - (this.isWhole() ? 0.5 : 0);
    this.high.textContent = found.beyond ? `${number(found.edges.at(-2))} and more` : number(last);
    const shown = found.shown.reduce((sum, one) => sum + one, 0);
    this.chart.setAttribute("aria-label", `${label(this.name)}: ${plural(shown, "clip")} from ${number(found.low)} to ${number(found.high)} ${this.unit}`);
    this.draw();
  }

  isWhole() {
    return this.found.edges.every((edge) => Math.abs((edge % 1) - 0.5) < 1e-9 || Math.abs((edge % 1) + 0.5) < 1e-9);
  }

  across(value) {
    const { edges } = this.found;
    return ((value - edges[0]) / (edges.at(-1) - edges[0])) * WIDTH;
  }

  draw() {
    const { edges, all, shown } = this.found;
    const most = Math.max(1, ...all);
    const bars = [];
    const bar = (kind, at, rows) => {
      if (!rows) return;
      const height = Math.max(1.5, Math.sqrt(rows / most) * (HEIGHT - 6));
      const left = this.across(edges[at]);
      bars.push(svg("rect", { class: kind, x: left + 0.4, width: Math.max(0.6, this.across(edges[at + 1]) - left - 0.8), y: HEIGHT - height, height }));
    };
    all.forEach((rows, at) => bar("all", at, rows));
    shown.forEach((rows, at) => bar("in", at, rows));
    const { min, max } = this.range;
    if (min !== null) bars.push(...this.cut(0, this.across(this.edgeOf(min, -1))));
    if (max !== null) bars.push(...this.cut(this.across(this.edgeOf(max, 1)), WIDTH));
    this.chart.replaceChildren(...bars);
  }

  // Whole numbers sit in the middle of their bar: a limit at 5 is drawn beside it.
  edgeOf(value, side) {
    return this.isWhole() ? value + side * 0.5 : value;
  }

  cut(from, to) {
    const left = Math.min(Math.max(0, from), WIDTH);
    const right = Math.min(Math.max(0, to), WIDTH);
    const at = from === 0 ? right : left;
    return [
      svg("rect", { class: "out", x: left, width: Math.max(0, right - left), y: 0, height: HEIGHT }),
      svg("line", { class: "limit", x1: at, x2: at, y1: 0, y2: HEIGHT, "vector-effect": "non-scaling-stroke" }),
    ];
  }

  valueAt(event) {
    const box = this.chart.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const { edges } = this.found;
    return share === 1 ? edges.at(-1) : edges[0] + share * (edges.at(-1) - edges[0]);
  }

  rounded(low, high) {
    const { edges } = this.found;
    if (this.isWhole()) return { min: low <= edges[0] ? null : Math.round(low), max: high >= edges.at(-1) ? null : Math.round(high) };
    const digits = Math.max(0, 2 - Math.floor(Math.log10(edges.at(-1) - edges[0])));
    const round = (value) => Number(value.toFixed(Math.min(12, digits)));
    return { min: low <= edges[0] ? null : round(low), max: high >= edges.at(-1) ? null : round(high) };
  }

  listen() {
    let start = null;
    this.chart.addEventListener("pointerdown", (event) => {
      if (!this.found || event.button !== 0) return;
      event.preventDefault();
      this.chart.setPointerCapture(event.pointerId);
      start = this.valueAt(event);
      this.from = event.clientX;
    });
    this.chart.addEventListener("pointermove", (event) => {
      if (start === null) return;
      const now = this.valueAt(event);
      this.range = this.rounded(Math.min(start, now), Math.max(start, now));
      this.draw();
    });
    this.chart.addEventListener("pointerup", (event) => {
      if (start === null) return;
      start = null;
      // A click without a drag takes the range away.
      if (Math.abs(event.clientX - this.from) < 4) this.range = { min: null, max: null };
      this.onRange(this.range.min, this.range.max);
    });
    this.chart.addEventListener("pointercancel", () => { start = null; });
  }
}
