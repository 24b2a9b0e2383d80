// The chat: a conversation over /v1/chat/completions.

import {announce, byId, copy, el, fill, visible} from './dom.js';
import {ApiFailure, asCurl, streamChunks} from './api.js';
import {failureBox} from './failures.js';
import {figureElements, Stopwatch} from './figures.js';
import {fillRichText} from './rich_text.js';
import {requestFields, SettingError, showSettingError} from './settings.js';

const STARTERS = [
  'Explain what a prefix cache is, in two sentences.',
  'Write a haiku about a tree that grows from its own branches.',
  'List five questions that a good tester asks.',
];

export class Chat {
  #server;
  #messages = []; // {role, content, tool_calls?, figures?}
  #running = null; // the AbortController of the reply that streams
  #editing = null;

  constructor(server) {
    this.#server = server;
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      if (this.#running) this.stop(); else this.#sendComposed();
    });
    const prompt = byId('prompt');
    prompt.addEventListener('input', () => grow(prompt));
    prompt.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.#running) this.#sendComposed();
      } else if (event.key === 'ArrowUp' && prompt.value === '') {
        event.preventDefault();
        this.editLast();
      }
    });
    byId('system').addEventListener('input', () => this.#hintSystem());
    byId('chat-clear').addEventListener('click', () => this.clear());
    byId('chat-curl').addEventListener('click', () => this.#copyCurl());
    byId('starters').append(...STARTERS.map((text) => el('button', {type: 'button', class: 'starter', onclick: () => this.compose(text)}, text)));
    this.#draw();
  }

  get isRunning() {
    return this.#running !== null;
  }

  /** Puts a text where the user can send it. */
  compose(text, system) {
    const prompt = byId('prompt');
    prompt.value = text;
    grow(prompt);
    if (system !== undefined && system !== null) {
      byId('system').value = system;
      byId('system-box').open = true;
      this.#hintSystem();
    }
    prompt.focus();
  }

  clear() {
    this.stop();
    this.#messages = [];
    this.#editing = null;
    this.#draw();
    byId('prompt').focus();
    announce('A new chat', {isShown: false});
  }

  stop() {
    this.#running?.abort();
  }

  regenerate() {
    if (this.#running) return;
    while (this.#messages.length && this.#messages.at(-1).role !== 'user') this.#messages.pop();
    if (this.#messages.length) this.#reply();
  }

  editLast() {
    const idx = this.#messages.findLastIndex(({role}) => role === 'user');
    if (idx >= 0) this.#edit(idx);
  }

  // -- asking ---------------------------------------------------------------------------------------------------------

  #sendComposed() {
    const prompt = byId('prompt');
    const text = prompt.value;
    if (!text.trim()) return;
    prompt.value = '';
    grow(prompt);
    this.#messages.push({role: 'user', content: text});
    this.#reply();
  }

  #body() {
    const system = byId('system').value;
    const messages = this.#messages
      .filter(({error}) => !error)
      .map(({role, content, tool_calls, tool_call_id}) => ({role, content: tool_calls ? content || null : content, tool_calls, tool_call_id})); // JSON leaves out what is undefined
    return {
      model: this.#server.model,
      messages: system.trim() ? [{role: 'system', content: system}, ...messages] : messages,
      ...requestFields('chat'),
      stream: true,
      stream_options: {include_usage: true},
    };
  }

  async #reply() {
    this.#messages = this.#messages.filter(({error}) => !error);
    let body;
    try {
      body = this.#body();
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      this.#messages.push({role: 'error', error});
      this.#draw();
      this.#server.openSettings();
      showSettingError(error);
      return;
    }
    const running = new AbortController();
    const reply = {role: 'assistant', content: '', isStreaming: true};
    this.#running = running;
    this.#messages.push(reply);
    this.#draw();
    const view = byId('messages').lastElementChild;
    const watch = new Stopwatch();
    let usage = null;
    let finish = null;
    const painter = new Painter(() => {
      fillRichText(view.querySelector('.content'), reply.content);
      fillCalls(view.querySelector('.calls'), reply.tool_calls);
      keepAtEnd();
    });
    try {
      for await (const chunk of streamChunks('/v1/chat/completions', body, running.signal)) {
        usage = chunk.usage || usage;
        const choice = chunk.choices?.[0];
        if (!choice) continue;
        finish = choice.finish_reason || finish;
        if (choice.delta?.content || choice.delta?.tool_calls) watch.mark();
        if (choice.delta?.content) reply.content += choice.delta.content;
        if (choice.delta?.tool_calls) mergeCalls(reply, choice.delta.tool_calls);
        painter.want();
      }
      reply.figures = figureElements(usage, watch, finish);
      announce(`Reply complete${usage ? `, ${usage.completion_tokens} tokens` : ''}`, {isShown: false});
    } catch (error) {
      this.#fail(reply, error, watch, finish);
    } finally {
      painter.end();
      delete reply.isStreaming;
      this.#running = null;
      this.#draw();
      keepAtEnd();
    }
  }

  #fail(reply, error, watch, finish) {
    if (error.name === 'AbortError') {
      reply.figures = [...figureElements(null, watch, finish), el('span', {class: 'figure'}, 'stopped')];
      announce('Stopped', {isShown: false});
      return;
    }
    if (!reply.content && !reply.tool_calls) this.#messages.pop();
    else reply.figures = figureElements(null, watch, 'cut off');
    this.#messages.push({role: 'error', error});
    if (error instanceof ApiFailure && error.status === 400 && error.param) showSettingError(error);
    if (!(error instanceof ApiFailure)) console.error(error);
  }

  // -- showing --------------------------------------------------------------------------------------------------------

  #draw() {
    byId('chat-welcome').hidden = this.#messages.length > 0;
    fill(byId('messages'), ...this.#messages.map((message, idx) => this.#item(message, idx)));
    const send = byId('send');
    send.textContent = this.#running ? 'Stop' : 'Send';
    send.classList.toggle('stop', this.isRunning);
    byId('messages').setAttribute('aria-busy', String(this.isRunning));
    this.#hintSystem();
  }

  #item(message, idx) {
    if (message.error) return el('li', {class: 'message error'}, failureBox(message.error, {retry: () => this.regenerate(), askKey: () => this.#server.askKey()}));
    if (this.#editing === idx) return this.#editor(message, idx);
    const content = el('div', {class: 'content'});
    fillRichText(content, message.content);
    const calls = el('div', {class: 'calls'});
    fillCalls(calls, message.tool_calls);
    const isLast = idx === this.#messages.length - 1;
    if (isLast && message.tool_calls && !message.isStreaming) calls.append(this.#resultForm(message));
    if (message.role === 'tool') return el('li', {class: 'message tool'}, el('div', {class: 'who'}, `Result of ${message.name}`), content);
    return el('li', {class: `message ${message.role}${message.isStreaming ? ' streaming' : ''}`},
      el('div', {class: 'who'}, message.role === 'user' ? 'You' : 'Assistant', this.#actions(message, idx)),
      content, calls, el('p', {class: 'figures'}, ...(message.figures || [])));
  }

  #actions(message, idx) {
    const actions = el('span', {class: 'actions'});
    if (this.#running) return actions;
    const add = (text, onclick, label) => actions.append(el('button', {type: 'button', class: 'link', onclick, 'aria-label': label}, text));
    add('Copy', () => copy(message.content, 'Message'), 'Copy this message');
    add('Edit', () => this.#edit(idx), 'Edit this message');
    if (message.role === 'assistant' && idx === this.#messages.length - 1) add('Regenerate', () => this.regenerate(), 'Write this reply again');
    return actions;
  }

  /** What the called tools have answered, for the model to go on with. */
  #resultForm(message) {
    const boxes = message.tool_calls.map(({function: called}) => el('textarea', {rows: 1, spellcheck: false, 'aria-label': `Result of ${called.name}`, placeholder: `What ${called.name} answers`}));
    return el('form', {class: 'results', onsubmit: (event) => {
      event.preventDefault();
      if (this.#running) return;
      message.tool_calls.forEach((call, at) => this.#messages.push({role: 'tool', tool_call_id: call.id, name: call.function.name, content: boxes[at].value}));
      this.#reply();
    }}, ...boxes, el('button', {class: 'primary'}, boxes.length > 1 ? 'Send results' : 'Send result'));
  }

  #edit(idx) {
    if (this.#running) return;
    this.#editing = idx;
    this.#draw();
    const box = byId('messages').children[idx].querySelector('textarea');
    grow(box);
    box.focus();
  }

  #editor(message, idx) {
    const box = el('textarea', {value: message.content, rows: 2, 'aria-label': 'Edit the message', oninput: () => grow(box)});
    const close = () => {
      this.#editing = null;
      this.#draw();
      byId('prompt').focus();
    };
    const save = () => {
      this.#editing = null;
      message.content = box.value;
      if (message.role === 'user') {
        this.#messages.length = idx + 1;
        this.#reply();
      } else {
        delete message.figures;
        close();
      }
    };
    box.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); save(); }
      if (event.key === 'Escape') { event.stopPropagation(); close(); }
    });
    return el('li', {class: `message ${message.role}`},
      el('div', {class: 'who'}, message.role === 'user' ? 'You' : 'Assistant'), box,
      el('div', {class: 'composer-row'},
        el('span', {class: 'muted'}, message.role === 'user' ? 'What came after it is dropped, and answered anew.' : 'The model will believe that it said this.'),
        el('span', {class: 'grow'}),
        el('button', {type: 'button', class: 'quiet', onclick: close}, 'Cancel'),
        el('button', {type: 'button', class: 'primary', onclick: save}, message.role === 'user' ? 'Send' : 'Keep')));
  }

  #hintSystem() {
    const text = byId('system').value.trim();
    byId('system-hint').textContent = text ? visible(text, {isOneLine: true}).slice(0, 80) : 'none';
  }

  #copyCurl() {
    try {
      const body = this.#body();
      if (!body.messages.some(({role}) => role === 'user')) body.messages.push({role: 'user', content: byId('prompt').value || 'Hello'});
      copy(asCurl('/v1/chat/completions', body), 'Command');
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      showSettingError(error);
    }
  }
}

