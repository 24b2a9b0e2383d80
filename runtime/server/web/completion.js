// The completion: a text gone on with, each token coloured by how likely it was.

import {announce, byId, copy, el, fill} from './dom.js';
import {ApiFailure, asCurl, streamChunks} from './api.js';
import {failureBox} from './failures.js';
import {figureElements, Stopwatch} from './figures.js';
import {requestFields, SettingError, showSettingError} from './settings.js';
import {TokenView} from './tokens.js';

const NUM_ALTERNATIVES = 5;

export class Completion {
  #server;
  #running = null;
  #tokens = new TokenView(byId('continuation'), byId('alternatives'));
  #written = '';

  constructor(server) {
    this.#server = server;
    byId('completion-form').addEventListener('submit', (event) => {
      event.preventDefault();
      if (this.#running) this.stop(); else this.run();
    });
    byId('text').addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && !this.#running) {
        event.preventDefault();
        this.run();
      }
    });
    byId('completion-append').addEventListener('click', () => this.#append());
    byId('completion-curl').addEventListener('click', () => this.#withSettings(() => copy(asCurl('/v1/completions', this.#body()), 'Command')));
  }

  get isRunning() {
    return this.#running !== null;
  }

  compose(text) {
    byId('text').value = text;
    byId('text').focus();
  }

  stop() {
    this.#running?.abort();
  }

  run() {
    return this.#withSettings(() => this.#stream(this.#body()));
  }

  #withSettings(action) {
    try {
      return action();
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      this.#server.openSettings();
      showSettingError(error);
      return null;
    }
  }

  #body() {
    const body = {
      model: this.#server.model,
      prompt: byId('text').value,
      max_tokens: 64,
      ...requestFields('completion'),
      stream: true,
      stream_options: {include_usage: true},
    };
    if (byId('show-logprobs').checked) body.logprobs = NUM_ALTERNATIVES;
    return body;
  }

  async #stream(body) {
    const running = new AbortController();
    const watch = new Stopwatch();
    let usage = null;
    let finish = null;
    this.#running = running;
    this.#written = '';
    this.#tokens.clear();
    fill(byId('completion-error'));
    fill(byId('completion-figures'));
    byId('scale').hidden = !body.logprobs;
    this.#showRunning();
    try {
      for await (const chunk of streamChunks('/v1/completions', body, running.signal)) {
        usage = chunk.usage || usage;
        const choice = chunk.choices?.[0];
        if (!choice) continue;
        finish = choice.finish_reason || finish;
        if (choice.text || choice.logprobs?.tokens?.length) watch.mark();
        this.#written += choice.text || '';
        this.#tokens.add(choice.text || '', choice.logprobs);
      }
      announce('Continuation complete', {isShown: false});
    } catch (error) {
      if (error.name === 'AbortError') finish = 'stopped';
      else this.#fail(error);
    } finally {
      this.#running = null;
      fill(byId('completion-figures'), ...figureElements(usage, watch, finish));
      this.#showRunning();
    }
  }

  #fail(error) {
    fill(byId('completion-error'), failureBox(error, {retry: () => this.run(), askKey: () => this.#server.askKey()}));
    if (error instanceof ApiFailure && error.status === 400 && error.param) showSettingError(error);
    if (!(error instanceof ApiFailure)) console.error(error);
  }

  #append() {
    byId('text').value += this.#written;
    this.#written = '';
    byId('completion-append').disabled = true;
    byId('text').focus();
  }

  #showRunning() {
    const button = byId('complete');
    button.textContent = this.#running ? 'Stop' : 'Complete';
    button.classList.toggle('stop', this.isRunning);
    byId('continuation').setAttribute('aria-busy', String(this.isRunning));
    byId('completion-append').disabled = this.isRunning || !this.#written;
  }
}
