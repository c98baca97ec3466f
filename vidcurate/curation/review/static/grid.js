// The grid: only the cards in sight are elements, only their pages are asked for.
//
// A browser cannot lay out the height of a million cards, so the height of the scrolled area is capped. Small
// moves scroll by pixels; a jump with the scroll bar maps the whole bar onto the whole list (`shift` is the
// difference between the two).

import { attempt, byId, element, get } from "./dom.js";
import { Card } from "./card.js";
import * as query from "./query.js";

const PAGE = 60;
const GAP = 14;
const LEAST_WIDTH = 212;
const LEAST_WIDTH_ON_WIDE_SCREENS = 268;
const SAID_HEIGHT = 132;
const MOST_HEIGHT = 8_000_000;
const MOST_PAGES = 40;

export class Grid {
  constructor(onTotal, onOpen) {
    this.root = byId("grid");
    this.spacer = byId("spacer");
    this.onTotal = onTotal;
    this.onOpen = onOpen;
    this.cards = new Map();
    this.pages = new Map();
    this.asked = new Map();
    this.total = 0;
    this.cursor = 0;
    this.shift = 0;
    this.lastTop = 0;
    this.generation = 0;
    this.shown = () => [];
    this.root.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.root.addEventListener("focus", () => this.mark());
    new ResizeObserver(() => this.measure()).observe(this.root);
  }

  // Show another query from its start.
  async reset() {
    this.generation += 1;
    for (const call of this.asked.values()) call.abort();
    this.asked.clear();
    const generation = this.generation;
    const first = await attempt(() => this.ask(0));
    if (!first || generation !== this.generation) return;
    this.pages = new Map([[0, first.rows]]);
    this.total = first.total;
    this.cursor = 0;
    this.shift = 0;
    this.clear();
    this.lastTop = this.root.scrollTop = 0;
    this.measure();
    this.onTotal(first);
  }

  // Ask again in place: the list has changed, as a decided clip has left it.
  async reload() {
    const page = Math.floor(this.cursor / PAGE);
    const found = await attempt(() => this.ask(page));
    if (!found) return;
    this.pages = new Map([[page, found.rows]]);
    this.total = found.total;
    this.cursor = Math.min(this.cursor, Math.max(0, this.total - 1));
    this.clear();
    this.measure();
    this.onTotal(found);
  }

  ask(page) {
    const call = new AbortController();
    this.asked.set(page, call);
    const parameters = { q: query.text(), offset: page * PAGE, limit: PAGE };
    return get("/api/clips", parameters, call.signal).finally(() => {
      if (this.asked.get(page) === call) this.asked.delete(page);
    });
  }

  clear() {
    for (const card of this.cards.values()) card.remove();
    this.cards.clear();
    this.spacer.querySelector(".empty")?.remove();
    if (!this.total) this.spacer.append(element("p", { class: "empty" }, "No clip passes these filters."));
  }

  measure() {
    const width = this.root.clientWidth - 2 * GAP;
    if (width <= 0) return;
    const top = this.rowAt(this.root.scrollTop + this.shift) * (this.columns ?? 1);
    const least = width > 1300 ? LEAST_WIDTH_ON_WIDE_SCREENS : LEAST_WIDTH;
    const columns = Math.max(width >= 330 ? 2 : 1, Math.floor((width + GAP) / (least + GAP)));
    this.width = Math.floor((width - GAP * (columns - 1)) / columns);
    this.picture = Math.round((this.width * 9) / 16);
    this.rowHeight = this.picture + SAID_HEIGHT + GAP;
    this.columns = columns;
    this.full = Math.ceil(this.total / columns) * this.rowHeight + GAP;
    this.height = Math.max(Math.min(this.full, MOST_HEIGHT), 1);
    this.spacer.style.height = `${this.height}px`;
    for (const card of this.cards.values()) this.size(card); // not made anew: one may be playing
    if (top) this.jump(Math.floor(top / columns) * this.rowHeight);
    this.draw();
  }

  size(card) {
    card.root.style.width = `${this.width}px`;
    card.root.style.height = `${this.rowHeight - GAP}px`;
    card.picture.style.height = `${this.picture}px`;
    card.root.setAttribute("aria-setsize", String(this.total));
  }

  rowAt(place) {
    return this.rowHeight ? Math.max(0, Math.floor((place - GAP) / this.rowHeight)) : 0;
  }

  // Scroll to a pixel of the whole list.
  jump(place) {
    const view = this.root.clientHeight;
    const wanted = Math.min(Math.max(0, place), Math.max(0, this.full - view));
    const share = this.full > view ? wanted / (this.full - view) : 0;
    const top = Math.round(share * Math.max(0, this.height - view));
    this.shift = Math.round(wanted - top);
    this.lastTop = top;
    this.root.scrollTop = top;
  }

