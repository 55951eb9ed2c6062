package helm

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// TestPodSecurity checks that the namespace of the API, of the level restricted, admits its pods,
// and that a relay breaks no rule of that level but those of the node's network.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range variants {
		all := objects(t, render(t, values))
		found := workloads(t, all)
		for _, o := range all {
			if job, ok := o.typed.(*batchv1.Job); ok {
				found = append(found, workload{"authority", o, job.Spec.Template})
			}
		}
		for _, w := range found {
			level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
			var broken []string
			for _, result := range evaluator.EvaluatePod(level, &w.template.ObjectMeta, &w.template.Spec) {
				if !result.Allowed {
					broken = append(broken, result.ForbiddenReason)
				}
			}
			want := map[string]string{"api": "[]", "authority": "[]", "relay": "[host namespaces hostPort]"}[w.role]
			if w.role == "relay" && !w.template.Spec.HostNetwork {
				want = "[hostPort]"
			}
			if got := fmt.Sprint(broken); got != want {
				t.Errorf("%s: the pods of the %s break the rules %s, want %s", name, w.role, got, want)
			}
		}
	}
}

func fieldsOf(t *testing.T, o any) map[string]any {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

// admits reports whether an admission policy admits a pod, and the message of the first rule that
// does not.
func admits(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy, pod *corev1.Pod) (bool, string) {
	t.Helper()
	env, err := cel.NewEnv(cel.Variable("object", cel.DynType), cel.Variable("variables", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{}
	known := map[string]any{"object": fieldsOf(t, pod), "variables": variables}
	evaluate := func(expression string) any {
		t.Helper()
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expression, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		value, _, err := program.Eval(known)
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		return value.Value()
	}
	for _, v := range p.Spec.Variables {
		variables[v.Name] = evaluate(v.Expression)
	}
	for _, v := range p.Spec.Validations {
		if evaluate(v.Expression) != true {
			return false, v.Message
		}
	}
	return true, ""
}

// TestAdmissionPolicy checks that the policy of the relays' namespace admits the relays of each
// variant, and no pod with a privilege that a relay does not have.
func TestAdmissionPolicy(t *testing.T) {
	changes := map[string]struct {
		message string
		change  func(*corev1.PodSpec)
	}{
		"process namespace":    {"no process", func(p *corev1.PodSpec) { p.HostPID = true }},
		"ephemeral containers": {"no process", func(p *corev1.PodSpec) { p.EphemeralContainers = make([]corev1.EphemeralContainer, 1) }},
		"path of the node": {"no volume of the node", func(p *corev1.PodSpec) {
			p.Volumes[0] = corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}
		}},
		"root":       {"another user than root", func(p *corev1.PodSpec) { p.SecurityContext.RunAsUser = new(int64) }},
		"sysctls":    {"another user than root", func(p *corev1.PodSpec) { p.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "a"}} }},
		"privileged": {"no privileges", func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.Privileged = new(true) }},
		"capability": {"no privileges", func(p *corev1.PodSpec) {
			p.InitContainers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_RAW"}
		}},
		"ssh": {"only the ports", func(p *corev1.PodSpec) { p.Containers[0].Ports[0].HostPort = 22 }},
	}
	for name, values := range variants {
		all := objects(t, render(t, values))
		var admission *admissionv1.ValidatingAdmissionPolicy
		for _, o := range all {
			switch b := o.typed.(type) {
			case *admissionv1.ValidatingAdmissionPolicy:
				admission = b
			case *admissionv1.ValidatingAdmissionPolicyBinding:
				labels := b.Spec.MatchResources.NamespaceSelector.MatchLabels
				if b.Spec.PolicyName != admission.Name || labels["kubernetes.io/metadata.name"] != "ferry-relays" {
					t.Errorf("%s: the binding is %+v", name, b.Spec)
				}
			}
		}
		for _, w := range workloads(t, all) {
			if w.role != "relay" {
				continue
			}
			pod := &corev1.Pod{ObjectMeta: w.template.ObjectMeta, Spec: w.template.Spec}
			if ok, message := admits(t, admission, pod); !ok {
				t.Errorf("%s: a relay is refused: %s", name, message)
			}
			for what, c := range changes {
				changed := pod.DeepCopy()
				c.change(&changed.Spec)
				if ok, message := admits(t, admission, changed); ok || !strings.Contains(message, c.message) {
					t.Errorf("%s: %s is admitted %v, with %q", name, what, ok, message)
				}
			}
		}
	}
}

