package deploy

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The Kubernetes kinds with the fields that our manifests use, so that decoding
// detects a misspelt field.

type meta struct {
	Name        string            `yaml:"name"`
	Namespace   string            `yaml:"namespace"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

type header struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   meta   `yaml:"metadata"`
}

type plain struct {
	header    `yaml:",inline"`
	Automount *bool                 `yaml:"automountServiceAccountToken"`
	Rules     []map[string][]string `yaml:"rules"`
	RoleRef   map[string]string     `yaml:"roleRef"`
	Subjects  []map[string]string   `yaml:"subjects"`
}

type configMap struct {
	header `yaml:",inline"`
	Data   map[string]string `yaml:"data"`
}

type labels struct {
	Match map[string]string `yaml:"matchLabels"`
}

type kubeService struct {
	header `yaml:",inline"`
	Spec   struct {
		ClusterIP string            `yaml:"clusterIP"`
		NotReady  bool              `yaml:"publishNotReadyAddresses"`
		Selector  map[string]string `yaml:"selector"`
		Ports     []struct {
			Name       string `yaml:"name"`
			Port       int    `yaml:"port"`
			TargetPort string `yaml:"targetPort"`
			Protocol   string `yaml:"protocol"`
		} `yaml:"ports"`
	} `yaml:"spec"`
}

// running is a Deployment.
type running struct {
	header `yaml:",inline"`
	Spec   struct {
		Replicas int            `yaml:"replicas"`
		Strategy map[string]any `yaml:"strategy"`
		Progress int            `yaml:"progressDeadlineSeconds"`
		Selector labels         `yaml:"selector"`
		Template struct {
			Metadata meta `yaml:"metadata"`
			Spec     pod  `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

type pod struct {
	HostNetwork    bool                         `yaml:"hostNetwork"`
	DNSPolicy      string                       `yaml:"dnsPolicy"`
	ServiceLinks   *bool                        `yaml:"enableServiceLinks"`
	Automount      *bool                        `yaml:"automountServiceAccountToken"`
	Account        string                       `yaml:"serviceAccountName"`
	NodeSelector   map[string]string            `yaml:"nodeSelector"`
	Affinity       map[string]map[string][]term `yaml:"affinity"`
	Spread         []map[string]any             `yaml:"topologySpreadConstraints"`
	Grace          int                          `yaml:"terminationGracePeriodSeconds"`
	Security       map[string]any               `yaml:"securityContext"`
	InitContainers []container                  `yaml:"initContainers"`
	Containers     []container                  `yaml:"containers"`
	Volumes        []volume                     `yaml:"volumes"`
}

type term struct {
	Topology string `yaml:"topologyKey"`
	Selector labels `yaml:"labelSelector"`
}

type container struct {
	Name    string   `yaml:"name"`
	Image   string   `yaml:"image"`
	Restart string   `yaml:"restartPolicy"`
	Command []string `yaml:"command"`
	Args    []string `yaml:"args"`
	Env     []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
		Patch string `yaml:"$patch"`
		From  struct {
			Field  map[string]string `yaml:"fieldRef"`
			Secret struct {
				Name string `yaml:"name"`
				Key  string `yaml:"key"`
			} `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	} `yaml:"env"`
	Ports []struct {
		Name     string `yaml:"name"`
		Port     int    `yaml:"containerPort"`
		HostPort int    `yaml:"hostPort"`
		Protocol string `yaml:"protocol"`
	} `yaml:"ports"`
	Lifecycle struct {
		PreStop struct {
			Sleep struct {
				Seconds int `yaml:"seconds"`
			} `yaml:"sleep"`
		} `yaml:"preStop"`
	} `yaml:"lifecycle"`
	Live      *probe `yaml:"livenessProbe"`
	Ready     *probe `yaml:"readinessProbe"`
	Startup   *probe `yaml:"startupProbe"`
	Resources struct {
		Requests map[string]string `yaml:"requests"`
		Limits   map[string]string `yaml:"limits"`
	} `yaml:"resources"`
	Security struct {
		Escalation *bool               `yaml:"allowPrivilegeEscalation"`
		ReadOnly   bool                `yaml:"readOnlyRootFilesystem"`
		Caps       map[string][]string `yaml:"capabilities"`
	} `yaml:"securityContext"`
	Mounts []mount `yaml:"volumeMounts"`
}

type mount struct {
	Name        string `yaml:"name"`
	Path        string `yaml:"mountPath"`
	SubPath     string `yaml:"subPath"`
	SubPathExpr string `yaml:"subPathExpr"`
	ReadOnly    bool   `yaml:"readOnly"`
}

type probe struct {
	HTTP struct {
		Path string `yaml:"path"`
		Port string `yaml:"port"`
	} `yaml:"httpGet"`
	Exec struct {
		Command []string `yaml:"command"`
	} `yaml:"exec"`
	Period   int `yaml:"periodSeconds"`
	Timeout  int `yaml:"timeoutSeconds"`
	Failures int `yaml:"failureThreshold"`
}

type volume struct {
	Name   string `yaml:"name"`
	Secret *struct {
		Name  string              `yaml:"secretName"`
		Mode  int                 `yaml:"defaultMode"`
		Items []map[string]string `yaml:"items"`
	} `yaml:"secret"`
	ConfigMap *struct {
		Name string `yaml:"name"`
	} `yaml:"configMap"`
	EmptyDir  map[string]string `yaml:"emptyDir"`
	Projected map[string]any    `yaml:"projected"`
}

type budget struct {
	header `yaml:",inline"`
	Spec   struct {
		MaxUnavailable int    `yaml:"maxUnavailable"`
		Selector       labels `yaml:"selector"`
	} `yaml:"spec"`
}

type autoscaler struct {
	header `yaml:",inline"`
	Spec   struct {
		Target  map[string]string `yaml:"scaleTargetRef"`
		Min     int               `yaml:"minReplicas"`
		Max     int               `yaml:"maxReplicas"`
		Metrics []struct {
			Type string `yaml:"type"`
			Pods *struct {
				Metric struct {
					Name string `yaml:"name"`
				} `yaml:"metric"`
				Target map[string]string `yaml:"target"`
			} `yaml:"pods"`
			Resource *struct {
				Name   string         `yaml:"name"`
				Target map[string]any `yaml:"target"`
			} `yaml:"resource"`
		} `yaml:"metrics"`
		Behavior map[string]struct {
			Window   int `yaml:"stabilizationWindowSeconds"`
			Policies []struct {
				Type   string `yaml:"type"`
				Value  int    `yaml:"value"`
				Period int    `yaml:"periodSeconds"`
			} `yaml:"policies"`
		} `yaml:"behavior"`
	} `yaml:"spec"`
}

type networkPolicy struct {
	header `yaml:",inline"`
	Spec   struct {
		Selector labels   `yaml:"podSelector"`
		Types    []string `yaml:"policyTypes"`
		Ingress  []struct {
			From  []map[string]labels `yaml:"from"`
			Ports []map[string]string `yaml:"ports"`
		} `yaml:"ingress"`
	} `yaml:"spec"`
}

// admissionPolicy is a ValidatingAdmissionPolicy or its binding.
type admissionPolicy struct {
	header `yaml:",inline"`
	Spec   struct {
		Failure     string                           `yaml:"failurePolicy"`
		Constraints map[string][]map[string][]string `yaml:"matchConstraints"`
		Variables   []map[string]string              `yaml:"variables"`
		Conditions  []map[string]string              `yaml:"matchConditions"`
		Validations []map[string]string              `yaml:"validations"`
		Policy      string                           `yaml:"policyName"`
		Actions     []string                         `yaml:"validationActions"`
		Match       map[string]labels                `yaml:"matchResources"`
	} `yaml:"spec"`
}

// kinds are the types of documents by apiVersion and kind.
var kinds = map[string]func() any{
	"v1 Namespace": func() any { return new(plain) },
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":        func() any { return new(admissionPolicy) },
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": func() any { return new(admissionPolicy) },
	"v1 ServiceAccount":                               func() any { return new(plain) },
	"v1 ConfigMap":                                    func() any { return new(configMap) },
	"v1 Service":                                      func() any { return new(kubeService) },
	"batch/v1 Job":                                    func() any { return new(any) },
	"apps/v1 Deployment":                              func() any { return new(running) },
	"policy/v1 PodDisruptionBudget":                   func() any { return new(budget) },
	"autoscaling/v2 HorizontalPodAutoscaler":          func() any { return new(autoscaler) },
	"networking.k8s.io/v1 NetworkPolicy":              func() any { return new(networkPolicy) },
	"rbac.authorization.k8s.io/v1 ClusterRole":        func() any { return new(plain) },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": func() any { return new(plain) },
	"rbac.authorization.k8s.io/v1 Role":               func() any { return new(plain) },
	"rbac.authorization.k8s.io/v1 RoleBinding":        func() any { return new(plain) },
}

// object is a document of a manifest.
type object struct {
	file, kind, name string
	body             any
}

// objects decodes a file and fails on unknown fields.
func objects(t *testing.T, file string) (all []object) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader([]byte(read(t, file))))
	for {
		var node yaml.Node
		if err := d.Decode(&node); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var h struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string `yaml:"kind"`
			Metadata   struct {
				Name string `yaml:"name"`
			} `yaml:"metadata"`
		}
		text, err := yaml.Marshal(&node)
		if err == nil {
			err = yaml.Unmarshal(text, &h)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		kind, ok := kinds[h.APIVersion+" "+h.Kind]
		if !ok || h.Metadata.Name == "" {
			t.Fatalf("%s: %s %s %q is not known here", file, h.APIVersion, h.Kind, h.Metadata.Name)
		}
		body := kind()
		if err := strict(text, body); err != nil {
			t.Errorf("%s: %s: %v", file, h.Metadata.Name, err)
		}
		all = append(all, object{file, h.Kind, h.Metadata.Name, body})
	}
}

// everything returns the objects of all manifests except patches and
// kustomizations.
func everything(t *testing.T) (all []object) {
	t.Helper()
	files, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "kubernetes/node-address/rbac.yaml") {
		if filepath.Base(file) != "kustomization.yaml" {
			all = append(all, objects(t, file)...)
		}
	}
	return all
}
