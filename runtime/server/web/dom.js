// Elements. Text is only ever put into text nodes: nothing that a model or a user writes can become markup.

export const byId = (id) => document.getElementById(id);

/** An element: props are properties, `class`, `on…` listeners, `aria-…`/`data-…`/`role` attributes; children are elements or text. */
export function el(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'class') element.className = value;
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name.includes('-') || name === 'role' || name === 'for') element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ''));
  return element;
}

/** Replaces what is inside an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== ''));
  return element;
}

/** Sets text only where it changes, so that a selection in it survives. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Says something to those who listen to the page instead of seeing it, and shows it for a moment. */
export function announce(text, {isShown = true} = {}) {
  byId('announcer').textContent = text;
  if (!isShown) return;
  const note = byId('note');
  note.textContent = text;
  note.classList.add('shown');
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => note.classList.remove('shown'), 2600);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`${what} copied`);
  } catch {
    announce('The browser does not let this page copy');
  }
}

const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Text with what cannot be seen, or turns the direction of what follows, spelt out; line ends as signs if asked. */
export function visible(text, {isOneLine = false} = {}) {
  const shown = text.replace(INVISIBLE, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`);
  return isOneLine ? shown.replace(/\r?\n/g, '⏎').replace(/\t/g, '⇥') : shown;
}

export const count = (value) => Math.round(value).toLocaleString('en-US');

export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? '' : 's'}`;
}

export function seconds(value) {
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}
