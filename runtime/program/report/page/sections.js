// The sections of the page. Where several runs are drawn, run n has the color n % NUM_COLORS.

const alone = () => report.runs.length === 1;
const runName = (run, i) => [colorKey(i % NUM_COLORS), run.name];
const eachRun = draw => report.runs.map((run, i) => {
  const content = draw(run);
  return hasContent(content) ? [alone() ? [] : make('h3', runName(run, i)), content] : [];
});
const axisColor = axis => 1 + ['dp', 'tp', 'cp', 'pp'].indexOf(axis) || 7;
const shareCells = (share, color) => [
  quantity(share, 'percent'),
  styled(make('span.share.c' + color), {width: (100 * Math.min(Math.max(share, 0), 1)).toFixed(1) + '%'})];
const sum = numbers => numbers.reduce((a, b) => a + b, 0);

// Returns marks at the steps where a single run was resumed; [] for several runs, whose marks would hide each other.
const marksOf = run => !alone() ? [] : run.starts.reduce((marks, start, i) => {
  if (i === 0 || !start.has_begun || start.after > run.steps[1]) return marks;
  const before = run.starts[i - 1].last;
  return marks.concat({step: start.after + 0.5, text: 'resumed after step ' + separated(start.after) +
      (before > start.after ? '; the previous start had reached step ' + separated(before) : '')});
}, []);

const head = () => {
  const runs = report.runs;
  if (alone()) {
    const tiles = runs[0].facts.map(
        ([label, value, note]) => make('div', make('span', label), make('b', value), make('span', note)));
    return [make('h1', runs[0].name), make('p.soft', runs[0].about), make('div.tiles', tiles)];
  }
  const labels = [...new Set([].concat(...runs.map(run => run.facts.map(fact => fact[0]))))];
  const value = (run, label) => (run.facts.find(fact => fact[0] === label) || ['', ''])[1];
  return [make('h1', counted(runs.length, 'run')),
          runs.map((run, i) => make('p', runName(run, i), ' ', make('span.soft', run.about))),
          table(['', ...runs.map(runName)], labels.map(label => [label, ...runs.map(run => value(run, label))]))];
};

const problems = () => section('What could not be read', eachRun(run =>
    run.problems.length ? make('ul', run.problems.map(problem => make('li.alarm', problem))) : []));

// Returns a chart of some series of all runs. `paths`: for each series its path, its label and true if it is sparse.
const chartOfRuns = (title, note, paths, options) => {
  const curves = report.runs.map((run, i) => paths.map(([path, label, sparse], p) => alone() ?
      curveOf(run.series[path], label, p, sparse) :
      curveOf(run.series[path], run.name + (p > 0 ? ', ' + label : ''), i % NUM_COLORS, sparse || p > 0)));
  return figureOf(title, note, [].concat(...curves), Object.assign({marks: marksOf(report.runs[0])}, options));
};

const training = () => section('Training', grid(
    chartOfRuns('Loss', 'mean over the counted labels, in nats',
                [['loss', 'training'], ['eval_loss', 'held out', true]]),
    chartOfRuns('Gradient norm', 'before clipping', [['grad_norm', 'gradient norm']], {log: true}),
    chartOfRuns('Learning rate', '', [['learning_rate', 'learning rate']], {zero: true}),
    chartOfRuns('Loss scale', 'of fp16_mixed', [['loss_scale', 'loss scale']], {log: true})));

const speed = () => section('Speed and memory', grid(
    chartOfRuns('Tokens per second', 'of all ranks', [['tokens_per_second', 'tokens/s']], {zero: true}),
    chartOfRuns('MFU', 'model FLOP/s as a share of what the device can do', [['mfu', 'MFU']],
                {unit: 'percent', zero: true}),
    report.runs.some(run => run.series.mfu) ? [] :  // MFU shows the same where the device is known
        chartOfRuns('Model FLOP/s', 'per rank', [['flops_per_rank', 'FLOP/s']], {unit: 'flops', zero: true}),
    chartOfRuns('Peak memory', 'of the rank that uses most',
                [['memory.host_peak_bytes', 'host'], ['memory.device_allocated_peak_bytes', 'GPU, allocated'],
                 ['memory.device_reserved_peak_bytes', 'GPU, reserved']], {unit: 'bytes', zero: true})));

const timeOfRun = run => {
  const {width, parts} = run.time, waiting = 'waiting for ';
  const colored = ['data', 'optimizer', 'checkpoint', 'evaluation'];
  const color = ({label}) => label === 'bubble' ? axisColor('pp') :
      label.startsWith(waiting) ? axisColor(label.slice(waiting.length)) :
      colored.includes(label) ? 4 + colored.indexOf(label) : 0;
  if (parts.length === 0) return [];
  const columns = parts[0].values.map((_, i) => i).filter(i => parts.every(part => part.values[i] !== null));
  const x = columns.map(i => stepOf(i, width));
  let top = columns.map(() => 0);
  const curves = parts.map(part => {
    const y = columns.map(i => part.values[i]), low = top, high = top.map((below, i) => below + y[i]);
    top = high;
    return {label: part.label, color: color(part), x, y, low, high};
  });
  if (Math.max(0, ...top) === 0) return [];
  return grid(
      figureOf('Time of a step', 'by part', curves,
            {unit: 'seconds', zero: true, stacked: true, marks: marksOf(run)}),
      make('div', table(['part', 'mean', 'share', ''], parts.map(part =>
          [part.label, quantity(part.mean, 'seconds'), ...shareCells(part.share, color(part))]),
          ['', 'number', 'number', 'shares'], 'fitted')));
};

