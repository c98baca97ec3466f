// One card of the grid, and the video that plays in it.

import { element, isCalm, label, number, seconds } from "./dom.js";

const HOVER_MILLISECONDS = 150;

export function posterOf(clip) {
  return element("img", { src: `/media/poster/${clip.row}`, alt: "", decoding: "async", draggable: "false" });
}

// Return a video of the clip that loops over the clip's part of its file; one that the browser cannot play is
// asked for as mp4.
export function videoOf(clip, attributes, onTranscode = () => {}, onFailed = () => {}) {
  const video = element("video", { loop: true, playsInline: true, preload: "auto", disablePictureInPicture: true, ...attributes });
  const { start_seconds: start, end_seconds: end } = clip;
  const transcode = () => {
    video.dataset.transcoded = "yes";
    onTranscode();
    video.src = `/media/transcoded/${clip.row}`;
    if (video.dataset.playing) video.play().catch(() => {});
  };
  if (clip.video === "file") {
    const isPart = typeof start === "number" || typeof end === "number";
    video.src = `/media/file/${clip.row}${isPart ? `#t=${start ?? 0}${typeof end === "number" ? `,${end}` : ""}` : ""}`;
    if (isPart) {
      const again = () => {
        if (video.dataset.transcoded) return;
        if ((typeof end === "number" && video.currentTime >= end - 0.02) || video.currentTime < (start ?? 0) - 0.3) {
          video.currentTime = start ?? 0;
          if (video.dataset.playing) video.play().catch(() => {});
        }
      };
      video.addEventListener("timeupdate", again);
      video.addEventListener("pause", again);
      video.addEventListener("ended", again);
    }
  } else {
    transcode();
  }
  video.addEventListener("error", () => {
    if (!video.hasAttribute("src")) return; // stopped
    if (video.dataset.transcoded) onFailed();
    else transcode();
  });
  return video;
}

export function stop(video) {
  delete video.dataset.playing;
  video.pause();
  video.removeAttribute("src");
  video.load(); // ends the request
  video.remove();
}

function decisionBadges(clip) {
  const decision = clip.decision;
  if (!decision) return [];
  const made = [];
  if (decision.verdict) made.push(element("span", { class: `badge mine ${decision.verdict}` }, decision.verdict === "keep" ? "✓ keep" : "✗ reject"));
  if (decision.caption) made.push(element("span", { class: "badge mine", title: "The caption was edited." }, "✎"));
  for (const tag of decision.tags ?? []) made.push(element("span", { class: "badge" }, element("bdi", {}, `#${tag}`)));
  return made;
}

export function badges(clip) {
  const made = decisionBadges(clip);
  if (clip.is_kept) made.push(element("span", { class: "badge keep" }, "kept"));
  else if (clip.is_kept === false) made.push(element("span", { class: "badge drop", title: clip.reject_rule ?? "" }, element("bdi", {}, clip.reject_rule ?? "rejected")));
  if (typeof clip.level === "number") made.push(element("span", { class: "badge", title: `level ${clip.level}` }, `L${clip.level}`));
  if (clip.duplicate_cluster) made.push(element("span", { class: "badge", title: `copy ${clip.duplicate_rank} of its cluster` }, `copy ${clip.duplicate_rank}`));
  if (clip.source_dataset) made.push(element("span", { class: "badge source", title: clip.source_dataset }, element("bdi", {}, clip.source_dataset)));
  return made;
}

function facts(clip, shown) {
  const made = element("div", { class: "facts" });
  for (const name of shown.slice(0, 2)) {
    if (clip[name] !== undefined) made.append(element("b", {}, `${label(name)} ${typeof clip[name] === "number" ? number(clip[name]) : clip[name] ?? "unknown"}`), " · ");
  }
  made.append(typeof clip.width === "number" ? `${clip.width} × ${clip.height} · ` : "", element("bdi", {}, clip.clip_id));
  return made;
}

export class Card {
  constructor(index, onChoose, onOpen) {
    this.index = index;
    this.clip = null;
    this.video = null;
    this.timer = 0;
    this.root = element("div", { class: "card", role: "option", id: `clip-${index}`, "aria-selected": "false" });
    this.picture = element("div", { class: "picture" });
    this.said = element("div", { class: "said" });
    this.root.append(this.picture, this.said);
    this.root.addEventListener("click", (event) => {
      // A second tap opens: a finger has no double click to speak of.
      if (event.pointerType === "touch" && this.root.getAttribute("aria-selected") === "true") onOpen(this.index);
      else onChoose(this.index);
    });
    this.root.addEventListener("dblclick", () => onOpen(this.index));
    this.picture.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse" && !isCalm()) this.timer = setTimeout(() => this.play(), HOVER_MILLISECONDS);
    });
    this.picture.addEventListener("pointerleave", (event) => {
      clearTimeout(this.timer);
      if (event.pointerType === "mouse" && !this.isPinned) this.pause();
    });
  }

  show(clip, shown, height) {
    this.clip = clip;
    this.picture.style.height = `${height}px`;
    const words = clip.decision?.caption ?? clip.caption;
    const parts = [];
    if (clip.video) {
      const image = posterOf(clip);
      image.addEventListener("error", () => image.replaceWith(element("span", { class: "none" }, "no frame decodes")), { once: true });
      parts.push(image);
    } else {
      parts.push(element("span", { class: "none" }, clip.ingest_problem ? label(clip.ingest_problem) : "no video"));
    }
    if (typeof clip.duration_seconds === "number") parts.push(element("span", { class: "time" }, seconds(clip.duration_seconds)));
    this.picture.replaceChildren(...parts);
    this.video = null;
    this.said.replaceChildren(
      element("div", { class: "badges" }, ...badges(clip)),
      element("div", { class: words ? "words" : "words soft" }, element("bdi", {}, words || "no caption")),
      facts(clip, shown),
    );
    const state = clip.is_kept === false ? `rejected by ${clip.reject_rule ?? "a rule"}` : clip.is_kept ? "kept" : "";
    this.root.setAttribute("aria-label", `${clip.clip_id}, ${state}: ${words ?? "no caption"}`);
  }

  play() {
    if (!this.clip?.video || this.video) return;
    const busy = element("span", { class: "busy" }, "transcoding …");
    const failed = () => { busy.textContent = "cannot be played"; };
    this.video = videoOf(this.clip, { muted: true }, () => this.picture.append(busy), failed);
    this.video.addEventListener("playing", () => busy.remove());
    this.video.dataset.playing = "yes";
    this.picture.querySelector("img, .none")?.after(this.video);
    this.video.play().catch(() => {});
  }

  pause() {
    this.isPinned = false;
    this.picture.querySelector(".busy")?.remove();
    if (this.video) stop(this.video);
    this.video = null;
  }

  toggle() {
    if (this.video) {
      this.pause();
    } else {
      this.isPinned = true;
      this.play();
    }
  }

  remove() {
    clearTimeout(this.timer);
    this.pause();
    for (const image of this.picture.querySelectorAll("img")) image.removeAttribute("src");
    this.root.remove();
  }
}
