// Package helm tests the chart in scripts/deploy/helm/ferry, and writes what is made from it: the
// manifests in scripts/deploy/kubernetes, its README.md and the settings in its schema. It also tests
// these manifests, and the dashboard and the alerts in scripts/deploy against the metrics of the
// binary. It is a module of its own, so that Ferry does not depend on Helm, Kubernetes and metricsql.
package helm

import (
	"flag"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

var rewrite = flag.Bool("rewrite", false, "write the files that are made from the chart instead of comparing them")

const (
	root       = "../.."
	files      = root + "/scripts/deploy"
	directory  = files + "/helm/ferry"
	kubernetes = files + "/kubernetes"
	namespace  = "ferry"
)

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// tryRender renders the chart in a namespace as helm template does, with values as YAML that are
// merged in order. It returns the texts by the names of the templates.
func tryRender(t *testing.T, namespace string, values ...string) (map[string]string, error) {
	t.Helper()
	merged := map[string]any{}
	for _, text := range values {
		v, err := common.ReadValues([]byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		merged = loader.MergeMaps(merged, v)
	}
	c := load(t)
	release := common.ReleaseOptions{Name: "ferry", Namespace: namespace, Revision: 1, IsInstall: true}
	top, err := util.ToRenderValues(c, merged, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.RenderWithContext(t.Context(), c, top)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for name, text := range files {
		texts[path.Base(name)] = text
	}
	return texts, nil
}

func render(t *testing.T, values ...string) map[string]string {
	t.Helper()
	texts, err := tryRender(t, namespace, values...)
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// everything are values with which all templates render all of their parts.
const everything = `
image: {repository: registry.example.org/ferry, digest: "sha256:` + digest + `", pullPolicy: IfNotPresent}
imagePullSecrets: [registry]
namespaces: {create: true}
relay:
  region: eu
  advertise: ExternalIP
  drainTimeout: 1h30m
  settings: {max_allocations: 2000000, gso: false, webhook_url: "https://example.org/", webhook_secret_file: /etc/ferry/secrets/webhook/key, idle_timeout: 15s, allow_origins: ["https://a.example.org", "https://b.example.org"]}
  secrets: {files: [webhook]}
  tolerations: [{key: relays, operator: Exists, effect: NoSchedule}]
  priorityClassName: relays
  podAnnotations: {example.org/team: games}
  stateSize: 2Gi
  autoscaling: {enabled: true}
api:
  settings:
    max_connections: 200
    server_per_minute: 1000000
    webhook_url: https://example.org/
    webhook_secret_file: /etc/ferry/secrets/webhook/key
    issuers: [{issuer: "https://id.example.org", audience: my-relay, jwks_url: "https://id.example.org/keys", project: my-game, environment: production}]
    quotas: [{project: my-game, allocations: 10000, regions: [eu, us]}]
  secrets: {adminToken: {name: ferry-api-admin}, files: [webhook]}
  nodeSelector: {example.org/pool: general}
  tolerations: [{key: general, operator: Exists}]
  priorityClassName: apis
  podAnnotations: {example.org/team: games}
  service: {type: LoadBalancer, annotations: {example.org/certificate: main}, loadBalancerClass: example.org/lb, loadBalancerSourceRanges: [198.51.100.0/24]}
  ingress: {enabled: true, className: nginx, annotations: {example.org/a: b}, host: relay.example.org, tlsSecret: api-tls}
  autoscaling: {enabled: true}
networkPolicy: {ingressCIDRs: [198.51.100.0/24]}
podMonitor: {enabled: true, labels: {release: prometheus}}
`

// dualStack are the values that everything has in another way.
const dualStack = `
certificates: {origin: cert-manager}
relay:
  advertise: example.org/relay
  ipFamilies: [IPv4, IPv6]
  hostNetwork: false
  websocket: {enabled: true, name: $(NODE_NAME).relays.example.org, tlsSecret: relay-tls}
  zoneSpread: {maxSkew: 2, whenUnsatisfiable: DoNotSchedule}
  autoscaling: {enabled: true, by: keda, prometheus: "http://prometheus.monitoring:9090"}
api: {service: {ipFamilyPolicy: RequireDualStack}}
`

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

var variants = map[string]string{
	"defaults":    "",
	"everything":  everything,
	"dual stack":  dualStack,
	"relays only": "api: {enabled: false}",
	"api only": `
api: {settings: {region_stores: [{region: eu, code_symbol: "6", store: "redis://eu.example.org:6379"}]}}
relay: {enabled: false}`,
	"players only": `
api: {settings: {tokens: [], issuers: [{preset: unity, project: 00000000-0000-0000-0000-000000000000}]}, secrets: {tokens: ""}}
networkPolicy: {enabled: false}`,
}

func init() {
	variants["fixed"] = strings.ReplaceAll(everything, "autoscaling: {enabled: true}", "replicas: 3")
}

func TestLint(t *testing.T) {
	for name, values := range variants {
		v, err := common.ReadValues([]byte(values))
		if err != nil {
			t.Fatal(err)
		}
		linter := lint.RunAll(directory, v, namespace)
		for _, m := range linter.Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
		if len(linter.Messages) > 1 {
			t.Errorf("%s: %v", name, linter.Messages)
		}
	}
}

// manifests are the files that templates write, other than kubernetes/NAME.
var manifests = map[string]string{"node-address.yaml": "node-address/rbac.yaml"}

const notice = "# `make manifests` writes this file from the chart in scripts/deploy/helm. Change the chart, or\n# patch the object in a kustomization of your own.\n#\n"

// TestManifests checks that the manifests are what the chart renders, byte for byte, and that no
// other manifest is there.
func TestManifests(t *testing.T) {
	values := read(t, filepath.Join(filepath.Dir(directory), "manifests.yaml"))
	texts := render(t, values)
	if text := texts["node-address.yaml"]; strings.TrimSpace(text) != "" {
		t.Errorf("an address of the node is for the component only:\n%s", text)
	}
	texts["node-address.yaml"] = render(t, values, "relay: {advertise: ExternalIP}")["node-address.yaml"]
	delete(texts, "NOTES.txt")
	written := map[string]bool{"kustomization.yaml": true, "node-address/kustomization.yaml": true, "node-address/relay.yaml": true}
	for name, text := range texts {
		if strings.TrimSpace(text) == "" {
			continue
		}
		target := name
		if other, ok := manifests[name]; ok {
			target = other
		}
		written[target] = true
		compare(t, filepath.Join(kubernetes, target), notice+text)
	}
	err := filepath.WalkDir(kubernetes, func(name string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(kubernetes, name)
		if err == nil && !d.IsDir() && !written[filepath.ToSlash(rel)] {
			t.Errorf("no template writes %s", rel)
		}
		return err
	})
	if err != nil || len(written) < 10 {
		t.Errorf("%d manifests: %v", len(written), err)
	}
}

// compare checks the content of a file, or writes it with -rewrite.
func compare(t *testing.T, name, want string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, name); got != want {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Errorf("%s is not what the chart says (make manifests) in line %d", name, 1+strings.Count(want[:at], "\n"))
	}
}

func TestNotes(t *testing.T) {
	notes := render(t)["NOTES.txt"]
	for _, want := range []string{
		"WARNING: image.digest", "kubectl label node NODE ferryrelay.dev/relay=yes", "up to 1h",
		"kubectl -n ferry exec deploy/api -- /ferry ctl nodes\n", `{"ferryrelay.dev/ingress":"yes"}`,
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
	notes = render(t, everything)["NOTES.txt"]
	if strings.Contains(notes, "WARNING") || !strings.Contains(notes, "--token-file /etc/ferry/admin/token") {
		t.Errorf("the notes are:\n%s", notes)
	}
	for name, values := range variants {
		if notes := render(t, values)["NOTES.txt"]; strings.Contains(notes, "<no value>") || strings.Contains(notes, "%!") {
			t.Errorf("%s: the notes are:\n%s", name, notes)
		}
	}
}
