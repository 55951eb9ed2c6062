package console

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
)

const (
	// maxSources bounds the networks that are counted. Beyond it, the one that was silent for
	// longest makes room.
	maxSources = 512
	// shownSources is how many of them a browser gets.
	shownSources = 50
	// sourceSeconds is over how many seconds the rate of a network is taken.
	sourceSeconds = 10
	// sourcesFor is for how long a network without refused messages stays on the page.
	sourcesFor = time.Hour
	// maxSourceReasons bounds the reasons of one network.
	maxSourceReasons = 8
)

// Source is a network from which messages were refused. Only messages that name a known
// allocation count, at most five a second of one network.
type Source struct {
	Prefix netip.Prefix `json:"prefix"`
	// Rate is refused messages per second over the last ten seconds, and Count since the first.
	Rate    float64   `json:"rate"`
	Count   uint64    `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Reasons []string  `json:"reasons"`
}

type source struct {
	Source
	seconds [sourceSeconds]uint32 // by second modulo sourceSeconds
	at      int64                 // the second that was counted last
}

func (s *source) forward(now int64) {
	for n := min(now-s.at, sourceSeconds); n > 0; n-- {
		s.seconds[(now-n+1)%sourceSeconds] = 0
	}
	s.at = max(s.at, now)
}

// sources counts refused messages by network. Any goroutine may use it.
type sources struct {
	mu  sync.Mutex // guards what follows
	all map[netip.Prefix]*source
}

// networkOf is the /24 of IPv4 or /56 of IPv6 to which an address belongs: what a ban should name.
func networkOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 56
	if a.Is4() {
		bits = 24
	}
	p, _ := a.Prefix(bits) // The length fits.
	return p
}

func (s *sources) count(e privateapi.RefuseEvent, now time.Time) {
	if !e.From.IsValid() || e.Outcome == "unvalidated" { // which says nothing of the sender
		return
	}
	network, reason := networkOf(e.From.Addr()), history.RefusalText(e.Outcome)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.all[network]
	if at == nil {
		if len(s.all) >= maxSources {
			s.removeOldest()
		}
		at = &source{Source: Source{Prefix: network, First: now}, at: now.Unix()}
		s.all[network] = at
	}
	at.forward(now.Unix())
	at.seconds[now.Unix()%sourceSeconds]++
	at.Count++
	at.Last = now
	if !slices.Contains(at.Reasons, reason) && len(at.Reasons) < maxSourceReasons {
		at.Reasons = append(at.Reasons, reason)
	}
}

// removeOldest is called with the lock held.
func (s *sources) removeOldest() {
	var oldest *source
	for _, at := range s.all {
		if oldest == nil || at.Last.Before(oldest.Last) {
			oldest = at
		}
	}
	delete(s.all, oldest.Prefix)
}

// list returns the networks that send most, and forgets those that are silent.
func (s *sources) list(now time.Time) []Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Source{} // not null
	for network, at := range s.all {
		if now.Sub(at.Last) > sourcesFor {
			delete(s.all, network)
			continue
		}
		at.forward(now.Unix())
		one := at.Source
		sum := uint32(0)
		for _, n := range at.seconds {
			sum += n
		}
		one.Rate = float64(sum) / sourceSeconds
		one.Reasons = slices.Clone(at.Reasons)
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Source) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), b.Last.Compare(a.Last), a.Prefix.Addr().Compare(b.Prefix.Addr()))
	})
	return list[:min(len(list), shownSources)]
}
