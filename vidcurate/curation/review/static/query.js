// The query that the page shows: kept in the address, so that Back and a bookmark work.

const listeners = new Set();
let current = read();

function read() {
  try {
    const found = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

function isEmpty(value) {
  if (value === null || value === undefined || value === "" || value === false) return true;
  return typeof value === "object" && Object.keys(value).length === 0;
}

export const query = () => current;

export function text() {
  return JSON.stringify(current);
}

export function onChange(listener) {
  listeners.add(listener);
}

// Replace the query. Null and empty parts leave it.
export function set(next) {
  const wanted = Object.fromEntries(Object.entries(next).filter(([, value]) => !isEmpty(value)));
  if (JSON.stringify(wanted) === text()) return;
  current = wanted;
  history.pushState(null, "", isEmpty(wanted) ? location.pathname : `#${encodeURIComponent(JSON.stringify(wanted))}`);
  for (const listener of listeners) listener(current);
}

export function change(part) {
  set({ ...current, ...part });
}

export function changeIn(part, name, value) {
  const inner = { ...(current[part] ?? {}) };
  if (isEmpty(value)) delete inner[name];
  else inner[name] = value;
  change({ [part]: inner });
}

function follow() {
  current = read();
  for (const listener of listeners) listener(current);
}

addEventListener("popstate", follow);
addEventListener("hashchange", () => {
  if (JSON.stringify(read()) !== text()) follow();
});
