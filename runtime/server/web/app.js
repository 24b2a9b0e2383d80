// The page: views, the key, shortcuts, and which model it talks to.

import {announce, byId, el} from './dom.js';
import {ApiFailure, apiKey, getJson} from './api.js';
import {buildSettings, fillSettings} from './settings.js';
import {Chat} from './chat.js';
import {Completion} from './completion.js';
import {LiveView} from './live.js';

const VIEWS = ['chat', 'completion', 'live'];

const SHORTCUTS = [
  [['1'], 'Chat'], [['2'], 'Completion'], [['3'], 'Live view'],
  [['/'], 'Go to the text field'],
  [['Enter'], 'Send the message'],
  [['Shift', 'Enter'], 'Begin a new line'],
  [['↑'], 'Edit your last message, in an empty field'],
  [['Ctrl', 'Enter'], 'Run the completion'],
  [['Esc'], 'Stop what is being written'],
  [['r'], 'Write the last reply again'],
  [['n'], 'New chat'],
  [['s'], 'Show or hide the settings'],
  [['k'], 'API key'],
  [['t'], 'Light, dark, or as the system'],
  [['?'], 'This list'],
];

const server = {
  model: undefined,
  openSettings: () => toggleSettings(true),
  askKey: (why) => askKey(typeof why === 'string' ? why : undefined),
};

buildSettings();
const chat = new Chat(server);
const completion = new Completion(server);
const live = new LiveView(byId('live'), server);

// -- views -------------------------------------------------------------------------------------------------------------

let view = null;

function show(name, {isFocused = false} = {}) {
  view = VIEWS.includes(name) ? name : 'chat';
  for (const other of VIEWS) {
    const isShown = other === view;
    byId(`view-${other}`).hidden = !isShown;
    const tab = byId(`tab-${other}`);
    tab.setAttribute('aria-selected', String(isShown));
    tab.tabIndex = isShown ? 0 : -1;
    if (isShown && isFocused) tab.focus();
  }
  document.body.dataset.view = view;
  byId('tool-settings').hidden = view !== 'chat';
  byId('settings-button').hidden = view === 'live';
  live.setShown(view === 'live');
}

function go(name, options) {
  if (location.hash.slice(1).split('?')[0] !== name) history.pushState(null, '', `#${name}`);
  show(name, options);
}

/** A link such as #chat?prompt=Hello&temperature=0 fills the form. It never sends: that takes a hand. */
function followHash() {
  const [name, query] = location.hash.slice(1).split('?');
  show(name);
  if (!query) return;
  const values = new URLSearchParams(query);
  fillSettings(values);
  const prompt = values.get('prompt');
  if (view === 'chat' && (prompt !== null || values.has('system'))) chat.compose(prompt || '', values.get('system'));
  if (view === 'completion' && prompt !== null) completion.compose(prompt);
}

for (const name of VIEWS) {
  const tab = byId(`tab-${name}`);
  tab.addEventListener('click', () => go(name));
  tab.addEventListener('keydown', (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    const target = {Home: VIEWS[0], End: VIEWS.at(-1)}[event.key] || (step && VIEWS[(VIEWS.indexOf(name) + step + VIEWS.length) % VIEWS.length]);
    if (!target) return;
    event.preventDefault();
    go(target, {isFocused: true});
  });
}
addEventListener('hashchange', followHash);
addEventListener('popstate', followHash);

function toggleSettings(isOpen = !document.body.classList.contains('with-settings')) {
  document.body.classList.toggle('with-settings', isOpen);
  byId('settings-button').setAttribute('aria-expanded', String(isOpen));
}
byId('settings-button').addEventListener('click', () => toggleSettings());

// -- the key -----------------------------------------------------------------------------------------------------------

const WHY_KEY = byId('key-why').textContent;

function askKey(why) {
  byId('key-why').textContent = why || WHY_KEY;
  byId('key').value = apiKey.get();
  if (!byId('key-dialog').open) byId('key-dialog').showModal();
}
byId('key-button').addEventListener('click', () => askKey());
byId('key-cancel').addEventListener('click', () => byId('key-dialog').close());
byId('key-forget').addEventListener('click', () => { apiKey.set(''); byId('key-dialog').close(); });
byId('key-form').addEventListener('submit', () => apiKey.set(byId('key').value.trim()));
document.addEventListener('keychange', () => { connect(); live.restart(); });

async function connect() {
  byId('key-button').classList.toggle('set', Boolean(apiKey.get()));
  byId('key-button').setAttribute('aria-label', apiKey.get() ? 'API key: set. Change' : 'API key: none. Enter one');
  try {
    const {data} = await getJson('/v1/models');
    server.model = data[0].id;
    setLamp('good', server.model);
    byId('model').title = `${server.model}, context of ${data[0].max_model_len} tokens`;
  } catch (error) {
    if (!(error instanceof ApiFailure)) throw error;
    setLamp('bad', error.status === 401 ? 'needs an API key' : error.title);
    if (error.status === 401 && apiKey.get()) askKey('The server does not know this key.');
    if (error.status === 0) setTimeout(connect, 3000);
  }
}

function setLamp(state, text) {
  byId('lamp').className = `lamp ${state}`;
  byId('model-name').textContent = text;
}

// -- shortcuts ---------------------------------------------------------------------------------------------------------

byId('shortcuts').append(...SHORTCUTS.flatMap(([keys, what]) => [
  el('dt', {}, ...keys.map((key) => el('kbd', {}, key))), el('dd', {}, what)]));
byId('help-button').addEventListener('click', () => byId('help').showModal());

const ACTIONS = {
  1: () => go('chat', {isFocused: true}),
  2: () => go('completion', {isFocused: true}),
  3: () => go('live', {isFocused: true}),
  '/': () => byId(view === 'completion' ? 'text' : 'prompt').focus(),
  r: () => view === 'chat' && chat.regenerate(),
  n: () => view === 'chat' && chat.clear(),
  s: () => toggleSettings(),
  k: () => askKey(),
  t: () => announce(`Colours: ${globalThis.rametTheme.next()}`),
  '?': () => byId('help').showModal(),
};

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  if (event.key === 'Escape') {
    if (chat.isRunning || completion.isRunning) { chat.stop(); completion.stop(); } else if (event.target.matches('textarea, input')) event.target.blur();
    return;
  }
  if (event.target.matches('input, textarea, select')) return;
  const action = ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

toggleSettings(innerWidth > 1000);
followHash();
connect();
