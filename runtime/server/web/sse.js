// Server-sent events as fetch brings them: EventSource can send no key.

/** Takes bytes as they come, cut anywhere, and gives whole events. */
export class SseParser {
  #decoder = new TextDecoder();
  #rest = '';
  #name = '';
  #data = [];

  /** The events {name, data} that this piece completes. */
  push(bytes) {
    return this.#take(this.#decoder.decode(bytes, {stream: true}), false);
  }

  /** What the end of the stream completes: an event is complete only with the blank line behind it. */
  end() {
    return this.#take(this.#decoder.decode(), true);
  }

  #take(text, isEnd) {
    const events = [];
    this.#rest += text;
    for (;;) {
      const at = this.#rest.search(/[\r\n]/);
      if (at < 0) break;
      if (this.#rest[at] === '\r' && at + 1 === this.#rest.length && !isEnd) break; // its \n may be on the way
      const width = this.#rest.startsWith('\r\n', at) ? 2 : 1;
      const line = this.#rest.slice(0, at);
      this.#rest = this.#rest.slice(at + width);
      const event = this.#line(line);
      if (event) events.push(event);
    }
    return events;
  }

  #line(line) {
    if (line === '') {
      const event = this.#data.length ? {name: this.#name || 'message', data: this.#data.join('\n')} : null;
      this.#name = '';
      this.#data = [];
      return event;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'data') this.#data.push(value);
    else if (field === 'event') this.#name = value;
    return null;
  }
}

/** The events of an answer, one after the other. */
export async function* readEvents(response) {
  const parser = new SseParser();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      yield* parser.push(value);
    }
    yield* parser.end();
  } finally {
    reader.cancel().catch(() => {});
  }
}
