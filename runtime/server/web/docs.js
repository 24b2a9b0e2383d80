// The API, read from /openapi.json.

import {announce, byId, copy, el, fill} from './dom.js';
import {apiKey, asCurl, headersOf} from './api.js';
import {exampleOf, limitsText, objectWithin, resolved, typeText} from './schema.js';

const METHODS = ['get', 'post', 'put', 'patch', 'delete'];
const TAG_NAMES = {openai: 'OpenAI', anthropic: 'Anthropic', native: 'SGLang and ramet', health: 'Health', live: 'Live view', other: 'Other'};
const MAX_DEPTH = 5;
const MAX_SHOWN_CHARS = 20000;

const KNOWN_BODIES = {
  '/v1/chat/completions': (model) => ({model, messages: [{role: 'user', content: 'Name three trees.'}], max_tokens: 64}),
  '/v1/completions': (model) => ({model, prompt: 'The largest tree of all is', max_tokens: 32}),
  '/v1/responses': (model) => ({model, input: 'Name three trees.', max_output_tokens: 64}),
  '/v1/messages': (model) => ({model, max_tokens: 64, messages: [{role: 'user', content: 'Name three trees.'}]}),
  '/v1/messages/count_tokens': (model) => ({model, messages: [{role: 'user', content: 'Name three trees.'}]}),
  '/generate': () => ({text: 'The largest tree of all is', sampling_params: {max_new_tokens: 32, temperature: 0}}),
  '/tokenize': () => ({prompt: 'A tree of prefixes'}),
};

let api = null;
let model = 'model';

async function load() {
  byId('key').value = apiKey.get();
  try {
    const response = await fetch('/openapi.json', {headers: headersOf()});
    if (!response.ok) throw new Error(`the server answered with ${response.status}`);
    api = await response.json();
  } catch (error) {
    byId('description').textContent = `The description of the API could not be read: ${error.message}.`;
    return;
  }
  try {
    model = (await (await fetch('/v1/models', {headers: headersOf()})).json()).data[0].id;
  } catch { /* examples do without */ }
  byId('version').textContent = `${api.info.title} ${api.info.version}`;
  byId('description').textContent = api.info.description || '';
  build();
  openHash();
}

function operationsByTag() {
  const tags = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((name) => item[name])) {
      const operation = {path, method, ...item[method], parameters: [...(item.parameters || []), ...(item[method].parameters || [])]};
      const tag = operation.tags?.[0] || 'other';
      tags.set(tag, [...(tags.get(tag) || []), operation]);
    }
  }
  return tags;
}

const anchor = ({method, path}) => `${method}${path.replace(/[^a-zA-Z0-9]+/g, '-')}`;
const methodMark = (method) => el('span', {class: `method ${method}`}, method.toUpperCase());

function build() {
  const tags = operationsByTag();
  fill(byId('contents'), ...[...tags].map(([tag, operations]) => el('section', {'data-group': tag}, el('h2', {}, TAG_NAMES[tag] || tag),
    ...operations.map((operation) => el('a', {href: `#${anchor(operation)}`, 'data-words': words(operation)}, methodMark(operation.method), el('span', {}, operation.path))))));
  fill(byId('list'), ...[...tags].map(([tag, operations]) => el('section', {'data-group': tag}, el('h2', {class: 'tag-title'}, TAG_NAMES[tag] || tag),
    ...operations.map(operationElement))));
}

const words = ({path, method, summary = '', description = '', parameters, tags = []}) =>
  [path, method, summary, description, ...tags, ...parameters.map(({name}) => name)].join(' ').toLowerCase();

const firstSentence = ({description, summary}) => (description ? description.split(/(?<=\.)\s/)[0] : summary || '');

function operationElement(operation) {
  const details = el('details', {class: 'operation', id: anchor(operation), 'data-words': words(operation)},
    el('summary', {}, methodMark(operation.method), el('code', {}, operation.path), el('span', {class: 'muted'}, firstSentence(operation))));
  details.addEventListener('toggle', () => {
    if (details.open && details.childElementCount === 1) details.append(operationBody(operation));
  });
  return details;
}

function operationBody(operation) {
  const content = resolved(operation.requestBody, api).content;
  const schema = content?.['application/json']?.schema;
  const body = el('div', {class: 'body'});
  if (operation.description) body.append(el('p', {class: 'text'}, operation.description));
  body.append(tryElement(operation, schema));
  if (operation.parameters.length) body.append(el('h3', {}, 'Parameters'), parameterList(operation.parameters));
  if (schema) body.append(el('h3', {}, 'Fields of the body'), fieldList(schema, 0));
  const answers = Object.entries(operation.responses || {}).filter(([, answer]) => answer.description !== 'Successful Response');
  if (answers.length) body.append(el('h3', {}, 'Answers'), el('ul', {class: 'schema'}, ...answers.map(([status, answer]) => el('li', {},
    el('span', {class: 'name'}, status), ' ', el('span', {class: 'muted'}, resolved(answer, api).description || '')))));
  return body;
}

function parameterList(parameters) {
  return el('ul', {class: 'schema'}, ...parameters.map((given) => {
    const parameter = resolved(given, api);
    return el('li', {}, ...fieldHead(parameter.name, parameter.schema, parameter.required), el('span', {class: 'muted'}, ` in the ${parameter.in}`),
      parameter.description ? el('span', {class: 'about'}, parameter.description) : null);
  }));
}

