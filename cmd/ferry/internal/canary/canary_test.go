package canary

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sound() Config {
	return Config{
		API: &api.Client{}, Transports: []string{"udp"}, Interval: time.Second, Datagrams: 6, Timeout: time.Minute,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(sound()); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*Config){
		`"tcp" is not udp, dtls, ws or wss`: func(c *Config) { c.Transports = []string{"udp", "tcp"} },
		"no transport to play over":         func(c *Config) { c.Transports = nil },
		"0 datagrams":                       func(c *Config) { c.Datagrams = 0 },
		"an interval of 1ms":                func(c *Config) { c.Interval = time.Millisecond },
		"a timeout of 2m":                   func(c *Config) { c.Timeout = 2 * time.Minute },
	} {
		c := sound()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
}

// pipe is one side of a connection that loses what drop says.
type pipe struct {
	in, out chan []byte
	drop    func(pkt []byte) bool
	stop    chan struct{}
}

func (p *pipe) send(pkt []byte) error {
	if p.drop == nil || !p.drop(pkt) {
		p.out <- append([]byte(nil), pkt...)
	}
	return nil
}

func (p *pipe) receive(until time.Time) ([]byte, error) {
	select {
	case pkt := <-p.in:
		return pkt, nil
	case <-p.stop:
	case <-time.After(time.Until(until)):
	}
	return nil, os.ErrDeadlineExceeded
}

func (p *pipe) interrupt() { p.stop <- struct{}{} }

func (p *pipe) Close() error { return nil }

// TestExchange: datagrams that do not come back are counted, by their number: a late echo is
// not that of the next one.
func TestExchange(t *testing.T) {
	p, err := New(sound())
	if err != nil {
		t.Fatal(err)
	}
	there, back := make(chan []byte, 16), make(chan []byte, 16)
	host := &player{conn: &pipe{in: there, out: back, stop: make(chan struct{}, 1)}, id: proto.AllocationID{1}}
	joiner := &player{conn: &pipe{in: back, out: there, stop: make(chan struct{}, 1), drop: func(pkt []byte) bool {
		m, err := proto.ParseRelay(pkt)
		return err == nil && m.Payload[3] == 2
	}}, id: proto.AllocationID{2}}
	back <- proto.Relay{From: host.id, To: joiner.id, Payload: []byte{0, 0, 0, 9}}.Append(nil)
	lost, err := p.exchange(t.Context(), p.transports[0], host, joiner)
	if err != nil || lost != 1 {
		t.Errorf("%d lost, %v; want 1", lost, err)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, nil)
	for _, want := range []string{
		`ferry_canary_datagrams_total{transport="udp"} 6`, `ferry_canary_lost_total{transport="udp"} 1`,
		`ferry_canary_round_trip_seconds_count{transport="udp"} 5`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s is missing in\n%s", want, w.Body)
		}
	}
}

// TestAsk: a request is repeated until its answer comes; a refusal ends it.
func TestAsk(t *testing.T) {
	in, out := make(chan []byte, 16), make(chan []byte, 16)
	p := &player{conn: &pipe{in: in, out: out, stop: make(chan struct{}, 1)}}
	go func() {
		<-out // The first is lost.
		<-out
		in <- proto.BindReceived{}.Append(nil)
	}()
	if err := p.bind(t.Context()); err != nil {
		t.Error(err)
	}
	in <- proto.Error{Code: proto.ErrorUnauthorized}.Append(nil)
	if err := p.connect(t.Context()); err == nil || err.Error() != "ERROR 2" {
		t.Errorf("%v, want ERROR 2", err)
	}
	in <- proto.Rejected{}.Append(nil)
	if err := p.connect(t.Context()); err == nil || err.Error() != "REJECTED" {
		t.Errorf("%v, want REJECTED", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.connect(ctx); !errors.Is(err, errNoAnswer) {
		t.Errorf("%v, want %v", err, errNoAnswer)
	}
}