/** Paints once a frame at most, however many pieces come. */
class Painter {
  #paint;
  #frame = null;

  constructor(paint) {
    this.#paint = paint;
  }

  want() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#paint();
    });
  }

  end() {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
  }
}

/** Adds the deltas of tool calls to a reply. */
export function mergeCalls(reply, deltas) {
  reply.tool_calls ??= [];
  for (const {index = 0, id, function: called = {}} of deltas) {
    const call = (reply.tool_calls[index] ??= {id: id || '', type: 'function', function: {name: '', arguments: ''}});
    if (id) call.id = id;
    if (called.name) call.function.name += called.name;
    if (called.arguments) call.function.arguments += called.arguments;
  }
}

function fillCalls(element, calls) {
  fill(element, ...(calls || []).map((call) => el('div', {class: 'call'}, el('b', {}, call.function.name), el('pre', {}, visible(call.function.arguments)))));
}

function grow(textarea) {
  textarea.style.height = 'auto';
  textarea.style.height = `${Math.min(textarea.scrollHeight + 2, 0.4 * innerHeight)}px`;
}

/** Follows the text, unless the reader has scrolled up. */
function keepAtEnd() {
  const scroll = byId('chat-scroll');
  if (scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 160) scroll.scrollTop = scroll.scrollHeight;
}
