// A go-libp2p peer for tests: TCP, Noise or TLS, yamux, identify, ping, circuit relay v2, and an echo of its own.
// It takes the commands that ../README.md lists.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
)

const (
	agent    = "interop/go"
	echo     = "/interop/echo/1.0.0"
	patience = 30 * time.Second
)

type request struct {
	ID            int      `json:"id"`
	Command       string   `json:"command"`
	Security      []string `json:"security"`
	Relay         bool     `json:"relay"`
	TrustedRelays []string `json:"trusted_relays"`
	Address       string   `json:"address"`
	Peer          string   `json:"peer"`
	Bytes         int      `json:"bytes"`
}

type reply struct {
	ID     int    `json:"id"`
	Result any    `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

type started struct {
	PeerID    string   `json:"peer_id"`
	Addresses []string `json:"addresses"`
}

type known struct {
	ID        string   `json:"id"`
	Agent     string   `json:"agent"`
	Protocols []string `json:"protocols"`
	Addresses []string `json:"addresses"`
}

func start(ctx context.Context, r request) (host.Host, error) {
	options := []libp2p.Option{
		libp2p.NoTransports, libp2p.Transport(tcp.NewTCPTransport), libp2p.EnableRelay(), libp2p.UserAgent(agent),
		libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"),
	}
	for _, security := range r.Security {
		if security == "tls" {
			options = append(options, libp2p.Security(libp2ptls.ID, libp2ptls.New))
		} else {
			options = append(options, libp2p.Security(noise.ID, noise.New))
		}
	}
	if r.Relay {
		options = append(options, libp2p.EnableRelayService(), libp2p.ForceReachabilityPublic())
	}
	h, err := libp2p.New(options...)
	if err != nil {
		return nil, err
	}
	h.SetStreamHandler(echo, func(stream network.Stream) {
		if _, err := io.Copy(stream, stream); err != nil {
			stream.Reset()
			return
		}
		stream.Close()
	})
	for _, address := range r.TrustedRelays {
		relay, err := peer.AddrInfoFromString(address)
		if err != nil {
			return nil, err
		}
		if err := h.Connect(ctx, *relay); err != nil {
			return nil, err
		}
		if _, err := client.Reserve(ctx, h, *relay); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func describe(h host.Host) started {
	result := started{PeerID: h.ID().String(), Addresses: []string{}}
	for _, address := range h.Addrs() {
		result.Addresses = append(result.Addresses, fmt.Sprintf("%s/p2p/%s", address, h.ID()))
	}
	return result
}

func connect(ctx context.Context, h host.Host, r request) (any, error) {
	target, err := peer.AddrInfoFromString(r.Address)
	if err != nil {
		return nil, err
	}
	if err := h.Connect(ctx, *target); err != nil {
		return nil, err
	}
	return target.ID.String(), nil
}

func measure(ctx context.Context, h host.Host, target peer.ID) (any, error) {
	result := <-ping.Ping(ctx, h, target)
	return result.RTT.Seconds(), result.Error
}

func sendAndCompare(ctx context.Context, h host.Host, target peer.ID, count int) (any, error) {
	stream, err := h.NewStream(ctx, target, echo)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	sent := make([]byte, count)
	rand.Read(sent)
	written := make(chan error, 1)
	go func() {
		if _, err := stream.Write(sent); err != nil {
			written <- err
			return
		}
		written <- stream.CloseWrite()
	}()
	received, err := io.ReadAll(stream)
	if err == nil {
		err = <-written
	}
	if err == nil && !bytes.Equal(sent, received) {
		err = fmt.Errorf("%d bytes came back otherwise", len(received))
	}
	return len(received), err
}

func peers(h host.Host) []known {
	result := []known{}
	for _, connection := range h.Network().Conns() {
		id := connection.RemotePeer()
		one := known{ID: id.String()}
		if value, err := h.Peerstore().Get(id, "AgentVersion"); err == nil {
			one.Agent = value.(string)
		}
		protocols, _ := h.Peerstore().GetProtocols(id)
		for _, protocol := range protocols {
			one.Protocols = append(one.Protocols, string(protocol))
		}
		for _, address := range h.Peerstore().Addrs(id) {
			one.Addresses = append(one.Addresses, address.String())
		}
		result = append(result, one)
	}
	return result
}

func run(h *host.Host, r request) (any, error) {
	ctx, cancel := context.WithTimeout(network.WithAllowLimitedConn(context.Background(), "test"), patience)
	defer cancel()
	switch r.Command {
	case "host_start":
		made, err := start(ctx, r)
		if err != nil {
			return nil, err
		}
		*h = made
		return describe(made), nil
	case "host_connect":
		return connect(ctx, *h, r)
	case "host_peers":
		return peers(*h), nil
	}
	target, err := peer.Decode(r.Peer)
	if err != nil {
		return nil, err
	}
	switch r.Command {
	case "host_ping":
		return measure(ctx, *h, target)
	case "echo_call":
		return sendAndCompare(ctx, *h, target, r.Bytes)
	}
	return nil, fmt.Errorf("unknown command")
}

func main() {
	var h host.Host
	var output sync.Mutex
	answer := func(r request) {
		result, err := run(&h, r)
		answer := reply{ID: r.ID, Result: result}
		if err != nil {
			answer = reply{ID: r.ID, Error: err.Error()}
		}
		line, _ := json.Marshal(answer)
		output.Lock()
		defer output.Unlock()
		fmt.Println(string(line))
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		if r.Command == "host_start" {
			answer(r) // what comes next needs it
		} else {
			go answer(r)
		}
	}
	if h != nil {
		h.Close()
	}
}
