package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// evil changes a terminal: its title, its colours by both forms of the introducer, the direction
// of the text, and what is above.
const evil = "evil\x1b]0;title\x07\x1b[31m\u009b32m\u202e\x7f\b\rover\u2028"

// fill sets all strings in v to evil, and gives maps and slices one element.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(evil)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.Uint32, reflect.Uint64, reflect.Int, reflect.Float64, reflect.Int64:
		v.Set(reflect.ValueOf(7).Convert(v.Type()))
	case reflect.Bool:
		v.SetBool(true)
	}
}

func evilServer(t *testing.T, failing bool) string {
	pages := map[string]any{
		"/nodes": new(operator.Nodes), "/allocations": new(operator.Allocations), "/allocations/x/players": new(operator.Allocations),
		"/why/x": new(operator.Why), "/timeline": new(operator.ProjectTimeline), "/bans": new(operator.Bans),
		"/bans/affected": new(operator.Affected), "/usage": new(operator.Usage),
		"/config": new(operator.Settings), "/reload": new(operator.ReloadResult), "/log-level": new(operator.LogLevel),
		"/fast-path": new(operator.FastPath),
		"/drain":     new(operator.DrainState), "/allocations/x": new(operator.ActionResult), "/stats": new(operator.Stats),
		"/allocations/x/kick": new(operator.ActionResult),
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		switch {
		case r.URL.Path == "/readyz" || r.URL.Path == "/metrics": // of the machine itself
			return
		case strings.HasPrefix(r.URL.Path, "/v1/") && (failing || r.URL.Path != "/v1/regions"):
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(api.NewProblem(http.StatusForbidden, 15403, evil))
			return
		case r.URL.Path == "/v1/regions":
			fmt.Fprintf(w, `{"data":{"regions":[{"id":%[1]s,"description":%[1]s,"qosAddress":%[1]s}]}}`, quoted(t))
			return
		case failing:
			http.Error(w, evil, http.StatusConflict)
			return
		case r.Method == http.MethodPost && r.URL.Path == "/bans":
			page = new(operator.Ban)
		case !ok:
			t.Errorf("%s %s is not among the pages of the test", r.Method, r.URL.Path)
			http.NotFound(w, r)
			return
		}
		answer := reflect.New(reflect.TypeOf(page).Elem())
		fill(answer.Elem())
		if nodes, ok := answer.Interface().(*operator.Nodes); ok {
			nodes.Nodes[0].UDP = []string{evil}
		}
		if usage, ok := answer.Interface().(*operator.Usage); ok {
			usage.Projects[0].Others = false
		}
		if bans, ok := answer.Interface().(*operator.Bans); ok {
			bans.NotKnown = false
		}
		_ = json.NewEncoder(w).Encode(answer.Interface())
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func quoted(t *testing.T) string {
	t.Helper()
	b, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func wantText(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			t.Errorf("%s: %q in\n%q", what, r, text)
			return
		}
	}
}

// TestRemoteText: nothing that another machine answers changes the terminal of an operator or a
// player, in a table, as JSON, or as an error.
func TestRemoteText(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ferry.yaml")
	settings := fmt.Sprintf("udp: [127.0.0.1:%s]\nhttp: 127.0.0.1:%s\nadvertise: [127.0.0.1]\ntokens:\n  - {secret: 0123456789abcdef, project: p, environment: e}\n",
		testkit.FreePort(t), testkit.FreePort(t))
	for _, failing := range []bool{false, true} {
		url := evilServer(t, failing)
		host := strings.TrimPrefix(url, "http://")
		if err := os.WriteFile(file, []byte(settings+"admin: "+host+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, c := range []string{
			"nodes", "allocations --limit 1", "players x --limit 1", "why x", "timeline x", "kick x", "close x", "bans", "ban 192.0.2.1", "usage",
			"config", "reload", "log-level", "fast-path", "drain", "undrain",
		} {
			for _, format := range []string{"table", "json"} {
				lines = append(lines, "ctl "+c+" --admin "+url+" -o "+format)
			}
		}
		lines = append(lines,
			"check --running --config "+file, "check --running --json --config "+file,
			"ctl usage -o csv --admin "+url, "ctl nodes --watch -n 2 --every 100ms --admin "+url,
			"ping "+url, "ping --json "+url, "bench --matches 1 --duration 100ms --api "+url,
		)
		for _, line := range lines {
			var out, errs strings.Builder
			run(t.Context(), append([]string{"ferry"}, strings.Fields(line)...), nil, &out, &errs)
			wantText(t, line, out.String())
			wantText(t, line, errs.String())
			if all := out.String() + errs.String(); !strings.Contains(all, "evil") {
				t.Errorf("%s: it shows nothing of the answer:\n%s", line, all)
			}
		}
	}
}
