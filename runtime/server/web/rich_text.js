// Text with code in fences: all of it goes into text nodes.

import {el, fill, visible} from './dom.js';

/** Cuts a text into {isCode, language, text}. A fence that is still open runs to the end. */
export function fencedParts(text) {
  const parts = [];
  let rest = text;
  while (rest) {
    const open = rest.match(/(^|\n)```([^\n`]*)(\n|$)/);
    if (!open) break;
    const at = open.index + open[1].length;
    if (at > 0) parts.push({isCode: false, language: '', text: rest.slice(0, at)});
    rest = rest.slice(open.index + open[0].length);
    const close = rest.match(/(^|\n)```[ \t]*(?=\n|$)/);
    parts.push({isCode: true, language: open[2].trim(), text: close ? rest.slice(0, close.index) : rest});
    rest = close ? rest.slice(close.index + close[0].length).replace(/^\n/, '') : '';
  }
  if (rest) parts.push({isCode: false, language: '', text: rest});
  return parts;
}

export function fillRichText(element, text) {
  fill(element, ...fencedParts(visible(text)).map((part) => (part.isCode
    ? el('pre', {class: 'fenced', title: part.language, tabIndex: 0}, part.text)
    : el('span', {}, part.text))));
}
