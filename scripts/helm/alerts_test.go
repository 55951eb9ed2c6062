package helm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// The time series of faults have a sample each scrapeInterval, begin with calmSamples without
// the fault, and go on for faultSamples.
const (
	scrapeInterval = 15 * time.Second
	calmSamples    = 40
	faultSamples   = 80
)

// fault is what the metrics show of one: the samples that follow those of the calm, in the
// notation of promtool (START+STEPxCOUNT), by series. Calm is the value before, and grows is by
// how much a counter grows between two samples in a healthy server.
type fault map[string]string

// rising is a counter that grows by step with each sample, as it does before by calm.
func rising(calm, step int) string {
	from := calm * calmSamples
	return fmt.Sprintf("0+%dx%d %d+%dx%d", calm, calmSamples-1, from, step, faultSamples)
}

func becomes(before, value string) string {
	return fmt.Sprintf("%s+0x%d %s+0x%d", before, calmSamples-1, value, faultSamples)
}

func once(by int) string { return becomes("0", fmt.Sprint(by)) }

func steady(value string) string { return becomes(value, value) }

const (
	received = `ferry_datagrams_total{direction="in"}`
	sent     = `ferry_datagrams_total{direction="out"}`
)

// faults has a row for each alert: what a relay, an API process or the canary shows of it.
var faults = map[string]fault{
	"FerryDown": {`up`: becomes("1", "0")},
	"FerryReceiveQueueFull": {"ferry_kernel_drops_total": rising(0, 300), "ferry_host_udp_queue_full_total": rising(0, 300),
		received: rising(150_000, 150_000)},
	"FerryWrongChecksums":      {"ferry_host_udp_checksum_errors_total": rising(0, 300), received: rising(150_000, 150_000)},
	"FerrySendQueueDrops":      {"ferry_host_udp_send_drops_total": rising(0, 300), sent: rising(150_000, 150_000)},
	"FerryInterfaceQueueDrops": {"ferry_host_queue_drops_total": rising(0, 300), sent: rising(150_000, 150_000)},
	"FerrySendFails":           {"ferry_send_failed_total": rising(0, 300), sent: rising(150_000, 150_000)},
	"FerryStandsStill":         {"ferry_stalls_total": once(1)},
	"FerryStateFileWaits":      {"ferry_state_file_slow_changes_total": rising(0, 5)},
	"FerryBrake":               {"ferry_brake_engaged": becomes("0", "1")},
	"FerryForeignSocket":       {"ferry_foreign_sockets": becomes("0", "1")},
	"FerryPanic":               {`ferry_drops_total{reason="panic"}`: once(1)},
	"FerryMatchesLost":         {"ferry_recovery_lost_total": once(50)},
	"FerryNotStoring":          {"ferry_state_file_complete": becomes("1", "0")},
	"FerryAlmostFull":          {"ferry_allocations": becomes("100", "900"), "ferry_max_allocations": steady("1000")},
	"FerrySeatsAlmostUsedUp":   {"ferry_seats": becomes("100", "950"), "ferry_max_seats": steady("1000")},
	"FerryMemoryShort":         {"ferry_memory_short": becomes("0", "1")},
	"FerryFilesAlmostUsedUp":   {"process_open_fds": becomes("20", "900"), "process_max_fds": steady("1024")},
	"FerryFilesUsedUp":         {"ferry_accept_failed_total": once(1)},
	"FerryWebSocketsFull":      {`ferry_websocket_refused_total{reason="total"}`: rising(0, 1)},
	"FerryDTLSFull":            {`ferry_dtls_events_total{event="drop_sessions_full"}`: rising(0, 1)},
	"FerryFlood":               {"ferry_workers_under_load": becomes("0", "1")},
	"FerryForgedBinds":         {`ferry_drops_total{reason="mac"}`: rising(0, 3000)},
	"FerryCallersTurnedAway":   {`ferry_http_connections_refused_total{reason="evicted_total"}`: rising(0, 30)},
	"FerryCallsFail": {`ferry_http_requests_total{status="200"}`: rising(150, 150),
		`ferry_http_requests_total{status="503"}`: rising(0, 3), "ferry_draining": steady("0")},
	"FerryCertificateEnds":    {"ferry_tls_certificate_end_seconds": becomes("1e9", "1000")},
	"FerryCertificateRefused": {`ferry_tls_certificate_fault{name="cert.pem",reason="expired"}`: becomes("0", "1")},
	"FerryCallsSlow": {
		`ferry_http_request_duration_seconds_bucket{call="join",le="0.25"}`: rising(150, 140),
		`ferry_http_request_duration_seconds_bucket{call="join",le="1"}`:    rising(150, 150),
		`ferry_http_request_duration_seconds_bucket{call="join",le="+Inf"}`: rising(150, 150),
	},
	"FerryDrainsForLong": {"ferry_draining": fmt.Sprintf("0+0x%d 1+0x600", calmSamples-1)},
	"FerryKeysMissing":   {`ferry_jwks_documents{state="missing"}`: becomes("0", "1")},
	"FerryKeysStale":     {`ferry_jwks_documents{state="stale"}`: fmt.Sprintf("0+0x%d 1+0x160", calmSamples-1)},
	"FerryAdmissionSilent": {`ferry_admission_questions_total{answer="allowed"}`: rising(150, 0),
		`ferry_admission_questions_total{answer="unanswered"}`: rising(0, 150)},
	"FerryWebhooksDropped":   {`ferry_webhook_dropped_total{reason="failed"}`: once(1)},
	"FerryQuotaNotKnown":     {"ferry_quota_unknown_total": rising(0, 1)},
	"FerryStoreAway":         {"ferry_store_away": becomes("0", "1")},
	"FerryStoreComesAndGoes": {"ferry_store_outages_total": rising(0, 1)},
	"FerryStoreUnverified":   {"ferry_store_unverified_total": once(1)},
	"FerryNotAnnounced":      {`ferry_announcer_discarded_total{what="ends"}`: once(1)},
	// The entry of a relay that died leaves the store after recover_for and 66 s, and with it the
	// series: 8 samples show it by default.
	"FerryRelayDead":            {`ferry_fleet_relay_dead{relay="r",region="eu"}`: fmt.Sprintf("0+0x%d 1+0x7 _x%d", calmSamples-1, faultSamples)},
	"FerryRegionDown":           {`ferry_fleet_refused_total{region="eu",reason="no_relay"}`: rising(0, 1)},
	"FerryFleetFull":            {`ferry_fleet_refused_total{region="eu",reason="full"}`: rising(0, 1)},
	"FerryRelaysDoNotAnswer":    {`ferry_fleet_tries_failed_total{relay="r",region="eu",reason="silent"}`: rising(0, 3)},
	"FerryFleetCertificateEnds": {"ferry_cluster_certificate_end_seconds": becomes("1e9", "1000")},
	"FerryClusterRefusals":      {"ferry_cluster_complaints_total": rising(0, 30)},
	"FerryCanaryFails": {`ferry_canary_last_success_seconds{transport="udp"}`: fmt.Sprintf("0+15x%d 600+0x%d",
		calmSamples-1, faultSamples)},
}

