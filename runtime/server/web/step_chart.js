// The timeline of steps: how long each took and with what, and how many tokens of which kind it computed.

import {count, el, fill, setText} from './dom.js';
import {begin, colour, grid, niceCeiling, yOf} from './canvas.js';

const PHASES = [
  ['intake_ms', 'intake', '--mark'], ['schedule_ms', 'schedule', '--busy'], ['forward_ms', 'forward', '--computed'],
  ['sample_ms', 'sample', '--generated'], ['commit_ms', 'commit', '--wait'],
];
const TOKENS = [
  ['prompt_tokens', 'prompt', '--computed'], ['decode_tokens', 'decode', '--generated'],
  ['recomputed_tokens', 'of them again', '--bad'], ['padding_rows', 'padding', '--wait'],
];
const STACKED_TOKENS = TOKENS.filter(([name]) => name !== 'recomputed_tokens');
const TABLE_ROWS = 40;
const BAR_WIDTH = 4;

const sum = (step, parts) => parts.reduce((total, [name]) => total + step[name], 0);

/** Where the axis ends: a few steps far above the others are cut rather than making those flat. */
export function topOf(values) {
  if (!values.length) return 1;
  const sorted = [...values].sort((a, b) => a - b);
  const usual = sorted[Math.floor(0.95 * (sorted.length - 1))];
  return niceCeiling(Math.min(sorted.at(-1), 2.5 * usual) || sorted.at(-1));
}

export class StepChart {
  #times = el('canvas', {class: 'tall', role: 'img', tabIndex: 0, 'aria-label': 'Duration of the last steps by phase; the arrow keys go from step to step'});
  #tokens = el('canvas', {class: 'low', role: 'img', 'aria-label': 'Tokens computed by the last steps'});
  #detail = el('p', {class: 'detail-line', 'aria-live': 'polite'});
  #body = el('tbody', {});
  #table = el('details', {class: 'as-table'}, el('summary', {}, 'As a table'), el('div', {class: 'table-scroll', tabIndex: 0}, el('table', {},
    el('thead', {}, el('tr', {}, ...['step', 'ms', ...PHASES.map(([, label]) => label), ...TOKENS.map(([, label]) => label), 'cached', 'running', 'waiting', 'preempted'].map((label) => el('th', {}, label)))), this.#body)));
  #steps = [];
  #chosen = null; // the index of a step, which stays when others come
  #budget = null;

  constructor() {
    this.element = el('section', {class: 'card wide', 'aria-label': 'Steps'},
      el('h2', {}, 'Steps ', el('span', {class: 'muted'}, 'milliseconds by phase')), this.#times,
      el('p', {class: 'legend'}, ...PHASES.map(mark)),
      el('h2', {}, 'Batches ', el('span', {class: 'muted'}, 'tokens computed by each step')), this.#tokens,
      el('p', {class: 'legend'}, ...STACKED_TOKENS.map(mark)), this.#detail, this.#table);
    document.addEventListener('themechange', () => this.#draw());
    new ResizeObserver(() => this.#draw()).observe(this.#times);
    for (const canvas of [this.#times, this.#tokens]) {
      canvas.addEventListener('pointermove', (event) => this.#choose(this.#stepAt(event.offsetX, canvas)));
      canvas.addEventListener('pointerleave', () => this.#choose(null));
    }
    this.#times.addEventListener('keydown', (event) => this.#move(event));
    this.#times.addEventListener('blur', () => this.#choose(null));
    this.#table.addEventListener('toggle', () => this.#fillTable());
  }

  update(steps, limits) {
    if (this.#steps.at(-1) === steps.at(-1) && this.#steps.length === steps.length) return;
    this.#steps = [...steps];
    this.#budget = limits?.max_num_batched_tokens;
    this.#draw();
    this.#fillTable();
  }

  get #shown() {
    return this.#steps.slice(-Math.max(1, Math.floor((this.#times.clientWidth - 60) / BAR_WIDTH)));
  }

  #stepAt(offsetX, canvas) {
    const fromEnd = Math.floor((canvas.clientWidth - offsetX) / BAR_WIDTH);
    return this.#shown.at(-1 - fromEnd)?.step ?? null;
  }

  #move(event) {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!move) return;
    event.preventDefault();
    const at = this.#shown.findIndex(({step}) => step === this.#chosen);
    const next = at < 0 ? this.#shown.length - 1 : Math.max(0, Math.min(this.#shown.length - 1, at + move));
    this.#choose(this.#shown[next]?.step ?? null);
  }

  #choose(step) {
    this.#chosen = step;
    this.#draw();
  }

  #draw() {
    this.#stack(this.#times, PHASES, (value) => `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)} ms`);
    this.#stack(this.#tokens, STACKED_TOKENS, count);
    const chosen = this.#steps.find(({step}) => step === this.#chosen) || this.#steps.at(-1);
    setText(this.#detail, chosen ? describe(chosen, this.#budget) : 'No step since this view was opened.');
  }

  #stack(canvas, parts, format) {
    const ready = begin(canvas);
    if (!ready) return;
    const {context, width, height} = ready;
    const steps = this.#shown;
    const top = topOf(steps.map((step) => sum(step, parts)));
    grid(context, width, height, top, format);
    steps.forEach((step, idx) => {
      const x = width - (steps.length - idx) * BAR_WIDTH;
      let total = 0;
      for (const [name, , tint] of parts) {
        const [low, high] = [yOf(total, top, height), yOf(total + step[name], top, height)];
        total += step[name];
        context.fillStyle = colour(tint);
        if (low > high) context.fillRect(x, high, BAR_WIDTH - 1, low - high);
      }
      if (step.step === this.#chosen) {
        context.strokeStyle = colour('--ink');
        context.strokeRect(x - 0.5, 1.5, BAR_WIDTH, height - 8);
      }
    });
  }

  #fillTable() {
    if (!this.#table.open) return;
    fill(this.#body, ...this.#steps.slice(-TABLE_ROWS).reverse().map((step) => el('tr', {}, ...[
      count(step.step), sum(step, PHASES).toFixed(2), ...PHASES.map(([name]) => step[name].toFixed(2)), ...TOKENS.map(([name]) => count(step[name])),
      count(step.cached_tokens), count(step.running), count(step.waiting), count(step.preempted)].map((text) => el('td', {}, text)))));
  }
}

function mark([, label, tint]) {
  const sign = el('i', {});
  sign.style.background = `var(${tint})`;
  return el('span', {}, sign, label);
}

function describe(step, budget) {
  const phases = PHASES.map(([name, label]) => `${label} ${step[name].toFixed(2)}`).join(', ');
  const again = step.recomputed_tokens ? `, ${count(step.recomputed_tokens)} of them again` : '';
  const found = step.cached_tokens ? `; ${count(step.cached_tokens)} found in the cache` : '';
  const limit = budget ? ` of ${count(budget)} at most` : '';
  return `Step ${count(step.step)}: ${sum(step, PHASES).toFixed(2)} ms (${phases}). ${count(step.prompt_tokens + step.decode_tokens)} tokens${limit}: ${count(step.prompt_tokens)} of prompts, ${count(step.decode_tokens)} decoded${again}${found}. ${count(step.running)} running, ${count(step.waiting)} waiting.`;
}
