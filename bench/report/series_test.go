package report

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	metricName   = `[a-zA-Z_:][a-zA-Z0-9_:]*`
	labelPattern = `([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"`
	samplePat    = regexp.MustCompile(`^(` + metricName + `)\{(` + labelPattern + `(?:,` + labelPattern + `)*)\} ` +
		`([0-9.]+(?:e[+-]?[0-9]+)?) ([0-9]+\.[0-9]+)$`)
	metaPat = regexp.MustCompile(`^# (TYPE|UNIT|HELP) (` + metricName + `) (.+)$`)
)

// checkOpenMetrics checks a text against the rules of the OpenMetrics 1.0 specification that concern counters and
// summaries with times. It returns the values by sample and time.
func checkOpenMetrics(t *testing.T, text string) map[string]float64 {
	t.Helper()
	body, ended := strings.CutSuffix(text, "# EOF\n")
	if !ended || strings.Contains(body, "# EOF") || strings.Contains(body, "\r") || strings.Contains(body, "\n\n") {
		t.Fatal("no EOF at the end, or blank lines")
	}
	values, types, done := map[string]float64{}, map[string]string{}, map[string]bool{}
	var family, metric string
	var sampled bool
	var lastTime, lastValue float64
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if m := metaPat.FindStringSubmatch(line); m != nil {
			switch {
			case m[1] == "TYPE" && types[m[2]] == "":
				family, sampled, types[m[2]] = m[2], false, m[3]
			case m[2] != family || sampled || m[1] == "TYPE" || m[1] == "UNIT" && !strings.HasSuffix(family, "_"+m[3]):
				t.Errorf("metadata out of place: %s", line)
			}
			continue
		}
		m := samplePat.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("no sample: %s", line)
		}
		sampled = true
		if want := map[string]string{"counter": family + "_total", "summary": family}[types[family]]; m[1] != want {
			t.Errorf("sample %s of the %s %s", m[1], types[family], family)
		}
		value, err := strconv.ParseFloat(m[len(m)-2], 64)
		at, err2 := strconv.ParseFloat(m[len(m)-1], 64)
		if err != nil || err2 != nil {
			t.Fatalf("%v, %v: %s", err, err2, line)
		}
		seen := map[string]bool{}
		for _, l := range regexp.MustCompile(labelPattern).FindAllStringSubmatch(m[2], -1) {
			if seen[l[1]] {
				t.Errorf("label %s twice: %s", l[1], line)
			}
			seen[l[1]] = true
			if q, err := strconv.ParseFloat(l[2], 64); l[1] == "quantile" && (err != nil || q < 0 || q > 1) {
				t.Errorf("quantile %s", l[2])
			}
		}
		if seen["quantile"] != (types[family] == "summary") {
			t.Errorf("quantile of a %s: %s", types[family], line)
		}
		if now := m[1] + m[2]; now != metric {
			if done[now] {
				t.Errorf("samples apart from each other: %s", line)
			}
			metric, lastTime, lastValue = now, 0, 0
			done[now] = true
		}
		if at <= lastTime || types[family] == "counter" && value < lastValue {
			t.Errorf("falls: %s", line)
		}
		lastTime, lastValue = at, value
		values[fmt.Sprintf("%s{%s} %.0f", m[1], m[2], at)] = value
	}
	return values
}

// TestOpenMetrics checks the rules of the format here, and with promtool if it is installed.
func TestOpenMetrics(t *testing.T) {
	name := "a \"name\" with \\ and\nline"
	var text strings.Builder
	a := sample("plain", 1)
	a.Seconds[0].P50 = 0
	if err := OpenMetrics(&text, a, sample(name, 2)); err != nil {
		t.Fatal(err)
	}
	if promtool, err := exec.LookPath("promtool"); err == nil {
		dir := t.TempDir()
		file := filepath.Join(dir, "series.om")
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), promtool, "tsdb", "create-blocks-from", "openmetrics", file,
			dir).CombinedOutput(); err != nil {
			t.Errorf("promtool: %v\n%s", err, out)
		}
	}
	values := checkOpenMetrics(t, text.String())
	first := a.Started.Unix() - 1 // The end of second -2.
	for sample, want := range map[string]float64{
		fmt.Sprintf(`ferry_bench_datagrams_total{run="plain",state="offered"} %d`, first):                            20000,
		fmt.Sprintf(`ferry_bench_datagrams_total{run="plain",state="offered"} %d`, first+12):                         240000,
		fmt.Sprintf(`ferry_bench_datagrams_total{run="plain",state="delivered"} %d`, first+12):                       239712,
		fmt.Sprintf(`ferry_bench_latency_seconds{run="plain",quantile="0.99"} %d`, first+2):                          143e-6,
		fmt.Sprintf(`ferry_bench_latency_seconds{run="a \"name\" with \\ and?line",quantile="1"} %d`, first+12):      122e-6,
		fmt.Sprintf(`ferry_bench_datagrams_total{run="a \"name\" with \\ and?line",state="delivered"} %d`, first+12): 239712,
	} {
		if got, ok := values[sample]; !ok || got < want*0.999 || got > want*1.001 {
			t.Errorf("%s is %v (%v), want %v", sample, got, ok, want)
		}
	}
	if _, ok := values[fmt.Sprintf(`ferry_bench_latency_seconds{run="plain",quantile="0.5"} %d`, first)]; ok {
		t.Error("a latency of no samples")
	}
	for name, r := range brokenRuns() {
		t.Run(name, func(t *testing.T) {
			if name == "huge" {
				t.Skip("no such second") // Its time is beyond that of the clock.
			}
			text.Reset()
			if err := OpenMetrics(&text, r); err != nil {
				t.Fatal(err)
			}
			checkOpenMetrics(t, text.String())
		})
	}
}
