// Charts, the values of the step under the pointer, and ranges of steps.

let charts = [];   // all charts of the page
let shown = null;  // [from, to], the steps that all charts show; null: all steps

// ---- axes: {ticks, at(value)}; at() is 0 at the first tick and 1 at the last one

// Returns the smallest nice number of at least `step`: 1, 2, 5 or 10 times a power of ten; for bytes a power of two.
const niceStep = (step, unit) => {
  if (unit === 'bytes') return 2 ** Math.ceil(Math.log2(step));
  const power = 10 ** Math.floor(Math.log10(step));
  return power * [1, 2, 5, 10].find(times => step <= times * power * (1 + 1e-9) || times === 10);
};
const linearScale = (least, most, unit) => {
  least = Math.max(least, -1e300);
  most = Math.min(most, 1e300);
  if (most - least <= Math.max(-least, most, 1e-291) * 1e-9) {  // puts a constant in the middle
    const around = Math.abs(least) / 10;
    least -= around;
    most += around || 1;
  }
  const step = niceStep((most - least) / 5, unit);
  const first = Math.floor(least / step + 1e-9), count = Math.min(Math.ceil(most / step - 1e-9) - first, 100);
  const ticks = Array.from({length: count + 1}, (_, i) => (first + i) * step);
  return {ticks, at: value => (value / step - first) / count};
};
// Returns a scale with ticks at powers of ten and, if there is room, at 2 and 5 times these. Needs 0 < least < most.
const logScale = (least, most) => {
  const first = Math.floor(Math.log10(least)), decades = Math.max(Math.ceil(Math.log10(most)) - first, 1);
  const every = Math.ceil(decades / 5), ticks = [];
  for (let power = first; power < first + decades + every; power += every) {
    for (const times of 2 * decades <= 5 ? [1, 2, 5] : [1]) ticks.push(times * 10 ** power);
  }
  const from = Math.max(...ticks.filter(tick => tick <= least * (1 + 1e-9)));
  const to = Math.min(...ticks.filter(tick => tick >= most * (1 - 1e-9)));
  const at = value => Math.log(value / from) / Math.log(to / from);
  return {ticks: ticks.filter(tick => tick >= from && tick <= to), at};
};
const stepTicks = (from, to) => {
  const step = Math.max(niceStep((to - from) / 6), 1), ticks = [];
  for (let i = Math.ceil(from / step); i * step <= to; ++i) ticks.push(i * step);
  return ticks;
};
// Returns the texts of ticks, with just enough digits to tell them apart.
const tickTexts = (ticks, unit) => {
  let texts = [];
  for (let count = 3; count < 9 && new Set(texts).size < ticks.length; ++count) {
    texts = ticks.map(tick => quantity(tick, unit, count));
  }
  return texts;
};

// ---- charts. A curve is {label, color, x, y, low, high, gaps, sparse}. `low`, `high`: the edges of its area, if any.
// `gaps`: indices of the points before which the line is broken. `sparse`: marks each value and dashes the line.

class Chart {
  // options: unit; zero: begins at 0; log: logarithmic over more than a factor of 100; stacked; marks
  constructor(title, note, curves, options) {
    Object.assign(this, {title, curves, options});
    this.area = make('div.area');
    this.up = make('div.up');
    this.across = make('div.across');
    const names = curves.map(curve => legendEntry(curve.color, curve.label));
    this.figure = make('figure.chart', make('figcaption', make('b', title), ' ', make('span', note)),
                       make('div.plot', this.up, this.area, this.across, make('span.axis', 'step')),
                       names.length < 2 && !options.stacked ? [] :
                           make('p.legend', options.stacked ? names.reverse() : names));  // from top to bottom, as drawn
    charts.push(this);
  }

