// Elements, numbers for people, curves. All files of this folder run in one function (cmake/EmbedPage.cmake).
const $ = id => document.getElementById(id);
const kSvg = 'http://www.w3.org/2000/svg', kRowsShown = 50;

// ---- Making elements

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element[name] = value;
  element.append(...children);
  return element;
}
function draw(tag, attributes, parent) {
  const element = document.createElementNS(kSvg, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent?.append(element);
  return element;
}
const fact = (label, value, warn = false) =>
  make('div', {className: warn ? 'fact warn' : 'fact'}, make('b', {textContent: value}), make('span', {textContent: label}));

// ---- Numbers for people

const number = (value, digits = 3) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toPrecision(digits) + ' G';
  if (size >= 1e6) return (value / 1e6).toPrecision(digits) + ' M';
  if (size >= 1e4) return (value / 1e3).toPrecision(digits) + ' k';
  return Number.isInteger(value) ? String(value) : Number(value.toPrecision(digits)).toString();
};
const bytes = value => { const text = number(value); return text + (text.includes(' ') ? 'B' : ' B'); };
const seconds = value => {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value < 1) return Math.round(value * 1000) + ' ms';
  if (value < 60) return value.toFixed(1) + ' s';
  if (value < 3600) return Math.floor(value / 60) + ' min ' + Math.floor(value % 60) + ' s';
  if (value < 86400) return Math.floor(value / 3600) + ' h ' + Math.floor(value % 3600 / 60) + ' min';
  return Math.floor(value / 86400) + ' d ' + Math.floor(value % 86400 / 3600) + ' h';
};
const clock = time => new Date(time * 1000).toLocaleTimeString();
const short = id => id.length > 16 ? '…' + id.slice(-10) : id;

const cell = (text, title = '', className = '') => make('td', {textContent: text, title, className});

// ---- A table that is sorted by a click on a head, filtered by a text, and shows its first rows

class Table {
  constructor(name, columns, textOf, sortKey) {
    Object.assign(this, {name, columns, textOf, sortKey, up: false, shown: kRowsShown, rows: []});
    this.table = $(name);
    $(name + '-filter').addEventListener('input', () => this.draw());
    $(name + '-more').addEventListener('click', () => { this.shown += 200; this.draw(); });
    this.table.tHead.addEventListener('click', event => {
      const key = event.target.dataset.key;
      if (!key) return;
      this.up = key === this.sortKey ? !this.up : false;
      this.sortKey = key;
      this.draw();
    });
  }
  show(rows) { this.rows = rows; this.draw(); }
  draw() {
    const wanted = $(this.name + '-filter').value.toLowerCase(), sign = this.up ? 1 : -1, value = row => row[this.sortKey] ?? -1;
    const matches = this.rows.filter(row => !wanted || this.textOf(row).toLowerCase().includes(wanted));
    matches.sort((a, b) => sign * (value(a) > value(b) ? 1 : value(a) < value(b) ? -1 : 0));
    $(this.name + '-count').textContent = this.rows.length + ' ' + this.table.dataset.what + (wanted ? ', ' + matches.length + ' shown' : '');
    this.table.tBodies[0].replaceChildren(...matches.slice(0, this.shown).map(row => make('tr', {}, ...this.columns(row))));
    for (const head of this.table.tHead.rows[0].cells)
      head.className = (head.classList.contains('number') ? 'number ' : '') + (head.dataset.key === this.sortKey ? this.up ? 'sorted up' : 'sorted' : '');
    const more = $(this.name + '-more');
    more.hidden = matches.length <= this.shown;
    more.textContent = 'show ' + Math.min(200, matches.length - this.shown) + ' more of ' + matches.length;
  }
}

// ---- A curve: steps of one number over epochs, with a scale, and its value under the pointer

function niceStep(span, parts) {
  const raw = span / parts, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map(f => f * power).find(step => step >= raw);
}

function showTip(event, text) {
  const tip = $('tip');
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8) + 'px';
}
const hideTip = () => { $('tip').hidden = true; };

function curve(title, points, color, describe, ends = (x0, x1) => ['epoch ' + x0, x1], before = 'after two epochs') {
  const box = make('div', {className: 'chart'}, make('h3', {textContent: title}));
  const svg = draw('svg', {viewBox: '0 0 560 150', role: 'img'}, box);
  draw('title', {}, svg).textContent = title;
  const shown = points.filter(p => Number.isFinite(p.y));
  if (shown.length < 2) {
    draw('text', {x: 280, y: 75, 'text-anchor': 'middle'}, svg).textContent = before;
    return box;
  }
  const left = 44, right = 556, top = 8, bottom = 130;
  const x0 = shown[0].x, x1 = shown.at(-1).x;
  let y0 = Math.min(...shown.map(p => p.y)), y1 = Math.max(...shown.map(p => p.y));
  if (y0 === y1) { y0 -= Math.abs(y0) * .1 || 1; y1 += Math.abs(y1) * .1 || 1; }
  const step = niceStep(y1 - y0, 4);
  y0 = Math.floor(y0 / step) * step;
  y1 = Math.ceil(y1 / step) * step;
  const toX = x => left + (x1 > x0 ? (x - x0) / (x1 - x0) : .5) * (right - left), toY = y => bottom - (y - y0) / (y1 - y0) * (bottom - top);
  for (let i = 0; i <= Math.round((y1 - y0) / step); ++i) {
    const value = y0 + i * step;
    draw('line', {class: 'grid', x1: left, x2: right, y1: toY(value), y2: toY(value)}, svg);
    draw('text', {x: left - 4, y: toY(value) + 3, 'text-anchor': 'end'}, svg).textContent = number(Number(value.toPrecision(6)), 4);
  }
  draw('text', {x: left, y: 145}, svg).textContent = ends(x0, x1)[0];
  draw('text', {x: right, y: 145, 'text-anchor': 'end'}, svg).textContent = ends(x0, x1)[1];
  const line = draw('path', {class: 'curve', d: 'M' + shown.map(p => toX(p.x).toFixed(1) + ' ' + toY(p.y).toFixed(1)).join('L')}, svg);
  line.style.stroke = color;
  const cursor = draw('line', {class: 'cursor', y1: top, y2: bottom, visibility: 'hidden'}, svg);
  svg.addEventListener('pointermove', event => {
    const {x} = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const nearest = shown.reduce((a, b) => Math.abs(toX(a.x) - x) <= Math.abs(toX(b.x) - x) ? a : b);
    cursor.setAttribute('x1', toX(nearest.x));
    cursor.setAttribute('x2', toX(nearest.x));
    cursor.setAttribute('visibility', 'visible');
    showTip(event, describe(nearest));
  });
  svg.addEventListener('pointerleave', () => { cursor.setAttribute('visibility', 'hidden'); hideTip(); });
  return box;
}

