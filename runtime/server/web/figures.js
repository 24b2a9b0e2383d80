// What an answer has cost: times are those that this page has measured.

import {count, el, plural, seconds} from './dom.js';

/** Measures one answer while it streams. */
export class Stopwatch {
  #start = performance.now();
  #first = null;
  #last = null;

  /** A piece of text has come. */
  mark() {
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  /** In seconds; null before the first piece. */
  get toFirst() {
    return this.#first === null ? null : (this.#first - this.#start) / 1000;
  }

  /** Tokens a second behind the first; null where there is nothing to divide by. */
  rate(numTokens) {
    const span = (this.#last - this.#first) / 1000;
    return this.#first === null || span <= 0 || numTokens < 2 ? null : (numTokens - 1) / span;
  }
}

const FINISH = {
  stop: 'ended by itself', length: 'cut at the limit', tool_calls: 'calls a tool', content_filter: 'filtered',
};

/** The figures of an answer as elements. */
export function figureElements(usage, watch, finish) {
  const parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(shareBar(cached, usage.prompt_tokens - cached, usage.completion_tokens));
    parts.push(figure(`${count(usage.prompt_tokens)} prompt`, 'tokens of the prompt'));
    parts.push(figure(`${count(cached)} cached`, 'found in the prefix cache: not computed again', 'cached-ink'));
    parts.push(figure(`${plural(usage.completion_tokens, 'token')} written`, 'generated', 'generated-ink'));
  }
  if (watch.toFirst !== null) parts.push(figure(`first after ${seconds(watch.toFirst)}`, 'time to the first token'));
  const rate = usage && watch.rate(usage.completion_tokens);
  if (rate) parts.push(figure(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`, 'behind the first token'));
  if (finish) parts.push(figure(FINISH[finish] || finish, `finish_reason: ${finish}`));
  return parts;
}

const figure = (text, title, ink = '') => el('span', {class: `figure ${ink}`, title}, text);

/** A bar of three lengths: cached, computed and generated tokens. */
export function shareBar(cached, computed, generated) {
  const total = cached + computed + generated;
  const bar = el('span', {class: 'share', 'aria-hidden': 'true'});
  for (const [name, value] of [['cached', cached], ['computed', computed], ['generated', generated]]) {
    if (!value || !total) continue;
    const part = el('i', {class: name});
    part.style.width = `${(100 * value) / total}%`;
    bar.append(part);
  }
  return bar;
}
