package ping

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sound() CanaryConfig {
	return CanaryConfig{
		Config: Config{API: &api.Client{}, Transports: []string{"udp"}}, Every: time.Second, Logger: slog.New(slog.DiscardHandler),
	}
}

func TestConfig(t *testing.T) {
	if _, err := NewCanary(sound()); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*CanaryConfig){
		`"tcp" is not udp, dtls, ws or wss`: func(c *CanaryConfig) { c.Transports = []string{"udp", "tcp"} },
		"an interval of 1ms":                func(c *CanaryConfig) { c.Every = time.Millisecond },
	} {
		c := sound()
		change(&c)
		if _, err := NewCanary(c); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
}

// TestOffered: without a list, a round is over what a relay has offered, also when it offers it no more.
func TestOffered(t *testing.T) {
	m := newMatches(Config{})
	for _, offered := range []string{"udp ws future", "dtls udp"} {
		var a api.Allocation
		for name := range strings.FieldsSeq(offered) {
			a.ServerEndpoints = append(a.ServerEndpoints, api.ServerEndpoint{ConnectionType: name})
		}
		m.addOffered(a)
	}
	if got := strings.Join(m.transports, " "); got != "udp ws dtls" {
		t.Errorf("a round is over %s", got)
	}
}

// hostConn is a joiner's connection to a host that answers datagrams.
func hostConn(t *testing.T, answer func(joiner net.Conn, datagram []byte)) net.Conn {
	t.Helper()
	host, joiner := net.Pipe()
	t.Cleanup(func() { host.Close() })
	go func() {
		defer joiner.Close()
		b := make([]byte, 64)
		for {
			n, err := joiner.Read(b)
			if err != nil {
				return
			}
			answer(joiner, b[:n])
		}
	}()
	return host
}

// TestExchange: datagrams that do not come back are counted, by their number: a late echo is
// not that of the next one.
func TestExchange(t *testing.T) {
	host := hostConn(t, func(joiner net.Conn, b []byte) {
		if b[3] == 0 {
			_, _ = joiner.Write([]byte{0, 0, 0, 9})
		}
		if b[3] != 2 {
			_, _ = joiner.Write(b)
		}
	})
	m := match{transport: "udp", linked: time.Millisecond}
	if err := m.exchange(t.Context(), host); err != nil || m.Sent != datagrams || m.Received != datagrams-1 {
		t.Fatalf("%d of %d came back, %v; want one lost", m.Received, m.Sent, err)
	}
	c, err := NewCanary(sound())
	if err != nil {
		t.Fatal(err)
	}
	c.count(m)
	w := httptest.NewRecorder()
	c.ServeHTTP(w, nil)
	for _, want := range []string{
		`ferry_canary_datagrams_total{transport="udp"} 30`, `ferry_canary_lost_total{transport="udp"} 1`,
		`ferry_canary_round_trip_seconds_count{transport="udp"} 29`, `ferry_canary_preparation_seconds_count{transport="udp"} 1`,
		`ferry_canary_matches_total{transport="udp",result="ok"} 1`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s is missing in\n%s", want, w.Body)
		}
	}
}

// TestExchangeLost: a match in which nothing comes back within its time has failed.
func TestExchangeLost(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	var m match
	err := m.exchange(ctx, hostConn(t, func(net.Conn, []byte) {}))
	if err == nil || err.Error() != "0 of 1 datagrams came back" {
		t.Error(err)
	}
}

// TestReports: the log has a line when reports fail, and when they are taken again.
func TestReports(t *testing.T) {
	var log strings.Builder
	var refused error
	var reports []operator.CanaryReport
	cfg := sound()
	cfg.Logger, cfg.Name = slog.New(slog.NewTextHandler(&log, nil)), "test"
	cfg.Report = func(_ context.Context, r operator.CanaryReport) error { reports = append(reports, r); return refused }
	c, err := NewCanary(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, refused = range []error{nil, errors.New("away"), errors.New("away"), nil, nil} {
		c.report(t.Context())
	}
	if len(reports) != 5 || reports[0].Name != "test" || len(reports[0].Transports) != 1 || reports[0].Interval != 1 {
		t.Errorf("%+v", reports)
	}
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "not taken") || !strings.Contains(text, "taken again") {
		t.Errorf("%s", text)
	}
}
