// A whole run, as cohive-monitor serve tells it under "swarm".
const kOnMap = 150, kInMatrix = 60;

const members = new Table('members', p => [cell(short(p.id), p.id), cell(p.role), cell(p.software, p.agent), cell(p.epoch === null ? '–' : String(p.epoch), '', 'number'),
  cell(number(p.samples), '', 'number'), cell(number(p.samples_per_second), '', 'number'), cell(number(p.loss, 4), '', 'number'),
  cell(p.age_seconds === null ? '–' : seconds(Math.max(0, p.age_seconds)) + ' ago', '', 'number'),
  cell(p.reachable === null ? '–' : p.reachable ? 'yes' : 'no', '', p.reachable === false ? 'away' : ''),
  cell(seconds(p.rtt_seconds), '', 'number'),
  cell(p.clock_ahead_seconds === null ? '–' : p.clock_ahead_seconds.toFixed(1) + ' s', '', Math.abs(p.clock_ahead_seconds) > 3 ? 'number away' : 'number'),
  cell(p.neighbours || '–', '', 'number'), cell(p.address || '–', p.address)],
p => [p.id, p.agent, p.software, p.role, p.address].join(' '), 'samples_per_second');

function progressOf(swarm) {
  const bar = make('div'), about = swarm.target_is_estimated ? 'about ' : '';
  bar.style.width = (swarm.target_samples ? Math.min(100, 100 * swarm.samples / swarm.target_samples) : 0) + '%';
  const text = swarm.target_samples ? number(swarm.samples) + ' of ' + about + number(swarm.target_samples) + ' samples' :
    number(swarm.samples) + ' samples; how many an epoch takes is known after the first one';
  return [make('div', {className: 'bar'}, bar),
    make('div', {textContent: (swarm.ended ? 'ended; seen last at ' + clock(swarm.ended) + ': ' : '') + text + (swarm.eta_seconds === null ? '' : ', the epoch ends in ' + seconds(swarm.eta_seconds))})];
}

function curvesOf(swarm) {
  const times = (x0, x1) => [clock(x0), clock(x1)], soon = 'after a minute';
  const at = (name, digits) => p => clock(p.x) + ': ' + number(p.y, digits) + ' ' + name;
  const looks = key => swarm.looks.map(look => ({x: look.time, y: look[key]}));
  return [
    curve('loss of the trainers', swarm.losses.map(p => ({x: p.epoch, y: p.loss, time: p.time})), 'var(--a)',
      p => 'before epoch ' + p.x + ': ' + number(p.y, 5) + '\n' + clock(p.time)),
    curve('samples per second of all trainers', looks('samples_per_second'), 'var(--b)', at('samples/s', 4), times, soon),
    curve('trainers', looks('peers'), 'var(--good)', at('trainers', 4), times, soon),
    curve('seconds of an epoch', swarm.epochs.map(p => ({x: p.epoch, y: p.seconds})), 'var(--part)', p => 'epoch ' + p.x + ': ' + seconds(p.y)),
  ];
}

const memberText = p => p.id + '\n' + p.role + ', ' + p.software + (p.reachable === false ? ', does not answer' : '') +
  (p.rtt_seconds === null ? '' : ', ' + seconds(p.rtt_seconds) + ' away') + (p.neighbours ? ', knows ' + p.neighbours + ' nodes' : '');

