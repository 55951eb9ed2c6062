package deploy

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// workload is a Deployment.
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
	mounts := w.container().Mounts
	for _, c := range w.pod().InitContainers {
		mounts = append(slices.Clone(mounts), c.Mounts...)
	}
	for _, m := range mounts {
		// The container on the internet may not write its certificate.
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
		if seen[o.kind+o.name] && !strings.HasPrefix(o.kind, "Role") { // There are roles of one name in two namespaces.
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
				if name != "ferry-authority" && !strings.Contains(readme, "create secret generic "+name+" ") { // The Job makes it.
					t.Errorf("%s: README does not say how the secret %s is made", o.name, name)
				}
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
