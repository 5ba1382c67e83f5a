// A rust-libp2p peer for tests: TCP, Noise or TLS, yamux, identify, ping, circuit relay v2, and an echo of its own.
// It takes the commands that ../README.md lists.
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::core::transport::ListenerId;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, NetworkBehaviour, SwarmEvent};
use libp2p::{identify, noise, ping, relay, tcp, tls, yamux, Multiaddr, PeerId, StreamProtocol, Swarm};
use rand::RngCore;
use serde::Deserialize;
use serde_json::{json, Value};
use tokio::io::AsyncBufReadExt;
use tokio::sync::mpsc;

const AGENT: &str = "interop/rust";
const ECHO: StreamProtocol = StreamProtocol::new("/interop/echo/1.0.0");
const PATIENCE: Duration = Duration::from_secs(30);
const PING_INTERVAL: Duration = Duration::from_millis(200);

type AnyError = Box<dyn Error + Send + Sync>;
type Outcome = Result<Value, AnyError>;

#[derive(Deserialize)]
#[serde(default)]
struct Request {
    id: u64,
    command: String,
    security: Vec<String>,
    relay: bool,
    trusted_relays: Vec<String>,
    address: String,
    peer: String,
    bytes: usize,
}

impl Default for Request {
    fn default() -> Self {
        Request { id: 0, command: String::new(), security: vec![], relay: false, trusted_relays: vec![],
                  address: String::new(), peer: String::new(), bytes: 0 }
    }
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    circuits: relay::client::Behaviour,
    relay: Toggle<relay::Behaviour>,
    streams: libp2p_stream::Behaviour,
}

fn behaviour(key: &libp2p::identity::Keypair, circuits: relay::client::Behaviour, relays: bool) -> Behaviour {
    let about = identify::Config::new("/interop/1.0.0".into(), key.public()).with_agent_version(AGENT.into());
    let own = key.public().to_peer_id();
    Behaviour {
        identify: identify::Behaviour::new(about),
        ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_INTERVAL)),
        circuits,
        relay: relays.then(|| relay::Behaviour::new(own, relay::Config::default())).into(),
        streams: libp2p_stream::Behaviour::new(),
    }
}

fn swarm(request: &Request) -> Result<Swarm<Behaviour>, AnyError> {
    let relays = request.relay;
    let builder = || libp2p::SwarmBuilder::with_new_identity().with_tokio();
    let idle = |config: libp2p::swarm::Config| config.with_idle_connection_timeout(Duration::from_secs(300));
    Ok(if request.security.iter().any(|one| one == "tls") {
        builder()
            .with_tcp(tcp::Config::default(), tls::Config::new, yamux::Config::default)?
            .with_relay_client(tls::Config::new, yamux::Config::default)?
            .with_behaviour(|key, circuits| behaviour(key, circuits, relays))?
            .with_swarm_config(idle)
            .build()
    } else {
        builder()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)?
            .with_relay_client(noise::Config::new, yamux::Config::default)?
            .with_behaviour(|key, circuits| behaviour(key, circuits, relays))?
            .with_swarm_config(idle)
            .build()
    })
}

/// Sends back what comes until the sender has closed its direction.
async fn serve_echo(mut control: libp2p_stream::Control) {
    let mut incoming = control.accept(ECHO).expect("one echo");
    while let Some((_, mut stream)) = incoming.next().await {
        tokio::spawn(async move {
            let mut buffer = vec![0; 65536];
            while let Ok(count) = stream.read(&mut buffer).await {
                if count == 0 || stream.write_all(&buffer[..count]).await.is_err() {
                    break;
                }
                let _ = stream.flush().await;
            }
            let _ = stream.close().await;
        });
    }
}

async fn call_echo(mut control: libp2p_stream::Control, peer: PeerId, bytes: usize) -> Outcome {
    let stream = control.open_stream(peer, ECHO).await.map_err(|error| error.to_string())?;
    let mut sent = vec![0; bytes];
    rand::thread_rng().fill_bytes(&mut sent);
    let (mut reader, mut writer) = stream.split();
    let mut received = Vec::new();
    let writing = async {
        writer.write_all(&sent).await?;
        writer.close().await
    };
    let (written, read) = futures::join!(writing, reader.read_to_end(&mut received));
    written?;
    read?;
    if received != sent {
        return Err(format!("{} bytes came back otherwise", received.len()).into());
    }
    Ok(json!(received.len()))
}

/// A running peer, and what it has been asked and not answered yet.
struct Peer {
    swarm: Swarm<Behaviour>,
    control: libp2p_stream::Control,
    starting: Option<u64>,
    listening: HashSet<ListenerId>,
    reserving: usize,
    addresses: Vec<Multiaddr>,
    dials: HashMap<ConnectionId, u64>,
    pings: Vec<(PeerId, u64)>,
    known: HashMap<PeerId, identify::Info>,
    answers: mpsc::UnboundedSender<(u64, Outcome)>,
}

