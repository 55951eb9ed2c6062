package helm

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// page is the content of /metrics: types by metric, and label values by metric.
type page struct {
	types  map[string]string
	labels map[string]map[string]map[string]bool
}

var (
	typeLine   = regexp.MustCompile(`^# TYPE (\S+) (\S+)$`)
	sampleLine = regexp.MustCompile(`^([a-z_A-Z0-9:]+)(?:\{(.*)\})? \S+$`)
	labelPair  = regexp.MustCompile(`([a-zA-Z_]+)="([^"]*)"`)
)

// scraped returns the metrics of a running process that has served a request.
func scraped(t *testing.T) page {
	t.Helper()
	api, admin := dev(t)
	for _, body := range []string{`{"maxConnections": 4}`, `{`} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api+"/v1/allocate", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		do(t, req)
	}
	text, _ := get(t, admin+"/metrics")
	p := page{make(map[string]string), make(map[string]map[string]map[string]bool)}
	p.read(text)
	if len(p.types) < 40 {
		t.Fatalf("only %d metrics were read", len(p.types))
	}
	for _, name := range []string{"bytes", "datagrams", "player_seconds"} { // A relay has them 10 s after its first match.
		p.add("ferry_usage_"+name+"_total", `project="p",environment="e"`)
	}
	for _, reason := range []string{"expired", "not_yet_valid", "other_name", "missing"} { // A process with a certificate has them.
		p.add("ferry_tls_certificate_fault", `name="cert.pem",reason="`+reason+`"`)
	}
	p.addSource(t, "fleet.go", "ferry_fleet_relays", "state")
	p.addSource(t, "players.go", "ferry_jwks_documents", "state")
	return p
}

func (p page) read(text string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := typeLine.FindStringSubmatch(line); m != nil {
			p.types[m[1]] = m[2]
		} else if m := sampleLine.FindStringSubmatch(line); m != nil {
			p.add(m[1], m[2])
		}
	}
}

// canaryPage returns the metrics of ferry ping --every, which needs no relay for them.
func canaryPage(t *testing.T) string {
	t.Helper()
	ready := start(t, "ping", "http://127.0.0.1:1", "--transport", "udp,dtls,ws,wss", "--every", "10s", "--listen", "127.0.0.1:0")
	text, _ := get(t, ready["metrics"])
	return text
}

// Source lines that write metrics which a single process in dev does not have.
var (
	familyCall = regexp.MustCompile(`p\.(?:single|family)\(\s*"(\w+)",\s*(\w+),\s`)
	sampleCall = regexp.MustCompile(`p\.(?:samples?|seconds)\("(\w+)", (.*)\)\n`)
	labelArgs  = regexp.MustCompile(`, "(\w+)", (?:"(\w+)"|\w)|, "(\w+)"$`)
)

// addSource adds the metrics that a source file writes, one of which is named
// known: those of a fleet and of settings that dev does not enable.
func (p page) addSource(t *testing.T, file, known, label string) {
	t.Helper()
	text := read(t, root+"/internal/server/observe/metrics/"+file)
	all := familyCall.FindAllStringSubmatch(text, -1)
	for _, m := range all {
		p.types[m[1]] = m[2]
		p.add(m[1], "")
	}
	for _, m := range sampleCall.FindAllStringSubmatch(text, -1) {
		for _, label := range labelArgs.FindAllStringSubmatch(m[2], -1) {
			p.add(m[1], label[1]+label[3]+`="`+label[2]+`"`) // samples has the name of a label alone
		}
	}
	if len(all) == 0 || p.labels[known][label] == nil {
		t.Errorf("%s: only %d metrics were found in the source", file, len(all))
	}
}

func (p page) add(name, labels string) {
	if p.labels[name] == nil {
		p.labels[name] = make(map[string]map[string]bool)
	}
	for _, pair := range labelPair.FindAllStringSubmatch(labels, -1) {
		if p.labels[name][pair[1]] == nil {
			p.labels[name][pair[1]] = make(map[string]bool)
		}
		p.labels[name][pair[1]][pair[2]] = true
	}
}

// kind returns the type of a series, or "" if it does not exist.
func (p page) kind(name string) string {
	if name == "up" { // Prometheus adds it.
		return "gauge"
	}
	if p.types[name] == "histogram" {
		return "" // Its series are _bucket, _sum and _count.
	}
	if kind := p.types[name]; kind != "" {
		return kind
	}
	for _, end := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, end); ok && p.types[base] == "histogram" {
			return "counter"
		}
	}
	return ""
}

