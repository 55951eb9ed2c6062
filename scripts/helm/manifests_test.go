package helm

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
)

func (w workload) port(name string) int {
	for _, p := range w.container().Ports {
		if p.Name == name {
			return int(p.ContainerPort)
		}
	}
	return 0
}

func selected(t *testing.T, all []object, who object, want map[string]string) workload {
	t.Helper()
	for _, w := range workloads(t, all) {
		match := len(want) > 0
		for key, value := range want {
			match = match && w.template.Labels[key] == value
		}
		if match {
			return w
		}
	}
	t.Fatalf("%v: no pods have the labels %v", who, want)
	return workload{}
}

// TestPorts checks that the flags open every port of a manifest.
func TestPorts(t *testing.T) {
	flags := map[string]string{"relay": "udp", "http": "http", "admin": "admin", "cluster": "cluster"}
	all := kustomized(t, "")
	for _, w := range workloads(t, all) {
		onNode := w.template.Spec.HostNetwork
		for _, p := range w.container().Ports {
			number := int(p.ContainerPort)
			if _, port, _ := net.SplitHostPort(w.flag(flags[p.Name])); port != strconv.Itoa(number) {
				t.Errorf("%v: port %s is %d, and --%s has %q", w, p.Name, number, flags[p.Name], port)
			}
			if udp := p.Name == "relay"; udp != (p.Protocol == corev1.ProtocolUDP) {
				t.Errorf("%v: port %s is %s", w, p.Name, p.Protocol)
			}
			if onNode && p.HostPort != p.ContainerPort || !onNode && p.HostPort != 0 {
				t.Errorf("%v: port %s of the node is %d", w, p.Name, p.HostPort)
			}
		}
		if got := w.template.Annotations["prometheus.io/port"]; got != strconv.Itoa(w.port("admin")) {
			t.Errorf("%v: scraped at %s", w, got)
		}
	}
	for _, o := range all {
		s, ok := o.typed.(*corev1.Service)
		if !ok {
			continue
		}
		w := selected(t, all, o, s.Spec.Selector)
		for _, p := range s.Spec.Ports {
			if w.port(p.TargetPort.String()) == 0 {
				t.Errorf("%v: %v has no port %s", o, w, p.TargetPort.String())
			}
		}
	}
}

// TestProbes checks that a running ferry answers the probes.
func TestProbes(t *testing.T) {
	_, admin := dev(t)
	for _, w := range workloads(t, kustomized(t, "")) {
		c := w.container()
		probes := []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe}
		if c.StartupProbe != nil {
			probes = append(probes, c.StartupProbe)
		}
		for _, p := range probes {
			if p == nil {
				t.Fatalf("%v lacks a probe", w)
			}
			if _, status := get(t, admin+p.HTTPGet.Path); status != http.StatusOK || p.HTTPGet.Port.String() != "admin" {
				t.Errorf("%v: %s at %s answers %d", w, p.HTTPGet.Path, p.HTTPGet.Port.String(), status)
			}
			if p.FailureThreshold*p.PeriodSeconds < p.TimeoutSeconds && p != c.ReadinessProbe {
				t.Errorf("%v: %+v gives up before an answer can have come", w, p)
			}
		}
		// /livez waits up to 2 s for workers and 2 s for an answer.
		if c.LivenessProbe.TimeoutSeconds < 5 || c.LivenessProbe.HTTPGet.Path != "/livez" || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
			t.Errorf("%v: probes %+v, %+v", w, c.LivenessProbe, c.ReadinessProbe)
		}
	}
}

