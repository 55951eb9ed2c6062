package deploy

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// workload is a StatefulSet or a Deployment.
type workload struct {
	name, kind string
	*running
}

func (w workload) pod() *pod             { return &w.Spec.Template.Spec }
func (w workload) container() *container { return &w.pod().Containers[0] }
func (w workload) line() commandLine     { return commandLine{w.name, w.container().Args} }

// workloads returns the relays and the API.
func workloads(t *testing.T) (all []workload) {
	t.Helper()
	for _, o := range everything(t) {
		if r, ok := o.body.(*running); ok {
			all = append(all, workload{o.name, o.kind, r})
		}
	}
	if len(all) != 2 {
		t.Fatalf("%d workloads", len(all))
	}
	return all
}

// port returns the number of a named port, or 0.
func (w workload) port(name string) int {
	for _, p := range w.container().Ports {
		if p.Name == name {
			return p.Port
		}
	}
	return 0
}

// TestPorts checks that the flags open every port of a manifest.
func TestPorts(t *testing.T) {
	t.Parallel()
	flags := map[string]string{"relay": "udp", "http": "http", "admin": "admin", "cluster": "cluster"}
	for _, w := range workloads(t) {
		for _, p := range w.container().Ports {
			_, port, _ := net.SplitHostPort(w.line().flag(flags[p.Name]))
			if port != strconv.Itoa(p.Port) {
				t.Errorf("%s: port %s is %d, and --%s has %q", w.name, p.Name, p.Port, flags[p.Name], port)
			}
			if udp := p.Name == "relay"; udp != (p.Protocol == "UDP") {
				t.Errorf("%s: port %s is %s", w.name, p.Name, p.Protocol)
			}
			if w.pod().HostNetwork && p.HostPort != p.Port || !w.pod().HostNetwork && p.HostPort != 0 {
				t.Errorf("%s: port %s of the node is %d", w.name, p.Name, p.HostPort)
			}
		}
		if got := w.Spec.Template.Metadata.Annotations["prometheus.io/port"]; got != strconv.Itoa(w.port("admin")) {
			t.Errorf("%s: scraped at %s", w.name, got)
		}
	}
	for _, o := range everything(t) {
		s, ok := o.body.(*kubeService)
		if !ok {
			continue
		}
		w := selected(t, o.name, s.Spec.Selector)
		for _, p := range s.Spec.Ports {
			if w.port(p.TargetPort) == 0 {
				t.Errorf("service %s: %s has no port %s", o.name, w.name, p.TargetPort)
			}
		}
	}
}

// selected returns the workload whose pods have the labels.
func selected(t *testing.T, who string, want map[string]string) workload {
	t.Helper()
	for _, w := range workloads(t) {
		match := len(want) > 0
		for key, value := range want {
			match = match && w.Spec.Template.Metadata.Labels[key] == value
		}
		if match {
			return w
		}
	}
	t.Fatalf("%s: no pods have the labels %v", who, want)
	return workload{}
}

// TestProbes checks that a running ferry answers the probes.
func TestProbes(t *testing.T) {
	t.Parallel()
	_, admin := dev(t)
	for _, w := range workloads(t) {
		c := w.container()
		probes := []*probe{c.Live, c.Ready}
		if c.Startup != nil {
			probes = append(probes, c.Startup)
		}
		for _, p := range probes {
			if p == nil {
				t.Fatalf("%s lacks a probe", w.name)
			}
			if _, status := get(t, admin+p.HTTP.Path); status != http.StatusOK || p.HTTP.Port != "admin" {
				t.Errorf("%s: %s at %s answers %d", w.name, p.HTTP.Path, p.HTTP.Port, status)
			}
			if p.Failures*p.Period < p.Timeout && p != c.Ready {
				t.Errorf("%s: %+v gives up before an answer can have come", w.name, p)
			}
		}
		// /livez waits up to 2 s for workers and 2 s for an answer.
		if c.Live.Timeout < 5 || c.Live.HTTP.Path != "/livez" || c.Ready.HTTP.Path != "/readyz" {
			t.Errorf("%s: probes %+v, %+v", w.name, c.Live, c.Ready)
		}
	}
}

