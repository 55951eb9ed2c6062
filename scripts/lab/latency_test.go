//go:build lab && linux

package lab

import (
	"bufio"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
)

var (
	latencyBinary  = flag.String("latency.binary", "", "path of the ferry to measure; empty: build it")
	latencyWorkers = flag.Int("latency.workers", 2, "datagram workers of the relay")
	latencyTime    = flag.Duration("latency.duration", 5*time.Second, "measured time, without and with UDP load")
	latencySockets = flag.Int("latency.sockets", 20, "players over WebSocket with TLS")
	latencyPings   = flag.Int("latency.pings", 30, "messages of each of them per second")
	latencyRate    = flag.Int("latency.rate", 0, "UDP datagrams per second; 0: as many as possible")
	latencyCallers = flag.Int("latency.callers", 2, "concurrent callers of the API")
)

// TestLatencyBesideUDP measures the round trip of messages over WebSocket with TLS and
// of API calls, first on an idle relay and then while its workers relay UDP datagrams.
// It fails only if a call fails or nothing is answered.
func TestLatencyBesideUDP(t *testing.T) {
	dir := t.TempDir()
	binary := *latencyBinary
	if binary == "" {
		var err error
		if binary, err = Binary(dir); err != nil {
			t.Fatal(err)
		}
	}
	certFile, keyFile := testkit.SelfSigned(t).WriteFiles(t, dir)
	base := ""
	relay := exec.CommandContext(t.Context(), binary, "dev", "--workers", strconv.Itoa(*latencyWorkers), "--udp", "127.0.0.1:0",
		"--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--tls-cert", certFile, "--tls-key", keyFile, "--log-level", "error")
	out, err := relay.StdoutPipe()
	if err == nil {
		err = relay.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = relay.Wait() }) // Its context has ended.
	lines := bufio.NewScanner(out)
	for base == "" && lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "ready "); ok {
			for _, word := range strings.Fields(rest) {
				if u, ok := strings.CutPrefix(word, "http="); ok {
					base = u
				}
			}
		}
	}
	if base == "" {
		t.Fatal("ferry is not ready")
	}
	h := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		MaxIdleConnsPerHost: *latencyCallers, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a certificate of this test
	}}
	calls := &api.Client{BaseURL: base, HTTP: h}
	var players []*echoPlayer
	for range *latencySockets {
		players = append(players, dialEcho(t, calls, h))
	}
	measureLatency(t, "idle", players, calls)

	args := []string{"bench", "--api", base, "--matches", "100", "--duration", (*latencyTime + 3*time.Second).String()}
	if *latencyRate > 0 {
		args = append(args, "--rate", strconv.Itoa(*latencyRate))
	} else {
		args = append(args, "--closed", "16")
	}
	load := exec.CommandContext(t.Context(), binary, args...)
	load.Env = append(os.Environ(), "SSL_CERT_FILE="+certFile)
	report := make(chan string)
	go func() {
		out, err := load.CombinedOutput()
		report <- fmt.Sprintf("%s%v", out, err)
	}()
	time.Sleep(2 * time.Second) // the set-up and warm-up of bench
	measureLatency(t, "beside UDP", players, calls)
	t.Logf("bench: %s", <-report)
}

func measureLatency(t *testing.T, condition string, players []*echoPlayer, calls *api.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), *latencyTime)
	defer cancel()
	var mu sync.Mutex
	all := map[string][]time.Duration{}
	add := func(what string, d time.Duration) {
		mu.Lock()
		all[what] = append(all[what], d)
		mu.Unlock()
	}
	var running sync.WaitGroup
	for _, p := range players {
		running.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				if !p.echoes() {
					t.Error("WebSocket: no echo")
					return
				}
				add("WSS", time.Since(begin))
				pause(ctx, time.Second/time.Duration(*latencyPings))
			}
		})
	}
	for range *latencyCallers {
		running.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				host, err := calls.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 2})
				add("allocate", time.Since(begin))
				code := ""
				if err == nil {
					code, err = calls.JoinCode(t.Context(), host.AllocationID)
				}
				begin = time.Now()
				if err == nil {
					_, err = calls.Join(t.Context(), code)
				}
				add("join", time.Since(begin))
				if err != nil {
					t.Error("API:", err)
					return
				}
				pause(ctx, 20*time.Millisecond)
			}
		})
	}
	running.Wait()
	for _, what := range []string{"WSS", "allocate", "join"} {
		d := all[what]
		if len(d) == 0 {
			t.Errorf("%s: no answer", what)
			continue
		}
		slices.Sort(d)
		t.Logf("%s, %s: n %d p50 %v p99 %v max %v", condition, what, len(d), d[len(d)/2].Round(time.Microsecond),
			d[len(d)*99/100].Round(time.Microsecond), d[len(d)-1].Round(time.Microsecond))
	}
}

// echoPlayer is a bound player over WebSocket with TLS. One goroutine uses it.
type echoPlayer struct {
	*wiretest.Conn
	ping proto.Ping
}

func dialEcho(t *testing.T, calls *api.Client, h *http.Client) *echoPlayer {
	t.Helper()
	a, err := calls.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 2})
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := ws.Dial(t.Context(), "wss"+strings.TrimPrefix(calls.BaseURL, "https")+"/", &ws.DialOptions{HTTPClient: h})
	if err != nil {
		t.Fatal(err)
	}
	p := &echoPlayer{wiretest.WebSocket(t, conn), proto.Ping{ID: idOf(a)}}
	p.Bind(enginetest.Credentials{Key: a.Key, ConnectionData: a.ConnectionData}, 0)
	return p
}

func (p *echoPlayer) echoes() bool {
	p.ping.Number++
	m := p.ping.Append(nil)
	return p.Send(m) == nil && p.Receives(30*time.Second, wiretest.Equals(m))
}
