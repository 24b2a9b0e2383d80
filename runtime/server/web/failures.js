// How a failure is shown, and what can be done about it.

import {el} from './dom.js';
import {ApiFailure} from './api.js';
import {SettingError} from './settings.js';

/** A box that says what went wrong; `retry` adds a button, which counts down where the server asks to wait. */
export function failureBox(error, {retry, askKey} = {}) {
  const title = error instanceof ApiFailure || error instanceof SettingError ? error.title : 'Something went wrong in this page';
  const box = el('div', {class: 'failure', role: 'alert'}, el('b', {}, title), el('p', {}, error.message));
  if (error.param) box.append(el('p', {class: 'muted'}, 'Field: ', el('code', {}, error.param)));
  const actions = el('div', {class: 'actions'});
  if (error.status === 401 && askKey) actions.append(el('button', {type: 'button', class: 'primary', onclick: askKey}, 'Enter a key'));
  if (retry) actions.append(retryButton(retry, error.retryAfter));
  if (actions.childElementCount) box.append(actions);
  return box;
}

function retryButton(retry, waitSeconds) {
  const button = el('button', {type: 'button', class: 'quiet boxed', onclick: retry}, 'Try again');
  let left = Math.ceil(waitSeconds || 0);
  const tick = () => {
    button.disabled = left > 0;
    button.textContent = left > 0 ? `Try again in ${left} s` : 'Try again';
    if (left-- > 0) setTimeout(tick, 1000);
  };
  tick();
  return button;
}