const communicationOfRun = run => {
  const before = 'seconds.collectives.';
  // Returns the middle part of each path that begins with `start` and ends with `end`.
  const between = (start, end) => Object.keys(run.series)
      .filter(path => path.startsWith(start) && path.endsWith(end))
      .map(path => path.slice(start.length, path.length - end.length));
  const named = between(before, '.total').concat(between('bytes.', ''));
  const axes = [...new Set(named)].filter(axis => !axis.includes('.'));
  const mean = path => run.series[path] ? run.series[path].average : null;
  const curves = path => axes.map(axis => curveOf(run.series[path(axis)], axis, axisColor(axis)));
  const rows = axes.map(axis => {
    const total = mean(before + axis + '.total'), waited = mean(before + axis + '.exposed');
    return [axis, quantity(mean('bytes.' + axis), 'bytes'), quantity(total, 'seconds'), quantity(waited, 'seconds'),
            ...(total > 0 && waited !== null ? shareCells(1 - waited / total, axisColor(axis)) : ['-', ''])];
  });
  return [table(['axis', 'bytes per step', 'in collectives', 'exposed', 'hidden', ''], rows,
                ['', 'number', 'number', 'number', 'number', 'shares'], 'fitted'),
          grid(figureOf('Seconds waited for collectives', 'exposed time of a step, by axis',
                     curves(axis => before + axis + '.exposed'), {unit: 'seconds', zero: true, marks: marksOf(run)}),
               figureOf('Bytes of a step', 'by axis', curves(axis => 'bytes.' + axis),
                     {unit: 'bytes', zero: true, marks: marksOf(run)}))];
};

const goodputOfRun = ({goodput: {parts, wall}}) => {
  const all = sum(parts.map(part => part.seconds));
  if (all <= 0) return [];
  // A part has the color of the same part of a step, if there is one.
  const colored = ['training', 'exposed_communication', 'evaluation', 'lost', 'data', 'start_up', 'checkpoint'];
  const color = ({part}) => colored.includes(part) ? colored.indexOf(part) : 7;
  const bar = parts.map(part => {
    const piece = styled(make('i.c' + color(part)), {width: 100 * part.seconds / all + '%'});
    piece.title = part.name;
    return piece;
  });
  const rows = parts.map(part => [[colorKey(color(part)), part.name], quantity(part.seconds, 'seconds'),
                                  quantity(part.seconds / all, 'percent')]);
  rows.push(['all parts', quantity(all, 'seconds'), ''],
            ['from the first start to the last end', quantity(wall, 'seconds'), '']);
  return [make('div.bar', bar), table(['part', 'time', 'share'], rows, ['', 'number', 'number'])];
};

const planOfRun = ({plan}) => plan ?
    table(['of rank ' + plan.rank, 'planned', 'its first steps', 'difference'], plan.lines, ['indented']) : [];

const startsOfRun = ({starts}) => table(
    ['start', 'from', 'to', 'last known', 'mesh', 'ended'],
    starts.map(start => [
      start.begin, !start.has_begun ? '-' : start.after > 0 ? 'step ' + separated(start.after) : 'the beginning',
      start.last > 0 ? 'step ' + separated(start.last) : '-', start.end, start.mesh, start.ended]),
    ['', '', '', '', 'wide', 'wide']);
const checkpointsOfRun = ({checkpoints}) => table(
    ['checkpoint', 'complete', 'size', 'written in', 'files'],
    checkpoints.map(({step, abandoned, complete, bytes, seconds, files}) => [
      'step ' + separated(step) + (abandoned ? ', abandoned' : ''), complete, quantity(bytes, 'bytes'),
      quantity(seconds, 'seconds'), separated(files)]));
const skippedOfRun = ({skipped}) => table(
    ['step', 'first gradient that was not finite, or the outlier'],
    skipped.steps.map(([step, reason]) => [separated(step), reason || 'no single one']), ['', 'wide']);
const historyOfRun = run => {
  const {warnings, skipped, flight_records: records} = run;
  const diagnose = make('code', 'meshtrain diagnose ' + run.folder);
  return [titled('Starts and interruptions', startsOfRun(run)),
          titled('Skipped steps: ' + separated(skipped.count), skippedOfRun(run)),
          titled('Checkpoints', checkpointsOfRun(run)),
          titled('Warnings', warnings.length ? make('ul', warnings.map(warning => make('li', warning))) : []),
          titled('Flight records', records === 0 ? [] :
              make('p', counted(records, 'file') + ' in flight/: ', diagnose, ' compares them.'))];
};

const recipeOfRun = run => {
  const changes = [].concat(...run.starts.map(start =>
      start.changes.map(change => ['step ' + separated(start.after), start.begin, change])));
  const keys = run.recipe.map(
      ([key, value]) => make('tr', make('td', make('code', key)), make('td.wide', make('code', value))));
  return [titled('Changes over resumes', table(['resumed after', 'at', 'change'], changes, ['', '', 'wide'])),
          keys.length === 0 ? [] : make('details', make('summary', 'The recipe as run: ' + counted(keys.length, 'key')),
                                        make('div.scroll', make('table', keys)))];
};
const recipeDifferences = () => {
  if (report.differences.length === 0) return make('p.note', 'The recipes are the same.');
  const names = report.runs.map(run => run.name);
  return table(['key', ...names], report.differences, ['', ...names.map(() => 'wide')]);
};
const recipes = () => section(alone() ? 'Recipe' : 'Recipes', alone() ? [] : titled('Differences', recipeDifferences()),
                              eachRun(recipeOfRun));