// TestPods checks that pods have no unneeded privileges and all files that they read.
func TestPods(t *testing.T) {
	for _, w := range workloads(t, kustomized(t, "")) {
		p, c := w.template.Spec, w.container()
		if p.EnableServiceLinks == nil || *p.EnableServiceLinks {
			t.Errorf("%v: enableServiceLinks makes variables FERRY_…, which the binary refuses", w)
		}
		if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
			t.Errorf("%v has a token for the cluster's API", w)
		}
		if s := p.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser != 65532 ||
			s.SeccompProfile == nil {
			t.Errorf("%v runs as %v", w, s)
		}
		for _, c := range append(slices.Clone(p.InitContainers), c) {
			if s := c.SecurityContext; s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
				s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.Capabilities == nil ||
				!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%v: %s: %+v", w, c.Name, s)
			}
		}
		limits, requests := c.Resources.Limits, c.Resources.Requests
		if limits.Memory().IsZero() || requests.Cpu().IsZero() || !limits.Cpu().IsZero() {
			t.Errorf("%v: resources %+v", w, c.Resources)
		}
		if drain := w.flag("drain-timeout"); (w.role == "relay") != (drain != "") ||
			drain != "" && !strings.Contains(read(t, files+"/README.md"), "`--drain-timeout "+drain+"`") {
			t.Errorf("%v drains for %q: only relays drain, and README says for how long", w, drain)
		}
		checkMounts(t, w)
	}
}

func checkMounts(t *testing.T, w workload) {
	t.Helper()
	used, mounts := map[string]bool{}, slices.Clone(w.container().VolumeMounts)
	for _, c := range w.template.Spec.InitContainers {
		mounts = append(mounts, c.VolumeMounts...)
	}
	for _, m := range mounts {
		// The container on the internet may not write its certificate.
		if used[m.Name] = true; !m.ReadOnly && m.Name != "state" && m.Name != "own-certificate" {
			t.Errorf("%v: the mount %s can be written to", w, m.Name)
		}
	}
	for _, v := range w.template.Spec.Volumes {
		if !used[v.Name] {
			t.Errorf("%v: the volume %s is not used", w, v.Name)
		}
		if v.Secret != nil && *v.Secret.DefaultMode != 0o440 {
			t.Errorf("%v: the files of %s have mode %o", w, v.Name, *v.Secret.DefaultMode)
		}
	}
	for _, arg := range w.container().Args {
		if _, path, ok := strings.Cut(arg, "=/"); ok {
			mounted := slices.ContainsFunc(w.container().VolumeMounts, func(m corev1.VolumeMount) bool {
				return "/"+path == m.MountPath || strings.HasPrefix("/"+path, m.MountPath+"/")
			})
			if !mounted {
				t.Errorf("%v: nothing is mounted for %s", w, arg)
			}
		}
	}
}

// TestNamespaces checks that only pods on the node's network are in a namespace that allows them,
// that an admission policy holds there, and that each object is in the namespace of its pods.
func TestNamespaces(t *testing.T) {
	levels := map[string]string{}
	policies, bound := map[string]*admissionv1.ValidatingAdmissionPolicy{}, map[string]*admissionv1.ValidatingAdmissionPolicyBinding{}
	all := kustomized(t, "")
	for _, o := range all {
		switch b := o.typed.(type) {
		case *corev1.Namespace:
			levels[b.Name] = b.Labels["pod-security.kubernetes.io/enforce"]
		case *admissionv1.ValidatingAdmissionPolicy:
			policies[b.Name] = b
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			bound[b.Spec.MatchResources.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"]] = b
		case *appsv1.Deployment, *corev1.Service, *policyv1.PodDisruptionBudget, *autoscalingv2.HorizontalPodAutoscaler, *networkingv1.NetworkPolicy:
			want := map[string]string{"api": "ferry", "relay": "ferry-relays"}[strings.TrimSuffix(o.fields.GetName(), "s")]
			if got := o.fields.GetNamespace(); got != want && o.fields.GetName() != "default-deny" {
				t.Errorf("%v is in the namespace %q, want %q", o, got, want)
			}
		}
	}
	for _, w := range workloads(t, all) {
		want := "restricted"
		if w.template.Spec.HostNetwork {
			want = "privileged"
		}
		if got := levels[w.fields.GetNamespace()]; got != want {
			t.Errorf("%v is in the namespace %s of level %q, want %q", w, w.fields.GetNamespace(), got, want)
		}
	}
	for name, level := range levels {
		b := bound[name]
		switch {
		case level == "restricted":
		case b == nil || !slices.Equal(b.Spec.ValidationActions, []admissionv1.ValidationAction{"Deny"}) || policies[b.Spec.PolicyName] == nil:
			t.Errorf("the namespace %s has the level %s and no policy", name, level)
		default:
			p := policies[b.Spec.PolicyName].Spec
			operations := p.MatchConstraints.ResourceRules[0].Operations
			if *p.FailurePolicy != admissionv1.Fail || len(p.Validations) != 5 ||
				!slices.Equal(operations, []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}) {
				t.Errorf("the policy of %s is %+v", name, p)
			}
		}
	}
}

