// The lanes: a region is the same column in all of them; zoom, keys, and what the JSON has of it.
{
const SVG = document.querySelector('svg').namespaceURI;
const LEFT = 150, RIGHT = 950, MOST = 400, APART = 130, HEIGHT = 20, PITCH = 27, TOP = 18;
const CLASSES = [['plain', 'base4k'], ['aligned', 'mixed'], ['solid1', 'type1'], ['solid2', 'type2'], ['doubt', 'doubt']];
const STATES = ['base pages in the guest', 'well aligned', 'type 1 misaligned', 'type 2 misaligned', 'not judged'];
const boxes = document.querySelectorAll('.lanes');
const json = boxes.length ? JSON.parse(page.result()) : null;
const hex = regions => '0x' + (BigInt(regions) * 2097152n).toString(16);
const number = value => value.toLocaleString('en');
const element = (name, attributes, parent) => {
const made = document.createElementNS(SVG, name);
for (const key in attributes) made.setAttribute(key, attributes[key]);
return parent.appendChild(made);
};
const lanes = box => {
const regions = box.dataset.regions.split('.').reduce((at, key) => at && at[key], json);
if (!regions) return;
const svg = box.querySelector('svg'), rows = regions.rows;
const column = name => regions.columns.indexOf(name);
const layers = regions.columns.filter(name => name.endsWith('.huge')).map(name => name.slice(0, -5));
const places = layers.map(name => ['huge', 'mapped', 'at'].map(what => column(name + '.' + what)));
const [gva, count, state, cause, process] = ['gva', 'count', 'state', 'cause', 'process'].map(column);
const starts = [];
let all = 0;
for (const row of rows) { starts.push(all); all += row[count]; }
const rowOf = index => {
let low = 0, high = rows.length - 1;
while (low < high) {
const middle = (low + high + 1) >> 1;
if (starts[middle] <= index) low = middle; else high = middle - 1;
}
return low;
};
let from = 0, to = all, at = -1, width = 0, per = 1;
const cells = svg.querySelector('.cells'), areas = svg.querySelector('.areas');
const outlines = svg.querySelectorAll('.lane'), unit = svg.querySelector('.unit');
const mark = element('rect', { class: 'at', y: TOP - 2, height: (layers.length + 1) * PITCH - PITCH + HEIGHT + 4 }, svg);
const shares = (row, lane) => {
const layer = Math.min(lane, layers.length - 1);
const huge = row[places[layer][0]] / 512, base = Math.max(0, row[places[layer][1]]) / 512 - huge;
if (lane < layers.length) return [huge, base];
return row[state] === 1 ? [1, 0] : [0, huge + base || Number(row[places[layer][1]] < 0)];
};
const draw = () => {
const shown = to - from;
per = Math.ceil(shown / MOST);
const columns = Math.ceil(shown / per);
width = Math.min((RIGHT - LEFT) / columns, all === shown ? 14 : 40);
const gap = columns <= APART ? 1 : 0;
const paths = {};
let labelled = 0, line = '';
areas.replaceChildren();
for (let lane = 0; lane <= layers.length; lane++) {
for (let index = 0, row = rowOf(from); index < columns; index++) {
const sums = new Array(10).fill(0);
let regions = 0;
for (let region = from + index * per; region < Math.min(to, from + (index + 1) * per); region++) {
while (row + 1 < rows.length && starts[row + 1] <= region) row++;
const [huge, base] = shares(rows[row], lane), kind = rows[row][state];
sums[2 * kind] += huge;
sums[2 * kind + 1] += base;
regions++;
if (lane === 0 && region === from + index * per) {
const begins = region === starts[row] && (row === 0 || rows[row - 1][process] !== rows[row][process]
|| rows[row - 1][gva] + rows[row - 1][count] !== rows[row][gva]);
const x = LEFT + index * width;
if (begins || index === 0) {
line += `M${x} ${TOP - 4}V${TOP + (layers.length + 1) * PITCH - 4}`;
const text = hex(rows[row][gva] + region - starts[row]);
if (x >= labelled && x + text.length * 6.6 < RIGHT + 10) {
element('text', { class: 'tick', x: x + 2, y: TOP - 7 }, areas).textContent = text;
labelled = x + text.length * 6.6 + 8;
}
}
}
}
let bottom = TOP + lane * PITCH + HEIGHT;
for (const kind of [1, 2, 3, 4, 0]) {
for (const part of [0, 1]) {
const height = sums[2 * kind + part] / regions * HEIGHT;
if (height < 0.2) continue;
bottom -= height;
const name = CLASSES[kind][part];
const wide = (width - gap).toFixed(2), x = (LEFT + index * width).toFixed(2);
paths[name] = (paths[name] || '') + `M${x} ${bottom.toFixed(2)}h${wide}v${height.toFixed(2)}h-${wide}z`;
}
}
}
}
element('path', { class: 'zero', d: line }, areas);
cells.replaceChildren();
for (const name in paths) element('path', { class: name, d: paths[name] }, cells);
for (const outline of outlines) outline.setAttribute('width', columns * width - gap);
const some = shown === all ? '' : `${number(from + 1)} to ${number(to)} of `;
unit.textContent = `${some}${number(all)} regions of 2 MiB in the order of GVA, gaps left out`
+ (per > 1 ? `, ${per} to a column` : '');
slider.max = all - shown;
slider.value = from;
slider.disabled = shown === all;
point(false);
};
const words = index => {
const row = rows[rowOf(index)], offset = index - starts[rowOf(index)];
const spaces = ['GVA', 'GPA', ...layers.slice(2).map(() => 'GHPA')];
const parts = layers.map((layer, lane) => {
const [huge, mapped, place] = places[lane].map(which => row[which]);
const where = lane === 0 ? hex(row[gva] + offset)
: row[places[lane - 1][2]] < 0 ? 'scattered' : hex(row[places[lane - 1][2]] + offset);
const how = huge === 512 ? 'a huge page' : mapped < 0 ? 'what is not followed further' : mapped === 0 ? 'nothing'
: huge === 0 ? `${mapped} base pages` : `base pages, ${huge} of ${mapped} within huge ones`;
return `${spaces[lane]} ${where}: ${layer === 'l1' ? 'L1' : layer} maps ${how}`;
});
const last = row[places[layers.length - 1][2]];
parts.push(`HPA ${last < 0 ? 'scattered' : hex(last + offset)}`);
const why = regions.causes[row[cause]];
return `Region ${number(index + 1)}, ${STATES[row[state]]}. ${parts.join('. ')}.`
+ (why ? ` Due to ${why[0]}: ${why[1]}.` : '');
};
const point = tell => {
mark.style.display = at < from || at >= to ? 'none' : '';
if (at < from || at >= to) return;
const index = Math.floor((at - from) / per);
mark.setAttribute('x', LEFT + index * width - 1);
mark.setAttribute('width', Math.max(width + 1, 3));
if (!tell) return;
const box = mark.getBoundingClientRect();
page.say(words(at), box.left, box.bottom);
page.tell(words(at));
};
const show = (begin, length) => {
const shown = Math.max(1, Math.min(all, Math.round(length)));
from = Math.max(0, Math.min(all - shown, Math.round(begin)));
to = from + shown;
draw();
};
const zoom = by => {
const middle = at >= from && at < to ? at : (from + to) / 2, shown = (to - from) / by;
show(middle - shown * (middle - from) / (to - from), Math.max(shown, Math.min(8, all)));
};
const tools = box.querySelector('.tools');
const button = (text, label, act) => {
const made = document.createElement('button');
made.type = 'button';
made.textContent = text;
made.setAttribute('aria-label', label);
made.addEventListener('click', act);
tools.append(made);
};
const slider = document.createElement('input');
slider.type = 'range';
slider.min = 0;
slider.setAttribute('aria-label', 'First region shown');
slider.addEventListener('input', () => show(Number(slider.value), to - from));
tools.append(slider);
button('\u2212', 'Show more regions', () => zoom(1 / 2));
button('+', 'Show fewer regions, larger', () => zoom(2));
button('All', 'Show all regions', () => show(0, all));
tools.hidden = false;
svg.tabIndex = 0;
svg.addEventListener('pointermove', event => {
const box = svg.getBoundingClientRect();
const x = (event.clientX - box.left) * 960 / box.width, y = (event.clientY - box.top) * 960 / box.width;
const index = Math.floor((x - LEFT) / width) * per + from;
if (x < LEFT || index >= to || y < TOP || y > TOP + (layers.length + 1) * PITCH) { page.hide(); return; }
at = index;
point(false);
page.say(words(at), event.clientX, event.clientY);
});
svg.addEventListener('pointerleave', () => { page.hide(); at = -1; point(false); });
svg.addEventListener('wheel', event => {
if (!event.ctrlKey) return;
event.preventDefault();
zoom(event.deltaY < 0 ? 1.25 : 0.8);
}, { passive: false });
svg.addEventListener('keydown', event => {
const far = Math.max(1, Math.floor((to - from) / 2));
const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: far, PageUp: -far };
if (event.key in steps) at = Math.max(0, Math.min(all - 1, at < 0 ? from : at + steps[event.key]));
else if (event.key === 'Home') at = 0;
else if (event.key === 'End') at = all - 1;
else if (event.key === '+' || event.key === '=') zoom(2);
else if (event.key === '-') zoom(1 / 2);
else if (event.key === '0') show(0, all);
else if (event.key === 'Escape') { page.hide(); return; }
else return;
event.preventDefault();
if (at >= 0 && (at < from || at >= to)) show(at - (to - from) / 2, to - from);
point(true);
});
svg.addEventListener('blur', page.hide);
draw();
};
for (const box of boxes) lanes(box);
}