// firesWithin is how soon an alert fires after the beginning of its fault, where that is not
// twice its "for" and a minute.
var firesWithin = map[string]time.Duration{
	"FerryRelayDead":     75 * time.Second, // The count of dead relays falls again after 120 s.
	"FerryCanaryFails":   150 * time.Second,
	"FerryDrainsForLong": 2*time.Hour + time.Minute,
}

// restarts are what a healthy fleet shows of six hours with a restart, a drain and a short outage
// of its store. All other series stand still, or grow as in a healthy server.
var restarts = fault{
	"up": "1+0x120 0+0x1 1+0x1320",
	`ferry_fleet_relay_dead{relay="r",region="eu"}`:      "0+0x121 1+0x2 0+0x1320",
	"ferry_recovery_lost_total":                          "0+0x125 3+0x1320",
	"ferry_draining":                                     "0+0x400 1+0x240 0+0x800",
	"ferry_store_away":                                   "0+0x900 1+0x2 0+0x540",
	"ferry_store_outages_total":                          "0+0x900 1+0x540",
	"ferry_tls_certificate_end_seconds":                  "0+0x20 1e9+0x1420", // ACME at the first start
	"ferry_tls_certificate_start_seconds":                "0+0x1440",
	`ferry_canary_last_success_seconds{transport="udp"}`: "0+0x1 30+15x1440",
	received: "0+150000x1440",
	sent:     "0+300000x1440",
	`ferry_http_requests_total{status="200"}`: "0+150x1440",
}

type promtoolTest struct {
	RuleFiles []string       `yaml:"rule_files"`
	Interval  string         `yaml:"evaluation_interval"`
	Tests     []promtoolCase `yaml:"tests"`
}

