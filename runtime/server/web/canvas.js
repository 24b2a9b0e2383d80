// A canvas that is sharp on every screen, and knows the colours of the page.

/** The colour that a custom property has now, light or dark. */
export function colour(name) {
  let probe = colour.probe;
  if (!probe) {
    probe = colour.probe = document.createElement('span');
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** Sizes the canvas to its box and hands out a cleared context in CSS pixels; null while it cannot be seen. */
export function begin(canvas) {
  const {clientWidth: width, clientHeight: height} = canvas;
  if (!width || !height) return null;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, sans-serif';
  return {context, width, height};
}

/** A round number at or above `value`: where an axis ends. */
export function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}

/** Lines of a grid with their figures at the left; returns where the drawing begins. */
export function grid(context, width, height, top, format) {
  const left = Math.max(context.measureText(format(top)).width, context.measureText(format(top / 2)).width) + 10;
  context.strokeStyle = colour('--line');
  context.fillStyle = colour('--muted');
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  context.lineWidth = 1;
  for (const share of [0, 0.5, 1]) {
    const y = Math.round(height - 7 - share * (height - 14)) + 0.5;
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(width, y);
    context.stroke();
    context.fillText(format(top * share), left - 6, y);
  }
  return left;
}

export const yOf = (value, top, height) => height - 7 - (Math.min(value, top) / top) * (height - 14);