// TestPods checks that pods have no unneeded privileges and all files that they
// read.
func TestPods(t *testing.T) {
	t.Parallel()
	for _, w := range workloads(t) {
		p, c := w.pod(), w.container()
		if p.ServiceLinks == nil || *p.ServiceLinks {
			t.Errorf("%s: enableServiceLinks makes variables FERRY_…, which the binary refuses", w.name)
		}
		if p.Automount == nil || *p.Automount {
			t.Errorf("%s has a token for the cluster's API", w.name)
		}
		if p.Security["runAsNonRoot"] != true || p.Security["runAsUser"] != 65532 || p.Security["seccompProfile"] == nil {
			t.Errorf("%s runs as %v", w.name, p.Security)
		}
		if c.Security.Escalation == nil || *c.Security.Escalation || !c.Security.ReadOnly ||
			!slices.Equal(c.Security.Caps["drop"], []string{"ALL"}) {
			t.Errorf("%s: %+v", w.name, c.Security)
		}
		if c.Resources.Limits["memory"] == "" || c.Resources.Requests["cpu"] == "" || c.Resources.Limits["cpu"] != "" {
			t.Errorf("%s: resources %+v", w.name, c.Resources)
		}
		for key, value := range w.Spec.Selector.Match {
			if w.Spec.Template.Metadata.Labels[key] != value {
				t.Errorf("%s does not select its own pods by %s", w.name, key)
			}
		}
		for _, c := range w.pod().InitContainers {
			if c.Security.Escalation == nil || *c.Security.Escalation || !c.Security.ReadOnly || len(c.Security.Caps["drop"]) != 1 {
				t.Errorf("%s: %s: %+v", w.name, c.Name, c.Security)
			}
		}
		checkMounts(t, w)
	}
}

// TestNamespaces checks that only pods on the node's network are in a namespace that
// allows them, and that an admission policy holds there.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	levels, policies, bound := map[string]string{}, map[string]*admissionPolicy{}, map[string]*admissionPolicy{}
	for _, o := range everything(t) {
		switch b := o.body.(type) {
		case *plain:
			if o.kind == "Namespace" {
				levels[o.name] = b.Metadata.Labels["pod-security.kubernetes.io/enforce"]
			}
		case *admissionPolicy:
			if o.kind == "ValidatingAdmissionPolicy" {
				policies[o.name] = b
			} else {
				bound[b.Spec.Match["namespaceSelector"].Match["kubernetes.io/metadata.name"]] = b
			}
		}
	}
	for _, w := range workloads(t) {
		want := "restricted"
		if w.pod().HostNetwork {
			want = "privileged"
		}
		if got := levels[w.Metadata.Namespace]; got != want {
			t.Errorf("%s is in the namespace %s of level %q, want %q", w.name, w.Metadata.Namespace, got, want)
		}
	}
	for name, level := range levels {
		b := bound[name]
		switch {
		case level == "restricted":
		case b == nil || !slices.Equal(b.Spec.Actions, []string{"Deny"}) || policies[b.Spec.Policy] == nil:
			t.Errorf("the namespace %s has the level %s and no policy", name, level)
		default:
			p := policies[b.Spec.Policy].Spec
			if p.Failure != "Fail" || !strings.Contains(fmt.Sprint(p.Constraints), "CREATE UPDATE") || len(p.Validations) != 5 {
				t.Errorf("the policy of %s is %+v", name, p)
			}
		}
	}
	for _, o := range everything(t) {
		space := map[string]string{"api": "ferry", "relay": "ferry-relays"}
		switch b := o.body.(type) {
		case *running, *kubeService, *budget, *autoscaler, *networkPolicy:
			h := reflect.ValueOf(b).Elem().FieldByName("Metadata").Interface().(meta)
			if want := space[strings.TrimSuffix(o.name, "s")]; h.Namespace != want && o.name != "default-deny" {
				t.Errorf("%s %s is in the namespace %q, want %q", o.kind, o.name, h.Namespace, want)
			}
		}
	}
}

// TestCertificatesOfRelays runs the script that copies a relay's certificate: the relay
// sees its own only, and a renewed one soon.
func TestCertificatesOfRelays(t *testing.T) {
	t.Parallel()
	relay := selected(t, "relay", map[string]string{"app.kubernetes.io/component": "relay"})
	for _, m := range relay.container().Mounts {
		if m.Name == "certificates" || m.Name == "own-certificate" && !m.ReadOnly {
			t.Errorf("the relay mounts %+v", m)
		}
	}
	i := slices.IndexFunc(relay.pod().InitContainers, func(c container) bool { return c.Name == "certificates" })
	if i < 0 || relay.pod().InitContainers[i].Restart != "Always" {
		t.Fatal("no container follows renewed certificates")
	}
	from, to := t.TempDir(), t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"ca.pem", "relay-0.pem", "relay-0-key.pem", "relay-1.pem", "relay-1-key.pem"} {
		put(name, name)
	}
	script := strings.NewReplacer("/run/certificates", from, "/run/own", to, "sleep 10", "sleep 0.05").
		Replace(relay.pod().InitContainers[i].Args[0])
	cmd := exec.Command("/bin/sh", "-ec", script)
	cmd.Env = append(os.Environ(), "POD_NAME=relay-1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until := func(name, want string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if text, err := os.ReadFile(filepath.Join(to, name)); err == nil && string(text) == want {
				return
			}
		}
		t.Errorf("%s is not %q within a minute", name, want)
	}
	until("relay.pem", "relay-1.pem")
	until("relay-key.pem", "relay-1-key.pem")
	until("ca.pem", "ca.pem")
	put("relay-1.pem", "renewed")
	until("relay.pem", "renewed")
	if files, _ := os.ReadDir(to); len(files) != 3 {
		t.Errorf("the relay sees %v", files)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the script ends with %v", err)
	}
}

