package ping

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

// Transports are those that matches can be played over.
var Transports = []string{"udp", "dtls", "ws", "wss"}

// Config says what to play.
type Config struct {
	API *api.Client // required
	// Region to allocate in. Empty: chosen by the server.
	Region string
	// Transports are those of [Transports] to play over. Empty: those that the relay offers.
	Transports []string
	// TLS is for wss. Nil: the system's authorities are trusted.
	TLS *tls.Config
}

// Check reports a transport that is unknown.
func (c Config) Check() error {
	for _, name := range c.Transports {
		if !slices.Contains(Transports, name) {
			return fmt.Errorf("ping: %q is not udp, dtls, ws or wss", name)
		}
	}
	return nil
}

// The steps of a match, for the metric of failures.
const (
	stepAllocate = "allocate"
	stepCode     = "joincode"
	stepJoin     = "join"
	stepOpen     = "open" // the socket, session or WebSocket
	stepBind     = "bind"
	stepConnect  = "connect"
	stepRelay    = "relay"
)

var steps = []string{stepAllocate, stepCode, stepJoin, stepOpen, stepBind, stepConnect, stepRelay}

// match is what came of a match over a transport.
type match struct {
	client.Quality // its region and the relay's address, and the datagrams to the host and back; Err is why it failed
	transport      string
	began          time.Time
	linked         time.Duration // from began until the joiner is linked to the host; 0: it never was
	trips          []time.Duration
	step           string // the one that failed; "": the match was played
}

type matches struct {
	Config
	transports []string // what a round plays over; without Config.Transports, what relays have offered so far
}

func newMatches(cfg Config) *matches {
	m := &matches{cfg, slices.Clone(cfg.Transports)}
	if len(m.transports) == 0 {
		m.transports = []string{"udp"}
	}
	return m
}

// round plays a match over each transport and calls done after each. A match that ctx interrupts
// is not one.
func (m *matches) round(ctx context.Context, done func(match)) {
	for i := 0; i < len(m.transports); i++ { // A match may add to them.
		played := m.play(ctx, m.transports[i])
		if ctx.Err() != nil {
			return
		}
		done(played)
	}
}

const matchTimeout = 20 * time.Second

func (m *matches) play(ctx context.Context, transport string) match {
	ctx, cancel := context.WithTimeout(ctx, matchTimeout)
	defer cancel()
	played := match{transport: transport, began: time.Now()}
	step, err := m.playSteps(ctx, &played)
	if err != nil { // It begins with the step or the package, if it is that of a call.
		text := err.Error()
		for _, prefix := range []string{step + ": ", "api: ", "client: "} {
			text = strings.TrimPrefix(text, prefix)
		}
		played.step, played.Err = step, errors.New(text)
	}
	return played
}

func (m *matches) playSteps(ctx context.Context, played *match) (step string, err error) {
	allocation, err := m.API.Allocate(ctx, api.AllocateRequest{MaxConnections: 1, Region: m.Region})
	if err != nil {
		return stepAllocate, err
	}
	played.Region = allocation.Region
	m.addOffered(allocation)
	code, err := m.API.JoinCode(ctx, allocation.AllocationID)
	if err != nil {
		return stepCode, err
	}
	joined, err := m.API.Join(ctx, code)
	if err != nil {
		return stepJoin, err
	}
	var players [2]*client.Session
	for i, a := range []api.Allocation{allocation, joined} {
		e, ok := a.Endpoint(played.transport)
		if !ok {
			return stepOpen, fmt.Errorf("the relay offers no endpoint for %s", played.transport)
		}
		played.Addr = net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
		if players[i], err = openPlayer(ctx, played.transport, played.Addr, a, m.TLS); err != nil {
			return stepOpen, err
		}
		defer players[i].Close()
		if err := bind(ctx, players[i]); err != nil {
			return stepBind, err
		}
	}
	host, err := players[1].Connect(ctx)
	if err != nil {
		return stepConnect, err
	}
	played.linked = time.Since(played.began)
	go echo(ctx, players[0])
	if err := played.exchange(ctx, host); err != nil {
		return stepRelay, err
	}
	return "", nil
}

// addOffered adds the transports of a relay to those of a round. None is removed: one that the
// relay offers no more fails.
func (m *matches) addOffered(a api.Allocation) {
	if len(m.Config.Transports) > 0 {
		return
	}
	for _, name := range Transports {
		if _, ok := a.Endpoint(name); ok && !slices.Contains(m.transports, name) {
			m.transports = append(m.transports, name)
		}
	}
}

const (
	// datagrams are sent by the joiner of each match, and returned by the host.
	datagrams = 30
	// exchangePace is the time between two datagrams of a player: 30 a second, as in a game.
	exchangePace = time.Second / 30
	// lostAfter is when a datagram that has not come back counts as lost.
	lostAfter = time.Second
)

// echo returns each datagram of a host's first player, until its session ends.
func echo(ctx context.Context, host *client.Session) {
	joiner, err := host.Accept(ctx)
	if err != nil {
		return
	}
	var b [proto.MaxContent]byte
	for {
		n, err := joiner.Read(b[:])
		if err != nil {
			return
		}
		_, _ = joiner.Write(b[:n]) // One that is not sent counts as lost.
	}
}

// exchange sends datagrams from the joiner to the host, which returns them. An error is that of a
// connection, or that they do not come back.
func (m *match) exchange(ctx context.Context, host net.Conn) error {
	payload := make([]byte, 64)
	for number := range uint32(datagrams) {
		binary.BigEndian.PutUint32(payload, number)
		sent := time.Now()
		if _, err := host.Write(payload); err != nil {
			return err
		}
		m.Sent++
		switch err := awaitEcho(host, number, sent.Add(lostAfter)); {
		case err == nil:
			m.addTrip(time.Since(sent))
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(sent.Add(exchangePace))):
		}
		if ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil || m.Received == 0 {
		return fmt.Errorf("%d of %d datagrams came back", m.Received, m.Sent)
	}
	return nil
}

// awaitEcho waits for the datagram with a number from the other side. It skips late echoes of
// earlier ones.
func awaitEcho(from net.Conn, number uint32, deadline time.Time) error {
	if err := from.SetReadDeadline(deadline); err != nil {
		return err
	}
	var b [proto.MaxContent]byte
	for {
		n, err := from.Read(b[:])
		if err != nil {
			return err
		}
		if n >= 4 && binary.BigEndian.Uint32(b[:]) == number {
			return nil
		}
	}
}

// addTrip counts a datagram that came back. RTT is the mean.
func (m *match) addTrip(trip time.Duration) {
	m.trips = append(m.trips, trip)
	m.Received++
	m.RTT += (trip - m.RTT) / time.Duration(m.Received)
}