type promtoolCase struct {
	Name     string           `yaml:"name,omitempty"`
	Interval string           `yaml:"interval"`
	Series   []promtoolSeries `yaml:"input_series"`
	Exprs    []promtoolExpr   `yaml:"promql_expr_test"`
}

type promtoolSeries struct{ Series, Values string }

type promtoolExpr struct {
	Expr    string           `yaml:"expr"`
	At      string           `yaml:"eval_time"`
	Samples []promtoolSample `yaml:"exp_samples"`
}

type promtoolSample struct {
	Labels string
	Value  float64
}

func (f fault) series(instance string) (all []promtoolSeries) {
	for name, values := range f {
		metric, labels, ok := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		if ok {
			labels = "," + labels
		}
		all = append(all, promtoolSeries{fmt.Sprintf("%s{job=\"ferry\",instance=%q%s}", metric, instance, labels), values})
	}
	return all
}

// TestAlertsFire: each alert fires during its fault, as the metrics show it, and not before, and
// none fires in six hours of a healthy fleet.
func TestAlertsFire(t *testing.T) {
	rules, err := filepath.Abs(files + "/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file alertRules
	if err := strict([]byte(read(t, rules)), &file); err != nil {
		t.Fatal(err)
	}
	p := scraped(t)
	p.read(canaryPage(t))
	test := promtoolTest{RuleFiles: []string{rules}, Interval: scrapeInterval.String()}
	known := map[string]bool{}
	broken := promtoolCase{Name: "faults, each at an instance of its own", Interval: scrapeInterval.String()}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			known[r.Alert] = true
			f, ok := faults[r.Alert]
			if !ok {
				t.Errorf("%s has no fault", r.Alert)
				continue
			}
			begins := calmSamples * scrapeInterval
			held, _ := time.ParseDuration(r.For)
			by := 2*held + time.Minute // The rates are over as much as the rule waits.
			if seen, ok := firesWithin[r.Alert]; ok {
				by = seen
			}
			keep, _ := time.ParseDuration(r.Keep)
			fires := fmt.Sprintf("count(ALERTS{alertname=%[1]q,instance=%[1]q,alertstate=\"firing\"})", r.Alert)
			one := []promtoolSample{{"{}", 1}}
			broken.Series = append(broken.Series, f.series(r.Alert)...)
			broken.Exprs = append(broken.Exprs,
				promtoolExpr{Expr: fires, At: (begins - scrapeInterval).String()},
				promtoolExpr{Expr: fires, At: (begins + by).String(), Samples: one},
				promtoolExpr{Expr: fires, At: (begins + by + keep*9/10).String(), Samples: one})
		}
	}
	for alert, f := range faults {
		if !known[alert] {
			t.Errorf("there is no alert %s", alert)
		}
		for series := range f {
			metric, labels, _ := strings.Cut(series, "{")
			if p.kind(metric) == "" {
				t.Errorf("%s: there is no metric %s", alert, metric)
			}
			for _, pair := range labelPair.FindAllStringSubmatch(labels, -1) {
				if pair[1] != "le" && !slices.Contains(open, pair[1]) && !p.labels[metric][pair[1]][pair[2]] {
					t.Errorf("%s: %s has no series with %s", alert, metric, pair[0])
				}
			}
		}
	}
	healthy := promtoolCase{Name: "a healthy fleet", Interval: scrapeInterval.String(), Series: healthySeries().series("relay-1")}
	for at := time.Minute; at < 6*time.Hour; at += 2 * time.Minute {
		healthy.Exprs = append(healthy.Exprs, promtoolExpr{Expr: `count(ALERTS{alertstate="firing"}) by (alertname)`, At: at.String()})
	}
	test.Tests = append(test.Tests, broken, healthy)
	text, err := yaml.Marshal(test)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "alerts.yaml")
	if err := os.WriteFile(name, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool(t), "test", "rules",
		name).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

var calmPart = regexp.MustCompile(`^(-?[0-9.e]+)(?:[+-]([0-9.e]+)x\d+)?`)

// healthySeries are the series of all faults as they are before, for six hours, and those of restarts.
func healthySeries() fault {
	day := fault{}
	for _, f := range faults {
		for series, values := range f {
			m := calmPart.FindStringSubmatch(values)
			day[series] = fmt.Sprintf("%s+%sx1440", m[1], m[2])
		}
	}
	for series, values := range restarts {
		day[series] = values
	}
	return day
}