/// The nodes on a ring, a line between two of which one knows the other.
function mapOf(swarm, shown) {
  const box = make('div', {className: 'chart'}, make('h3', {textContent: 'trainers blue, clients orange, other nodes grey, those that do not answer red' +
    (swarm.peer_count > shown.length ? '; ' + shown.length + ' of ' + swarm.peer_count : '')}));
  const svg = draw('svg', {class: 'map', viewBox: '-170 -170 340 340', role: 'img'}, box);
  draw('title', {}, svg).textContent = 'map of the swarm';
  const place = i => [150 * Math.sin(2 * Math.PI * i / shown.length), -150 * Math.cos(2 * Math.PI * i / shown.length)];
  const lines = new Map();
  for (const [from, to] of swarm.links) {
    if (from >= shown.length || to >= shown.length || lines.has(to + ' ' + from)) continue;
    const [x1, y1] = place(from), [x2, y2] = place(to);
    lines.set(from + ' ' + to, {from, to, line: draw('line', {class: 'link', x1, y1, x2, y2}, svg)});
  }
  shown.forEach((peer, i) => {
    const [cx, cy] = place(i);
    const dot = draw('circle', {class: 'member ' + (peer.reachable === false ? 'away' : peer.role), cx, cy, r: shown.length > 60 ? 4 : 7}, svg);
    const mark = on => { for (const {from, to, line} of lines.values()) if (from === i || to === i) line.classList.toggle('shown', on); };
    dot.addEventListener('pointermove', event => { mark(true); showTip(event, memberText(peer)); });
    dot.addEventListener('pointerleave', () => { mark(false); hideTip(); });
  });
  return box;
}

/// A row for each node, and in it the nodes that it knows, and how far away they are.
function matrixOf(swarm, shown) {
  const trips = swarm.round_trips.filter(([from, to]) => from < shown.length && to < shown.length);
  const farthest = Math.max(.001, ...trips.map(trip => trip[2]));
  const box = make('div', {className: 'chart'}, make('h3', {textContent: 'rows: who knows; columns: who is known' +
    (trips.length ? '; round trips from pale to dark, up to ' + seconds(farthest) : '')}));
  const svg = draw('svg', {class: 'matrix', viewBox: `0 0 ${shown.length} ${shown.length}`, role: 'img'}, box);
  draw('title', {}, svg).textContent = 'which node knows which';
  const add = (kind, x, y, text) => {
    const square = draw('rect', {class: kind, x: x + .04, y: y + .04, width: .92, height: .92}, svg);
    square.addEventListener('pointermove', event => showTip(event, text));
    square.addEventListener('pointerleave', hideTip);
    return square;
  };
  shown.forEach((peer, i) => add('self', i, i, memberText(peer)));
  for (const [from, to] of swarm.links)
    if (from < shown.length && to < shown.length) add('known', to, from, short(shown[from].id) + ' knows ' + short(shown[to].id));
  for (const [from, to, trip] of trips)
    add('far', to, from, short(shown[from].id) + ' to ' + short(shown[to].id) + ' and back: ' + seconds(trip)).style.fillOpacity = .15 + .85 * trip / farthest;
  return box;
}

function drawSwarm(swarm) {
  $('swarm').hidden = false;
  $('warnings').replaceChildren(...swarm.warnings.map(w => make('li', {textContent: w.message})));
  const software = kind => swarm.peers.filter(p => p.software === kind).length;
  $('swarm-facts').replaceChildren(fact('epoch', String(swarm.epoch)), fact('trainers', String(swarm.trainers + swarm.clients), swarm.trainers + swarm.clients === 0),
    fact('of them clients', String(swarm.clients)), fact('samples/s', number(swarm.samples_per_second)), fact('loss', number(swarm.loss, 4)),
    fact('nodes that answer', swarm.mapped ? swarm.reachable_nodes + ' of ' + swarm.nodes : '–', swarm.reachable_nodes < swarm.nodes),
    fact('cohive, hivemind', software('cohive') + ', ' + software('hivemind')), fact('parts of the swarm', String(swarm.parts.length || '–'), swarm.parts.length > 1));
  $('swarm-progress').replaceChildren(...progressOf(swarm));
  $('swarm-curves').replaceChildren(...curvesOf(swarm), ...(swarm.rounds.length ? [timeline(swarm.rounds)] : []));
  members.show(swarm.peers);
  const nodes = swarm.peers.slice(0, kOnMap);
  $('swarm-map').replaceChildren(mapOf(swarm, nodes), matrixOf(swarm, nodes.slice(0, kInMatrix)));
}
