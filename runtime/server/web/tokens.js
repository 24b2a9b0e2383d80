// Tokens coloured by probability, with what else each could have been.

import {el, fill, visible} from './dom.js';

const NUM_SHADES = 6;

/** 0 for unlikely up to 5 for certain: in equal steps of the probability. */
export function shadeOf(logprob) {
  return Math.min(NUM_SHADES - 1, Math.floor(Math.exp(logprob) * NUM_SHADES));
}

/** One {text, logprob, top} for each token of OpenAI's `logprobs`; top is [[text, logprob], …], the likeliest first. */
export function tokensOf(logprobs) {
  return (logprobs?.tokens || []).map((text, idx) => ({
    text,
    logprob: logprobs.token_logprobs?.[idx] ?? null,
    top: Object.entries(logprobs.top_logprobs?.[idx] || {}).sort((a, b) => b[1] - a[1]),
  }));
}

export class TokenView {
  #element;
  #popover;
  #tokens = [];
  #shown = null;

  constructor(element, popover) {
    this.#element = element;
    this.#popover = popover;
    element.addEventListener('pointerover', (event) => this.#show(event.target.closest('.token')));
    element.addEventListener('pointerleave', () => this.#hide());
    element.addEventListener('focusin', (event) => this.#show(event.target.closest('.token')));
    element.addEventListener('focusout', () => this.#hide());
    element.addEventListener('keydown', (event) => this.#move(event));
  }

  clear() {
    this.#tokens = [];
    this.#hide();
    fill(this.#element);
  }

  /** Adds text, or its tokens where they are known. */
  add(text, logprobs) {
    const tokens = tokensOf(logprobs);
    if (!tokens.length) {
      this.#element.append(visible(text));
      return;
    }
    for (const token of tokens) {
      const shade = token.logprob === null ? '' : `p${shadeOf(token.logprob)}`;
      const isFirst = this.#tokens.length === 0;
      const view = el('span', {class: `token ${shade}`, tabIndex: isFirst ? 0 : -1, 'aria-describedby': this.#popover.id}, visible(token.text));
      view.dataset.idx = this.#tokens.length;
      this.#tokens.push(token);
      this.#element.append(view);
    }
  }

  #move(event) {
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1}[event.key];
    const views = this.#element.querySelectorAll('.token');
    const at = Array.prototype.indexOf.call(views, document.activeElement);
    if (event.key === 'Escape') this.#hide();
    if (!step || at < 0) return;
    event.preventDefault();
    const next = views[Math.max(0, Math.min(views.length - 1, at + step))];
    views[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #show(view) {
    if (!view || view === this.#shown) return;
    this.#shown = view;
    const token = this.#tokens[Number(view.dataset.idx)];
    const rows = token.top.some(([text]) => text === token.text) || token.logprob === null ? token.top : [...token.top, [token.text, token.logprob]];
    fill(this.#popover, el('p', {class: 'popover-head'}, el('code', {}, quoted(token.text)), ` ${percent(token.logprob)}`),
      ...rows.map(([text, logprob]) => alternative(text, logprob, text === token.text)));
    this.#popover.hidden = false;
    place(this.#popover, view.getClientRects()[0] || view.getBoundingClientRect());
  }

  #hide() {
    this.#shown = null;
    this.#popover.hidden = true;
  }
}

function alternative(text, logprob, isChosen) {
  const bar = el('i', {});
  bar.style.width = `${100 * Math.exp(logprob)}%`;
  return el('div', {class: `alternative${isChosen ? ' chosen' : ''}`}, el('code', {}, quoted(text)), el('span', {class: 'meter'}, bar), el('span', {class: 'number'}, percent(logprob)));
}

const quoted = (text) => (text === '' ? '(end)' : visible(text, {isOneLine: true}).replaceAll(' ', '·'));

function percent(logprob) {
  if (logprob === null) return '';
  const share = 100 * Math.exp(logprob);
  return share >= 99.95 ? '100 %' : share < 0.01 ? '<0.01 %' : `${share.toPrecision(share < 1 ? 1 : 3)} %`;
}

function place(popover, around) {
  const {offsetWidth: width, offsetHeight: height} = popover;
  const isBelow = around.bottom + height + 12 < innerHeight;
  popover.style.left = `${Math.max(8, Math.min(around.left, innerWidth - width - 8))}px`;
  popover.style.top = `${isBelow ? around.bottom + 6 : Math.max(8, around.top - height - 6)}px`;
}
