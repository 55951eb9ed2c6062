// Command transport is a relay with a transport of its own: messages in frames over TCP. It plays a
// match of a host on UDP and a player on that transport.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// run runs a relay, and a match on it.
func run(ctx context.Context, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	relay, err := newRelay(httpapi.LimitListener(listener, httpapi.ConnLimits{})) // limits per address, too
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() { cancel(relay.Run(ctx)) })
	select {
	case <-relay.Ready():
	case <-ctx.Done():
	}
	err = play(ctx, relay, listener.Addr().String(), out)
	if ended := context.Cause(ctx); ended != nil {
		err = ended // of the relay
	}
	cancel(nil)
	running.Wait()
	return err
}

// newRelay returns a relay on UDP and on a listener of TCP.
func newRelay(listener net.Listener) (*engine.Server, error) {
	id, err := engine.NewIdentity()
	if err != nil {
		return nil, err
	}
	return engine.New(engine.Config{Transports: []engine.Transport{newTransport(listener)}}, id)
}

// play plays a match of a host on UDP and a player on TCP.
func play(ctx context.Context, relay *engine.Server, tcp string, out io.Writer) error {
	game := alloc.Tenant{Project: "game", Environment: "live"}
	reserved, err := relay.ReserveHost(ctx, alloc.HostRequest{Caller: alloc.Caller{Tenant: game}, MaxConnections: 1})
	if err != nil {
		return err
	}
	host, err := start(ctx, client.Config{Ticket: ticket(reserved, relay.Addr())})
	if err != nil {
		return err
	}
	var answering sync.WaitGroup
	defer answering.Wait()
	defer host.close()
	if err := host.Bind(ctx); err != nil {
		return err
	}

	reserved, err = relay.ReserveJoiner(ctx, alloc.JoinerRequest{Caller: alloc.Caller{Tenant: game}, Host: reserved.ID})
	if err != nil {
		return err
	}
	player, err := startOverTCP(ctx, tcp, reserved)
	if err != nil {
		return err
	}
	defer player.close()
	toHost, err := player.Connect(ctx)
	if err != nil {
		return err
	}
	all, _, err := relay.Allocations(ctx, engine.Filter{}, 0, 10)
	if err != nil {
		return err
	}
	for _, a := range all {
		fmt.Fprintln(out, "the relay has a", a.Role, "on", a.Transport)
	}

	answering.Go(func() { answer(ctx, host.Session) })
	reply, err := ask(ctx, toHost, "hello over TCP")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "the host answers: %s\n", reply)
	return err
}

// ticket returns what a player needs to use a reservation through the relay at an address.
func ticket(r alloc.Reservation, relay netip.AddrPort) client.Ticket {
	t := client.Ticket{Server: relay, ID: r.ID, Key: r.Key, ConnectionData: r.ConnectionData[:]}
	if r.HostConnectionData != r.ConnectionData {
		t.HostConnectionData = r.HostConnectionData[:]
	}
	return t
}

// answer answers each datagram of the first player until the session ends.
func answer(ctx context.Context, host *client.Session) {
	player, err := host.Accept(ctx)
	if err != nil {
		return
	}
	buf := make([]byte, 1500)
	for {
		n, err := player.Read(buf)
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(player, "%q came over UDP", buf[:n]) // The player asks again if it is lost.
	}
}

// ask sends a datagram until there is an answer, since each of them may be lost.
func ask(ctx context.Context, peer *client.Peer, question string) (string, error) {
	buf := make([]byte, 1500)
	for ctx.Err() == nil {
		if _, err := peer.Write([]byte(question)); err != nil {
			return "", err
		}
		_ = peer.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := peer.Read(buf)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return string(buf[:n]), err
		}
	}
	return "", ctx.Err()
}

// running is a session that runs, with the tunnel under it if there is one.
type running struct {
	*client.Session
	close func()
}

// start runs a session.
func start(ctx context.Context, cfg client.Config) (running, error) {
	session, err := client.New(cfg)
	if err != nil {
		return running{}, err
	}
	var work sync.WaitGroup
	work.Go(func() { _ = session.Run(ctx) })
	return running{session, func() {
		_ = session.Close()
		work.Wait()
	}}, nil
}

// startOverTCP runs a session through a tunnel.
func startOverTCP(ctx context.Context, tcp string, r alloc.Reservation) (running, error) {
	tunnel, err := dial(ctx, tcp)
	if err != nil {
		return running{}, err
	}
	// The tunnel outlives the session, which says goodbye through it.
	carrying, stop := context.WithCancel(context.WithoutCancel(ctx))
	player, err := start(ctx, client.Config{Ticket: ticket(r, tunnel.addr()), LocalAddr: tunnel.addr().Addr()})
	if err != nil {
		stop()
		tunnel.run(carrying, netip.AddrPort{}) // closes it
		return running{}, err
	}
	var work sync.WaitGroup
	work.Go(func() { tunnel.run(carrying, player.LocalAddr()) })
	return running{player.Session, func() {
		player.close()
		stop()
		work.Wait()
	}}, nil
}
