// Calls of the server: the key, the ways in which they fail, and streams of OpenAI's chunks.

import {readEvents} from './sse.js';

const KEY = 'ramet-api-key';

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) || '',
  set(value) {
    if (value) sessionStorage.setItem(KEY, value); else sessionStorage.removeItem(KEY);
    document.dispatchEvent(new Event('keychange'));
  },
};

/** Why a call did not succeed. `status` is 0 where there was no answer. */
export class ApiFailure extends Error {
  constructor(status, message, {param = null, retryAfter = null} = {}) {
    super(message);
    this.status = status;
    this.param = param;
    this.retryAfter = retryAfter;
  }

  get title() {
    if (this.status === 0) return 'No connection';
    const titles = {
      400: 'The request was refused', 401: 'An API key is needed', 403: 'This key may not do that', 404: 'Not found',
      413: 'The request is too large', 429: 'The server is full', 499: 'The request was cancelled',
      503: 'The server takes no requests now', 504: 'It took too long',
    };
    return titles[this.status] || `The server answered with ${this.status}`;
  }
}

/** The failure that an answer other than 2xx tells of. */
export async function failureOf(response) {
  let error = null;
  try { error = (await response.json()).error; } catch { /* not ours, or cut off */ }
  const message = error?.message || response.statusText || `status ${response.status}`;
  const retryAfter = Number(response.headers.get('retry-after')) || null;
  return new ApiFailure(response.status, message, {param: error?.param, retryAfter});
}

export function headersOf(body) {
  const headers = {};
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (apiKey.get()) headers.authorization = `Bearer ${apiKey.get()}`;
  return headers;
}

/** The response; throws ApiFailure, or the AbortError of the signal. */
export async function call(path, {body, signal, method} = {}) {
  let response;
  try {
    response = await fetch(path, {
      method: method || (body === undefined ? 'GET' : 'POST'),
      headers: headersOf(body),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: 'no-store',
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiFailure(0, 'The server did not answer. Is it still running, and can this machine reach it?');
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}

export const getJson = async (path, options) => (await call(path, options)).json();

/** OpenAI's chunks up to [DONE]; throws ApiFailure also for an error in the middle, and for a stream cut off. */
export async function* streamChunks(path, body, signal) {
  const response = await call(path, {body, signal});
  try {
    for await (const {data} of readEvents(response)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiFailure(500, chunk.error.message, {param: chunk.error.param});
      yield chunk;
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ApiFailure) throw error;
    throw new ApiFailure(0, 'The connection was lost in the middle of the answer.');
  }
  throw new ApiFailure(0, 'The answer ended before it was complete.');
}

/** A call as a command for a shell, without the key itself. */
export function asCurl(path, body, method) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [`curl ${location.origin}${path}`];
  if (method && method !== 'GET' && !(method === 'POST' && body !== undefined)) lines[0] += ` -X ${method}`;
  if (apiKey.get()) lines.push('-H "Authorization: Bearer $RAMET_API_KEY"');
  if (body !== undefined) lines.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body, null, 2))}`);
  return lines.join(' \\\n  ');
}
