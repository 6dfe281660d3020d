'use strict';
// Elements, tables and the text of numbers.

// Everything that comes from a run becomes a text node, never markup.
const append = (parent, content) => {
  for (const part of content) Array.isArray(part) ? append(parent, part) : parent.append(part);
  return parent;
};
// Returns an HTML element: make('p.soft', 'text', element, [more]).
const make = (what, ...content) => {
  const [name, ...classes] = what.split('.');
  const element = document.createElement(name);
  element.className = classes.join(' ');
  return append(element, content);
};
const svg = (name, attributes, ...content) => {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key of Object.keys(attributes)) element.setAttribute(key, attributes[key]);
  return append(element, content);
};
const styled = (element, style) => { Object.assign(element.style, style); return element; };
const NUM_COLORS = 8;  // classes c0 to c7 of page.css
const colorKey = color =>
    svg('svg', {viewBox: '0 0 10 10', class: 'key c' + color}, svg('rect', {width: 10, height: 10, rx: 2}));
// Returns the entry of a legend for a curve or a host.
const legendEntry = (color, text) => [make('span', colorKey(color), text), ' '];
const hasContent = part => !Array.isArray(part) || part.some(hasContent);
const section = (title, ...content) => hasContent(content) ? make('section', make('h2', title), content) : [];
const titled = (title, ...content) => hasContent(content) ? [make('h3', title), content] : [];
const grid = (...content) => hasContent(content) ? make('div.charts', content) : [];

// Returns a table, of a long one only the last rows; [] without rows. A cell is a text, an element or a list of these.
// `classes`: the class of the cells in each column.
const table = (names, rows, classes = [], kind = '') => {
  const most = 200, drawn = rows.slice(-most);
  const row = (what, cells) => make('tr', cells.map((cell, i) => make(what + '.' + (classes[i] || ''), cell)));
  if (rows.length === 0) return [];
  const body = [names.length ? row('th', names) : [], drawn.map(cells => row('td', cells))];
  return [make('div.scroll', make('table.' + kind, body)),
          rows.length > most ? make('p.note', counted(rows.length - most, 'earlier row') + ' left out') : []];
};

// ---- the text of numbers

const separated = number => number.toLocaleString('en');
const counted = (number, word) => separated(number) + ' ' + word + (number === 1 ? '' : 's');
const two = number => String(number).padStart(2, '0');
const duration = seconds => {
  const all = Math.round(seconds), minutes = Math.floor(all / 60);
  return (minutes < 60 ? minutes : Math.floor(minutes / 60) + ':' + two(minutes % 60)) + ':' + two(all % 60);
};
const digits = (value, count) => {
  const size = Math.abs(value), rounded = Number(value.toPrecision(count));
  if (size >= 1000 && size < 999500) return String(Number(value.toFixed(Math.max(count - 4, 0))));
  return rounded !== 0 && (size < 1e-4 || size >= 1e6) ? rounded.toExponential() : String(rounded);
};
const scaled = (value, base, units, count) => {
  let i = 0;
  for (; Math.abs(value) >= base * 0.9995 && i + 1 < units.length; ++i) value /= base;
  return digits(value, count) + units[i];
};
// Returns the text of a number in `count` digits, in the format of text_of() (value_text.h).
const quantity = (value, unit, count = 3) => {
  if (value === null) return '-';
  const size = Math.abs(value);
  if (unit === 'bytes') return scaled(value, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB'], count);
  if (unit === 'flops') {
    return scaled(value, 1000, [' FLOP/s', ' kFLOP/s', ' MFLOP/s', ' GFLOP/s', ' TFLOP/s', ' PFLOP/s'], count);
  }
  if (unit === 'percent') return digits(100 * value, count) + ' %';
  if (unit === 'seconds') {
    if (size > 0 && size < 0.9995e-3) return digits(value * 1e6, count) + ' \u00b5s';
    if (size > 0 && size < 0.9995) return digits(value * 1e3, count) + ' ms';
    return size < 99.95 || size >= 1e9 ? digits(value, count) + ' s' : duration(value);
  }
  if (size < 9999.5 || size >= 1e16) return digits(value, count);
  return scaled(value, 1000, ['', 'k', 'M', 'G', 'T', 'P'], count);
};
