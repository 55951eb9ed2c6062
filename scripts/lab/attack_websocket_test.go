//go:build lab && linux

package lab

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestAttackWebSocketUnbound verifies that WebSockets without BIND from one network do
// not keep others out when there are as many as may be open.
func TestAttackWebSocketUnbound(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) { c.Flags = []string{"--max-websockets", fmt.Sprint(fewSessions)} })
	from := successive(firstAttacker, 16) // one has a sixteenth of the WebSockets
	for i := range fewSessions {
		attacker := GameClientConfig{Transport: "ws", Namespace: l.net.Clients, Local: from[i%len(from)], Relay: RelayAddr}
		l.background(func(ctx context.Context) {
			for ctx.Err() == nil {
				if conn, err := NewGameClient(attacker).dial(ctx); err == nil {
					stop := context.AfterFunc(ctx, conn.close)
					_, _ = conn.receive() // until it is closed
					stop()
					conn.close()
				}
				pause(ctx, 100*time.Millisecond)
			}
		})
	}
	held := func() float64 { return l.metric("ferry_websocket_connections") }
	testkit.Eventually(t, "all places are taken", func() bool { return held() >= fewSessions })
	j := l.honestJoins("ws", playersFrom(FirstClient, 4)...)
	recordAttack(t, j.result("WebSockets without BIND", fmt.Sprintf("%d at once", fewSessions), fmt.Sprintf("%.0f WebSockets", held())))
}

// TestAttackWebSocketProbe verifies that QoS probes over a WebSocket lift neither the
// cap of messages before BIND nor the time-out of BIND.
func TestAttackWebSocketProbe(t *testing.T) {
	const (
		bindTimeout   = 10 * time.Second // of a WebSocket without a BIND
		conns, probes = 8, 200
		unanswered    = 64 // messages before BIND_RECEIVED
		slack         = 3 * time.Second
	)
	l := newLab(t, nil)
	var answers atomic.Int64
	for range conns {
		v := NewGameClient(GameClientConfig{Transport: "ws", Namespace: l.net.Clients, Local: firstAttacker, Relay: RelayAddr})
		conn, err := v.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l.background(func(ctx context.Context) {
			stop := context.AfterFunc(ctx, conn.close)
			defer stop()
			for {
				if _, err := conn.receive(); err != nil {
					return
				}
				answers.Add(1)
			}
		})
		for n := range probes {
			_ = conn.send(proto.QoSRequest{Title: []byte("attack"), Sequence: uint8(n)}.Append(nil))
		}
	}
	open := func() float64 { return l.metric("ferry_websocket_connections") }
	if n := l.metric("ferry_websocket_opened_total"); n != conns {
		t.Fatalf("%.0f WebSockets were opened, want %d", n, conns)
	}
	testkit.Poll(bindTimeout+slack, func() bool { return open() == 0 })
	left, delivered := open(), l.metric(`ferry_websocket_messages_total{direction="in"}`)
	recordAttack(t, attackResult{
		attack: "QoS probes over WebSocket without BIND", rate: fmt.Sprintf("%d on each of %d", probes, conns),
		honest: fmt.Sprintf("%.0f delivered, limit %d; %.0f open after %v", delivered, unanswered*conns, left,
			bindTimeout+slack),
		damage: left > 0 || delivered > unanswered*conns || l.metric(`ferry_websocket_ended_total{reason="flood"}`) != conns,
	})
	if answers.Load() == 0 {
		t.Error("no probe was answered: this run decides nothing")
	}
}
