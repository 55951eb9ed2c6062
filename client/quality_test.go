package client_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// patience bounds what a test waits for; none waits that long when all is well.
	patience = 20 * time.Second
	// forSilence is waited for in full, for the answers that do not come. Those
	// that do come have so much time on a slow machine.
	forSilence = 3 * time.Second
	// late is how far a slow site is: farther than a near one that a slow machine
	// lets wait.
	late = time.Second
)

// slowSite answers QoS probes late, and only every other one.
func slowSite(t *testing.T, delay time.Duration) string {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(func() {
		conn.Close()
		work.Wait()
	})
	work.Go(func() {
		buf := make([]byte, 64)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			m, err := proto.ParseQoSRequest(buf[:n])
			if err != nil || m.Sequence%2 == 1 {
				continue
			}
			answer := m.Response().Append(nil)
			work.Go(func() {
				time.Sleep(delay)
				conn.WriteToUDPAddrPort(answer, from)
				conn.WriteToUDPAddrPort(answer, from) // a duplicate counts once
			})
		}
	})
	return conn.LocalAddr().String()
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	relay := enginetest.Start(t, engine.Config{})
	here := client.Site{Region: "here", Addr: relay.Addr().String()}
	// A relay that only starts is not near.
	if first := client.Measure(t.Context(), []client.Site{here}, client.MeasureConfig{Probes: 1, Timeout: patience}); first[0].Received != 1 {
		t.Fatalf("the relay does not answer: %+v", first)
	}
	silent, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	all := client.Measure(t.Context(), []client.Site{
		{Region: "silent", Addr: silent.LocalAddr().String()},
		{Region: "other service", Addr: testkit.OtherService(t)},
		{Region: "slow", Addr: slowSite(t, late)},
		{Region: "nowhere", Addr: "no such host:1"},
		here,
	}, client.MeasureConfig{Probes: 4, Timeout: forSilence})
	if all[0].Region != "here" || all[0].Sent != 4 || all[0].Received != 4 || all[0].RTT <= 0 || all[0].Err != nil {
		t.Errorf("the nearest is %+v", all[0])
	}
	if all[1].Region != "slow" || all[1].Received != 2 || all[1].Loss() != 0.5 || all[1].RTT < late {
		t.Errorf("the next is %+v", all[1])
	}
	for _, q := range all[2:] {
		if q.Received != 0 || q.Loss() != 1 || (q.Err == nil) != (q.Region == "silent") {
			t.Errorf("%+v", q)
		}
	}
}

// TestMeasureEnds: with its context, whatever is missing.
func TestMeasureEnds(t *testing.T) {
	t.Parallel()
	silent, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	all := client.Measure(ctx, []client.Site{{Addr: silent.LocalAddr().String()}}, client.MeasureConfig{Timeout: time.Hour})
	if len(all) != 1 || all[0].Received != 0 {
		t.Errorf("%+v", all)
	}
}
