package dtls

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestConfig(t *testing.T) {
	for field, c := range map[string]Config{
		"PSK":               {},
		"MaxSessions":       {PSK: testKey, MaxSessions: 1<<22 + 1},
		"PerIdentity":       {PSK: testKey, PerIdentity: -1},
		"HalfOpen":          {PSK: testKey, HalfOpen: 1},
		"HalfOpenPerPrefix": {PSK: testKey, HalfOpenPerPrefix: 1},
		"Direct":            {PSK: testKey, HalfOpen: 100, Direct: 51},
		"FragmentCap":       {PSK: testKey, FragmentCap: 1025},
		"Workers":           {PSK: testKey, Workers: 65},
		"Queue":             {PSK: testKey, Queue: -1},
		"HandshakeTimeout":  {PSK: testKey, HandshakeTimeout: time.Millisecond},
		"Idle":              {PSK: testKey, Idle: -time.Second},
		"Quiet":             {PSK: testKey, Quiet: time.Hour},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New(Config{PSK: testKey, HalfOpen: 4}); err != nil {
		t.Errorf("with a small HalfOpen: %v", err)
	}
}

func TestRunTwice(t *testing.T) {
	r, err := New(Config{PSK: testKey})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := r.Run(ctx, nil); err != nil {
		t.Errorf("the first: %v", err)
	}
	if err := r.Run(ctx, nil); err == nil {
		t.Error("the second is not refused")
	}
}

func TestEventNames(t *testing.T) {
	seen := make(map[string]bool)
	for e := range Events {
		name := e.String()
		if name == "" || seen[name] {
			t.Errorf("event %d is named %q", e, name)
		}
		if strings.HasPrefix(name, "drop_") != (e >= DropMalformed) {
			t.Errorf("event %d is named %q", e, name)
		}
		seen[name] = true
	}
	if Events.String() != "unknown" {
		t.Error("a name for no event")
	}
}
