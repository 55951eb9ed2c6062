package helm

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ferry-helm")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "ferry")
	build := exec.Command("go", "build", "-o", binary, "./cmd/ferry")
	build.Dir = root
	if text, err := build.CombinedOutput(); err != nil {
		panic(string(text))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func run(t *testing.T, env []string, args ...string) (text string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append([]string{}, env...) // not that of the test
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

type setting struct{ key, standard, allowed, meaning string }

type list struct {
	key, meaning string
	members      []setting
}

var (
	settingRow = regexp.MustCompile("^\\| `([a-z0-9_]+)` \\| (?:(.*) \\| )?(.*) \\| (.*) \\|$")
	choice     = regexp.MustCompile("`([^`]+)`")
	bounds     = regexp.MustCompile(`^(-?[0-9]+) to ([0-9]+)$`)
)

// settingsPage reads docs/settings.md.
func settingsPage(t *testing.T) (all []setting, lists []list) {
	t.Helper()
	for line := range strings.Lines(read(t, root+"/docs/settings.md")) {
		line = strings.TrimSpace(line)
		if key, ok := strings.CutPrefix(line, "### "); ok {
			lists = append(lists, list{key: key})
			continue
		}
		m := settingRow.FindStringSubmatch(line)
		switch {
		case m == nil && len(lists) > 0 && line != "" && line[0] != '|' && lists[len(lists)-1].meaning == "":
			lists[len(lists)-1].meaning = strings.TrimSuffix(line, ".")
		case m == nil:
		case len(lists) > 0:
			l := &lists[len(lists)-1]
			l.members = append(l.members, setting{m[1], "", m[3], m[4]})
		default:
			all = append(all, setting{m[1], m[2], m[3], m[4]})
		}
	}
	if len(all) < 60 || len(lists) != 4 {
		t.Fatalf("%d settings and %d lists were read", len(all), len(lists))
	}
	return all, lists
}

// duration matches a duration as Go writes it.
const duration = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

// schema returns the JSON schema of a setting.
func (s setting) schema(isList bool) map[string]any {
	schema := map[string]any{"description": strings.ReplaceAll(s.meaning, "`", "")}
	standard, _, _ := strings.Cut(strings.TrimPrefix(s.standard, "`"), "`")
	_, notNumber := strconv.ParseFloat(standard, 64)
	isRange := strings.Contains(s.allowed, " to ")
	limits := bounds.FindStringSubmatch(s.allowed)
	switch {
	case isList:
		schema["type"], schema["items"] = []string{"string", "array"}, map[string]any{"type": "string"}
	case strings.HasPrefix(s.allowed, "`"):
		var all []string
		for _, m := range choice.FindAllStringSubmatch(s.allowed, -1) {
			all = append(all, m[1])
		}
		schema["enum"] = all
	case limits != nil:
		schema["type"] = "integer"
		schema["minimum"], schema["maximum"] = json.Number(limits[1]), json.Number(limits[2])
	case isRange:
		schema["type"], schema["pattern"] = "string", duration
		schema["description"] = schema["description"].(string) + "; " + s.allowed
	case standard == "true" || standard == "false":
		schema["type"] = "boolean"
	case notNumber == nil:
		schema["type"] = "number"
	default:
		schema["type"] = "string"
	}
	return schema
}

// secrets are members of lists that belong in files, since a ConfigMap holds the settings.
var secrets = []string{"secret"}

// schema returns the JSON schema of a list.
func (l list) schema() map[string]any {
	members, required := map[string]any{}, []string{}
	for _, s := range l.members {
		if slices.Contains(secrets, s.key) {
			continue
		}
		schema := s.schema(false)
		if schema["type"] == "string" && schema["pattern"] == nil {
			schema["type"] = []string{"string", "array", "boolean"} // the page has no types
		}
		if members[s.key] = schema; strings.HasSuffix(s.meaning, "; required") {
			required = append(required, s.key)
		}
	}
	items := map[string]any{"type": "object", "additionalProperties": false, "properties": members}
	if len(required) > 0 {
		items["required"] = required
	}
	return map[string]any{"description": l.meaning, "type": "array", "items": items}
}

// flagLine matches a flag in the help; a comma is in the placeholder of a list.
var flagLine = regexp.MustCompile(`(?m)^ {3}--([a-z0-9-]+)(?: ([^\s]+))?`)

// flags returns the flags of a role by setting, and whether each is a list.
func flags(t *testing.T, role string) map[string]bool {
	t.Helper()
	help, code := run(t, nil, role, "--help-all")
	all := map[string]bool{}
	for _, m := range flagLine.FindAllStringSubmatch(help, -1) {
		all[strings.ReplaceAll(m[1], "-", "_")] = strings.HasSuffix(m[2], ",...")
	}
	if code != 0 || len(all) < 30 {
		t.Fatalf("ferry %s --help-all: exit code %d, %d flags", role, code, len(all))
	}
	return all
}

// ofChart are the settings of a role that the chart sets itself.
var ofChart = map[string][]string{
	"api": {
		"admin", "admin_public", "admin_token_file", "cluster_ca", "cluster_cert", "cluster_key",
		"http", "log_format", "store",
	},
	"relay": {
		"admin", "admin_public", "admin_token_file", "advertise", "advertise_name", "cluster", "cluster_advertise", "cluster_ca",
		"cluster_cert", "cluster_key", "drain_timeout", "http", "log_format", "region", "relay_id", "state_dir", "store",
		"tls_cert", "tls_key", "udp", "websocket",
	},
}

// TestSettingsOfChart checks that ofChart lists the flags and variables of the containers in all
// variants, and FERRY_ADVERTISE, which a file replaces in some.
func TestSettingsOfChart(t *testing.T) {
	got := map[string][]string{}
	for _, values := range variants {
		for _, w := range workloads(t, objects(t, render(t, values))) {
			for _, arg := range w.container().Args[1:] {
				flag, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
				if flag != "config" {
					got[w.role] = append(got[w.role], strings.ReplaceAll(flag, "-", "_"))
				}
			}
			for _, e := range w.container().Env {
				key, ok := strings.CutPrefix(e.Name, "FERRY_")
				if key = strings.ToLower(key); ok && !slices.Contains(w.settings(t, values), key) {
					got[w.role] = append(got[w.role], strings.Replace(key, "config", "advertise", 1))
				}
			}
		}
	}
	for role, want := range ofChart {
		slices.Sort(got[role])
		if keys := slices.Compact(got[role]); !slices.Equal(keys, want) {
			t.Errorf("ferry %s has the settings\n%q, want\n%q", role, keys, want)
		}
	}
}

// TestSchemaOfSettings checks that the schema of the chart's values has every setting of ferry api
// and ferry relay except those that the chart sets, with the types of docs/settings.md.
func TestSchemaOfSettings(t *testing.T) {
	name := directory + "/values.schema.json"
	var schema map[string]any
	if err := json.Unmarshal([]byte(read(t, name)), &schema); err != nil {
		t.Fatal(err)
	}
	definitions := schema["definitions"].(map[string]any)
	rows, lists := settingsPage(t)
	for _, role := range []string{"relay", "api"} {
		known, properties := flags(t, role), map[string]any{}
		for _, s := range rows {
			if isList, ok := known[s.key]; ok {
				properties[s.key] = s.schema(isList)
			}
		}
		if len(properties) < 30 {
			t.Fatalf("ferry %s has %d settings of docs/settings.md", role, len(properties))
		}
		if role == "api" { // The settings of a relay are variables, and lists have none.
			for _, l := range lists {
				properties[l.key] = l.schema()
			}
		}
		maps.DeleteFunc(properties, func(key string, _ any) bool { return slices.Contains(ofChart[role], key) })
		definitions[role+"Settings"] = map[string]any{
			"description": "settings of ferry " + role + ", without those that the chart sets; make manifests writes them",
			"type":        "object", "additionalProperties": false, "properties": properties,
		}
	}
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(schema); err != nil {
		t.Fatal(err)
	}
	compare(t, name, text.String())
}
