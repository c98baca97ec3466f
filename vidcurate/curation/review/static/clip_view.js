// One clip, large: its video, what every stage says of it, its copies and clips that look like it.

import { attempt, byId, element, get, isCalm, label, number } from "./dom.js";
import { badges, posterOf, stop, videoOf } from "./card.js";
import * as query from "./query.js";

const FIRST = ["caption", "clip_id", "is_kept", "reject_stage", "reject_rule", "reject_value", "reject_threshold"];

// An entry of a list: a number, a word, or named values such as those of a clip with several captions.
function entry(value) {
  if (typeof value === "number") return number(value);
  if (value !== null && typeof value === "object") return Object.values(value).map(entry).join(": ");
  return String(value);
}

export class ClipView {
  constructor(run, grid, actions) {
    this.run = run;
    this.grid = grid;
    this.actions = actions;
    this.root = byId("clip");
    this.root.tabIndex = -1;
    this.stages = new Map(run.columns.map((column) => [column.name, column]));
    this.root.addEventListener("close", () => this.leave());
  }

  get isOpen() {
    return this.root.open;
  }

  leave() {
    if (this.video) stop(this.video);
    this.video = null;
    this.grid.root.focus({ preventScroll: true });
  }

  async show(clip) {
    if (this.video) stop(this.video);
    this.video = null;
    this.clip = clip;
    this.root.replaceChildren(this.head(clip), this.body(clip));
    if (!this.root.open) {
      this.root.showModal();
      this.root.focus();
    }
    const found = await attempt(() => get(`/api/clip/${clip.row}`));
    if (found && this.clip === clip) this.root.querySelector(".cells").replaceChildren(...this.cells(found.cells));
  }

  head(clip) {
    const step = (by) => () => this.step(by);
    return element("div", { class: "clip-head" },
      element("h2", { id: "clip-title" }, element("bdi", {}, clip.clip_id)),
      element("div", {},
        element("button", { type: "button", title: "Clip before (←)", onclick: step(-1) }, "←", element("span", { class: "hidden" }, " before")),
        element("button", { type: "button", title: "Clip after (→)", onclick: step(1) }, "→", element("span", { class: "hidden" }, " after")),
        element("button", { type: "button", onclick: () => this.root.close() }, "Close")));
  }

  step(by) {
    const index = this.grid.cursor + by;
    this.grid.choose(index);
    const next = this.grid.current();
    if (next && next !== this.clip) this.show(next);
  }

  body(clip) {
    const note = element("p", { class: "note", hidden: true });
    const stage = element("div", { class: "stage" });
    if (clip.video) {
      const failed = () => {
        note.hidden = false;
        note.textContent = "This video cannot be played: a decoder fails on it.";
        stage.replaceChildren(posterOf(clip));
      };
      const slow = () => { note.hidden = false; note.textContent = "This format is transcoded for the browser; the clip's file stays as it is."; };
      this.video = videoOf(clip, { controls: true, muted: true }, slow, failed);
      stage.append(this.video);
      if (!isCalm()) {
        this.video.dataset.playing = "yes";
        this.video.play().catch(() => {});
      }
    } else {
      stage.append(element("p", { class: "soft" }, clip.ingest_problem ? label(clip.ingest_problem) : "no video"));
    }
    const verdict = clip.is_kept === false
      ? element("p", { class: "verdict" }, element("span", { class: "no" }, "Rejected"), ` by ${clip.reject_rule ?? "a rule"} (${clip.reject_stage ?? ""}): `, element("bdi", {}, `${clip.reject_value ?? "unknown"}`), clip.reject_threshold && !["ingest", "probe"].includes(clip.reject_stage) ? `, asked for ${clip.reject_threshold}` : "")
      : element("p", { class: "verdict" }, element("span", { class: "yes" }, clip.is_kept ? "Kept" : this.run.blind ? "" : "Not filtered yet"));
    const words = clip.decision?.caption ?? clip.caption;
    if (clip.decision?.text) verdict.append(element("br"), "By eye: ", element("bdi", {}, clip.decision.text));
    return element("div", { class: "clip-body" },
      element("div", {}, stage, note, element("div", { class: "actions" }, ...this.actions(clip), ...this.alike(clip)), verdict,
        element("p", { class: "caption" }, element("bdi", {}, words || "no caption"))),
      element("div", {}, element("div", { class: "badges" }, ...badges(clip)), element("div", { class: "cells" })));
  }

  alike(clip) {
    const leave = (part) => () => {
      this.root.close();
      query.set(part);
    };
    const made = [];
    if (clip.duplicate_cluster) made.push(element("button", { type: "button", onclick: leave({ cluster: clip.duplicate_cluster }) }, "Its copies"));
    if (this.run.has_hashes && clip.video) made.push(element("button", { type: "button", onclick: leave({ near: clip.row }) }, "Clips that look alike"));
    return made;
  }

  cells(cells) {
    const groups = new Map();
    for (const [name, value] of Object.entries(cells)) {
      if (value === null || FIRST.includes(name)) continue;
      const stage = this.stages.get(name)?.stage ?? "own";
      if (!groups.has(stage)) groups.set(stage, []);
      groups.get(stage).push([name, value]);
    }
    return [...groups].map(([stage, pairs], at) => element("details", { open: at < 2 || stage === "own" },
      element("summary", {}, stage === "own" ? "own columns" : stage),
      element("table", {}, ...pairs.map(([name, value]) => {
        const column = this.stages.get(name);
        const shown = typeof value === "number" ? `${number(value)} ${column?.unit ?? ""}` : Array.isArray(value) ? value.map(entry).join(", ") || "none" : entry(value);
        return element("tr", {}, element("th", { scope: "row", title: column?.meaning ?? "" }, label(name)), element("td", {}, element("bdi", {}, shown)));
      }))));
  }

  toggle() {
    if (!this.video) return;
    if (this.video.paused) this.video.play().catch(() => {});
    else this.video.pause();
  }
}
