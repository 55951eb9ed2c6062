//go:build lab && linux

package lab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/testkit"
)

// taken waits until nothing that was sent to a relay waits in its sockets any
// more, and what it took is counted: a relay whose processor was taken away
// answers later than the next thing begins.
func (l *lab) taken(relays ...Namespace) {
	l.Helper()
	testkit.Eventually(l.T, "the relay takes what was sent to it", func() bool {
		for _, ns := range relays {
			if l.waiting(ns) {
				return false
			}
		}
		in := l.metric(datagramsIn)
		time.Sleep(20 * time.Millisecond)
		return l.metric(datagramsIn) == in
	})
}

// waiting reports whether datagrams wait in the sockets of a relay.
func (l *lab) waiting(ns Namespace) bool {
	l.Helper()
	for _, file := range []string{"udp", "udp6"} {
		for _, row := range l.rows(ns, file) {
			// Columns of proc(5): number, local address, remote one, state, queues.
			if len(row) > 4 && strings.HasSuffix(row[1], fmt.Sprintf(":%04X", relayPort)) && !strings.HasSuffix(row[4], ":00000000") {
				return true
			}
		}
	}
	return false
}

// dropped is how many datagrams this machine has dropped so far, before the relay
// or the players could take them.
func (l *lab) dropped() (n uint64) {
	l.Helper()
	for _, ns := range []Namespace{l.net.Clients, l.net.Relay, l.net.Peers} {
		var names []string
		for _, row := range l.rows(ns, "snmp") {
			if len(row) == 0 || row[0] != "Udp:" {
				continue
			}
			for i, name := range names {
				if name == "RcvbufErrors" {
					n += l.number(row[i], 10)
				}
			}
			names = row
		}
	}
	for _, row := range l.rows(l.net.Relay, "softnet_stat") { // That of all namespaces.
		if len(row) > 1 {
			n += l.number(row[1], 16)
		}
	}
	return n
}

// rows are the lines of a file of /proc/net as a namespace has it, in words.
func (l *lab) rows(ns Namespace, file string) (rows [][]string) {
	l.Helper()
	var raw []byte
	err := ns.Do(func() (err error) {
		raw, err = os.ReadFile("/proc/thread-self/net/" + file)
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		rows = append(rows, strings.Fields(line))
	}
	return rows
}

func (l *lab) number(word string, base int) uint64 {
	l.Helper()
	n, err := strconv.ParseUint(word, base, 64)
	if err != nil {
		l.Fatal(err)
	}
	return n
}

// TestTaken: what waits in the sockets of a relay that stands still is seen, and
// so is what does not fit into them.
func TestTaken(t *testing.T) {
	l := newLab(t, nil)
	l.taken(l.net.Relay)
	if l.waiting(l.net.Relay) {
		t.Error("datagrams wait where nobody has sent any")
	}
	before := l.dropped()
	l.standing(func() {
		for end := time.Now().Add(20 * time.Second); l.dropped() == before && time.Now().Before(end); {
			l.flood(50_000, 200*time.Millisecond, l.pool(func() []byte { return []byte{1, 2} }))
		}
		if !l.waiting(l.net.Relay) {
			t.Error("no datagrams wait in the sockets of a relay that stands still")
		}
	})
	l.taken(l.net.Relay)
	if n, counted := l.dropped()-before, l.metric(kernelDrops); counted == 0 || float64(n) < counted {
		t.Errorf("%d datagrams were dropped, the relay knows of %v", n, counted)
	}
}
