//go:build lab && linux

package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestAttackWebSocketUnbound verifies that WebSockets without BIND from one address do
// not keep others out when there are as many as may be open.
func TestAttackWebSocketUnbound(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) { c.Flags = []string{"--max-websockets", fmt.Sprint(fewSessions)} })
	attacker := GameClientConfig{Transport: "ws", Namespace: l.net.Clients, Local: firstAttacker, Relay: RelayAddr}
	for range fewSessions {
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
	for end := time.Now().Add(websocket.DefaultBindTimeout + slack); open() > 0 && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	left, delivered := open(), l.metric(`ferry_websocket_messages_total{direction="in"}`)
	recordAttack(t, attackResult{
		attack: "QoS probes over WebSocket without BIND", rate: fmt.Sprintf("%d on each of %d", probes, conns),
		honest: fmt.Sprintf("%.0f delivered, limit %d; %.0f open after %v", delivered, unanswered*conns, left, websocket.DefaultBindTimeout+slack),
		damage: left > 0 || delivered > unanswered*conns || l.metric(`ferry_websocket_ended_total{reason="flood"}`) != conns,
	})
	if answers.Load() == 0 {
		t.Error("no probe was answered: this run decides nothing")
	}
}

// TestAttackWebSocketReconnect verifies that a client that opens WebSockets again and again
// without BIND gets a bounded number of handshakes, and keeps no other player out.
func TestAttackWebSocketReconnect(t *testing.T) {
	const (
		workers  = 16
		arrivals = 512 // 256 for each processor of the relay
		upgrade  = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	)
	l := newLab(t, func(c *RelayConfig) {
		c.Env = append(c.Env, "GOMAXPROCS=2")
		c.directly("game")
	})
	begin, used := time.Now(), l.metric("process_cpu_seconds_total")
	var tried atomic.Int64
	reconnect := func(ctx context.Context) error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: firstAttacker.AsSlice()}, Timeout: time.Second}
		for ctx.Err() == nil {
			conn, err := d.DialContext(ctx, "tcp", RelayAddr.String())
			tried.Add(1)
			if err != nil {
				continue
			}
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(conn, upgrade)
			_, _ = conn.Read(make([]byte, 512))
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
		return nil
	}
	for range workers {
		l.background(func(ctx context.Context) { _ = l.net.Clients.Do(func() error { return reconnect(ctx) }) })
	}
	j := l.honestJoins("ws", playersFrom(FirstClient, 4)...)
	pause(t.Context(), time.Until(begin.Add(*attackDuration)))
	opened, n := l.metric("ferry_websocket_opened_total"), tried.Load()
	took, cpu := time.Since(begin), l.metric("process_cpu_seconds_total")-used
	most := arrivals*(took.Seconds()+1) + 4
	r := j.result("WebSockets again and again, without BIND", perSecond(float64(n)/took.Seconds(), "tries"),
		fmt.Sprintf("%.0f handshakes, limit %.0f; %.2f ms of processor for each try", opened, most, 1000*cpu/float64(max(n, 1))))
	r.damage = r.damage || opened > most
	if *long && float64(n) < 1.2*most {
		t.Error("the generator was too slow: this run decides nothing")
	}
	recordAttack(t, r)
}
