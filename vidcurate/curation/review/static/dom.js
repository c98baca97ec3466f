// Elements, numbers and requests. Text from the table only ever becomes text: no HTML is built from strings.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat("en-US");

export function count(value) {
  return whole.format(value);
}

export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 1e5) return whole.format(Math.round(value));
  return String(Number(value.toPrecision(4)));
}

export function seconds(value) {
  if (typeof value !== "number") return "";
  if (value < 60) return `${Number(value.toFixed(1))} s`;
  return `${Math.floor(value / 60)}:${String(Math.floor(value % 60)).padStart(2, "0")}`;
}

export function hours(value) {
  if (typeof value !== "number") return "hours unknown";
  if (value < 1 / 60) return `${Number((value * 3600).toPrecision(3))} s`;
  return value < 1 ? `${Number((value * 60).toPrecision(3))} min` : `${Number(value.toPrecision(4))} h`;
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function label(name) {
  return name.replaceAll("_", " ");
}

export function delayed(work, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}

export const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export function problem(text) {
  const place = byId("problem");
  place.textContent = text ?? "";
  place.hidden = !text;
}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error ?? `the server answered ${response.status}`);
  return body;
}

export async function get(path, parameters = {}, signal = undefined) {
  const text = new URLSearchParams(parameters).toString();
  return answer(await fetch(text ? `${path}?${text}` : path, { signal }));
}

export async function post(path, value) {
  const headers = { "content-type": "application/json" };
  return answer(await fetch(path, { method: "POST", headers, body: JSON.stringify(value) }));
}

// Run work that asks the server; what goes wrong is shown, what was called off is not.
export async function attempt(work) {
  try {
    const found = await work();
    problem(null);
    return found;
  } catch (error) {
    if (error.name !== "AbortError") problem(error instanceof TypeError ? "The server does not answer. Is `vidcurate review` still running?" : error.message);
    return undefined;
  }
}