func TestDashboard(t *testing.T) {
	var d struct {
		Title  string `json:"title"`
		UID    string `json:"uid"`
		Panels []struct {
			ID      int            `json:"id"`
			Type    string         `json:"type"`
			Title   string         `json:"title"`
			GridPos map[string]int `json:"gridPos"`
			Targets []struct {
				RefID  string `json:"refId"`
				Expr   string `json:"expr"`
				Legend string `json:"legendFormat"`
			} `json:"targets"`
		} `json:"panels"`
		Annotations struct {
			List []struct {
				Expr string `json:"expr"`
			} `json:"list"`
		} `json:"annotations"`
	}
	if err := json.Unmarshal([]byte(read(t, files+"/grafana/ferry.json")), &d); err != nil {
		t.Fatal(err)
	}
	p, ids, shown := scraped(t), make(map[int]bool), make(map[string]bool)
	see := func(where, expr string) {
		names, faults := p.check(strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*").Replace(expr))
		for _, fault := range faults {
			t.Errorf("%s: %s\n%s", where, fault, expr)
		}
		for _, name := range names {
			shown[name] = true
		}
	}
	for _, panel := range d.Panels {
		if ids[panel.ID] || panel.GridPos["x"]+panel.GridPos["w"] > 24 || panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %d, %q: twice, too broad, or empty", panel.ID, panel.Title)
		}
		ids[panel.ID] = true
		for _, target := range panel.Targets {
			see(panel.Title, target.Expr)
		}
	}
	for _, a := range d.Annotations.List {
		see("annotation", a.Expr)
	}
	if d.UID == "" || d.Title == "" || len(shown) < 30 {
		t.Errorf("%q, %q: %d metrics are shown", d.UID, d.Title, len(shown))
	}
	var missing []string
	for name := range p.types {
		if strings.HasPrefix(name, "ferry_") && !shown[name] && !shown[name+"_bucket"] && !slices.Contains(notShown, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		t.Errorf("no panel shows %q: give them one, or say in notShown why not", missing)
	}
}

// notShown are metrics without a panel, since other metrics cover them.
var notShown = []string{
	"ferry_host_udp_queue_full_total", // kernel_drops has those of the relay's sockets
	"ferry_dtls_half_open_direct",     // a part of ferry_dtls_half_open
	"ferry_intake_received_total",     // covered by websocket messages; for the spread over intakes
	"ferry_websocket_opened_total",    // covered by connections and their ends
	"ferry_websocket_bytes_total",     // covered by messages
	"ferry_websocket_pings_total",     // only keep-alives
	"ferry_announcer_renewals_total",  // covered by hosts announced and by failures
	"ferry_announcer_drops_total",
	"ferry_usage_datagrams_total",         // covered by bytes
	"ferry_player_replaced_total",         // part of the allocations that end
	"ferry_announcer_moves_total",         // one for each host migration
	"ferry_accept_failed_total",           // an alert; the panel of descriptors shows the cause
	"ferry_tls_certificate_fault",         // an alert; the panel of ends shows most of it
	"ferry_fleet_relay_dead",              // an alert; the panel of relays counts them
	"ferry_tls_certificate_start_seconds", // for the alert: with the end, which is shown, it is the lifetime
	"ferry_max_seats",                     // an alert; a setting, besides which ferry_seats shows what is used
}

type alertRules struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			For         string            `yaml:"for"`
			Keep        string            `yaml:"keep_firing_for"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

var annotationLabel = regexp.MustCompile(`\$labels\.([a-z_]+)`)

// TestAlerts: every rule uses existing metrics and has a summary of what to do.
func TestAlerts(t *testing.T) {
	var file alertRules
	if err := strict([]byte(read(t, files+"/prometheus/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	p, seen := scraped(t), make(map[string]bool)
	p.read(canaryPage(t))
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			names, faults := p.check(r.Expr)
			for _, fault := range faults {
				t.Errorf("%s: %s", r.Alert, fault)
			}
			if seen[r.Alert] || !regexp.MustCompile(`^Ferry[A-Za-z]+$`).MatchString(r.Alert) || len(names) == 0 {
				t.Errorf("%q: twice, or no name, or about nothing", r.Alert)
			}
			seen[r.Alert] = true
			if s := r.Labels["severity"]; s != "page" && s != "ticket" || len(r.Labels) != 1 {
				t.Errorf("%s: labels %v", r.Alert, r.Labels)
			}
			if r.Annotations["summary"] == "" || r.Annotations["action"] == "" || len(r.Annotations) != 2 {
				t.Errorf("%s: annotations %v", r.Alert, r.Annotations)
			}
			if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
			for _, m := range annotationLabel.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["action"], -1) {
				if m[1] != "instance" && !strings.Contains(r.Expr, m[1]) {
					t.Errorf("%s: its text has the label %s, which the expression does not keep", r.Alert, m[1])
				}
			}
		}
	}
	if len(seen) < 15 {
		t.Errorf("%d rules", len(seen))
	}
}

// TestAdapter checks that the adapter makes of our gauges what the relays are scaled by.
func TestAdapter(t *testing.T) {
	var adapter struct {
		Rules []struct {
			Series    string                       `yaml:"seriesQuery"`
			Resources map[string]any               `yaml:"resources"`
			Name      struct{ Matches, As string } `yaml:"name"`
			Query     string                       `yaml:"metricsQuery"`
		} `yaml:"rules"`
	}
	if err := strict([]byte(read(t, files+"/prometheus/adapter.yaml")), &adapter); err != nil {
		t.Fatal(err)
	}
	p, passed := scraped(t), make(map[string]bool)
	for _, r := range adapter.Rules {
		series, _, _ := strings.Cut(r.Series, "{")
		for _, name := range append(regexp.MustCompile(`ferry_\w+`).FindAllString(r.Query, -1), series) {
			if p.kind(name) != "gauge" {
				t.Errorf("the adapter makes %s of %s, which is no gauge of ours", r.Name.As, name)
			}
		}
		passed[r.Name.As] = true
	}
	for _, o := range kustomized(t, "") {
		scaler, ok := o.typed.(*autoscalingv2.HorizontalPodAutoscaler)
		if !ok {
			continue
		}
		for _, m := range scaler.Spec.Metrics {
			if m.Pods != nil && !passed[m.Pods.Metric.Name] {
				t.Errorf("%v is scaled by %s, which the adapter does not pass on: %v", o, m.Pods.Metric.Name, slices.Collect(maps.Keys(passed)))
			}
		}
	}
}
