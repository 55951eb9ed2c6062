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

	"github.com/ferryrelay/ferry/internal/nexthop"
	"github.com/ferryrelay/ferry/internal/table"
)

const (
	// watchEvery is about the time after which the kernel asks for a neighbour again that it
	// has not used for long: so often a datagram of each next hop goes through a socket.
	watchEvery = 5 * time.Second
	// A driver that drops more than half of the program's datagrams, and at least
	// maxDriverDrops of them, in watchEvery, is not used: BINDs and PINGs, which the sockets
	// answer, would work, and games would not. Drivers that do not send for XDP drop
	// all; a driver under a flood drops some, and the sockets would do no better.
	maxDriverDrops = 100
)

// watch keeps the neighbours of all next hops in use, and turns the program off while nftables
// or a driver is in its way, until ctx ends.
func (p *Path) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	drivers := driverWatch{drops: make(map[int]uint64)}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.probe()
		p.watchFilters()
		if p.cfg.Mode == Native {
			p.watchDrivers(&drivers)
		}
	}
}

// probe makes the program leave the next datagram of each next hop to a socket.
func (p *Path) probe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for nextHop := 1; nextHop < len(p.hops); nextHop++ {
		p.program.Probe(table.NextHop(nextHop))
	}
}

// watchFilters looks for rules of nftables, if the configuration asks for it.
func (p *Path) watchFilters() {
	if !p.cfg.Auto {
		return
	}
	why := ""
	list, err := nexthop.Filters()
	switch {
	case err != nil:
		why = err.Error()
	case len(list) > 0:
		why = "what it sends would pass by the rules of nftables: " + strings.Join(list, ", ")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hinder(&p.filtered, why)
}

// hinder notes that something does or does not hinder the program, with p.mu held.
func (p *Path) hinder(hindrance *string, why string) {
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

// driverWatch is what drivers and the program have counted so far. The goroutine of watch owns
// it.
type driverWatch struct {
	drops     map[int]uint64
	datagrams uint64
}

// watchDrivers reads what the drivers dropped of what the program sent.
func (p *Path) watchDrivers(w *driverWatch) {
	now := p.program.Counts().Datagrams
	sent := now - w.datagrams
	w.datagrams = now
	p.mu.Lock()
	attached := maps.Clone(p.attached)
	p.mu.Unlock()
	for index, name := range attached {
		total, err := driverDrops(name)
		if err != nil {
			continue // The driver counts nothing, or the interface is gone.
		}
		before, known := w.drops[index]
		w.drops[index] = total
		if drops := total - before; known && total >= before && dropping(drops, sent) {
			p.mu.Lock()
			p.hinder(&p.dropped, fmt.Sprintf("the driver of %s dropped %d of about %d datagrams of the program", name, drops, sent))
			p.mu.Unlock()
		}
	}
}

func dropping(drops, sent uint64) bool {
	return drops >= maxDriverDrops && drops > sent/2
}

// driverDrops returns what a driver has dropped of what programs of XDP sent, as far as it
// counts that.
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
