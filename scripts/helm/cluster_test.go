package helm

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cluster is a simulated API server. It holds Secrets and Nodes of Kubernetes' own types,
// validates them as the real one does, and permits what the roles of a rendering permit.
type cluster struct {
	t      *testing.T
	server *httptest.Server
	rules  map[string][]rule // by service account, NAMESPACE:NAME, which is its token as well

	mu      sync.Mutex               // guards the following field
	objects map[string]metav1.Object // by path
}

type rule struct {
	namespace string
	rbacv1.PolicyRule
}

func newCluster(t *testing.T, rendered []object) *cluster {
	t.Helper()
	c := &cluster{t: t, rules: map[string][]rule{}, objects: map[string]metav1.Object{}}
	roles := map[string][]rbacv1.PolicyRule{}
	for _, o := range rendered {
		switch r := o.typed.(type) {
		case *rbacv1.Role:
			roles["Role"+r.Namespace+r.Name] = r.Rules
		case *rbacv1.ClusterRole:
			roles["ClusterRole"+r.Name] = r.Rules
		}
	}
	bind := func(ref rbacv1.RoleRef, namespace string, subjects []rbacv1.Subject) {
		for _, s := range subjects {
			for _, r := range roles[ref.Kind+namespace+ref.Name] {
				account := s.Namespace + ":" + s.Name
				c.rules[account] = append(c.rules[account], rule{namespace, r})
			}
		}
	}
	for _, o := range rendered {
		switch b := o.typed.(type) {
		case *rbacv1.RoleBinding:
			bind(b.RoleRef, b.Namespace, b.Subjects)
		case *rbacv1.ClusterRoleBinding:
			bind(b.RoleRef, "", b.Subjects)
		}
	}
	c.server = httptest.NewTLSServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.server.Close)
	return c
}

func (c *cluster) account(namespace, name string) (dir string) {
	c.t.Helper()
	dir = c.t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})
	for file, text := range map[string]string{"token": namespace + ":" + name, "ca.crt": string(ca)} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	return dir
}

func (c *cluster) environ() []string {
	host, port, _ := net.SplitHostPort(c.server.Listener.Addr().String())
	return []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
}

func (c *cluster) permits(account, verb, namespace, resource, name string) bool {
	return slices.ContainsFunc(c.rules[account], func(r rule) bool {
		return (r.namespace == "" || r.namespace == namespace) && slices.Contains(r.Verbs, verb) && slices.Contains(r.Resources, resource) &&
			(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, name))
	})
}

var verbs = map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPatch: "patch"}

func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/api/v1/")
	parts, namespace, name := strings.Split(path, "/"), "", ""
	if parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 1 {
		name = parts[1]
	}
	account := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	refuse := func(status int, message string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Message: message})
	}
	if !c.permits(account, verbs[r.Method], namespace, parts[0], name) {
		refuse(http.StatusForbidden, account+" cannot "+verbs[r.Method]+" "+path)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var o metav1.Object
	switch r.Method {
	case http.MethodPost:
		typed, _, err := decoder.Decode(body, nil, nil)
		if err != nil {
			refuse(http.StatusBadRequest, err.Error())
			return
		}
		o = typed.(metav1.Object)
		path += "/" + o.GetName()
		if c.objects[path] != nil {
			refuse(http.StatusConflict, path+" already exists")
			return
		}
		if errs := (object{typed: typed, fields: unstructuredOf(c.t, typed)}).validate(); len(errs) > 0 {
			refuse(http.StatusUnprocessableEntity, errs.ToAggregate().Error())
			return
		}
		c.objects[path] = o
	default:
		if o = c.objects[path]; o == nil {
			refuse(http.StatusNotFound, path+" not found")
			return
		}
		// A merge patch without null is what decoding into the object does.
		if r.Method == http.MethodPatch {
			if t := r.Header.Get("Content-Type"); t != "application/merge-patch+json" || bytes.Contains(body, []byte("null")) {
				refuse(http.StatusUnsupportedMediaType, t)
				return
			}
			d := json.NewDecoder(bytes.NewReader(body))
			d.DisallowUnknownFields()
			if err := d.Decode(o); err != nil {
				refuse(http.StatusBadRequest, err.Error())
				return
			}
		}
	}
	_ = json.NewEncoder(w).Encode(o)
}

func (c *cluster) secret(namespace, name string) map[string][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.objects["namespaces/"+namespace+"/secrets/"+name].(*corev1.Secret); ok {
		return s.Data
	}
	return nil
}

func initContainer(t *testing.T, all []object, role, name string) (corev1.Container, corev1.PodSpec) {
	t.Helper()
	for _, w := range workloads(t, all) {
		for _, c := range w.template.Spec.InitContainers {
			if w.role == role && c.Name == name {
				return c, w.template.Spec
			}
		}
	}
	t.Fatalf("%s has no init container %s", role, name)
	return corev1.Container{}, corev1.PodSpec{}
}

