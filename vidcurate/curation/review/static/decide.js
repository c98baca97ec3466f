// Decisions: keep, reject with a reason, another caption, tags, undo. A decision counts once the server has
// answered: then it is on the disk.

import { attempt, byId, element, post } from "./dom.js";
import { query } from "./query.js";

const REASONS = ["text or watermark", "too dark or too bright", "blurred", "does not move", "a cut inside", "caption is wrong", "shaky", "not wanted here"];

export class Decisions {
  constructor(run, grid) {
    this.run = run;
    this.grid = grid;
    this.dialog = byId("decide");
    this.view = null;
    this.onCounts = () => {};
    this.dialog.addEventListener("close", () => { if (!this.view?.isOpen) this.grid.root.focus({ preventScroll: true }); });
    this.dialog.addEventListener("keydown", (event) => this.pressed(event));
  }

  clip() {
    return this.view?.isOpen ? this.view.clip : this.grid.current();
  }

  async send(clip, decision) {
    const body = { id: crypto.randomUUID(), row: clip.row, clip_id: clip.clip_id, ...decision };
    const found = await attempt(() => this.insist(body));
    if (!found) return false;
    this.apply(clip.clip_id, found.decision);
    this.onCounts(found.counts);
    this.say(`${clip.clip_id}: ${decision.verdict} (decision ${found.number}, U takes it back)`);
    return true;
  }

  // A request whose answer got lost is sent again with the same id: no second decision comes of it.
  async insist(body) {
    try {
      return await post("/api/decide", body);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      await new Promise((done) => setTimeout(done, 500));
      return post("/api/decide", body);
    }
  }

  apply(clipId, decision) {
    this.grid.update(clipId, (clip) => ({ ...clip, decision }));
    if (this.view?.isOpen && this.view.clip.clip_id === clipId) this.view.show({ ...this.view.clip, decision });
  }

  say(text) {
    const place = byId("done");
    place.textContent = text;
    place.classList.add("shown");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => place.classList.remove("shown"), 4000);
  }

  // Go to the next clip. In a list of clips by decision the decided one leaves, and the next takes its place.
  async advance() {
    if (query().decided) await this.follow();
    else if (this.view?.isOpen) this.view.step(1);
    else this.grid.move(1);
  }

  async follow() {
    await this.grid.reload();
    if (!this.view?.isOpen) return;
    const next = this.grid.current();
    if (next) this.view.show(next);
    else this.view.root.close();
  }

  async keep() {
    const clip = this.clip();
    if (clip && (await this.send(clip, { verdict: "keep" }))) this.advance();
  }

  async undo() {
    const found = await attempt(() => post("/api/undo", {}));
    if (!found) return;
    this.apply(found.clip_id, found.decision);
    this.onCounts(found.counts);
    if (query().decided) await this.follow();
    this.say(`${found.clip_id}: decision ${found.number} is taken back`);
  }

  open(title, ...parts) {
    const clip = this.clip();
    if (!clip || this.dialog.open) return;
    this.chosen = clip;
    this.dialog.replaceChildren(element("h2", { id: "decide-title" }, title), element("p", { class: "note" }, element("bdi", {}, clip.clip_id)), ...parts);
    this.dialog.showModal();
  }

  // The reject dialog: a digit is a reason of the list, Enter rejects.
  reject() {
    if (!this.clip()) return;
    const own = element("input", { type: "text", id: "reason", maxlength: "1000", autocomplete: "off", placeholder: "own words" });
    const list = element("div", { class: "reasons" }, ...REASONS.map((reason, at) => element("button", { type: "button", "data-reason": String(at + 1), onclick: () => this.rejected(reason) }, element("kbd", {}, String(at + 1)), ` ${reason}`)));
    const form = element("form", { onsubmit: (event) => { event.preventDefault(); this.rejected(own.value.trim() || null); } },
      element("label", { for: "reason" }, "Reason"), element("div", { class: "row" }, own, element("button", { class: "main" }, "Reject"), this.cancel()));
    this.open("Reject this clip", list, form);
    list.querySelector("button").focus();
  }

  async rejected(reason) {
    const clip = this.chosen;
    this.dialog.close();
    if (await this.send(clip, { verdict: "reject", reason })) this.advance();
  }

  caption() {
    const clip = this.clip();
    if (!clip) return;
    const text = element("textarea", { rows: 7, maxlength: "10000", "aria-label": "caption" });
    text.value = clip.decision?.caption ?? clip.caption ?? "";
    this.write("Edit the caption", text, "Ctrl+Enter saves. After the next filter, shards and training read this caption.", async () => {
      const caption = text.value.trim();
      if (caption && caption !== (clip.caption ?? "")) await this.send(clip, { verdict: "caption", caption });
    });
    text.setSelectionRange(0, 0);
  }

  tags() {
    const clip = this.clip();
    if (!clip) return;
    const input = element("input", { type: "text", "aria-label": "tags", autocomplete: "off", maxlength: "2000" });
    input.value = (clip.decision?.my_tags ?? []).join(", ");
    this.write("Tags", input, "Words with commas between them; none takes your tags away.", async () => {
      const tags = [...new Set(input.value.split(",").map((one) => one.trim()).filter(Boolean))];
      await this.send(clip, { verdict: "tag", tags });
    });
  }

  write(title, field, note, save) {
    const done = async (event) => {
      event.preventDefault();
      this.dialog.close();
      await save();
    };
    const form = element("form", { onsubmit: done }, field, element("p", { class: "note" }, note), element("div", { class: "row" }, element("button", { class: "main" }, "Save"), this.cancel()));
    this.open(title, form);
    field.focus();
  }

  cancel() {
    return element("button", { type: "button", onclick: () => this.dialog.close() }, "Cancel");
  }

  pressed(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.dialog.querySelector("form")?.requestSubmit();
    }
    const isReason = /^[1-9]$/.test(event.key) && !event.target.closest("input, textarea");
    const button = isReason ? this.dialog.querySelector(`[data-reason="${event.key}"]`) : null;
    if (button) {
      event.preventDefault();
      button.click();
    }
  }

  // Buttons of the large view.
  buttons() {
    const made = (key, text, work, kind = "") => element("button", { type: "button", class: kind, title: `${text} (${key})`, onclick: work }, text);
    return [made("K", "Keep", () => this.keep()), made("R", "Reject …", () => this.reject()), made("C", "Caption …", () => this.caption()), made("T", "Tags …", () => this.tags())];
  }

  keys() {
    const work = { k: () => this.keep(), r: () => this.reject(), c: () => this.caption(), t: () => this.tags(), u: () => this.undo() };
    return {
      keys: work,
      listed: [["k", "keep, and go to the next clip"], ["r", "reject; a digit chooses the reason"], ["c", "edit the caption"], ["t", "tags"], ["u", "take your last decision back"]],
    };
  }
}
