// Lines over the last minutes, with a table of the same for those who would rather read.

import {el, fill, setText} from './dom.js';
import {begin, colour, grid, niceCeiling, yOf} from './canvas.js';

const [LEAST_SPAN_S, MOST_SPAN_S] = [60, 300];
const TABLE_ROWS = 30;

export class LineChart {
  #title;
  #format;
  #top;
  #canvas = el('canvas', {role: 'img', tabIndex: 0});
  #legend = el('p', {class: 'legend'});
  #body = el('tbody', {});
  #head = el('tr', {});
  #table = el('details', {class: 'as-table'}, el('summary', {}, 'As a table'), el('div', {class: 'table-scroll', tabIndex: 0}, el('table', {}, el('thead', {}, this.#head), this.#body)));
  #points = [];
  #lines = [];

  /** `top` is where the axis ends; without it, above the highest point. */
  constructor(title, format, top) {
    this.#title = title;
    this.#format = format;
    this.#top = top;
    this.element = el('section', {class: 'card', 'aria-label': title}, el('h2', {}, title), this.#canvas, this.#legend, this.#table);
    document.addEventListener('themechange', () => this.#draw());
    new ResizeObserver(() => this.#draw()).observe(this.#canvas);
    this.#table.addEventListener('toggle', () => this.#fillTable());
  }

  /** `lines` are [name of the value, label, colour]. */
  update(points, lines) {
    this.#points = points;
    if (this.#lines !== lines) {
      this.#lines = lines;
      fill(this.#head, el('th', {}, 'seconds ago'), ...lines.map(([, label]) => el('th', {}, label)));
      fill(this.#legend, ...lines.map(([, label, tint]) => {
        const mark = el('i', {});
        mark.style.background = `var(${tint})`;
        return el('span', {}, mark, label, ' ', el('b', {}, '–'));
      }));
    }
    const latest = points.at(-1);
    lines.forEach(([name], idx) => setText(this.#legend.children[idx].querySelector('b'), shown(latest?.[name], this.#format)));
    this.#canvas.setAttribute('aria-label', `${this.#title}: ${lines.map(([name, label]) => `${label} ${shown(latest?.[name], this.#format)}`).join(', ')}`);
    this.#draw();
    this.#fillTable();
  }

  #draw() {
    const ready = begin(this.#canvas);
    if (!ready) return;
    const {context, width, height} = ready;
    const end = this.#points.at(-1)?.time ?? 0;
    const highest = Math.max(0, ...this.#points.flatMap((point) => this.#lines.map(([name]) => point[name] ?? 0)));
    const top = this.#top || niceCeiling(highest);
    const left = grid(context, width, height, top, this.#format);
    const age = end - (this.#points[0]?.time ?? end);
    const span = Math.min(MOST_SPAN_S, Math.max(LEAST_SPAN_S, age));
    const x = (time) => width - 2 - ((end - time) / span) * (width - left - 2);
    for (const [name, , tint] of this.#lines) {
      context.strokeStyle = context.fillStyle = colour(tint);
      context.lineWidth = 1.6;
      context.lineJoin = 'round';
      context.beginPath();
      let isOpen = false;
      for (const point of this.#points) {
        const value = point[name];
        if (value === null || value === undefined) continue; // the line goes on from the last that is known
        context[isOpen ? 'lineTo' : 'moveTo'](x(point.time), yOf(value, top, height));
        isOpen = true;
      }
      context.stroke();
    }
    context.fillStyle = colour('--muted');
    context.textAlign = 'left';
    context.textBaseline = 'top';
    if (this.#points.length) context.fillText(span < 120 ? `${Math.round(span)} s ago` : `${Math.round(span / 60)} min ago`, left + 3, height - 21);
  }

  #fillTable() {
    if (!this.#table.open) return;
    const end = this.#points.at(-1)?.time ?? 0;
    fill(this.#body, ...this.#points.slice(-TABLE_ROWS).reverse().map((point) => el('tr', {},
      el('td', {}, String(Math.round(end - point.time))), ...this.#lines.map(([name]) => el('td', {}, shown(point[name], this.#format))))));
  }
}

const shown = (value, format) => (value === null || value === undefined ? '–' : format(value));
