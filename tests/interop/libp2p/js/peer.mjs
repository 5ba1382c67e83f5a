// A js-libp2p peer for tests: TCP, Noise or TLS, yamux, identify, ping, circuit relay v2, and an echo of its own.
// It takes the commands that ../README.md lists.
import { randomBytes } from 'node:crypto'
import { createInterface } from 'node:readline'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { circuitRelayServer, circuitRelayTransport } from '@libp2p/circuit-relay-v2'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { tls } from '@libp2p/tls'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const ECHO = '/interop/echo/1.0.0'
const PATIENCE = 30_000
const overCircuits = { runOnLimitedConnection: true }
const known = new Map() // what peers said of themselves, by id
let node

async function write (stream, bytes) {
  if (!stream.send(bytes)) await stream.onDrain({ signal: AbortSignal.timeout(PATIENCE) })
}

// Calls `each` with what arrives, until the other end has closed its direction. The library's own iterator waits for
// ever when that has happened before it looks, and so does its event `end`.
function receive (stream, each) {
  return new Promise((resolve, reject) => {
    const look = () => { if (stream.remoteWriteStatus === 'closed' && stream.readBuffer.byteLength === 0) resolve() }
    stream.addEventListener('remoteCloseWrite', look)
    stream.addEventListener('close', ({ error }) => { error ? reject(error) : resolve() })
    stream.addEventListener('message', ({ data }) => {
      each(data)
      look()
    })
    look()
  })
}

async function serveEcho (stream) {
  let written = Promise.resolve()
  await receive(stream, (bytes) => { written = written.then(() => write(stream, bytes)) })
  await written
  await stream.close()
}

async function callEcho (peer, count) {
  const stream = await node.dialProtocol(peer, ECHO, overCircuits)
  const sent = randomBytes(count)
  const received = []
  const reading = receive(stream, (bytes) => received.push(Buffer.from(bytes.subarray())))
  for (let at = 0; at < count; at += 65536) await write(stream, sent.subarray(at, at + 65536))
  await stream.close()
  await reading
  if (!Buffer.concat(received).equals(sent)) throw new Error('other bytes came back')
  return count
}

async function start ({ security, relay, trusted_relays: relays = [] }) {
  node = await createLibp2p({
    addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
    nodeInfo: { userAgent: 'interop/js' },
    transports: [tcp(), circuitRelayTransport()],
    connectionEncrypters: [security[0] === 'tls' ? tls() : noise()],
    streamMuxers: [yamux()],
    connectionGater: { denyDialMultiaddr: () => false }, // loopback addresses, too
    services: { identify: identify(), ping: ping(), ...(relay ? { relay: circuitRelayServer() } : {}) }
  })
  node.addEventListener('peer:identify', ({ detail }) => known.set(detail.peerId.toString(), {
    id: detail.peerId.toString(),
    agent: detail.agentVersion,
    protocols: detail.protocols,
    addresses: detail.listenAddrs.map(String)
  }))
  await node.handle(ECHO, serveEcho, overCircuits)
  for (const address of relays) {
    await node.components.transportManager.listen([multiaddr(`${address}/p2p-circuit`)])
  }
  return { peer_id: node.peerId.toString(), addresses: node.getMultiaddrs().map(String) }
}

// Connected peers are pinged and called on the connections that they have.
function connected (id) {
  const peer = node.getPeers().find((one) => one.toString() === id)
  if (peer === undefined) throw new Error(`not connected to ${id}`)
  return peer
}

const commands = {
  host_start: start,
  host_connect: async ({ address }) =>
    (await node.dial(multiaddr(address), { signal: AbortSignal.timeout(PATIENCE) })).remotePeer.toString(),
  host_ping: async ({ peer }) => (await node.services.ping.ping(connected(peer))) / 1000,
  host_peers: () => node.getPeers().map((peer) => known.get(peer.toString()) ?? { id: peer.toString(), agent: '' }),
  echo_call: ({ peer, bytes }) => callEcho(connected(peer), bytes)
}

async function answer (request) {
  let reply
  try {
    reply = { id: request.id, result: await commands[request.command](request) }
  } catch (error) {
    reply = { id: request.id, error: `${error.name}: ${error.message}` }
  }
  process.stdout.write(JSON.stringify(reply) + '\n')
}

const lines = createInterface({ input: process.stdin })
lines.on('line', (line) => { answer(JSON.parse(line)) })
lines.on('close', async () => {
  await node?.stop()
  process.exit(0)
})
