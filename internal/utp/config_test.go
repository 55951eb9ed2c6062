package utp

import (
	"errors"
	"testing"
	"time"
)

func TestConfigRefused(t *testing.T) {
	many := make([]Pipeline, 256)
	for name, cfg := range map[string]Config{
		"256 pipelines":          {Pipelines: many},
		"unknown stage":          {Pipelines: []Pipeline{{9}}},
		"two fragmentations":     {Pipelines: []Pipeline{{StageFragmentation, StageFragmentation}}},
		"fragmentation last":     {Pipelines: []Pipeline{{StageReliableSequenced, StageFragmentation}}},
		"two orders":             {Pipelines: []Pipeline{{StageReliableSequenced, StageUnreliableSequenced}}},
		"window 65":              {Window: 65},
		"window below 0":         {Window: -1},
		"capacity":               {FragmentCapacity: 1<<20 + 1},
		"message of 1473":        {MaxMessageSize: 1473},
		"message of 127":         {MaxMessageSize: 127},
		"overhead":               {Overhead: 1273},
		"overhead below 0":       {Overhead: -1},
		"no attempts":            {ConnectAttempts: -1},
		"connect timeout never":  {ConnectTimeout: NoTimeout},
		"connect timeout of 1ns": {ConnectTimeout: 1},
		"heartbeat":              {HeartbeatTimeout: -2},
		"silence of two hours":   {DisconnectTimeout: 2 * time.Hour},
		"resend of 63 ms":        {MaxResendTime: 63 * time.Millisecond},
		"connections":            {MaxConnections: 65537},
		"half-open":              {MaxHalfOpen: -1},
		"half-open per source":   {MaxHalfOpenPerSource: -1},
		"send queue of 15":       {SendQueue: 15},
	} {
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfigTaken(t *testing.T) {
	for name, cfg := range map[string]Config{
		"zero":          {},
		"entities":      NetcodeForEntities(),
		"game objects":  gameObjects(),
		"255 pipelines": {Pipelines: make([]Pipeline, 255)},
		"null stages":   {Pipelines: []Pipeline{{StageNull, StageFragmentation, StageNull, StageReliableSequenced, StageNull}}},
		"smallest": {MaxMessageSize: 128, Window: 64, FragmentCapacity: 1 << 20, SendQueue: 65536,
			Pipelines: []Pipeline{{StageFragmentation}}},
		"overhead": {Overhead: 1272},
	} {
		if _, err := New(cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The largest message of the smallest packets has sequences for its pieces.
	e := newEndpoint(t, Config{MaxMessageSize: 128, Window: 64, FragmentCapacity: 1 << 20, SendQueue: 65536,
		Pipelines: []Pipeline{{StageFragmentation}}})
	if l := e.layouts[1]; l.limit != 1<<20 || l.fragments(l.limit) > fragmentMask {
		t.Errorf("%+v, %d fragments", l, l.fragments(l.limit))
	}
}

// TestRandom: without a Rand the tokens are not the same twice.
func TestRandom(t *testing.T) {
	seen := map[Token]bool{}
	for range 100 {
		e, err := New(Config{})
		must(t, err)
		id := connect(t, e, serverAt)
		seen[e.conns.find(id).token] = true
	}
	if len(seen) != 100 {
		t.Errorf("%d tokens", len(seen))
	}
}

func TestListen(t *testing.T) {
	e := newEndpoint(t, Config{})
	if e.Listening() {
		t.Error("listens from the start")
	}
	e.Listen(true)
	feed(e, clientAt, request(1))
	e.Listen(false)
	feed(e, clientAt, Packet{Kind: KindHeartbeat, Token: 1}.Append(nil))
	if st := e.Stats(); e.Listening() || st.Connections != 1 || st.HalfOpen != 1 {
		t.Errorf("%+v", st)
	}
}

func TestConnID(t *testing.T) {
	if id := (ConnID{slot: 3, generation: 7}); id.String() != "3.7" || id.Index() != 3 {
		t.Error(id)
	}
	// A generation that runs over skips 0, which is no connection.
	e := newEndpoint(t, Config{})
	id := connect(t, e, serverAt)
	e.conns.slots[0].id.generation = 1<<32 - 1
	e.Disconnect(ConnID{generation: 1<<32 - 1})
	if next := connect(t, e, serverAt); next != id {
		t.Error(next)
	}
}
