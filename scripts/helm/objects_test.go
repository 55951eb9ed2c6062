package helm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	autoscalingvalidation "k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	"k8s.io/kubernetes/pkg/apis/rbac"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	rbacvalidation "k8s.io/kubernetes/pkg/apis/rbac/validation"
	"sigs.k8s.io/yaml"
)

// object is a rendered object: its text, its fields, and its type of k8s.io/api, of the Prometheus
// Operator, or in customs.
type object struct {
	text   string
	fields *unstructured.Unstructured
	typed  any
}

func (o object) String() string { return o.fields.GetKind() + " " + o.fields.GetName() }

// customs are types of objects that are not Kubernetes' own. Those of cert-manager and KEDA are
// written here after their reference, since their modules depend on other versions of Kubernetes.
var customs = map[string]func() any{
	"PodMonitor":    func() any { return new(monitoring.PodMonitor) },
	"ClusterIssuer": func() any { return new(clusterIssuer) },
	"Certificate":   func() any { return new(certificate) },
	"ScaledObject":  func() any { return new(scaledObject) },
}

type custom struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

type clusterIssuer struct {
	custom `json:",inline"`
	Spec   struct {
		SelfSigned *struct{} `json:"selfSigned"`
		CA         *struct {
			SecretName string `json:"secretName"`
		} `json:"ca"`
	} `json:"spec"`
}