// TestAdmin checks that the admin pages of no process are in a Service or an Ingress, that a network
// policy lets only namespaces of Prometheus in, and that a relay has them at one address, behind a token.
func TestAdmin(t *testing.T) {
	isAdmin := func(port intstr.IntOrString) bool { return port.String() == "admin" || port.String() == "7778" }
	services, policies := 0, 0
	for name, values := range variants {
		all := objects(t, render(t, values))
		for _, o := range all {
			switch b := o.typed.(type) {
			case *corev1.Service:
				services++
				for _, p := range b.Spec.Ports {
					if isAdmin(p.TargetPort) || p.Port == 7778 || p.Name == "admin" {
						t.Errorf("%s: service %s has the admin pages", name, b.Name)
					}
				}
			case *networkingv1.Ingress:
				for _, path := range b.Spec.Rules[0].HTTP.Paths {
					if path.Backend.Service.Port.Name != "http" {
						t.Errorf("%s: the ingress has the port %+v", name, path.Backend.Service.Port)
					}
				}
			case *networkingv1.NetworkPolicy:
				policies++
				for _, rule := range b.Spec.Ingress {
					if len(rule.Ports) != 1 || len(rule.From) == 0 {
						t.Errorf("%s: a rule of %s has %d ports and %d peers", name, b.Name, len(rule.Ports), len(rule.From))
						continue
					}
					for _, peer := range rule.From {
						prometheus := peer.NamespaceSelector != nil && maps.Equal(peer.NamespaceSelector.MatchLabels,
							map[string]string{"ferryrelay.dev/monitoring": "yes"})
						if isAdmin(*rule.Ports[0].Port) != prometheus {
							t.Errorf("%s: %+v reach the port %s", name, peer, rule.Ports[0].Port)
						}
					}
				}
			}
		}
		for _, w := range workloads(t, all) {
			admin, token := w.flag("admin"), w.flag("admin-token-file")
			if w.role == "relay" && (admin != "[$(POD_IP)]:7778" || token == "") ||
				w.role == "api" && admin != "0.0.0.0:7778" && admin != "[::]:7778" {
				t.Errorf("%s: the admin pages of the %s are at %s, with the token %q", name, w.role, admin, token)
			}
			if isHost := w.template.Spec.HostNetwork; isHost != (w.role == "relay" && name != "dual stack") {
				t.Errorf("%s: the %s is on the node's network: %v", name, w.role, isHost)
			}
		}
	}
	if services < 5 || policies < 8 {
		t.Errorf("%d services and %d policies", services, policies)
	}
}

func TestOneRelayPerNode(t *testing.T) {
	for name, values := range variants {
		for _, w := range workloads(t, objects(t, render(t, values))) {
			if w.role != "relay" {
				continue
			}
			terms := w.template.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			if len(terms) != 1 || terms[0].TopologyKey != "kubernetes.io/hostname" {
				t.Fatalf("%s: %+v", name, terms)
			}
			for key, value := range terms[0].LabelSelector.MatchLabels {
				if w.template.Labels[key] != value {
					t.Errorf("%s: the pods do not avoid each other by %s", name, key)
				}
			}
		}
	}
}

// TestDrain checks that Kubernetes waits for the drain of a relay and for the calls of an API process.
func TestDrain(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1h": time.Hour, "1h30m": 90 * time.Minute, "45m10s": 45*time.Minute + 10*time.Second, "90s": 90 * time.Second,
		"0s": 0, "168h": 168 * time.Hour, "10h5s": 10*time.Hour + 5*time.Second,
	} {
		for _, w := range workloads(t, checkObjects(t, render(t, "relay: {drainTimeout: "+text+"}"))) {
			got := time.Duration(*w.template.Spec.TerminationGracePeriodSeconds) * time.Second
			if drain := w.flag("drain-timeout"); w.role == "relay" && (got != want+time.Minute || drain != text) {
				t.Errorf("%s: drains for %s, and is killed after %v", text, drain, got)
			}
		}
	}
	const longestCall = 10 * time.Second
	for _, seconds := range []int64{1, 5, 60} {
		for _, w := range workloads(t, checkObjects(t, render(t, fmt.Sprintf("api: {preStopSeconds: %d}", seconds)))) {
			if w.role != "api" {
				continue
			}
			sleep := time.Duration(w.container().Lifecycle.PreStop.Sleep.Seconds) * time.Second
			if got := time.Duration(*w.template.Spec.TerminationGracePeriodSeconds) * time.Second; sleep != time.Duration(seconds)*time.Second ||
				got < sleep+longestCall+5*time.Second {
				t.Errorf("the API sleeps for %v and is killed after %v", sleep, got)
			}
		}
	}
}
