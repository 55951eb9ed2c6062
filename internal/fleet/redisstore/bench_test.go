package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/redistest"
)

// BenchmarkStore measures calls one after the other, on the loopback.
func BenchmarkStore(b *testing.B) {
	server := redistest.Start(b)
	s := open(b, Config{URL: server.URL, Timeout: testTimeout})
	node, entries := relayOf(1, 1000)
	home := homeAt(node)
	node.Seats = 1000
	if _, err := s.Directory.Renew(b.Context(), home, entries); err != nil {
		b.Fatal(err)
	}
	n := 1_000_000
	calls := map[string]func() error{
		"HostOf":  func() error { _, err := s.Directory.HostOf(b.Context(), tenant, entries[0].Code); return err },
		"HomeOf":  func() error { _, err := s.Directory.HomeOf(b.Context(), entries[0].Host); return err },
		"SetHome": func() error { n++; return s.Directory.SetHome(b.Context(), hostID(n), home) },
		"PutCode": func() error {
			n++
			ok, err := s.Directory.PutCode(b.Context(), tenant, codeText(n), hostID(n))
			if !ok && err == nil {
				err = fmt.Errorf("code %d is taken", n)
			}
			return err
		},
		"Renew1000": func() error { _, err := s.Directory.Renew(b.Context(), home, entries); return err },
		"Announce":  func() error { _, err := s.Registry.Announce(b.Context(), node); return err },
		"Take":      func() error { _, _, err := s.Buckets.Take(b.Context(), "player", 1e6); return err },
	}
	for _, name := range []string{"HostOf", "HomeOf", "SetHome", "PutCode", "Renew1000", "Announce", "Take"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := calls[name](); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("HostOf16AtOnce", func(b *testing.B) {
		b.SetParallelism(8)
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				if err := calls["HostOf"](); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

func BenchmarkNodes(b *testing.B) {
	server := redistest.Start(b)
	s := open(b, Config{URL: server.URL, Timeout: testTimeout})
	for n := range 1000 {
		node, _ := relayOf(1, 0)
		node.Relay[14], node.Relay[15] = byte(n>>8), byte(n)
		node.RecoverFor = time.Minute
		if _, err := s.Registry.Announce(b.Context(), node); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		var nodes []placement.Seen
		nodes, err := s.Registry.Nodes(b.Context())
		if err != nil || len(nodes) != 1000 {
			b.Fatal(len(nodes), err)
		}
	}
}