impl Peer {
    fn start(request: &Request, answers: mpsc::UnboundedSender<(u64, Outcome)>) -> Result<Self, AnyError> {
        let mut swarm = swarm(request)?;
        let control = swarm.behaviour().streams.new_control();
        tokio::spawn(serve_echo(control.clone()));
        let listener = swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse()?)?;
        for relay in &request.trusted_relays {
            swarm.listen_on(format!("{relay}/p2p-circuit").parse()?)?;
        }
        Ok(Peer { swarm, control, starting: Some(request.id), listening: HashSet::from([listener]),
                  reserving: request.trusted_relays.len(), addresses: vec![], dials: HashMap::new(), pings: vec![],
                  known: HashMap::new(), answers })
    }

    fn answer(&self, id: u64, outcome: Outcome) {
        let _ = self.answers.send((id, outcome));
    }

    /// Begins what a request asks for.
    fn take(&mut self, request: Request) -> Result<(), AnyError> {
        match request.command.as_str() {
            "host_connect" => {
                let options: DialOpts = request.address.parse::<Multiaddr>()?.into();
                self.dials.insert(options.connection_id(), request.id);
                if let Err(error) = self.swarm.dial(options) {
                    self.dials.retain(|_, id| *id != request.id);
                    return Err(error.into());
                }
            }
            "host_ping" => self.pings.push((request.peer.parse()?, request.id)),
            "host_peers" => self.answer(request.id, Ok(self.peers())),
            "echo_call" => {
                let (control, peer, answers) = (self.control.clone(), request.peer.parse()?, self.answers.clone());
                tokio::spawn(async move {
                    let outcome = tokio::time::timeout(PATIENCE, call_echo(control, peer, request.bytes)).await;
                    let _ = answers.send((request.id, outcome.unwrap_or_else(|_| Err("no echo in time".into()))));
                });
            }
            _ => return Err("unknown command".into()),
        }
        Ok(())
    }

    fn peers(&self) -> Value {
        let known = |peer: &PeerId| match self.known.get(peer) {
            None => json!({"id": peer.to_string(), "agent": "", "protocols": [], "addresses": []}),
            Some(info) => json!({
                "id": peer.to_string(), "agent": info.agent_version,
                "protocols": info.protocols.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "addresses": info.listen_addrs.iter().map(ToString::to_string).collect::<Vec<_>>(),
            }),
        };
        Value::Array(self.swarm.connected_peers().map(known).collect())
    }

    fn happened(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::NewListenAddr { listener_id, address } if self.listening.contains(&listener_id) => {
                self.swarm.add_external_address(address.clone()); // a relay tells it to those that reserve
                self.addresses.push(address);
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                if let Some(id) = self.dials.remove(&connection_id) {
                    self.answer(id, Ok(json!(peer_id.to_string())));
                }
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                if let Some(id) = self.dials.remove(&connection_id) {
                    self.answer(id, Err(error.to_string().into()));
                }
            }
            SwarmEvent::ListenerClosed { reason: Err(error), .. } => {
                if let Some(id) = self.starting.take() {
                    self.answer(id, Err(error.to_string().into()));
                }
            }
            SwarmEvent::Behaviour(BehaviourEvent::Circuits(relay::client::Event::ReservationReqAccepted {
                renewal: false, ..
            })) => self.reserving = self.reserving.saturating_sub(1),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. })) => {
                self.known.insert(peer_id, info);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { peer, result, .. })) => {
                let (asked, others) = std::mem::take(&mut self.pings).into_iter().partition(|one| one.0 == peer);
                self.pings = others;
                for (_, id) in asked as Vec<(PeerId, u64)> {
                    self.answer(id, match &result {
                        Ok(time) => Ok(json!(time.as_secs_f64())),
                        Err(error) => Err(error.to_string().into()),
                    });
                }
            }
            _ => {}
        }
        if self.reserving == 0 && !self.addresses.is_empty() {
            if let Some(id) = self.starting.take() {
                let own = self.swarm.local_peer_id();
                let addresses: Vec<_> = self.addresses.iter().map(|one| format!("{one}/p2p/{own}")).collect();
                self.answer(id, Ok(json!({"peer_id": own.to_string(), "addresses": addresses})));
            }
        }
    }
}

fn print(id: u64, outcome: Outcome) {
    println!("{}", match outcome {
        Ok(result) => json!({"id": id, "result": result}),
        Err(error) => json!({"id": id, "error": error.to_string()}),
    });
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let (sender, mut answers) = mpsc::unbounded_channel();
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    let Some(first) = lines.next_line().await? else { return Ok(()) };
    let mut peer = Peer::start(&serde_json::from_str(&first)?, sender)?;
    loop {
        tokio::select! {
            line = lines.next_line() => {
                let Some(line) = line? else { return Ok(()) };
                let request: Request = serde_json::from_str(&line)?;
                let id = request.id;
                if let Err(error) = peer.take(request) {
                    print(id, Err(error));
                }
            }
            event = peer.swarm.select_next_some() => peer.happened(event),
            Some((id, outcome)) = answers.recv() => print(id, outcome),
        }
    }
}
