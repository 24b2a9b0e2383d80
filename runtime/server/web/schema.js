// JSON schemas as people read them: what type, which fields, and an example.

const MAX_DEPTH = 6;

/** The schema itself where it is a reference into the document; unchanged otherwise. */
export function resolved(schema, document) {
  let found = schema || {};
  for (let hops = 0; found.$ref && hops < 20; hops++) {
    const path = found.$ref.replace(/^#\//, '').split('/').map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
    found = path.reduce((place, part) => place?.[part], document) || {};
  }
  return found;
}

/** The schemas one of which must hold, references resolved; null is left to `typeText`. */
export function variantsOf(schema, document) {
  const {anyOf, oneOf} = resolved(schema, document);
  return (anyOf || oneOf || []).map((variant) => resolved(variant, document)).filter(({type}) => type !== 'null');
}

/** A short name of its type, as "string | null" or "array of object". */
export function typeText(schema, document, depth = 0) {
  const found = resolved(schema, document);
  const choices = found.anyOf || found.oneOf;
  if (choices && depth < MAX_DEPTH) return [...new Set(choices.map((choice) => typeText(choice, document, depth + 1)))].join(' | ');
  if (found.allOf?.length === 1) return typeText(found.allOf[0], document, depth + 1);
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(' | ');
  if (Array.isArray(found.type)) return found.type.join(' | ');
  if (found.type === 'array') return depth < MAX_DEPTH && found.items ? `array of ${typeText(found.items, document, depth + 1)}` : 'array';
  return found.type || (found.properties ? 'object' : 'any');
}

/** Its limits, in words. */
export function limitsText(schema, document) {
  const found = resolved(schema, document);
  const sources = [found, ...variantsOf(found, document)];
  const of = (name) => sources.map((source) => source[name]).find((value) => value !== undefined);
  const texts = [];
  for (const [name, words] of [['minimum', 'at least'], ['exclusiveMinimum', 'above'], ['maximum', 'at most'], ['exclusiveMaximum', 'below'], ['minLength', 'characters, at least'], ['maxLength', 'characters, at most'], ['minItems', 'items, at least'], ['maxItems', 'items, at most']]) {
    if (of(name) !== undefined) texts.push(`${words} ${of(name)}`);
  }
  if (found.default !== undefined && found.default !== null) texts.push(`default ${JSON.stringify(found.default)}`);
  return texts.join(', ');
}

/** The schema whose properties are shown beneath a field: its own, its items', or the first variant's that has some. */
export function objectWithin(schema, document, depth = 0) {
  const found = resolved(schema, document);
  if (found.properties) return found;
  if (depth > MAX_DEPTH) return null;
  const inner = [found.items, ...(found.anyOf || found.oneOf || found.allOf || [])].filter(Boolean);
  return inner.map((part) => objectWithin(part, document, depth + 1)).find(Boolean) || null;
}

/** A value that fits: examples and defaults where there are some, required fields only. */
export function exampleOf(schema, document, depth = 0) {
  const found = resolved(schema, document);
  if (found.example !== undefined) return found.example;
  if (found.examples?.length) return found.examples[0];
  if (found.default !== undefined && found.default !== null) return found.default;
  if (found.const !== undefined) return found.const;
  if (found.enum) return found.enum[0];
  const choice = (found.anyOf || found.oneOf || found.allOf)?.[0];
  if (choice && depth < MAX_DEPTH) return exampleOf(choice, document, depth + 1);
  if (found.properties && depth < MAX_DEPTH) {
    const wanted = Object.entries(found.properties).filter(([name]) => found.required?.includes(name));
    return Object.fromEntries(wanted.map(([name, property]) => [name, exampleOf(property, document, depth + 1)]));
  }
  const type = Array.isArray(found.type) ? found.type[0] : found.type;
  if (type === 'array') return found.items && depth < MAX_DEPTH ? [exampleOf(found.items, document, depth + 1)] : [];
  return {string: 'text', integer: found.minimum ?? 1, number: found.minimum ?? 1, boolean: false, null: null}[type] ?? {};
}
