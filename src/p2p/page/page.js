// Asks /status every two seconds and draws what it says. What peers say of themselves is only ever set as text.
const kPeriod = 2000;
let status = null;

// ---- Rounds: one bar each, search for the group above, exchange below

function roundText(round) {
  const lines = [clock(round.time) + '  ' + round.what + ': ' + round.outcome];
  if (round.group_id) lines.push((round.member_count ?? round.members.length) + ' members, group ' + round.group_id.slice(0, 12));
  if (round.outcome !== 'failed') lines.push('group found in ' + seconds(round.matchmaking_seconds) + ', averaged in ' + seconds(round.allreduce_seconds));
  if (round.message) lines.push(round.message);
  if (round.told_by) lines.push('told by ' + round.told_by.map(short).join(', ') + (round.told_by_count > round.told_by.length ? ' and ' + (round.told_by_count - round.told_by.length) + ' more' : ''));
  if (round.lost?.length) lines.push('lost: ' + round.lost.map(short).join(', '));
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

const peers = new Table('peers', p => [cell(short(p.id), p.id), cell(p.agent || '–', p.agent), cell(p.path), cell(p.direction),
  cell(seconds(p.rtt_seconds), '', 'number'), cell(bytes(p.bytes_in), '', 'number'), cell(bytes(p.bytes_out), '', 'number'),
  cell(seconds(p.seconds), '', 'number'), cell(p.address, p.address)], p => p.id + ' ' + p.agent + ' ' + p.address, 'bytes_in');

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
  const {node, program, dht, swarm, runs = [], failures = []} = status;
  document.title = (swarm ? swarm.run_id + ' epoch ' + swarm.epoch + ' – ' : runs[0] ? runs[0].run_id + ' epoch ' + runs[0].epoch + ' – ' : '') + 'cohive';
  $('title').textContent = swarm ? 'cohive: run ' + swarm.run_id : 'cohive ' + short(node.peer_id);
  if (swarm) drawSwarm(swarm);
  else $('facts').replaceChildren(fact('peers', String(status.peers.length), status.peers.length === 0),
    fact('relayed', String(status.peers.filter(p => p.path === 'relayed').length)), fact('reachable', node.reachability, node.reachability === 'private'),
    fact('received', bytes(node.bytes_in)), fact('sent', bytes(node.bytes_out)), fact('up', seconds(program.uptime_seconds)));
  $('runs').replaceChildren(...runs.map(drawRun));
  $('failures-section').hidden = failures.length === 0;
  $('failures').tBodies[0].replaceChildren(...failures.slice(-12).reverse().map(f =>
    make('tr', {}, cell(clock(f.time)), cell(f.kind), cell(f.cause), cell(f.message, '', 'wide'))));
  peers.show(status.peers);
  drawNode(node, program, dht);
}

// ---- Asking

// The token is what was pasted behind #token=, of which a browser encodes these four characters and leaves all others.
const token = () => location.hash.match(/^#token=(.*)/)?.[1].replace(/%(22|3C|3E|60)/g, decodeURIComponent);
const ask = path => fetch(path, {headers: token() ? {Authorization: 'Bearer ' + token()} : {}, signal: AbortSignal.timeout(8000)});

async function poll() {
  try {
    const answer = await ask('/status');
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

// A browser that follows a link sends no token, so with one the page shows the answer itself.
document.querySelector('.links').addEventListener('click', async event => {
  const path = event.target.getAttribute('href');
  if (!path || !token()) return;
  event.preventDefault();
  $('shown').textContent = await ask(path).then(answer => answer.text()).catch(() => 'The program does not answer.');
  $('shown').hidden = false;
});

poll();
