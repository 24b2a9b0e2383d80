// The radix tree: every run a bar from its first token to its last, coloured by how often it was hit.

import {count, el, fill, plural, setText, visible} from './dom.js';

const NUM_HEATS = 6;
const WIDE = 36; // percent of the width: a bar this wide has room for its text inside
const FAR = 62; // one that ends beyond has its text to its left

/** 0 for none, then by order of magnitude up to the most that a run has. */
export function heatOf(hits, mostHits) {
  if (hits <= 0) return 0;
  if (mostHits <= 1) return NUM_HEATS - 1;
  return 1 + Math.round((NUM_HEATS - 2) * Math.log(hits) / Math.log(mostHits));
}

/** Where each run is drawn: {depth, left, width, heat, place} with lengths in percent. */
export function layOut(runs) {
  const end = Math.max(1, ...runs.map((run) => run.start + run.tokens));
  const mostHits = Math.max(0, ...runs.map((run) => run.hits));
  const depths = [];
  return runs.map((run, idx) => {
    depths[idx] = run.parent === null ? 0 : depths[run.parent] + 1;
    const left = (100 * run.start) / end;
    const width = (100 * run.tokens) / end;
    const place = width >= WIDE ? 'inside' : left + width <= FAR ? 'after' : 'before';
    return {depth: depths[idx], left, width, heat: heatOf(run.hits, mostHits), place};
  });
}

export class TreeView {
  #summary = el('span', {class: 'muted'});
  #most = el('span', {});
  #rows = el('div', {class: 'nodes', role: 'tree', 'aria-label': 'Cached runs'});
  #detail = el('p', {class: 'detail-line'});
  #runs = [];
  #views = [];

  constructor() {
    const heats = Array.from({length: NUM_HEATS}, (_, heat) => el('i', {class: `heat${heat}`}));
    this.element = el('section', {class: 'card wide', 'aria-label': 'Prefix cache'},
      el('h2', {}, 'Prefix cache ', this.#summary),
      el('p', {class: 'legend'}, el('span', {}, 'never hit'), el('span', {class: 'heats', 'aria-hidden': 'true'}, ...heats), this.#most,
        el('span', {}, el('i', {class: 'locked-mark'}), 'in use by a running sequence')),
      el('div', {class: 'node head', 'aria-hidden': 'true'}, el('span', {}), el('span', {}, 'tokens'), el('span', {}, 'hits'), el('span', {}, 'in use')),
      this.#rows, this.#detail);
    this.#rows.addEventListener('keydown', (event) => this.#move(event));
    this.#rows.addEventListener('focusin', (event) => this.#describe(event.target));
    this.#rows.addEventListener('pointerover', (event) => this.#describe(event.target.closest('.node')));
  }

  update({runs, hidden}) {
    this.#runs = runs;
    const places = layOut(runs);
    const numHidden = runs.reduce((total, run) => total + run.hidden, hidden);
    const numTokens = runs.reduce((total, run) => total + run.tokens, 0);
    setText(this.#summary, `${plural(runs.length, 'run')} of ${plural(numTokens, 'token')}${numHidden ? `; what continues them in ${plural(numHidden, 'place')} is less used and not shown` : ''}`);
    setText(this.#most, plural(Math.max(0, ...runs.map((run) => run.hits)), 'hit'));
    while (this.#views.length > runs.length) this.#views.pop().row.remove();
    runs.forEach((run, idx) => {
      this.#views[idx] ??= this.#newRow(idx);
      show(this.#views[idx], run, places[idx], namespaceHead(runs, idx));
    });
    if (!runs.length) setText(this.#detail, 'The cache is empty.');
    else if (this.#detail.textContent === 'The cache is empty.') setText(this.#detail, '');
  }

  #newRow(idx) {
    const bar = el('i', {});
    const text = el('span', {});
    const [tokens, hits, used] = [el('span', {}), el('span', {}), el('span', {})];
    const row = el('div', {class: 'node', role: 'treeitem', tabIndex: idx === 0 ? 0 : -1}, el('div', {class: 'span'}, bar, text), tokens, hits, used);
    row.dataset.idx = idx;
    this.#rows.append(row);
    return {row, bar, text, tokens, hits, used};
  }

  #move(event) {
    const at = Number(document.activeElement?.dataset.idx);
    const last = this.#views.length - 1;
    const next = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, ArrowLeft: this.#runs[at]?.parent ?? at, ArrowRight: this.#runs[at + 1]?.parent === at ? at + 1 : at}[event.key];
    if (next === undefined || Number.isNaN(at)) return;
    event.preventDefault();
    const target = this.#views[Math.max(0, Math.min(last, next))].row;
    this.#views[at].row.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  }

  #describe(row) {
    const run = row && this.#runs[Number(row.dataset.idx)];
    if (!run) return;
    fill(this.#detail, `Tokens ${count(run.start)} to ${count(run.start + run.tokens)}, ${plural(run.hits, 'hit')}${run.running ? `, in use by ${plural(run.running, 'sequence')}` : ''}${run.namespace ? `, of ${run.namespace}` : ''}${run.hidden ? `, ${plural(run.hidden, 'continuation')} not shown` : ''}: `,
      el('code', {}, visible(run.text)));
  }
}

/** The namespace, where another one begins. */
function namespaceHead(runs, idx) {
  const {namespace} = runs[idx];
  return namespace && (idx === 0 || runs[idx - 1].namespace !== namespace) ? `[${namespace}] ` : '';
}

function show({row, bar, text, tokens, hits, used}, run, place, head) {
  row.setAttribute('aria-level', place.depth + 1);
  bar.className = `heat${place.heat}${run.running ? ' locked' : ''}`;
  bar.style.left = `${place.left}%`;
  bar.style.width = `${place.width}%`;
  text.className = place.place === 'inside' ? `inside heat${place.heat}` : place.place;
  Object.assign(text.style, {left: '', right: '', width: '', maxWidth: ''});
  if (place.place === 'inside') Object.assign(text.style, {left: `${place.left}%`, width: `${place.width}%`});
  else if (place.place === 'after') text.style.left = `${place.left + place.width}%`;
  else Object.assign(text.style, {right: `${100 - place.left}%`, maxWidth: `${place.left}%`});
  setText(text, head + visible(run.text, {isOneLine: true}));
  setText(tokens, count(run.tokens));
  setText(hits, count(run.hits));
  setText(used, run.running ? count(run.running) : '');
}
