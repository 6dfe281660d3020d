// Draws a mesh as a grid of ranks.

// Returns the mesh of a run. `inner`: for each axis, the difference between the ranks of two neighbours; `known`: the
// hosts of all ranks are known.
const meshOf = ({mesh: all, hosts}) => {
  const mesh = all.filter(axis => axis[0] !== 'ep');  // which is no factor of the ranks
  const sizes = mesh.map(axis => axis[1]);
  const inner = sizes.map((_, axis) => sizes.slice(axis + 1).reduce((a, b) => a * b, 1));
  const numRanks = sizes[0] * inner[0];
  return {axes: mesh.map(axis => axis[0]), sizes, inner, numRanks, hosts, known: hosts.of_ranks.length === numRanks,
          coordinate: (rank, axis) => Math.floor(rank / inner[axis]) % sizes[axis]};
};

// Returns a mesh as a grid of ranks, coloured by host. The outermost axis goes down, the others across. A gap marks a
// change of any coordinate except the innermost.
const meshGrid = ({axes, sizes, inner, numRanks, hosts, known, coordinate}) => {
  const mostDrawn = 4096, mostNumbered = 1024, numAcross = inner[0], labelHeight = 18, gap = 4;
  const numColumns = Math.min(numAcross, mostDrawn);
  const numRows = Math.max(Math.min(sizes[0], Math.floor(mostDrawn / numAcross)), 1);
  const numDrawn = numRows * numColumns, numbered = numDrawn <= mostNumbered;
  const width = numbered ? 36 : 12, height = numbered ? 26 : 12, header = labelHeight * (axes.length - 1);
  const block = axes.length > 2 ? sizes[sizes.length - 1] : numAcross;
  const left = column => 56 + column * (width + 2) + Math.floor(column / block) * 2 * gap;
  const drawn = [];
  for (let axis = 1; axis < axes.length; ++axis) {  // "cp 0", "cp 1" over the columns of each of its coordinates
    const every = inner[axis], last = left(every) - left(0) >= 36 ? numColumns : 1;
    for (let column = 0; column < last; column += every) {
      const label = axes[axis] + ' ' + coordinate(column, axis);
      drawn.push(svg('text', {x: left(column), y: labelHeight * axis - 5}, label));
    }
  }
  for (let row = 0; row < numRows; ++row) {
    const y = header + row * (height + gap), middle = y + height / 2 + 4;
    drawn.push(svg('text', {x: 0, y: middle}, axes[0] + ' ' + row));
    for (let column = 0; column < numColumns; ++column) {
      const rank = row * numAcross + column, host = known ? hosts.of_ranks[rank] : 0, x = left(column);
      const at = axes.map((axis, i) => ' ' + axis + '=' + coordinate(rank, i)).join('');
      drawn.push(svg('g', {class: 'c' + host % NUM_COLORS},
          svg('title', {}, 'rank ' + rank + ':' + at + (known ? ', ' + hosts.names[host] : '')),
          svg('rect', {x, y, width, height, rx: 3}),
          numbered ? svg('text', {x: x + width / 2, y: middle, 'text-anchor': 'middle'}, String(rank)) : []));
    }
  }
  const right = left(numColumns - 1) + width + 1, bottom = header + numRows * (height + gap);
  const viewBox = `0 0 ${right} ${bottom}`;
  const frame = {class: 'mesh', width: right, height: bottom, viewBox, role: 'img', 'aria-label': 'mesh'};
  return [make('div.scroll', svg('svg', frame, drawn)), hostLegend(hosts, known),
          numDrawn === numRanks ? [] :
              make('p.note', `${counted(numDrawn, 'rank')} of ${separated(numRanks)} are drawn`)];
};
const hostLegend = ({names}, known) => {
  if (!known) return make('p.note', 'The run directory does not say which hosts the ranks were on.');
  const most = 16, more = names.length - most;
  return make('p.legend', names.slice(0, most).map((host, i) => legendEntry(i % NUM_COLORS, host)),
              more > 0 ? make('span', 'and ' + separated(more) + ' more') : []);
};

// Returns text about the number of hosts that the groups of an axis span.
const hostsOfGroups = ({sizes, inner, numRanks, hosts, known, coordinate}, axis) => {
  if (sizes[axis] === 1) return '';
  if (!known) return 'unknown';
  let most = 1, numAcross = 0;
  for (let rank = 0; rank < numRanks; ++rank) {
    if (coordinate(rank, axis) !== 0) continue;
    const on = new Set();
    for (let i = 0; i < sizes[axis]; ++i) on.add(hosts.of_ranks[rank + i * inner[axis]]);
    most = Math.max(most, on.size);
    if (on.size > 1) ++numAcross;
  }
  return numAcross === 0 ? 'each within a host' : separated(numAcross) + ' across hosts, at most ' + separated(most);
};

const meshOfRun = run => {
  if (run.mesh.length === 0) return [];
  const mesh = meshOf(run), {axes, sizes, numRanks} = mesh;
  const name = run.mesh.map(axis => axis.join('=')).join(',');
  const groups = size => size === 1 ? 'each rank alone' :
      counted(numRanks / size, 'group') + ' of ' + counted(size, 'rank');
  return [make('p', `${name}: ${counted(numRanks, 'rank')}; each cell is a rank, colored by host`), meshGrid(mesh),
          table(['axis', 'groups', 'hosts of a group'],
                axes.map((axis, i) => [axis, groups(sizes[i]), hostsOfGroups(mesh, i)]))];
};
