package main

import (
	"errors"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// match is a server and its players. One goroutine owns it.
type match struct {
	game
	server  *netcode.Driver
	players []*netcode.Driver
	body    []byte
	tick    uint32
}

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// playNetcode plays a round with package netcode.
func playNetcode(g game) (p played, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m := &match{game: g, body: make([]byte, max(g.command, g.snapshot))}
	defer func() { err = errors.Join(err, m.close()) }()
	for range g.players {
		d, err := open(netcode.NewClient, g.players)
		if err != nil {
			return p, err
		}
		m.players = append(m.players, d)
	}
	before := heap()
	if m.server, err = open(netcode.NewServer, g.players); err != nil {
		return p, err
	}
	if err := m.connect(); err != nil {
		return p, err
	}
	for range g.ticks {
		m.turn(&p)
	}
	p.heap = heap() - before
	return p, nil
}

func open(make func(netcode.Config) (*netcode.Driver, error), players int) (*netcode.Driver, error) {
	l, err := link.OpenUDP(loopback)
	if err != nil {
		return nil, err
	}
	cfg := netcode.Config{Link: l, MaxConnections: players, Limits: netcode.Limits{MaxHandshaking: players}}
	cfg.CommandsPerDatagram = 1                  // The peers send each message once, too.
	cfg.Limits.MaxHandshakingPerSource = players // They are all this machine.
	return make(cfg)
}

func (m *match) connect() error {
	if err := m.server.Listen(address.Addr{}); err != nil {
		return err
	}
	for _, d := range m.players {
		if _, err := d.Connect(m.server.Link().Local()); err != nil {
			return err
		}
	}
	var p played
	for range 10_000 {
		m.turn(&p)
		if m.connected() {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("netcode: not all players were connected")
}

func (m *match) connected() bool {
	for _, d := range append([]*netcode.Driver{m.server}, m.players...) {
		n := 0
		for c := range d.Conns() {
			if c.State() == netcode.StateConnected {
				c.SetInGame(true)
				n++
			}
		}
		if n == 0 || d == m.server && n < len(m.players) {
			return false
		}
	}
	return true
}

// turn makes one tick on all sides.
func (m *match) turn(p *played) {
	m.tick++
	begin := cpu()
	now := time.Now()
	_ = m.server.Update(now) // A link that ended shows as messages that are missing.
	for c := range m.server.Conns() {
		for range c.Commands() {
			p.commands++
		}
		_ = c.SendSnapshot(m.tick, m.body[:m.snapshot])
	}
	m.server.Flush()
	p.server += cpu() - begin
	for _, d := range m.players {
		_ = d.Update(now)
		for c := range d.Conns() {
			if _, _, ok := c.Snapshot(); ok {
				p.snapshots++
			}
			_ = c.SendCommand(m.tick, m.body[:m.command])
		}
		d.Flush()
	}
	p.all += cpu() - begin
}

func (m *match) close() error {
	var errs []error
	for _, d := range append(m.players, m.server) {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// cpu is the processor time of this thread in nanoseconds.
func cpu() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // Linux has this clock.
	return t.Nano()
}

// heap is what is in use after a collection, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