// TestAdminOfTheNode checks that the admin pages of a pod on the node's network are at one
// address and require a token.
func TestAdminOfTheNode(t *testing.T) {
	t.Parallel()
	for _, w := range workloads(t) {
		if !w.pod().HostNetwork {
			continue
		}
		host, _, _ := net.SplitHostPort(w.line().flag("admin"))
		field := ""
		for _, e := range w.container().Env {
			if "$("+e.Name+")" == host {
				field = e.From.Field["fieldPath"]
			}
		}
		loopback := host == "127.0.0.1" || host == ""
		if !loopback && (field != "status.podIP" || w.line().flag("admin-token-file") == "") {
			t.Errorf("%s: the admin pages are at %q (%s), token %q", w.name, host, field, w.line().flag("admin-token-file"))
		}
	}
	relay := commandLine{"relay", readCompose(t).Services["relay"].Command}
	if admin := relay.flag("admin"); admin != "" && !strings.HasPrefix(admin, "127.0.0.1:") {
		t.Errorf("compose: the admin pages of the relay are at %s", admin)
	}
}

// checkMounts checks that volumes exist, are used, and hold the files that the
// flags name.
func checkMounts(t *testing.T, w workload) {
	t.Helper()
	have, used := make(map[string]bool), make(map[string]bool)
	for _, v := range w.pod().Volumes {
		have[v.Name] = true
		if v.Secret != nil && v.Secret.Mode != 0o440 {
			t.Errorf("%s: the files of %s have mode %o", w.name, v.Name, v.Secret.Mode)
		}
	}
	for _, claim := range w.Spec.Claims {
		have[claim.Metadata.Name] = true
	}
	mounts := w.container().Mounts
	for _, c := range w.pod().InitContainers {
		mounts = append(slices.Clone(mounts), c.Mounts...)
	}
	for _, m := range mounts {
		// The container on the internet may not write its certificate: TestCertificatesOfRelays.
		if used[m.Name] = true; !have[m.Name] || !m.ReadOnly && m.Name != "state" && m.Name != "own-certificate" {
			t.Errorf("%s: the mount %s is of no volume, or can be written to", w.name, m.Name)
		}
	}
	for name := range have {
		if !used[name] {
			t.Errorf("%s: the volume %s is not used", w.name, name)
		}
	}
	for _, arg := range w.container().Args {
		if _, path, ok := strings.Cut(arg, "=/"); ok {
			mounted := slices.ContainsFunc(w.container().Mounts, func(m mount) bool {
				return "/"+path == m.Path || strings.HasPrefix("/"+path, m.Path+"/")
			})
			if !mounted {
				t.Errorf("%s: nothing is mounted for %s", w.name, arg)
			}
		}
	}
}

