// What has been seen so far: the last steps and minutes, as rows with named columns.

const MAX_STEPS = 400;
const MAX_SAMPLES = 300;
const SAMPLE_PERIOD_S = 1;

const named = (columns, row) => Object.fromEntries(columns.map((name, idx) => [name, row[idx]]));

export class History {
  steps = [];
  samples = [];
  #stepColumns = [];
  #sampleColumns = [];

  /** A `state` event: all that the server remembers. */
  restart({steps, samples, sample}) {
    this.#stepColumns = steps.columns;
    this.#sampleColumns = samples.columns;
    this.steps = steps.rows.map((row) => named(steps.columns, row));
    this.samples = samples.rows.map((row) => named(samples.columns, row));
    if (sample) this.#addSample(sample);
  }

  /** A `tick` event. */
  add({steps, sample}) {
    this.steps.push(...steps.map((row) => named(this.#stepColumns, row)));
    this.steps.splice(0, this.steps.length - MAX_STEPS);
    if (sample) this.#addSample(sample);
  }

  #addSample(row) {
    const sample = named(this.#sampleColumns, row);
    const last = this.samples.at(-1);
    if (last && sample.time_s - last.time_s < SAMPLE_PERIOD_S) return;
    this.samples.push(sample);
    this.samples.splice(0, this.samples.length - MAX_SAMPLES);
  }
}

/** Rates between neighbouring samples; the hit rate is null while no prompt came. */
export function ratesOf(samples) {
  const points = [];
  for (let idx = 1; idx < samples.length; idx++) {
    const [before, after] = [samples[idx - 1], samples[idx]];
    const span = after.time_s - before.time_s;
    if (span <= 0) continue;
    const rise = (name) => Math.max(0, after[name] - before[name]);
    const prompt = rise('prompt_tokens');
    points.push({
      time: after.time_s,
      generated: rise('generated_tokens') / span,
      computed: rise('computed_tokens') / span,
      cached: rise('cached_tokens') / span,
      hitRate: prompt ? Math.min(1, rise('cached_tokens') / prompt) : null,
      running: after.running,
      waiting: after.waiting,
    });
  }
  return points;
}