// TestAdminOfTheNode checks that the admin pages of a pod on the node's network are at the pod's
// address alone, and require a token.
func TestAdminOfTheNode(t *testing.T) {
	for _, w := range workloads(t, kustomized(t, "")) {
		if !w.template.Spec.HostNetwork {
			continue
		}
		host, _, _ := net.SplitHostPort(w.flag("admin"))
		field := ""
		for _, e := range w.container().Env {
			if "$("+e.Name+")" == host {
				field = e.ValueFrom.FieldRef.FieldPath
			}
		}
		if field != "status.podIP" || w.flag("admin-token-file") == "" {
			t.Errorf("%v: the admin pages are at %q (%s), token %q", w, host, field, w.flag("admin-token-file"))
		}
	}
}

// TestReferences checks that the objects that other objects name exist.
func TestReferences(t *testing.T) {
	readme, seen := read(t, files+"/README.md"), map[string]bool{}
	all := kustomized(t, "")
	for _, o := range all {
		seen[o.String()] = true
	}
	for _, o := range all {
		switch b := o.typed.(type) {
		case *policyv1.PodDisruptionBudget:
			if w := selected(t, all, o, b.Spec.Selector.MatchLabels); w.fields.GetName() != b.Name || b.Spec.MaxUnavailable.IntValue() != 1 {
				t.Errorf("%v is for %v", o, w)
			}
		case *autoscalingv2.HorizontalPodAutoscaler:
			target := b.Spec.ScaleTargetRef
			if !seen[target.Kind+" "+target.Name] || *b.Spec.MinReplicas < 2 || b.Spec.MaxReplicas <= *b.Spec.MinReplicas {
				t.Errorf("%v scales %v", o, target)
			}
		case *networkingv1.NetworkPolicy:
			for _, in := range b.Spec.Ingress {
				for _, p := range in.Ports {
					if selected(t, all, o, b.Spec.PodSelector.MatchLabels).port(p.Port.String()) == 0 {
						t.Errorf("%v: no port %s", o, p.Port)
					}
				}
			}
		}
	}
	for _, w := range workloads(t, all) {
		for name := range secretsOf(w) {
			if name != "ferry-authority" && !strings.Contains(readme, "create secret generic "+name+" ") { // The Job makes it.
				t.Errorf("%v: README does not say how the secret %s is made", w, name)
			}
		}
		for _, v := range w.template.Spec.Volumes {
			if v.ConfigMap != nil && !seen["ConfigMap "+v.ConfigMap.Name] {
				t.Errorf("%v: no ConfigMap %s", w, v.ConfigMap.Name)
			}
		}
	}
}

func secretsOf(w workload) map[string]bool {
	names := map[string]bool{}
	for _, v := range w.template.Spec.Volumes {
		if v.Secret != nil {
			names[v.Secret.SecretName] = true
		}
	}
	for _, e := range w.container().Env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			names[e.ValueFrom.SecretKeyRef.Name] = true
		}
	}
	return names
}
