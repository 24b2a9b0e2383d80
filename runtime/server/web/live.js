// The live view: the engine as it works, from /live/events.

import {byId, count, el, fill, plural, seconds, setText} from './dom.js';
import {ApiFailure, call} from './api.js';
import {readEvents} from './sse.js';
import {failureBox} from './failures.js';
import {History, ratesOf} from './live_history.js';
import {LineChart} from './line_chart.js';
import {SequenceTable} from './live_sequences.js';
import {StepChart} from './step_chart.js';
import {TreeView} from './live_tree.js';

const FIGURES = [
  ['engine', 'engine'], ['running', 'running'], ['waiting', 'waiting'], ['rate', 'tokens/s written'],
  ['hit_rate', 'cache hit rate'], ['memory', 'KV blocks in use'], ['finished', 'requests finished'],
  ['failed', 'failed, aborted'], ['preemptions', 'preemptions'], ['rejected', 'turned away'],
];

export class LiveView {
  #root;
  #server;
  #stream = null;
  #isShown = false;
  #isBuilt = false;
  #isPaused = false;
  #history = new History();
  #retryTimer = null;

  constructor(root, server) {
    this.#root = root;
    this.#server = server;
    document.addEventListener('visibilitychange', () => this.#follow());
  }

  setShown(isShown) {
    this.#isShown = isShown;
    this.#follow();
  }

  /** Begins anew, as with another key. */
  restart() {
    this.#stop();
    this.#follow();
  }

  /** Listens while somebody looks: the engine records nothing otherwise. */
  #follow() {
    const isWanted = this.#isShown && !this.#isPaused && document.visibilityState === 'visible';
    if (isWanted && !this.#stream) this.#listen();
    if (!isWanted) this.#stop();
  }

  #stop() {
    clearTimeout(this.#retryTimer);
    this.#stream?.abort();
    this.#stream = null;
  }

  async #listen() {
    const stream = new AbortController();
    this.#stream = stream;
    try {
      const response = await call('/live/events', {signal: stream.signal});
      this.#build();
      for await (const {name, data} of readEvents(response)) this.#take(name, JSON.parse(data));
      throw new ApiFailure(0, 'The server has ended the live view. It is tried again.');
    } catch (error) {
      if (error.name === 'AbortError' || this.#stream !== stream) return;
      this.#stream = null;
      const failure = error instanceof ApiFailure ? error : new ApiFailure(0, 'The connection was lost. It is tried again.');
      if (!(error instanceof ApiFailure) && !(error instanceof TypeError)) console.error(error);
      this.#showFailure(failure);
      if ([0, 429, 503].includes(failure.status)) {
        this.#retryTimer = setTimeout(() => this.#follow(), 1000 * (failure.retryAfter || 3));
      }
    }
  }

  #showFailure(failure) {
    if (this.#isBuilt && ![401, 403].includes(failure.status)) {
      this.#banner('bad', `${failure.title}: ${failure.message}`);
      return;
    }
    this.#isBuilt = false;
    const needsKey = [401, 403].includes(failure.status);
    fill(this.#root, el('div', {class: 'needs-key'},
      el('h1', {}, needsKey ? 'The live view is for admins' : 'Live'),
      needsKey ? el('p', {}, 'It shows the texts, requests and cache of everybody who uses this server. It needs one of its admin keys: one that was given as ', el('code', {}, '--admin-api-key'), ', or the only API key there is.') : null,
      failureBox(failure, {retry: needsKey ? null : () => this.restart(), askKey: null}),
      needsKey ? el('button', {type: 'button', class: 'primary', onclick: () => this.#server.askKey('An admin key opens the live view. It is kept in this tab only.')}, 'Enter an admin key') : null));
  }

  #take(name, data) {
    if (name === 'error') throw new ApiFailure(500, data.error.message);
    if (name === 'tree') {
      this.tree.update(data);
      return;
    }
    if (name === 'state') {
      this.#history.restart(data);
      this.tree.update(data.tree);
      this.limits = data.limits;
    } else {
      this.#history.add(data);
    }
    this.#showEngine(data);
    if (!data.counters) return;
    this.#showFigures(data);
    this.sequences.update(data);
    this.steps.update(this.#history.steps, this.limits);
    const points = ratesOf(this.#history.samples);
    for (const [chart, lines] of this.charts) chart.update(points, lines);
  }

  #showEngine({engine}) {
    const texts = {
      silent: `The engine has not answered for ${seconds(engine.silent_s)}. ${engine.silent_s > (this.limits?.step_timeout_s || 60) ? 'It hangs.' : 'A long step, or it hangs.'}`,
      stopped: 'The engine has stopped. The server must be started again.',
      unseen: 'The engine cannot be seen at the moment.',
    };
    this.#banner(engine.status === 'silent' && engine.silent_s < 3 ? '' : 'bad', texts[engine.status] || '');
    setText(this.figures.engine, engine.status);
    this.figures.engine.classList.toggle('bad', engine.status in texts);
  }

  #banner(kind, text) {
    const banner = byId('live-banner');
    banner.hidden = !text || !kind;
    setText(banner, kind ? text : '');
  }

  #showFigures({counters, memory, num_running, num_waiting, admission}) {
    const latest = ratesOf(this.#history.samples.slice(-6)).at(-1);
    const used = memory.private_blocks + memory.locked_blocks;
    const {figures} = this;
    setText(figures.running, `${count(num_running)} of ${count(this.limits.max_num_seqs)}`);
    setText(figures.waiting, count(num_waiting));
    setText(figures.rate, latest ? count(latest.generated) : '–');
    setText(figures.hit_rate, counters.prompt_tokens ? `${(100 * counters.cached_tokens / counters.prompt_tokens).toFixed(1)} %` : '–');
    setText(figures.memory, `${count(used)} of ${count(memory.blocks)}`);
    setText(figures.finished, count(counters.finished));
    setText(figures.failed, `${count(counters.failed)}, ${count(counters.aborted)}`);
    setText(figures.preemptions, count(counters.preemptions));
    setText(figures.rejected, count(admission.rejected));
    for (const [part, blocks] of Object.entries({locked: memory.locked_blocks, private: memory.private_blocks, kept: memory.tree_blocks - memory.locked_blocks})) {
      this.memoryBar[part].style.width = `${100 * blocks / memory.blocks}%`;
      this.memoryBar[part].title = `${plural(blocks, 'block')} ${{locked: 'shared: in the tree and in use', private: 'of one running sequence', kept: 'in the tree, free to be evicted'}[part]}`;
    }
  }

  // -- building ---------------------------------------------------------------------------------------------------------

  #build() {
    if (this.#isBuilt) return;
    this.#isBuilt = true;
    this.figures = {};
    this.memoryBar = {locked: el('i', {class: 'cached'}), private: el('i', {class: 'generated'}), kept: el('i', {class: 'kept'})};
    this.tree = new TreeView();
    this.sequences = new SequenceTable();
    this.steps = new StepChart();
    this.charts = [
      [new LineChart('Tokens a second', few), [['generated', 'written', '--generated'], ['computed', 'computed', '--computed'], ['cached', 'from the cache', '--cached']]],
      [new LineChart('Share of prompt tokens from the cache', (value) => `${Math.round(100 * value)} %`, 1), [['hitRate', 'hit rate', '--cached']]],
      [new LineChart('Sequences', few), [['running', 'running', '--generated'], ['waiting', 'waiting', '--muted']]],
    ];
    fill(this.#root,
      el('p', {id: 'live-banner', class: 'banner', role: 'alert', hidden: true}),
      el('section', {class: 'card wide', 'aria-label': 'Figures'},
        el('div', {class: 'figures-row'}, ...FIGURES.map(([name, label]) => el('div', {}, this.figures[name] = el('b', {}, '–'), el('span', {}, label)))),
        el('div', {class: 'memory', role: 'img', 'aria-label': 'Use of the KV cache; the figures above say it in numbers'}, ...Object.values(this.memoryBar)),
        el('p', {class: 'legend'}, legend('cached', 'shared and in use'), legend('generated', 'of one sequence'), legend('kept', 'kept for later'), legend('free', 'free'), el('span', {class: 'grow'}), this.#pauseButton())),
      el('div', {class: 'charts'}, ...this.charts.map(([chart]) => chart.element)),
      this.steps.element,
      this.sequences.element,
      this.tree.element);
  }

  #pauseButton() {
    const button = el('button', {type: 'button', class: 'quiet boxed', 'aria-pressed': 'false', onclick: () => {
      this.#isPaused = !this.#isPaused;
      button.textContent = this.#isPaused ? 'Go on' : 'Pause';
      button.setAttribute('aria-pressed', String(this.#isPaused));
      this.#follow();
    }}, 'Pause');
    return button;
  }
}

/** With a decimal where it takes one to tell numbers apart. */
const few = (value) => (value < 10 && value % 1 ? value.toFixed(1) : count(value));

const legend = (kind, text) => el('span', {}, el('i', {class: kind}), text);
