#include "runtime/program/report/page.h"

namespace meshtrain {

// Values under the pointer in all charts at once; a range of steps drawn in one chart is shown by all, a double click
// shows everything again. The page reads complete without it.
const char* const kPageScript = R"js(
'use strict';
let shown = null;  // [from, to] in steps; null: everything
const three = v => Math.abs(v) >= 1000 && Math.abs(v) < 999500 ? v.toFixed(0) : String(Number(v.toPrecision(4)));
const scaled = (v, base, units) => {
  let i = 0;
  while (Math.abs(v) >= base && i + 1 < units.length) { v /= base; ++i; }
  return three(v) + units[i];
};
const texts = {
  number: v => Math.abs(v) < 1e6 ? three(v) : scaled(v, 1000, ['', 'k', 'M', 'G', 'T', 'P']),
  bytes: v => scaled(v, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB']),
  flops: v => scaled(v, 1000, [' FLOP/s', ' kFLOP/s', ' MFLOP/s', ' GFLOP/s', ' TFLOP/s', ' PFLOP/s']),
  seconds: v => v === 0 ? '0 s' : v < 1e-3 ? three(v * 1e6) + ' \u00b5s' : v < 1 ? three(v * 1e3) + ' ms' : three(v) + ' s',
  percent: v => three(100 * v) + ' %'
};
const charts = () => [...document.querySelectorAll('figure.chart')];
const whole = c => [Number(c.dataset.from), Number(c.dataset.to)];
const range = c => shown || whole(c);
const data = c => c.values || (c.values = JSON.parse(c.querySelector('script').textContent));
const nearest = (xs, x) => {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
};
const node = (name, style, text) => {
  const made = document.createElement('div');
  made.className = name;
  Object.assign(made.style, style);
  if (text !== undefined) made.textContent = text;
  return made;
};
const clear = () => document.querySelectorAll('.cross, .tip').forEach(e => e.remove());
const step_at = (chart, event) => {
  const box = chart.querySelector('.area').getBoundingClientRect(), [from, to] = range(chart);
  return from + (to - from) * Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
};
const point_out = (chart, event) => {
  clear();
  const curves = data(chart), area = chart.querySelector('.area'), [from, to] = range(chart);
  const asked = step_at(chart, event);
  const longest = curves.reduce((a, b) => b.x.length > a.x.length ? b : a);
  const step = longest.x[nearest(longest.x, asked)], share = (step - from) / (to - from);
  if (!(share >= 0 && share <= 1)) return;
  for (const other of charts()) other.querySelector('.area').append(node('cross', {left: 100 * share + '%'}));
  const tip = node('tip', share < .5 ? {left: 100 * share + 1 + '%'} : {right: 101 - 100 * share + '%'});
  tip.append(node('', {}, (Number.isInteger(step) ? 'step ' : 'about step ') + Math.round(step).toLocaleString('en')));
  for (const curve of curves) {
    const line = node('', {}), i = nearest(curve.x, step);
    const label = document.createElement('span'), value = document.createElement('span');
    label.className = 'c' + curve.color;
    label.textContent = curve.label + (Math.abs(curve.x[i] - step) < 1 ? '' : ', step ' + Math.round(curve.x[i]));
    value.textContent = texts[chart.dataset.unit](curve.y[i]);
    line.append(label, value);
    tip.append(line);
  }
  area.append(tip);
};
const show = wanted => {
  shown = wanted;
  clear();
  for (const chart of charts()) {
    const [first, last] = whole(chart), [from, to] = range(chart), all = Math.max(last - first, 1);
    chart.querySelector('.area > svg').setAttribute(
        'viewBox', 1000 * (from - first) / all + ' 0 ' + Math.max(1000 * (to - from) / all, 1e-6) + ' 1000');
    const across = chart.querySelector('.across');
    const power = 10 ** Math.floor(Math.log10((to - from) / 6)), over = (to - from) / 6 / power;
    const every = Math.max(power * (over <= 1 ? 1 : over <= 2 ? 2 : over <= 5 ? 5 : 10), 1);
    across.replaceChildren();
    for (let tick = Math.ceil(from / every) * every; tick <= to; tick += every) {
      const mark = document.createElement('i');
      mark.style.left = 100 * (tick - from) / (to - from) + '%';
      mark.textContent = tick < 1e4 ? tick : scaled(tick, 1000, ['', 'k', 'M', 'G']);
      across.append(mark);
    }
  }
};
let begun = null;  // {chart, step, x} of a range that is being drawn
document.addEventListener('pointermove', event => {
  const area = event.target.closest('.area');
  if (begun) {
    const [from, to] = range(begun.chart), a = begun.step, b = step_at(begun.chart, event);
    begun.box.style.left = 100 * (Math.min(a, b) - from) / (to - from) + '%';
    begun.box.style.width = 100 * Math.abs(a - b) / (to - from) + '%';
  }
  if (area) point_out(area.closest('figure'), event); else clear();
});
document.addEventListener('pointerdown', event => {
  const area = event.target.closest('.area');
  if (!area || event.button !== 0 || event.pointerType === 'touch') return;
  const chart = area.closest('figure');
  begun = {chart, step: step_at(chart, event), x: event.clientX, box: node('chosen', {})};
  area.append(begun.box);
  event.preventDefault();
});
document.addEventListener('pointerup', event => {
  if (!begun) return;
  const {chart, step, x, box} = begun, other = step_at(chart, event);
  begun = null;
  box.remove();
  if (Math.abs(event.clientX - x) > 8 && Math.abs(other - step) >= 1) show([Math.min(step, other), Math.max(step, other)]);
});
document.addEventListener('dblclick', event => { if (event.target.closest('.area')) show(null); });
)js";

// Asks for a newer page and takes over its content; the range of steps and what is unfolded stay.
const char* const kFollowScript = R"js(
const follow = async () => {
  const state = document.querySelector('#follow');
  try {
    const answer = await fetch('/?after=' + document.querySelector('main').dataset.version, {cache: 'no-store'});
    if (answer.status === 200) {
      const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
      const open = [...document.querySelectorAll('details')].map(e => e.open);
      document.querySelector('main').replaceWith(page.querySelector('main'));
      document.querySelectorAll('details').forEach((e, i) => { e.open = open[i] || false; });
      if (shown) show(shown);
    }
    state.textContent = 'follows the run';
    state.className = 'soft';
  } catch (gone) {
    state.textContent = 'meshtrain report --watch does not answer: what is shown may be old';
    state.className = 'alarm';
  }
  setTimeout(follow, 2000);
};
setTimeout(follow, 2000);
)js";

}  // namespace meshtrain