// runContainer runs ferry with the arguments of a container, and other texts in place of some.
func runContainer(t *testing.T, c corev1.Container, env []string, replace ...string) string {
	t.Helper()
	here, args := strings.NewReplacer(replace...), []string{}
	for _, arg := range c.Args {
		args = append(args, here.Replace(arg))
	}
	out, code := run(t, env, args...)
	if code != 0 {
		t.Fatalf("%q: exit code %d:\n%s", args, code, out)
	}
	return out
}

// TestAuthority runs the Job of the authorities, and the init containers that make the
// certificates of a relay and of an API process.
func TestAuthority(t *testing.T) {
	all := objects(t, render(t))
	c := newCluster(t, all)
	i := slices.IndexFunc(all, func(o object) bool { return o.fields.GetKind() == "Job" })
	job := all[i].typed.(*batchv1.Job).Spec.Template.Spec
	job.Containers[0].Args = append(job.Containers[0].Args, "--service-account="+c.account("ferry", job.ServiceAccountName))
	const relays = "namespaces/ferry-relays/secrets/ferry-authority"
	for _, step := range []struct {
		before func()
		want   string
	}{
		{func() {}, "created ferry/ferry-authority\ncreated ferry-relays/ferry-authority\n"},
		{func() {}, "exists ferry/ferry-authority\nexists ferry-relays/ferry-authority\n"},
		{func() { delete(c.objects, relays) }, "exists ferry/ferry-authority\ncreated ferry-relays/ferry-authority\n"},
		{func() { c.objects[relays].(*corev1.Secret).Data["ca.pem"] = []byte("x") }, "exists ferry/ferry-authority\nupdated ferry-relays/ferry-authority\n"},
	} {
		before := c.secret("ferry", "ferry-authority")
		step.before()
		if out := runContainer(t, job.Containers[0], c.environ()); out != step.want {
			t.Errorf("the Job prints %q, want %q", out, step.want)
		}
		if after := c.secret("ferry", "ferry-authority"); before != nil && !maps.EqualFunc(before, after, bytes.Equal) {
			t.Error("the authorities have changed")
		}
	}
	if keys := slices.Sorted(maps.Keys(c.secret("ferry-relays", "ferry-authority"))); strings.Join(keys, " ") != "ca.pem relay-ca-key.pem relay-ca.pem" {
		t.Errorf("relays see %q", keys)
	}
	for role, usage := range map[string]x509.ExtKeyUsage{"relay": x509.ExtKeyUsageServerAuth, "api": x509.ExtKeyUsageClientAuth} {
		init, spec := initContainer(t, all, role, "certificate")
		namespace := map[string]string{"relay": "ferry-relays", "api": "ferry"}[role]
		authority, out := t.TempDir(), filepath.Join(t.TempDir(), "cluster")
		for _, v := range spec.Volumes {
			if v.Name != "authority" {
				continue
			}
			for _, item := range v.Secret.Items {
				text := c.secret(namespace, v.Secret.SecretName)[item.Key]
				if err := os.WriteFile(filepath.Join(authority, item.Path), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		runContainer(t, init, nil, "$(POD_NAME)", pod, "$(POD_UID)", podUID, "/run/authority", authority, "/etc/ferry/cluster", out)
		block, _ := pem.Decode([]byte(read(t, filepath.Join(out, pod+".pem"))))
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(c.secret(namespace, "ferry-authority")["ca.pem"])
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		if role == "relay" && !slices.Equal(cert.DNSNames, []string{podUID}) {
			t.Errorf("the certificate of a relay is for %q", cert.DNSNames)
		}
	}
}

func TestNodeAddress(t *testing.T) {
	for source, want := range map[string]string{
		"advertise: ExternalIP, ipFamilies: [IPv4, IPv6]":                  "advertise: [\"203.0.113.5\", \"2001:db8::5\"]\n",
		"advertise: example.org/relay":                                     "advertise: [\"203.0.113.9\"]\n",
		"advertise: ExternalDNS, websocket: {enabled: true, tlsSecret: t}": "advertise: [\"127.0.0.1\"]\nadvertise_name: localhost\n",
	} {
		all := checkObjects(t, render(t, "relay: {"+source+"}"))
		c := newCluster(t, all)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: map[string]string{"example.org/relay": "203.0.113.9"}}}
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.5"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.5"},
			{Type: corev1.NodeExternalIP, Address: "2001:db8::5"}, {Type: corev1.NodeExternalDNS, Address: "localhost"},
		}
		c.objects["nodes/node-1"] = node
		init, spec := initContainer(t, all, "relay", "node-address")
		dir := t.TempDir()
		runContainer(t, init, c.environ(), "$(NODE_NAME)", "node-1", "/run/ferry", dir,
			"/run/kubernetes", c.account("ferry-relays", spec.ServiceAccountName))
		if got := read(t, filepath.Join(dir, "relay.yaml")); got != want {
			t.Errorf("%s: the relay reads %q, want %q", source, got, want)
		}
	}
}
