package helm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	pod    = "pod-0"
	podUID = "6a1c3f5e-0d2b-4c7a-9e8f-112233445566"
)

// prepared returns the files of each Secret, and of the volumes that init containers and
// cert-manager fill, for the pod of a role.
func prepared(t *testing.T, role string) map[string]map[string]string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"ctl", "cluster-ca", dir, role, "--name", pod}
	if role == "relay" {
		args = append(args, "--relay", podUID)
	}
	for _, args := range [][]string{{"ctl", "cluster-ca", dir}, args} {
		if out, code := run(t, nil, args...); code != 0 {
			t.Fatalf("%q: exit code %d:\n%s", args, code, out)
		}
	}
	file := func(name string) string { return read(t, filepath.Join(dir, name)) }
	own := map[string]string{
		pod + ".pem": file(pod + ".pem"), pod + "-key.pem": file(pod + "-key.pem"),
		"ca.crt": file("ca.pem"), "tls.crt": file(pod + ".pem"), "tls.key": file(pod + "-key.pem"),
	}
	cert, key := selfSigned(t, "*.relays.example.org")
	const token = "a-token-of-the-tests\n"
	return map[string]map[string]string{
		"own-certificate":   own,
		"ferry-cluster-api": own,
		"ferry-authority":   {"ca.pem": file("ca.pem")},
		"relay-tls":         {"tls.crt": cert, "tls.key": key},
		"ferry-tokens":      {"server": token},
		"ferry-admin":       {"token": token},
		"ferry-api-admin":   {"token": token},
		"webhook":           {"key": token},
		"address":           {"relay.yaml": "advertise: [\"203.0.113.7\"]\n"},
		"kubernetes":        {},
		"state":             {},
	}
}

func selfSigned(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	public, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

// mounted writes the files of a container's volumes into a directory, by the paths in the container.
func mounted(t *testing.T, w workload, all []object) (dir string) {
	t.Helper()
	dir = t.TempDir()
	volumes, files := map[string]corev1.Volume{}, prepared(t, w.role)
	if slices.Contains(w.container().Args, "--udp=[::]:7777") {
		files["address"]["relay.yaml"] = "advertise: [\"203.0.113.7\", \"2001:db8::7\"]\n"
	}
	for _, v := range w.template.Spec.Volumes {
		volumes[v.Name] = v
	}
	for _, m := range w.container().VolumeMounts {
		v, content := volumes[m.Name], files[m.Name]
		switch {
		case v.Secret != nil:
			content = files[v.Secret.SecretName]
		case v.ConfigMap != nil:
			for _, o := range all {
				if c, ok := o.typed.(*corev1.ConfigMap); ok && c.Name == v.ConfigMap.Name {
					content = c.Data
				}
			}
		}
		if content == nil {
			t.Fatalf("%s: the volume %s has no content", w, m.Name)
		}
		for name, text := range content {
			path := filepath.Join(dir, m.MountPath, name)
			if m.SubPath != "" {
				path = filepath.Join(dir, m.MountPath)
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "/etc/ferry/", dir+"/etc/ferry/")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

var fields = map[string]string{
	"metadata.name": pod, "metadata.uid": podUID, "spec.nodeName": "node-1",
	"status.podIP": "10.0.0.9", "status.hostIP": "203.0.113.7", "status.hostIPs": "203.0.113.7,2001:db8::7",
}

func checked(t *testing.T, w workload, all []object) (text string, code int) {
	t.Helper()
	dir := mounted(t, w, all)
	here := strings.NewReplacer("/etc/ferry/", dir+"/etc/ferry/", "/run/ferry/", dir+"/run/ferry/", "$(POD_IP)", "10.0.0.9",
		"$(POD_NAME)", pod, "$(NODE_NAME)", "node-1")
	c := w.container()
	if c.Args[0] != w.role {
		t.Fatalf("the %s runs ferry %s", w.role, c.Args[0])
	}
	args := []string{"check", "--role", w.role}
	for _, arg := range c.Args[1:] {
		args = append(args, here.Replace(arg))
	}
	var env []string
	for _, e := range c.Env {
		value := here.Replace(e.Value)
		switch {
		case e.ValueFrom == nil:
		case e.ValueFrom.SecretKeyRef != nil:
			value = "rediss://ferry-" + w.role + ":change-me@redis.example.org:6379"
		default:
			value = fields[e.ValueFrom.FieldRef.FieldPath]
		}
		env = append(env, e.Name+"="+value)
	}
	return run(t, env, args...)
}

// TestCheck checks that ferry accepts the settings of each variant, as its container has them, and
// that they are in force.
func TestCheck(t *testing.T) {
	want := map[string][]string{
		"relay": {
			"relay_id: " + podUID, "region: eu", "max_allocations: 2000000", "gso: false", "idle_timeout: 15s", "drain_timeout: 1h30m",
			"allow_origins: [https://a.example.org, https://b.example.org]", "advertise: [203.0.113.7]",
		},
		"api": {"max_connections: 200", "server_per_minute: 1000000", "issuer: https://id.example.org", "allocations: 10000",
			"trusted_proxies: [10.0.0.0/8]"},
	}
	for name, values := range variants {
		all := objects(t, render(t, values))
		for _, w := range workloads(t, all) {
			text, code := checked(t, w, all)
			if code != 0 || strings.Contains(text, "warning") {
				t.Errorf("%s: ferry check --role %s: exit code %d:\n%s", name, w.role, code, text)
			}
			if name != "everything" {
				continue
			}
			for _, line := range want[w.role] {
				if !strings.Contains(text, line) {
					t.Errorf("%s: ferry %s lacks %q:\n%s", name, w.role, line, text)
				}
			}
		}
	}
}