function fieldHead(name, schema, isRequired) {
  const limits = limitsText(schema, api);
  return [el('span', {class: 'name'}, name), ' ', el('span', {class: 'type'}, typeText(schema, api)),
    isRequired ? el('span', {class: 'needed'}, ' required') : null, limits ? el('span', {class: 'muted'}, ` ${limits}`) : null];
}

/** The fields of an object; what is inside of them is built when it is opened. */
function fieldList(schema, depth) {
  const object = objectWithin(schema, api);
  if (!object) return el('p', {class: 'type'}, typeText(schema, api));
  return el('ul', {class: 'schema'}, ...Object.entries(object.properties).map(([name, property]) => {
    const head = fieldHead(name, property, object.required?.includes(name));
    const about = resolved(property, api).description || property.description;
    const aboutElement = about ? el('span', {class: 'about'}, about) : null;
    if (depth >= MAX_DEPTH || !objectWithin(property, api)) return el('li', {}, ...head.filter(Boolean), aboutElement);
    const inner = el('details', {}, el('summary', {}, ...head.filter(Boolean)));
    inner.addEventListener('toggle', () => {
      if (inner.open && inner.childElementCount === 1) inner.append(fieldList(property, depth + 1));
    });
    return el('li', {}, inner, aboutElement);
  }));
}

function tryElement(operation, schema) {
  const example = KNOWN_BODIES[operation.path]?.(model) ?? (schema ? exampleOf(schema, api) : undefined);
  const input = schema && el('textarea', {rows: Math.min(16, JSON.stringify(example, null, 2).split('\n').length + 1), spellcheck: false, value: JSON.stringify(example, null, 2), 'aria-label': 'Body of the request'});
  const path = el('input', {type: 'text', value: operation.path, spellcheck: false, 'aria-label': 'Path of the request'});
  const outcome = el('div', {class: 'outcome', 'aria-live': 'polite'});
  const command = el('pre', {tabIndex: 0});
  const curl = () => asCurl(path.value, bodyOf(input), operation.method.toUpperCase());
  const showCommand = () => { try { command.textContent = curl(); } catch { /* not JSON yet */ } };
  for (const box of [input, path]) box?.addEventListener('input', showCommand);
  const send = el('button', {type: 'button', class: 'primary', onclick: () => run(operation, path.value, input, outcome, send)}, 'Send');
  showCommand();
  return el('section', {},
    el('h3', {}, 'Example', el('button', {type: 'button', class: 'link', onclick: () => copy(curl(), 'Command')}, 'Copy')), command,
    el('h3', {}, 'Try it'), operation.path.includes('{') ? path : null, input,
    el('div', {class: 'composer-row'}, send), outcome);
}

const bodyOf = (input) => (input ? JSON.parse(input.value) : undefined);

async function run(operation, path, input, outcome, button) {
  const stop = new AbortController();
  button.textContent = 'Stop';
  const onStop = (event) => { event.stopImmediatePropagation(); stop.abort(); };
  button.addEventListener('click', onStop, {capture: true});
  const shown = el('pre', {tabIndex: 0});
  const started = performance.now();
  const status = el('p', {class: 'muted'}, 'Waiting…');
  fill(outcome, status, shown);
  try {
    const body = bodyOf(input);
    const response = await fetch(path, {method: operation.method.toUpperCase(), headers: headersOf(body), body: body && JSON.stringify(body), signal: stop.signal});
    status.textContent = `${response.status} ${response.statusText} after ${Math.round(performance.now() - started)} ms`;
    await showText(response, shown);
  } catch (error) {
    status.textContent = error.name === 'AbortError' ? `${status.textContent}, stopped` : error.message;
  } finally {
    button.removeEventListener('click', onStop, {capture: true});
    button.textContent = 'Send';
  }
}

/** Shows the answer as it comes; JSON is indented once it is whole. */
async function showText(response, element) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) break;
    text += value;
    element.textContent = text.slice(-MAX_SHOWN_CHARS);
  }
  try { element.textContent = JSON.stringify(JSON.parse(text), null, 2).slice(0, MAX_SHOWN_CHARS); } catch { /* events, or plain text */ }
}

function search() {
  const wanted = byId('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  let numShown = 0;
  for (const element of document.querySelectorAll('[data-words]')) {
    element.hidden = !wanted.every((word) => element.dataset.words.includes(word));
    if (!element.hidden && element.matches('.operation')) numShown++;
  }
  for (const group of document.querySelectorAll('[data-group]')) group.hidden = !group.querySelector('[data-words]:not([hidden])');
  byId('nothing').hidden = numShown > 0;
  announce(`${numShown} endpoints`, {isShown: false});
}

function openHash() {
  const details = byId(decodeURIComponent(location.hash.slice(1)));
  if (details?.matches('details')) {
    details.open = true;
    details.scrollIntoView();
    details.querySelector('summary').focus();
  }
}

byId('search').addEventListener('input', search);
byId('key').addEventListener('change', () => apiKey.set(byId('key').value.trim()));
addEventListener('hashchange', openHash);
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.target.matches('input, textarea')) return;
  event.preventDefault();
  byId('search').focus();
});
load();