// TestReferences checks that the objects that other objects name exist.
func TestReferences(t *testing.T) {
	t.Parallel()
	readme, seen := read(t, "README.md"), make(map[string]bool)
	for _, o := range everything(t) {
		if seen[o.kind+o.name] {
			t.Errorf("%s %s is there twice", o.kind, o.name)
		}
		seen[o.kind+o.name] = true
	}
	for _, o := range everything(t) {
		switch b := o.body.(type) {
		case *budget:
			if w := selected(t, o.name, b.Spec.Selector.Match); w.name != o.name || b.Spec.MaxUnavailable != 1 {
				t.Errorf("the budget %s is for %s", o.name, w.name)
			}
		case *autoscaler:
			if target := b.Spec.Target; !seen[target["kind"]+target["name"]] || b.Spec.Min < 2 || b.Spec.Max <= b.Spec.Min {
				t.Errorf("%s scales %v", o.name, target)
			}
		case *networkPolicy:
			for _, in := range b.Spec.Ingress {
				for _, p := range in.Ports {
					if selected(t, o.name, b.Spec.Selector.Match).port(p["port"]) == 0 {
						t.Errorf("policy %s: no port %s", o.name, p["port"])
					}
				}
			}
		case *running:
			for _, name := range secretsOf(workload{o.name, o.kind, b}) {
				if !strings.Contains(readme, "create secret generic "+name+" ") {
					t.Errorf("%s: README does not say how the secret %s is made", o.name, name)
				}
			}
			if s := b.Spec.ServiceName; s != "" && !seen["Service"+s] {
				t.Errorf("%s: no service %s", o.name, s)
			}
			for _, v := range b.Spec.Template.Spec.Volumes {
				if v.ConfigMap != nil && !seen["ConfigMap"+v.ConfigMap.Name] {
					t.Errorf("%s: no ConfigMap %s", o.name, v.ConfigMap.Name)
				}
			}
		}
	}
}

// secretsOf returns the secrets that a workload reads.
func secretsOf(w workload) (names []string) {
	for _, v := range w.pod().Volumes {
		if v.Secret != nil {
			names = append(names, v.Secret.Name)
		}
	}
	for _, e := range w.container().Env {
		if e.From.Secret.Name != "" {
			names = append(names, e.From.Secret.Name)
		}
	}
	return names
}

// kustomization is a kustomization file.
type kustomization struct {
	APIVersion string              `yaml:"apiVersion"`
	Kind       string              `yaml:"kind"`
	Namespace  string              `yaml:"namespace"`
	Resources  []string            `yaml:"resources"`
	Images     []map[string]string `yaml:"images"`
	Patches    []struct {
		Path   string            `yaml:"path"`
		Target map[string]string `yaml:"target"`
	} `yaml:"patches"`
}

// TestKustomization checks that every manifest is listed and that the patch is
// for an existing workload.
func TestKustomization(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]string{"kubernetes": "Kustomization", "kubernetes/node-address": "Component"} {
		var k kustomization
		if err := strict([]byte(read(t, filepath.Join(dir, "kustomization.yaml"))), &k); err != nil {
			t.Fatal(err)
		}
		listed := append([]string{"kustomization.yaml"}, k.Resources...)
		for _, p := range k.Patches {
			listed = append(listed, p.Path)
		}
		files, _ := filepath.Glob(dir + "/*.yaml")
		for i := range files {
			files[i] = filepath.Base(files[i])
		}
		slices.Sort(listed)
		if slices.Sort(files); k.Kind != want || !slices.Equal(files, listed) {
			t.Errorf("%s: %s with %q, and there are %q", dir, k.Kind, listed, files)
		}
	}
}

// TestNodeAddress checks that the relay reads the file that the patch writes,
// and that no other setting overrides it.
func TestNodeAddress(t *testing.T) {
	t.Parallel()
	patch := objects(t, "kubernetes/node-address/relay.yaml")[0].body.(*running)
	relay := selected(t, "patch", map[string]string{"app.kubernetes.io/component": "relay"})
	init, c := patch.Spec.Template.Spec.InitContainers[0], patch.Spec.Template.Spec.Containers[0]
	if c.Name != relay.container().Name || patch.Metadata.Name != relay.name {
		t.Errorf("the patch is for %s of %s", c.Name, patch.Metadata.Name)
	}
	deleted := ""
	for _, e := range c.Env {
		if e.Name == "FERRY_CONFIG" && !strings.Contains(init.Args[0], ">"+e.Value) {
			t.Errorf("the relay reads %s, which no object defines", e.Value)
		}
		if e.Patch == "delete" {
			deleted += e.Name
		}
	}
	if deleted != "FERRY_ADVERTISE" {
		t.Errorf("the patch takes %q away", deleted)
	}
	for _, m := range c.Mounts {
		if m.Name == "token" {
			t.Error("the relay has a token for the cluster's API")
		}
	}
	written := regexp.MustCompile(`echo "(advertise: )\$a"`).FindStringSubmatch(init.Args[0])
	if written == nil {
		t.Fatal("no line is written that the relay reads")
	}
	checkKeys(t, "node-address", "relay", written[1]+"203.0.113.7")
}

// TestKubectl checks that kubectl builds the manifests.
func TestKubectl(t *testing.T) {
	t.Parallel()
	path := tool(t, "kubectl")
	out, err := exec.Command(path, "kustomize", "kubernetes").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "\nkind: "); n < 11 {
		t.Errorf("%d objects:\n%s", n, out)
	}
}
