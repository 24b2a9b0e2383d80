// The form beside the playground: how to sample, and what form the text must have.

import {byId, el} from './dom.js';

const NUMBERS = [
  {name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.05, hint: '1'},
  {name: 'max_tokens', label: 'Max tokens', min: 1, step: 1, hint: 'as fits, or 64'},
  {name: 'top_p', label: 'Top p', min: 0.01, max: 1, step: 0.01, hint: '1'},
  {name: 'top_k', label: 'Top k', min: 0, step: 1, hint: 'all'},
  {name: 'min_p', label: 'Min p', min: 0, max: 1, step: 0.01, hint: '0'},
  {name: 'seed', label: 'Seed', min: 0, step: 1, hint: 'random'},
  {name: 'presence_penalty', label: 'Presence', min: -2, max: 2, step: 0.1, hint: '0'},
  {name: 'frequency_penalty', label: 'Frequency', min: -2, max: 2, step: 0.1, hint: '0'},
];

const CONSTRAINTS = {
  none: {label: 'Free text'},
  json: {label: 'Any JSON object'},
  schema: {label: 'JSON schema', sample: JSON.stringify({
    type: 'object',
    properties: {city: {type: 'string'}, population: {type: 'integer'}},
    required: ['city', 'population'],
  }, null, 2)},
  regex: {label: 'Regular expression', sample: '(yes|no), because [a-z ]{10,60}\\.'},
  choice: {label: 'One of these, a line each', sample: 'positive\nneutral\nnegative'},
};

const TOOLS_SAMPLE = JSON.stringify([{
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather in a city now',
    parameters: {type: 'object', properties: {city: {type: 'string'}}, required: ['city']},
  },
}], null, 2);

/** A setting that cannot be sent; `field` is the id of its input. */
export class SettingError extends Error {
  constructor(field, message) {
    super(message);
    this.title = 'Not sent: a setting is wrong';
    this.field = field;
  }
}

const idOf = (name) => `set-${name}`;
const field = (name) => byId(idOf(name));

export function buildSettings() {
  const numbers = NUMBERS.map(({name, label, hint, ...limits}) => el('div', {class: 'field'},
    el('label', {for: idOf(name)}, label),
    el('input', {id: idOf(name), type: 'number', inputMode: 'decimal', placeholder: hint, autocomplete: 'off', ...limits})));
  const kinds = Object.entries(CONSTRAINTS).map(([value, {label}]) => el('option', {value}, label));
  byId('settings').append(
    el('h2', {}, 'Sampling', el('button', {type: 'button', class: 'link', onclick: reset}, 'Reset')),
    el('div', {class: 'fields'}, ...numbers),
    el('label', {for: idOf('stop')}, 'Stop texts, a line each'),
    el('textarea', {id: idOf('stop'), rows: 2, spellcheck: false, placeholder: 'none'}),
    el('h2', {}, 'Form of the answer'),
    el('label', {for: idOf('constraint')}, 'The text must be'),
    el('select', {id: idOf('constraint'), onchange: showConstraint}, ...kinds),
    el('label', {for: idOf('grammar'), class: 'sr'}, 'The schema, expression or choices'),
    el('textarea', {id: idOf('grammar'), rows: 6, class: 'code', spellcheck: false, hidden: true}),
    el('div', {id: 'tool-settings'},
      el('h2', {}, 'Tools', el('button', {type: 'button', class: 'link', onclick: insertTools}, 'Example')),
      el('label', {for: idOf('tools'), class: 'sr'}, 'Tools as a JSON list'),
      el('textarea', {id: idOf('tools'), rows: 3, class: 'code', spellcheck: false, placeholder: 'none: a JSON list in OpenAI’s form'}),
      el('label', {for: idOf('tool_choice')}, 'They may be called'),
      el('select', {id: idOf('tool_choice')},
        el('option', {value: 'auto'}, 'when the model likes'),
        el('option', {value: 'required'}, 'always'),
        el('option', {value: 'none'}, 'never'))),
    el('h2', {}, 'Cache'),
    el('label', {for: idOf('cache_salt')}, 'Salt: a cache apart from others'),
    el('input', {id: idOf('cache_salt'), type: 'text', autocomplete: 'off', spellcheck: false, placeholder: 'none'}),
    el('p', {class: 'bad', id: 'settings-error', role: 'alert'}),
  );
}

