'use strict';
// Asks /status every two seconds and draws what it says. What peers say of themselves is only ever set as text.
(() => {
  const kPeriod = 2000, kPeersShown = 50;
  const $ = id => document.getElementById(id);
  const kSvg = 'http://www.w3.org/2000/svg';
  let status = null, peersShown = kPeersShown, sortKey = 'bytes_in', sortUp = false;

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

  function curve(title, points, color, describe) {
    const box = make('div', {className: 'chart'}, make('h3', {textContent: title}));
    const svg = draw('svg', {viewBox: '0 0 560 150', role: 'img'}, box);
    draw('title', {}, svg).textContent = title;
    const shown = points.filter(p => Number.isFinite(p.y));
    if (shown.length < 2) {
      draw('text', {x: 280, y: 75, 'text-anchor': 'middle'}, svg).textContent = 'after two epochs';
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
    draw('text', {x: left, y: 145}, svg).textContent = 'epoch ' + x0;
    draw('text', {x: right, y: 145, 'text-anchor': 'end'}, svg).textContent = x1;
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

  // ---- Rounds: one bar each, search for the group above, exchange below

  function roundText(round) {
    const lines = [clock(round.time) + '  ' + round.what + ': ' + round.outcome];
    if (round.members.length) lines.push(round.members.length + ' members, group ' + round.group_id.slice(0, 12));
    if (round.outcome !== 'failed') lines.push('group found in ' + seconds(round.matchmaking_seconds) + ', averaged in ' + seconds(round.allreduce_seconds));
    if (round.message) lines.push(round.message);
    if (round.lost.length) lines.push('lost: ' + round.lost.map(short).join(', '));
    return lines.join('\n');
  }

  function timeline(rounds) {
    const box = make('div', {className: 'chart'}, make('h3', {textContent: 'the last ' + rounds.length + ' rounds: seconds until the group was found (pale) and averaged'}));
    const svg = draw('svg', {class: 'rounds', viewBox: '0 0 1000 110', preserveAspectRatio: 'none'}, box);
    const most = Math.max(.001, ...rounds.map(r => r.matchmaking_seconds + r.allreduce_seconds)), width = 1000 / Math.max(rounds.length, 25);
    rounds.forEach((round, i) => {
      const failed = round.outcome === 'failed' || round.outcome === 'missed';
      const kind = failed ? 'failed' : round.outcome === 'partial' ? 'partial' : 'ok';
      const search = failed ? 0 : round.matchmaking_seconds / most * 100, exchange = failed ? 14 : Math.max(2, round.allreduce_seconds / most * 100);
      const bar = draw('g', {}, svg), x = i * width, w = Math.max(1, width - 2);
      draw('rect', {class: kind, x, y: 106 - exchange, width: w, height: exchange}, bar);
      draw('rect', {class: kind + ' searching', x, y: 106 - exchange - search, width: w, height: search}, bar);
      bar.addEventListener('pointermove', event => showTip(event, roundText(round)));
      bar.addEventListener('pointerleave', hideTip);
    });
    return box;
  }

  // ---- Parts of the page

  function drawRun(run) {
    const behind = run.global_epoch > run.epoch + 1, waits = Object.entries(run.wait_seconds).sort((a, b) => b[1] - a[1]);
    const share = Math.min(100, 100 * run.samples / run.target_samples);
    const bar = make('div');
    bar.style.width = share + '%';
    const last = run.rounds.slice(-20), good = last.filter(r => r.outcome === 'ok' || r.outcome === 'partial').length;
    const box = make('section', {}, make('h2', {textContent: 'Run ' + run.run_id}),
      make('div', {className: 'facts'},
        fact('epoch', String(run.epoch), behind), fact('epoch of the run', String(run.global_epoch)), fact('trainers', String(run.peers)),
        fact('samples/s, all', number(run.samples_per_second)), fact('loss', run.loss === null ? '–' : number(run.loss, 4)),
        fact('rounds that worked', last.length ? good + ' of ' + last.length : '–', last.length > 0 && good < last.length / 2),
        fact('waited for others', seconds(waits.reduce((sum, wait) => sum + wait[1], 0)))),
      make('div', {className: 'bar'}, bar),
      make('div', {textContent: number(run.samples) + ' of ' + number(run.target_samples) + ' samples' +
        (run.eta_seconds > 0 ? ', the epoch ends in ' + seconds(run.eta_seconds) : '') +
        (waits.length ? '. Waited: ' + waits.map(([why, time]) => why + ' ' + seconds(time)).join(', ') : '')}));
    const at = (name, digits) => p => 'epoch ' + p.x + ': ' + number(p.y, digits) + ' ' + name + '\n' + clock(p.time) + ', ' + seconds(p.seconds) + ', waited ' + seconds(p.wait);
    const points = name => run.epochs.map(e => ({x: e.epoch, y: e[name], time: e.time, seconds: e.seconds, wait: e.wait_seconds}));
    box.append(make('div', {className: 'charts'}, curve('loss of this trainer', points('loss'), 'var(--a)', at('loss', 5)),
      curve('samples per second of all trainers', points('samples_per_second'), 'var(--b)', at('samples/s', 4))));
    if (run.rounds.length) box.append(make('div', {className: 'charts'}, timeline(run.rounds)));
    return box;
  }

  function cell(text, title = '', className = '') {
    return make('td', {textContent: text, title, className});
  }

  function drawPeers() {
    const wanted = $('peer-filter').value.toLowerCase(), sign = sortUp ? 1 : -1;
    const matches = status.peers.filter(p => !wanted || (p.id + ' ' + p.agent + ' ' + p.address).toLowerCase().includes(wanted));
    matches.sort((a, b) => sign * ((a[sortKey] ?? -1) > (b[sortKey] ?? -1) ? 1 : (a[sortKey] ?? -1) < (b[sortKey] ?? -1) ? -1 : 0));
    $('peer-count').textContent = status.peers.length + ' connected' + (wanted ? ', ' + matches.length + ' shown' : '');
    $('peers').tBodies[0].replaceChildren(...matches.slice(0, peersShown).map(p => make('tr', {},
      cell(short(p.id), p.id), cell(p.agent || '–', p.agent), cell(p.path), cell(p.direction), cell(seconds(p.rtt_seconds), '', 'number'),
      cell(bytes(p.bytes_in), '', 'number'), cell(bytes(p.bytes_out), '', 'number'), cell(seconds(p.seconds), '', 'number'), cell(p.address, p.address))));
    for (const head of $('peers').tHead.rows[0].cells)
      head.className = (head.classList.contains('number') ? 'number ' : '') + (head.dataset.key === sortKey ? sortUp ? 'sorted up' : 'sorted' : '');
    $('more-peers').hidden = matches.length <= peersShown;
    $('more-peers').textContent = 'show ' + Math.min(200, matches.length - peersShown) + ' more of ' + matches.length;
  }

  function drawNode(node, program, dht) {
    const entries = {
      'peer id': node.peer_id, 'others join with': node.join, addresses: node.addresses.join('\n') || 'none: this node only dials',
      reachability: node.reachability + (node.relays.length ? ', through relays ' + node.relays.join(', ') : ''),
      version: [program.version, program.revision, program.compiler].join(', '), 'running since': new Date(program.started * 1000).toLocaleString(),
    };
    if (dht) entries['DHT'] = dht.nodes + ' nodes in the routing table, ' + dht.records + ' records held';
    $('node').replaceChildren(...Object.entries(entries).flatMap(([name, value]) => [make('dt', {textContent: name}), make('dd', {textContent: value})]));
  }

  function drawAll() {
    const {node, program, dht, runs = [], failures = []} = status;
    document.title = (runs[0] ? runs[0].run_id + ' epoch ' + runs[0].epoch + ' – ' : '') + 'cohive';
    $('title').textContent = 'cohive ' + short(node.peer_id);
    $('facts').replaceChildren(fact('peers', String(status.peers.length), status.peers.length === 0),
      fact('relayed', String(status.peers.filter(p => p.path === 'relayed').length)), fact('reachable', node.reachability, node.reachability === 'private'),
      fact('received', bytes(node.bytes_in)), fact('sent', bytes(node.bytes_out)), fact('up', seconds(program.uptime_seconds)));
    $('runs').replaceChildren(...runs.map(drawRun));
    $('failures-section').hidden = failures.length === 0;
    $('failures').tBodies[0].replaceChildren(...failures.slice(-12).reverse().map(f =>
      make('tr', {}, cell(clock(f.time)), cell(f.kind), cell(f.cause), cell(f.message, '', 'wide'))));
    drawPeers();
    drawNode(node, program, dht);
  }

  // ---- Asking

  const token = new URLSearchParams(location.hash.slice(1)).get('token');
  async function poll() {
    try {
      const answer = await fetch('/status', {headers: token ? {Authorization: 'Bearer ' + token} : {}, signal: AbortSignal.timeout(8000)});
      if (!answer.ok) throw new Error(answer.status === 401 ? 'A token is needed: open this page as …/#token=TOKEN' : await answer.text());
      status = {peers: [], ...await answer.json()};
      drawAll();
      $('dot').className = 'live';
      $('problem').hidden = true;
    } catch (error) {
      $('dot').className = 'lost';
      $('problem').hidden = false;
      $('problem').textContent = error instanceof TypeError || error.name === 'TimeoutError' ? 'The program does not answer. What you see is what it said last.' : error.message;
    }
    setTimeout(poll, document.hidden ? 5 * kPeriod : kPeriod);
  }

  $('peer-filter').addEventListener('input', () => { if (status) drawPeers(); });
  $('more-peers').addEventListener('click', () => { peersShown += 200; drawPeers(); });
  $('peers').tHead.addEventListener('click', event => {
    const key = event.target.dataset.key;
    if (!key || !status) return;
    sortUp = key === sortKey ? !sortUp : false;
    sortKey = key;
    drawPeers();
  });
  poll();
})();