type certificate struct {
	custom `json:",inline"`
	Spec   struct {
		SecretName string          `json:"secretName"`
		IsCA       bool            `json:"isCA"`
		CommonName string          `json:"commonName"`
		URIs       []string        `json:"uris"`
		Usages     []string        `json:"usages"`
		Duration   metav1.Duration `json:"duration"`
		PrivateKey struct {
			Algorithm      string `json:"algorithm"`
			Size           int    `json:"size"`
			RotationPolicy string `json:"rotationPolicy"`
		} `json:"privateKey"`
		IssuerRef struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"issuerRef"`
	} `json:"spec"`
}

type scaledObject struct {
	custom `json:",inline"`
	Spec   struct {
		ScaleTargetRef  autoscalingv2.CrossVersionObjectReference `json:"scaleTargetRef"`
		MinReplicaCount int32                                     `json:"minReplicaCount"`
		MaxReplicaCount int32                                     `json:"maxReplicaCount"`
		Triggers        []struct {
			Type       string            `json:"type"`
			MetricType string            `json:"metricType"`
			Metadata   map[string]string `json:"metadata"`
		} `json:"triggers"`
		Advanced struct {
			HPA struct {
				Behavior autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
	} `json:"spec"`
}

// decoder refuses unknown fields, and fields that are there twice.
var decoder = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

func documents(t *testing.T, texts map[string]string) (all []string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		d := utilyaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(texts[name])))
		for {
			text := make([]byte, 1<<20)
			n, err := d.Read(text)
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if strings.TrimSpace(string(text[:n])) != "" {
				all = append(all, string(text[:n])+"\n")
			}
		}
	}
	return all
}

func objects(t *testing.T, texts map[string]string) (all []object) {
	t.Helper()
	for _, text := range documents(t, texts) {
		o := object{text: text, fields: new(unstructured.Unstructured)}
		if err := yaml.UnmarshalStrict([]byte(text), &o.fields.Object); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if newCustom, ok := customs[o.fields.GetKind()]; ok {
			o.typed = newCustom()
			if err := yaml.UnmarshalStrict([]byte(text), o.typed); err != nil {
				t.Fatalf("%v: %v", o, err)
			}
		} else {
			typed, _, err := decoder.Decode([]byte(text), nil, nil)
			if err != nil {
				t.Fatalf("%v: %v\n%s", o, err, text)
			}
			o.typed = typed
		}
		all = append(all, o)
	}
	return all
}

// validate returns what the API server of Kubernetes would refuse.
func (o object) validate() (errs field.ErrorList) {
	if _, ok := customs[o.fields.GetKind()]; ok {
		return nil // Its types are checked by decoding.
	}
	versioned := o.typed.(runtime.Object)
	versioned = versioned.DeepCopyObject()
	legacyscheme.Scheme.Default(versioned)
	errs = legacyscheme.Scheme.Validate(context.Background(), map[string]bool{"HPAScaleToZero": false, "WorkloadWithJob": false}, versioned)
	internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(versioned, runtime.InternalGroupVersioner)
	if err != nil {
		return append(errs, field.InternalError(nil, err))
	}
	return append(errs, validateInternal(internal)...)
}

func validateInternal(o runtime.Object) field.ErrorList {
	switch o := o.(type) {
	case *core.Namespace:
		return corevalidation.ValidateNamespace(o)
	case *core.ConfigMap:
		return corevalidation.ValidateConfigMap(o)
	case *core.ServiceAccount:
		return corevalidation.ValidateServiceAccount(o)
	case *core.Service:
		// The API server chooses these before it validates.
		family := core.IPFamilyPolicySingleStack
		if o.Spec.IPFamilyPolicy == nil {
			o.Spec.IPFamilyPolicy = &family
		}
		o.Spec.IPFamilies = []core.IPFamily{core.IPv4Protocol}
		return corevalidation.ValidateServiceCreate(o)
	case *core.Secret:
		return corevalidation.ValidateSecret(o)
	case *batch.Job:
		// The API server adds a selector of its own.
		o.Spec.Selector = &metav1.LabelSelector{MatchLabels: o.Spec.Template.Labels}
		return batchvalidation.ValidateJobSpec(&o.Spec, nil, field.NewPath("spec"),
			podutil.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil))
	case *apps.Deployment:
		return appsvalidation.ValidateDeployment(o, podutil.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil))
	case *policy.PodDisruptionBudget:
		return policyvalidation.ValidatePodDisruptionBudget(o, policyvalidation.PodDisruptionBudgetValidationOptions{})
	case *autoscaling.HorizontalPodAutoscaler:
		return autoscalingvalidation.ValidateHorizontalPodAutoscaler(o,
			autoscalingvalidation.HorizontalPodAutoscalerSpecValidationOptions{MinReplicasLowerBound: 1})
	case *networking.NetworkPolicy:
		return networkingvalidation.ValidateNetworkPolicy(o, networkingvalidation.NetworkPolicyValidationOptions{})
	case *networking.Ingress:
		return networkingvalidation.ValidateIngressCreate(o)
	case *rbac.Role:
		return rbacvalidation.ValidateRole(o)
	case *rbac.RoleBinding:
		return rbacvalidation.ValidateRoleBinding(o)
	case *rbac.ClusterRole:
		return rbacvalidation.ValidateClusterRole(o, rbacvalidation.ClusterRoleValidationOptions{})
	case *rbac.ClusterRoleBinding:
		return rbacvalidation.ValidateClusterRoleBinding(o)
	case *admissionregistration.ValidatingAdmissionPolicy, *admissionregistration.ValidatingAdmissionPolicyBinding:
		return nil // TestAdmissionPolicy evaluates its expressions; its validation needs the whole API server.
	}
	return field.ErrorList{field.InternalError(nil, fmt.Errorf("%T is not known here", o))}
}

func unstructuredOf(t *testing.T, o runtime.Object) *unstructured.Unstructured {
	t.Helper()
	return &unstructured.Unstructured{Object: fieldsOf(t, o)}
}

func checkObjects(t *testing.T, texts map[string]string) []object {
	t.Helper()
	all, seen := objects(t, texts), map[string]bool{}
	for _, o := range all {
		for _, err := range o.validate() {
			t.Errorf("%v: %v", o, err)
		}
		if key := o.String() + o.fields.GetNamespace(); seen[key] {
			t.Errorf("%v is there twice", o)
		} else {
			seen[key] = true
		}
	}
	return all
}

func TestObjects(t *testing.T) {
	want := map[string]int{
		"defaults": 16, "everything": 26, "fixed": 24, "dual stack": 18, "relays only": 10, "api only": 10, "players only": 14,
	}
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			if all := checkObjects(t, render(t, values)); len(all) != want[name] {
				t.Errorf("%d objects, want %d: %v", len(all), want[name], all)
			}
		})
	}
}

type workload struct {
	role string
	object
	template corev1.PodTemplateSpec
}

func (w workload) container() corev1.Container { return w.template.Spec.Containers[0] }

func (w workload) settings(t *testing.T, values string) (keys []string) {
	t.Helper()
	v, err := common.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	role, _ := v[w.role].(map[string]any)
	settings, _ := role["settings"].(map[string]any)
	return slices.Collect(maps.Keys(settings))
}

func (w workload) flag(name string) string {
	for _, arg := range w.container().Args {
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}

func workloads(t *testing.T, all []object) (found []workload) {
	t.Helper()
	for _, o := range all {
		if d, ok := o.typed.(*appsv1.Deployment); ok {
			found = append(found, workload{d.Spec.Template.Labels["app.kubernetes.io/component"], o, d.Spec.Template})
		}
	}
	if len(found) == 0 {
		t.Fatal("no workloads")
	}
	return found
}