  draw([from, to]) {
    // The points in the range, and one more on each side.
    const points = this.curves.map(({x}) => x.map((_, i) => i).filter(i => !(x[i + 1] < from) && !(x[i - 1] > to)));
    const scale = this.scale(points);
    const side = 1000;  // width and height of the drawing, which the page stretches
    const across = step => (side * (step - from) / (to - from)).toFixed(1);
    const up = value => (side * (1 - Math.min(Math.max(scale.at(value), -1), 2))).toFixed(1);
    const ruled = scale.ticks.map(tick => svg('path', {d: `M0 ${up(tick)}H${side}`}));
    const curves = this.curves.map((curve, i) => this.drawn(curve, points[i], across, up));
    const marks = this.options.marks.map(
        mark => svg('path', {d: `M${across(mark.step)} 0V${side}`}, svg('title', {}, mark.text)));
    const frame = {viewBox: `0 0 ${side} ${side}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': this.title};
    this.area.replaceChildren(
        svg('svg', frame, svg('g', {class: 'grid'}, ruled), curves, svg('g', {class: 'marks'}, marks)));

    const label = (edge, share, text) => styled(make('i', text), {[edge]: 100 * share + '%'});
    const upTexts = tickTexts(scale.ticks, this.options.unit);
    this.up.replaceChildren(...scale.ticks.map((tick, i) => label('bottom', scale.at(tick), upTexts[i])));
    const steps = stepTicks(from, to), stepTexts = tickTexts(steps);
    this.across.replaceChildren(...steps.map((step, i) => label('left', (step - from) / (to - from), stepTexts[i])));
  }

  // Draws the points of a curve with the indices `at`: area, line and marks.
  drawn({color, x, y, low, high, gaps, sparse}, at, across, up) {
    const point = (i, values) => across(x[i]) + ' ' + up(values[i]);
    const path = (name, d) => svg('path', {class: name, d});
    const group = svg('g', {class: 'c' + color});
    if (low && at.length > 0) {
      const there = at.map(i => point(i, high)), back = at.map(i => point(i, low)).reverse();
      group.append(path(this.options.stacked ? 'layer' : 'band', 'M' + there.concat(back).join('L') + 'Z'));
    }
    if (this.options.stacked) return group;
    group.append(path(sparse ? 'line sparse' : 'line',
                      at.map((i, n) => (n === 0 || gaps.has(i) ? 'M' : 'L') + point(i, y)).join('')));
    if (sparse || at.length === 1) group.append(path('points', at.map(i => 'M' + point(i, y) + 'h0').join('')));
    return group;
  }

  // Returns the scale for the values at `points`, which has the indices for each curve.
  scale(points) {
    let least = Infinity, most = -Infinity;
    this.curves.forEach(({y, low, high}, curve) => {
      for (const i of points[curve]) {
        least = Math.min(least, (low || y)[i]);
        most = Math.max(most, (high || y)[i]);
      }
    });
    if (least > most) least = most = 0;  // no curve has a value in the range
    const {zero, log, unit} = this.options;
    if (log && least > 1e-300 && most < 1e300 && most / least > 100) return logScale(least, most);
    return linearScale(zero ? Math.min(least, 0) : least, most, unit);
  }
}

// Returns the element of a chart; [] when no curve has a value.
const figureOf = (title, note, curves, options) => {
  const known = curves.filter(curve => curve && curve.x.length > 0);
  return known.length > 0 ? new Chart(title, note, known, Object.assign({marks: []}, options)).figure : [];
};
const stepOf = (column, width) => width * column + (width - 1) / 2;  // the middle step of a column
const curveOf = (series, label, color, sparse = false) => series && {
  label, color, sparse, gaps: new Set(series.gaps), y: series.mean, low: series.least, high: series.most,
  x: series.columns.map(column => stepOf(column, series.width))
};

// ---- the step under the pointer, and ranges of steps

const stepsOfAll = () => {
  const from = Math.min(...report.runs.map(run => run.steps[0]));
  return [from, Math.max(...report.runs.map(run => run.steps[1]), from + 1)];
};
const range = () => shown || stepsOfAll();
const chartAt = event => {
  const area = event.target.closest('.area');
  return charts.find(chart => chart.area === area);
};
const nearest = (x, step) => {
  let low = 0, high = x.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (x[middle] < step) low = middle; else high = middle; }
  return Math.abs(x[low] - step) <= Math.abs(x[high] - step) ? low : high;
};
const clear = () => document.querySelectorAll('.cross, .tip').forEach(element => element.remove());
const stepAt = (chart, event) => {
  const box = chart.area.getBoundingClientRect(), [from, to] = range();
  return from + (to - from) * Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
};
// Shows the values of the step under the pointer, and marks the step in all charts.
const pointOut = (pointed, event) => {
  clear();
  const [from, to] = range(), {curves, options} = pointed;
  const longest = curves.reduce((a, b) => b.x.length > a.x.length ? b : a);
  const step = longest.x[nearest(longest.x, stepAt(pointed, event))], share = (step - from) / (to - from);
  if (!(share >= 0 && share <= 1)) return;
  for (const chart of charts) chart.area.append(styled(make('div.cross'), {left: 100 * share + '%'}));
  const values = curves.map(({label, color, x, y}) => {
    const i = nearest(x, step), other = Math.abs(x[i] - step) < 1 ? '' : ', step ' + separated(Math.round(x[i]));
    return make('div', make('span.c' + color, label + other), make('span', quantity(y[i], options.unit, 4)));
  });
  const title = (Number.isInteger(step) ? 'step ' : 'about step ') + separated(Math.round(step));
  pointed.area.append(styled(make('div.tip', make('div', title), values),
                             share < 0.5 ? {left: 100 * share + 1 + '%'} : {right: 101 - 100 * share + '%'}));
};
const show = wanted => {
  shown = wanted;
  for (const chart of charts) chart.draw(range());
};

let begun = null;  // {chart, step, x, box}: the range that the user is drawing
document.addEventListener('pointermove', event => {
  const pointed = chartAt(event);
  if (begun) {
    const [from, to] = range(), other = stepAt(begun.chart, event);
    styled(begun.box, {left: 100 * (Math.min(begun.step, other) - from) / (to - from) + '%',
                       width: 100 * Math.abs(begun.step - other) / (to - from) + '%'});
  }
  if (pointed) pointOut(pointed, event); else clear();
});
document.addEventListener('pointerdown', event => {
  const chart = chartAt(event);
  if (!chart || event.button !== 0 || event.pointerType === 'touch') return;
  begun = {chart, step: stepAt(chart, event), x: event.clientX, box: make('div.chosen')};
  chart.area.append(begun.box);
  event.preventDefault();
});
document.addEventListener('pointerup', event => {
  if (!begun) return;
  const {chart, step, x, box} = begun, other = stepAt(chart, event);
  begun = null;
  box.remove();
  const isMeant = Math.abs(event.clientX - x) > 8 && Math.abs(other - step) >= 1;
  if (isMeant) show([Math.min(step, other), Math.max(step, other)]);
});
document.addEventListener('dblclick', event => { if (chartAt(event)) show(null); });