  scrolled() {
    const top = this.root.scrollTop;
    const view = this.root.clientHeight;
    if (this.full > this.height) {
      const isJump = Math.abs(top - this.lastTop) > view;
      const isAtEnd = top <= 0 || top >= this.height - view - 1;
      if (isJump || isAtEnd) {
        const share = this.height > view ? top / (this.height - view) : 0;
        this.shift = Math.round(share * (this.full - view)) - Math.round(top);
      }
    }
    this.lastTop = top;
    this.draw();
  }

  draw() {
    if (!this.rowHeight) return;
    const place = this.root.scrollTop + this.shift;
    const first = Math.max(0, this.rowAt(place) - 1) * this.columns;
    const last = Math.min(this.total, (this.rowAt(place + this.root.clientHeight) + 2) * this.columns);
    for (const [index, card] of this.cards) {
      if (index < first || index >= last) {
        card.remove();
        this.cards.delete(index);
      }
    }
    for (let index = first; index < last; index += 1) {
      let card = this.cards.get(index);
      if (!card) {
        card = new Card(index, (at) => this.choose(at), (at) => this.open(at));
        card.root.setAttribute("aria-posinset", String(index + 1));
        this.size(card);
        this.cards.set(index, card);
        this.spacer.append(card.root);
      }
      const row = Math.floor(index / this.columns);
      const left = GAP + (index % this.columns) * (this.width + GAP);
      card.root.style.transform = `translate(${left}px, ${row * this.rowHeight + GAP - this.shift}px)`;
      const clip = this.clipAt(index);
      if (clip && card.clip !== clip) card.show(clip, this.shown(), this.picture);
    }
    this.mark();
    this.fetch(Math.floor(first / PAGE), Math.floor(Math.max(first, last - 1) / PAGE));
  }

  clipAt(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  fetch(from, to) {
    for (const [page, call] of this.asked) if (page < from || page > to) call.abort();
    clearTimeout(this.timer);
    // A page that a fast scroll only passes is not asked for.
    this.timer = setTimeout(() => {
      for (let page = from; page <= to && page * PAGE < this.total; page += 1) {
        if (!this.pages.has(page) && !this.asked.has(page)) this.load(page);
      }
    }, this.pages.has(from) && this.pages.has(to) ? 0 : 60);
  }

  async load(page) {
    const generation = this.generation;
    const found = await attempt(() => this.ask(page));
    if (!found || generation !== this.generation) return;
    this.pages.set(page, found.rows);
    while (this.pages.size > MOST_PAGES) this.pages.delete(this.pages.keys().next().value);
    if (found.total !== this.total) {
      this.total = found.total;
      this.measure();
      this.onTotal(found);
    } else {
      this.draw();
    }
  }

  // Change the clip of this id where its page is held.
  update(clipId, change) {
    for (const rows of this.pages.values()) {
      const at = rows.findIndex((clip) => clip.clip_id === clipId);
      if (at >= 0) rows[at] = change(rows[at]);
    }
    this.draw();
  }

  mark() {
    for (const [index, card] of this.cards) card.root.setAttribute("aria-selected", String(index === this.cursor && this.total > 0));
    if (this.cards.has(this.cursor)) this.root.setAttribute("aria-activedescendant", `clip-${this.cursor}`);
    else this.root.removeAttribute("aria-activedescendant");
  }

  current() {
    return this.clipAt(this.cursor);
  }

  choose(index) {
    this.cursor = Math.min(Math.max(0, index), Math.max(0, this.total - 1));
    this.root.focus({ preventScroll: true });
    this.reveal();
  }

  move(by) {
    this.choose(this.cursor + by);
  }

  rowsInView() {
    return Math.max(1, Math.floor(this.root.clientHeight / this.rowHeight));
  }

  reveal() {
    const place = Math.floor(this.cursor / this.columns) * this.rowHeight;
    const top = this.root.scrollTop + this.shift;
    const view = this.root.clientHeight;
    if (place < top) this.jump(place);
    else if (place + this.rowHeight + GAP > top + view) this.jump(place + this.rowHeight + GAP - view);
    this.draw();
  }

  open(index) {
    this.choose(index);
    const clip = this.clipAt(index);
    if (clip) this.onOpen(clip);
  }

  toggle() {
    const card = this.cards.get(this.cursor);
    for (const other of this.cards.values()) if (other !== card) other.pause();
    card?.toggle();
  }
}
