package metrics

import (
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	vm "github.com/VictoriaMetrics/metrics"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/host/machine"
)

func TestMain(m *testing.M) {
	vm.ExposeMetadata(true) // as main does
	os.Exit(m.Run())
}

// The lines of the text format, as its specification has them.
var (
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^{}]*\})? (\S+)$`)
	labelText  = regexp.MustCompile(`^\{([a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\["\\n])*"(?:, ?)?)*\}$`)
	metaLine   = regexp.MustCompile(`^# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*)( .*)?$`)
)

type parsed struct {
	values map[string]float64
	types  map[string]string
}

// read parses a page and fails for everything that a scraper would refuse.
func read(t *testing.T, text string) parsed {
	t.Helper()
	p := parsed{make(map[string]float64), make(map[string]string)}
	if !strings.HasSuffix(text, "\n") {
		t.Error("no line feed at the end")
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			m := metaLine.FindStringSubmatch(line)
			if m == nil {
				t.Errorf("no line of the format: %q", line)
			} else if m[1] == "TYPE" {
				if _, twice := p.types[m[2]]; twice {
					t.Errorf("type of %s is given twice", m[2])
				}
				p.types[m[2]] = strings.TrimSpace(m[3])
			}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil || m[2] != "" && !labelText.MatchString(m[2]) {
			t.Errorf("no line of the format: %q", line)
			continue
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil || math.IsNaN(v) {
			t.Errorf("no value: %q", line)
		}
		if _, twice := p.values[m[1]+m[2]]; twice {
			t.Errorf("twice: %q", line)
		}
		p.values[m[1]+m[2]] = v
	}
	return p
}

// series returns the names with labels of our own metrics, sorted.
func (p parsed) series() (names []string) {
	for name := range p.values {
		if strings.HasPrefix(name, "ferry_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// stats are counts that are all different.
func stats(base uint64) engine.Stats {
	st := engine.Stats{
		Received: base + 1, ReceivedBytes: base + 2, Sent: base + 3, SentBytes: base + 4,
		SendFailed: base + 5, KernelDrops: base + 6,
		Allocations: int(base + 7), Bound: int(base + 8), Links: int(base + 9),
		Refused: map[string]uint64{"sessions": base + 20, "player_hosts": base + 18, "player_joiners": base + 21, "player_seats": base + 22,
			"player_joiners_per_host": base + 23},
		Rebuilt: base + 12, Draining: true,
		Private: privateapi.Stats{
			PlayerReplaced: base + 19, Stalls: base + 13, ExpiryPauses: base + 14, ExpiryPaused: true,
			WorkersUnderLoad: int(base + 15), SlowChanges: base + 16,
			Workers: []privateapi.WorkerStats{{Received: base + 10}, {Received: base + 11}, {Received: base + 17, Transport: "ws"}},
		},
	}
	st.Outcomes = map[string]uint64{"pong": base + 100, "relayed": base + 101}
	st.Drops = map[string]uint64{"nonce": base + 102, "size": base + 103}
	for i := range uint64(9) {
		st.Private.BatchSizes = append(st.Private.BatchSizes, i+1)
	}
	return st
}

func process() Process {
	return Process{
		MaxAllocations: 31, Awaited: 32, Lost: 33, Storing: true, ForeignSockets: 34, MemoryLimit: 35, MemoryTight: true,
		MemoryRefused: 36, RefusedTotal: 37, RefusedHeader: 39,
		EvictedTotal: 43, EvictedAddress: 44, EvictedProtected: 45,
		AcceptFailed: 40,
		UDP:          machine.UDP{Known: true, QueueFull: 40, ChecksumErrors: 41, SendDrops: 42}, Queues: machine.Queues{Sent: 1, Dropped: 43},
	}
}

func page1(t *testing.T, m *Metrics) parsed {
	t.Helper()
	var b strings.Builder
	m.Write(&b)
	return read(t, b.String())
}

func TestRelayMetrics(t *testing.T) {
	p := page1(t, New(Config{
		Stats:   func() engine.Stats { return stats(1000) },
		Process: process,
		Certificates: func() map[string]Certificate {
			return map[string]Certificate{"/etc/api.pem": {
				Start: time.Unix(1_700_000_000, 0), End: time.Unix(1_800_000_000, 0), Fault: CertificateExpired,
			}}
		},
		Version: `v1 "quoted\`, Revision: "abc", GoVersion: "go1.26",
	}))
	for name, want := range map[string]float64{
		"ferry_allocations":                                                           1007,
		"ferry_bound":                                                                 1008,
		"ferry_links":                                                                 1009,
		`ferry_datagrams_total{direction="in"}`:                                       1001,
		`ferry_datagrams_total{direction="out"}`:                                      1003,
		`ferry_bytes_total{direction="in"}`:                                           1002,
		`ferry_bytes_total{direction="out"}`:                                          1004,
		"ferry_send_failed_total":                                                     1005,
		"ferry_kernel_drops_total":                                                    1006,
		"ferry_host_udp_queue_full_total":                                             40,
		"ferry_host_udp_checksum_errors_total":                                        41,
		"ferry_host_udp_send_drops_total":                                             42,
		"ferry_host_queue_drops_total":                                                43,
		`ferry_worker_received_total{worker="0"}`:                                     1010,
		`ferry_worker_received_total{worker="1"}`:                                     1011,
		`ferry_intake_received_total{transport="ws",intake="0"}`:                      1017,
		"ferry_recovery_rebuilt_total":                                                1012,
		"ferry_stalls_total":                                                          1013,
		"ferry_brake_holds_total":                                                     1014,
		"ferry_brake_engaged":                                                         1,
		"ferry_workers_under_load":                                                    1015,
		"ferry_state_file_slow_changes_total":                                         1016,
		"ferry_draining":                                                              1,
		`ferry_tls_certificate_start_seconds{name="/etc/api.pem"}`:                    1_700_000_000,
		`ferry_tls_certificate_end_seconds{name="/etc/api.pem"}`:                      1_800_000_000,
		"ferry_accept_failed_total":                                                   40,
		`ferry_tls_certificate_fault{name="/etc/api.pem",reason="expired"}`:           1,
		`ferry_tls_certificate_fault{name="/etc/api.pem",reason="other_name"}`:        0,
		"ferry_max_allocations":                                                       31,
		"ferry_recovery_awaited":                                                      32,
		"ferry_recovery_lost_total":                                                   33,
		"ferry_state_file_complete":                                                   1,
		"ferry_foreign_sockets":                                                       34,
		"ferry_memory_limit_bytes":                                                    35,
		"ferry_memory_short":                                                          1,
		`ferry_allocations_refused_total{reason="memory"}`:                            36,
		`ferry_http_connections_refused_total{reason="total"}`:                        37,
		`ferry_http_connections_refused_total{reason="proxy_header"}`:                 39,
		`ferry_http_connections_refused_total{reason="evicted_total"}`:                43,
		`ferry_http_connections_refused_total{reason="evicted_address"}`:              44,
		`ferry_http_connections_refused_total{reason="evicted_protected"}`:            45,
		`ferry_outcomes_total{outcome="relayed"}`:                                     1101,
		`ferry_drops_total{reason="nonce"}`:                                           1102,
		`ferry_receive_batch_size_bucket{le="1"}`:                                     1,
		`ferry_receive_batch_size_bucket{le="2"}`:                                     3,
		`ferry_receive_batch_size_bucket{le="256"}`:                                   45,
		`ferry_receive_batch_size_bucket{le="+Inf"}`:                                  45,
		"ferry_receive_batch_size_count":                                              45,
		"ferry_receive_batch_size_sum":                                                1001,
		`ferry_build_info{version="v1 \"quoted\\",revision="abc",goversion="go1.26"}`: 1,
	} {
		if got, ok := p.values[name]; !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	outcomes := 0
	for _, name := range p.series() {
		if strings.HasPrefix(name, "ferry_outcomes_total") || strings.HasPrefix(name, "ferry_drops_total") {
			outcomes++
		}
	}
	if outcomes != 4 {
		t.Errorf("%d outcomes and drops, want 4", outcomes)
	}
}

// TestTypes: every series has a type, and the types are those of the format.
func TestTypes(t *testing.T) {
	m := New(Config{Stats: func() engine.Stats { return stats(0) }, Process: process})
	m.OnRequest("join", 200, time.Millisecond)
	p := page1(t, m)
	for name := range p.values {
		family, _, _ := strings.Cut(name, "{")
		kind := p.types[family]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(family, suffix); ok && p.types[base] == "histogram" {
				kind = "histogram"
			}
		}
		if strings.HasPrefix(name, "ferry_") && kind == "" {
			t.Errorf("%s has no type", name)
		}
		if strings.HasSuffix(family, "_total") && strings.HasPrefix(name, "ferry_") && kind != "counter" {
			t.Errorf("%s is a %s", name, kind)
		}
	}
	for _, want := range []string{"process_resident_memory_bytes", "process_open_fds", "go_goroutines"} {
		if _, ok := p.values[want]; !ok {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestRequests(t *testing.T) {
	m := New(Config{Stats: func() engine.Stats { return engine.Stats{} }, Process: process})
	for _, d := range []time.Duration{0, 500 * time.Microsecond, 501 * time.Microsecond, 3 * time.Second, time.Minute} {
		m.OnRequest("allocate", 201, d)
	}
	m.OnRequest("allocate", 429, time.Millisecond)
	m.OnRequest("join", 200, time.Millisecond)
	p := page1(t, m)
	for name, want := range map[string]float64{
		`ferry_http_requests_total{call="allocate",status="201"}`:                 5,
		`ferry_http_requests_total{call="allocate",status="429"}`:                 1,
		`ferry_http_requests_total{call="join",status="200"}`:                     1,
		`ferry_http_request_duration_seconds_bucket{call="allocate",le="0.0005"}`: 2,
		`ferry_http_request_duration_seconds_bucket{call="allocate",le="0.001"}`:  4,
		`ferry_http_request_duration_seconds_bucket{call="allocate",le="2.5"}`:    4,
		`ferry_http_request_duration_seconds_bucket{call="allocate",le="5"}`:      5,
		`ferry_http_request_duration_seconds_bucket{call="allocate",le="10"}`:     5,
		`ferry_http_request_duration_seconds_bucket{call="allocate",le="+Inf"}`:   6,
		`ferry_http_request_duration_seconds_count{call="allocate"}`:              6,
		`ferry_http_request_duration_seconds_sum{call="allocate"}`:                63.002001,
		`ferry_http_request_duration_seconds_count{call="join"}`:                  1,
	} {
		if got, ok := p.values[name]; !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
}

// TestSeriesStay: more traffic and more players bring no more series.
func TestSeriesStay(t *testing.T) {
	base := uint64(0)
	m := New(Config{Stats: func() engine.Stats { return stats(base) }, Process: process})
	m.OnRequest("join", 200, time.Millisecond)
	before := page1(t, m).series()
	base = 1 << 40
	for i := range 1000 {
		m.OnRequest("join", 200, time.Duration(i)*time.Millisecond)
	}
	if after := page1(t, m).series(); !slices.Equal(before, after) {
		t.Errorf("series before\n%v\nafter\n%v", before, after)
	}
	for _, name := range before {
		for _, m := range labelName.FindAllStringSubmatch(name, -1) {
			if !slices.Contains(labels, m[1]) {
				t.Errorf("%s: label %q is not one of those that are bounded", name, m[1])
			}
		}
	}
}

// labels are those whose values are bounded by the build and the machine.
var labels = []string{
	"direction", "outcome", "reason", "event", "worker", "transport", "intake", "le", "call", "status", "version", "revision", "goversion",
}

var labelName = regexp.MustCompile(`([a-zA-Z_]+)="`)

func TestTogether(t *testing.T) {
	m := New(Config{Stats: func() engine.Stats { return stats(0) }, Process: process})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				m.OnRequest("allocate", 201, time.Millisecond)
			}
			var b strings.Builder
			m.Write(&b)
		})
	}
	all.Wait()
	if n := page1(t, m).values[`ferry_http_requests_total{call="allocate",status="201"}`]; n != 200 {
		t.Errorf("counted %v of 200", n)
	}
}