function reset() {
  for (const {name} of NUMBERS) field(name).value = '';
  for (const name of ['stop', 'tools', 'cache_salt']) field(name).value = '';
  field('constraint').value = 'none';
  field('tool_choice').value = 'auto';
  showConstraint();
}

function insertTools() {
  field('tools').value = TOOLS_SAMPLE;
}

function showConstraint() {
  const {sample} = CONSTRAINTS[field('constraint').value];
  const samples = Object.values(CONSTRAINTS).map((constraint) => constraint.sample);
  const box = field('grammar');
  box.hidden = sample === undefined;
  if (sample !== undefined && (!box.value || samples.includes(box.value))) box.value = sample;
}

/** Fills in what a link to the page says, and nothing more. */
export function fillSettings(values) {
  for (const {name} of NUMBERS) if (values.has(name)) field(name).value = values.get(name);
  if (values.has('stop')) field('stop').value = values.getAll('stop').join('\n');
}

const FIELDS_OF_PARAMS = {response_format: 'grammar', structured_outputs: 'grammar', stop: 'stop', tools: 'tools', tool_choice: 'tool_choice', cache_salt: 'cache_salt'};

/** Which input a field of the request comes from. */
function inputOf(param = '') {
  const top = (param || '').split(/[.[]/)[0];
  return NUMBERS.find((number) => number.name === top)?.name || FIELDS_OF_PARAMS[top];
}

/** Shows at the form what the server, or we, did not like there. */
export function showSettingError(error) {
  const name = error.field || inputOf(error.param);
  byId('settings-error').textContent = error.message;
  const input = name && field(name);
  if (input) {
    input.setAttribute('aria-invalid', 'true');
    input.focus();
  }
}

function clearErrors() {
  byId('settings-error').textContent = '';
  for (const input of byId('settings').querySelectorAll('[aria-invalid]')) input.removeAttribute('aria-invalid');
}

/** The fields of a request, for 'chat' or 'completion'. Throws SettingError. */
export function requestFields(kind) {
  clearErrors();
  const body = {};
  for (const {name, label} of NUMBERS) {
    const input = field(name);
    if (!input.validity.valid) throw new SettingError(name, `${label}: ${input.validationMessage}`);
    if (input.value !== '') body[name] = Number(input.value);
  }
  const stop = lines('stop');
  if (stop.length) body.stop = stop;
  if (field('cache_salt').value) body.cache_salt = field('cache_salt').value;
  Object.assign(body, constraintFields(kind));
  if (kind === 'chat' && field('tools').value.trim()) {
    const tools = parsed('tools', 'Tools');
    if (!Array.isArray(tools)) throw new SettingError('tools', 'Tools: this must be a JSON list');
    Object.assign(body, {tools, tool_choice: field('tool_choice').value});
  }
  return body;
}

function constraintFields(kind) {
  const constraint = field('constraint').value;
  const text = field('grammar').value;
  if (constraint === 'none') return {};
  if (constraint === 'regex') return {structured_outputs: {regex: text}};
  if (constraint === 'choice') {
    const choice = lines('grammar');
    if (!choice.length) throw new SettingError('grammar', 'Give at least one choice');
    return {structured_outputs: {choice}};
  }
  if (constraint === 'json') return {response_format: {type: 'json_object'}};
  const schema = parsed('grammar', 'JSON schema');
  if (kind === 'completion') return {structured_outputs: {json: schema}};
  return {response_format: {type: 'json_schema', json_schema: {name: 'answer', schema}}};
}

function parsed(name, label) {
  try {
    return JSON.parse(field(name).value);
  } catch (error) {
    throw new SettingError(name, `${label}: ${error.message}`);
  }
}

const lines = (name) => field(name).value.split('\n').filter((line) => line !== '');
