// The sequences that run and wait, a row each.

import {count, el, fill, plural, seconds, setText} from './dom.js';

const COLUMNS = ['request', 'state', 'for', 'progress', 'prompt', 'cached', 'written', 'age'];

export class SequenceTable {
  #body = el('tbody', {});
  #summary = el('span', {class: 'muted'});

  constructor() {
    this.element = el('section', {class: 'card wide', 'aria-label': 'Sequences'},
      el('h2', {}, 'Sequences ', this.#summary),
      el('div', {class: 'table-scroll', tabIndex: 0}, el('table', {class: 'sequences'},
        el('thead', {}, el('tr', {}, ...COLUMNS.map((name) => el('th', {scope: 'col'}, name)))), this.#body)));
  }

  update({running, waiting, num_running, num_waiting}) {
    const hidden = num_running + num_waiting - running.length - waiting.length;
    setText(this.#summary, `${count(num_running)} running, ${count(num_waiting)} waiting${hidden > 0 ? `; ${count(hidden)} not shown` : ''}`);
    const rows = [...running.map((sequence) => row(sequence, 'running')), ...waiting.map((sequence) => row(sequence, 'waiting'))];
    fill(this.#body, ...(rows.length ? rows : [el('tr', {}, el('td', {colSpan: COLUMNS.length, class: 'muted'}, 'Nothing runs and nothing waits.'))]));
  }
}

function row(sequence, state) {
  const name = sequence.sample ? `${sequence.id}/${sequence.sample}` : sequence.id;
  const cached = sequence.cached_tokens ?? 0;
  const isPrefill = sequence.computed_tokens < sequence.prompt_tokens;
  const lost = sequence.preemptions ? `, lost its blocks ${plural(sequence.preemptions, 'time')}` : '';
  const what = state === 'waiting' ? `waiting${lost}` : `${isPrefill ? 'prefill' : 'decode'}${lost}`;
  return el('tr', {},
    el('td', {}, el('code', {}, name), sequence.label ? el('span', {class: 'muted'}, ` ${sequence.label}`) : null),
    el('td', {}, el('span', {class: `tag ${state === 'waiting' ? '' : isPrefill ? 'prefill' : 'decode'}`}, what)),
    el('td', {}, sequence.namespace || '–'),
    el('td', {}, progress(sequence, cached)),
    el('td', {class: 'number'}, count(sequence.prompt_tokens)),
    el('td', {class: 'number cached-ink'}, sequence.cached_tokens === null ? '–' : count(cached)),
    el('td', {class: 'number generated-ink'}, `${count(sequence.generated_tokens)} of ${count(sequence.max_tokens)}`),
    el('td', {class: 'number'}, seconds(sequence.age_s)));
}

/** How far it is through its prompt, and through what it may write: the longer one is, the more room it gets. */
function progress({prompt_tokens, computed_tokens, generated_tokens, max_tokens}, cached) {
  const total = prompt_tokens + Math.max(generated_tokens, Math.min(max_tokens, Math.max(prompt_tokens, 64)));
  const bar = el('span', {class: 'share', 'aria-hidden': 'true'});
  for (const [name, length] of [['cached', Math.min(cached, computed_tokens)], ['computed', Math.max(0, Math.min(computed_tokens, prompt_tokens) - cached)], ['generated', computed_tokens >= prompt_tokens ? generated_tokens : 0]]) {
    const part = el('i', {class: name});
    part.style.width = `${(100 * length) / total}%`;
    bar.append(part);
  }
  return bar;
}
