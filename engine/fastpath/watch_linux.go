//go:build linux && amd64 && !sockportable

package fastpath

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/safchain/ethtool"

	"github.com/ferryrelay/ferry/engine/internal/nexthop"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/base/periodic"
)

const (
	// watchEvery is about the time after which the kernel asks for a neighbour again that it
	// has not used for long: so often a datagram of each next hop goes through a socket.
	watchEvery   = 5 * time.Second
	driversEvery = time.Second
	// A driver that drops more than half of the program's datagrams, and at least
	// maxDriverDrops of them, within watchEvery, is not used: BINDs and PINGs, which the sockets
	// answer, would work, and games would not. Drivers that do not send for XDP drop
	// all; a driver under a flood drops some, and the sockets would do no better.
	maxDriverDrops = 100
)

// watch keeps the neighbours of all next hops in use, and turns the program off while nftables
// or a driver is in its way.
func (p *path) watch(ctx context.Context) {
	var drivers driverWatch
	for ticks := 1; ; ticks++ {
		if p.cfg.Native {
			p.watchDrivers(&drivers)
		}
		if ticks%int(watchEvery/driversEvery) == 0 {
			p.probe()
			p.watchFilters()
			drivers.begin()
		}
		select {
		case <-ctx.Done():
			return
		case <-periodic.Next(driversEvery):
		}
	}
}

func (p *path) probe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for nextHop := 1; nextHop < len(p.hops); nextHop++ {
		p.program.Probe(table.NextHop(nextHop))
	}
}

// watchFilters finds filters that do not work where they see few of a player's datagrams.
func (p *path) watchFilters() {
	why := ""
	if f, err := nexthop.Filters(p.wantedInterfaces()); err != nil {
		why = err.Error()
	} else {
		var parts []string
		if len(f.Sent) > 0 {
			parts = append(parts, "what it sends would pass by the rules of nftables: "+strings.Join(f.Sent, ", "))
		}
		if len(f.Counted) > 0 {
			parts = append(parts, "limits, quotas or queues would see a small part of what it receives: "+strings.Join(f.Counted, ", "))
		}
		why = strings.Join(parts, "; ")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Auto {
		p.hinder(&p.filtered, why)
		return
	}
	if why != "" && why != p.bypassed {
		p.log.Warn("fast path: it is on although the kernel has filters", "but", why)
	}
	p.bypassed = why
}

// followFilters makes every datagram pass the kernel's filters after each change of them, until
// its endpoint was heard by a socket again. While changes follow each other, all go to the sockets,
// and the relay wakes up four times a second at most.
func (p *path) followFilters(ctx context.Context) {
	err := p.filters.Run(ctx, func() {
		select {
		case <-ctx.Done():
		case <-time.After(p.expire()):
		}
	})
	if err != nil {
		p.fail(err)
	}
}

// expire returns for how long later changes need no further call.
func (p *path) expire() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes++
	return p.program.Expire(p.clock())
}

// hinder is called with p.mu held.
func (p *path) hinder(hindrance *string, why string) {
	if *hindrance == why {
		return
	}
	if *hindrance = why; why != "" {
		p.log.Warn("fast path: switched off", "because", why)
	} else {
		p.log.Info("fast path: no longer hindered")
	}
	p.switchProgram()
}

// driverWatch is what drivers and the program counted when the present watchEvery began, and
// when it was last asked. The goroutine of watch owns it.
type driverWatch struct {
	first, last driverCounts
}

// driverCounts are what drivers have dropped, by interface, and what the program has sent.
type driverCounts struct {
	drops     map[int]uint64
	datagrams uint64
}

func (w *driverWatch) begin() { w.first = driverCounts{maps.Clone(w.last.drops), w.last.datagrams} }

// look takes the present counts, and returns an interface whose driver drops what the program
// sends, and how much since begin; 0: there is none. An interface counts from the first look at it.
func (w *driverWatch) look(now driverCounts) (index int, drops, sent uint64) {
	if w.last.drops == nil {
		w.last = now
		w.begin()
	}
	w.last = now
	sent = now.datagrams - w.first.datagrams
	for i, total := range now.drops {
		before, known := w.first.drops[i]
		if !known || total < before {
			w.first.drops[i] = total
			continue
		}
		if drops = total - before; dropping(drops, sent) {
			w.begin() // or the operator's next attempt would fail by these
			return i, drops, sent
		}
	}
	return 0, 0, sent
}

func (p *path) watchDrivers(w *driverWatch) {
	now := driverCounts{make(map[int]uint64), p.program.Counts().Datagrams}
	p.mu.Lock()
	attached := maps.Clone(p.attached)
	p.mu.Unlock()
	for index, name := range attached {
		if total, err := driverDrops(name); err == nil { // or the driver counts nothing
			now.drops[index] = total
		}
	}
	if index, drops, sent := w.look(now); index != 0 {
		p.mu.Lock()
		p.hinder(&p.dropped, fmt.Sprintf("the driver of %s dropped %d of about %d datagrams of the program", attached[index], drops, sent))
		p.mu.Unlock()
		_ = p.attach()
	}
}

func dropping(drops, sent uint64) bool {
	return drops >= maxDriverDrops && drops > sent/2
}

// driverDrops reads counters of sends of XDP, as far as the driver has them.
func driverDrops(name string) (sum uint64, err error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return 0, err
	}
	defer e.Close()
	counters, err := e.Stats(name)
	for counter, n := range counters {
		if countsDrops(counter) {
			sum += n
		}
	}
	return sum, err
}

// countsDrops reports whether a counter of a driver counts sends of XDP that failed. Drivers name
// it as they like: rx_queue_0_xdp_tx_errors (veth), rx_xdp_tx_full (mlx5), rx0_xdp_tx_drops
// (virtio_net).
func countsDrops(counter string) bool {
	contains := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(counter, w) })
	}
	return contains("xdp") && contains("tx", "xmit", "redirect") && contains("err", "drop", "full")
}
