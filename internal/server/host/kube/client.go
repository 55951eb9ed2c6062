// Package kube calls the API server of the Kubernetes cluster in which this process runs: it reads
// the addresses of a node ([Client.NodeAddresses]), and makes Secrets.
//
// It uses net/http, since the client library of Kubernetes is several times as large as Ferry.
package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Dir is where Kubernetes mounts the files of the service account by default.
const Dir = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	tokenFile = "token"
	caFile    = "ca.crt"
)

const (
	callTimeout = 10 * time.Second
	maxAnswer   = 4 << 20
)

var (
	// ErrNotInCluster is returned by Open outside of a pod.
	ErrNotInCluster = errors.New("kube: KUBERNETES_SERVICE_HOST is not set: this works only in a pod of Kubernetes")
	// ErrNotFound is wrapped by the error about an object that does not exist.
	ErrNotFound = errors.New("does not exist")
)

// Client calls the API server as the service account of the pod. It may be used concurrently.
type Client struct {
	dir    string
	server url.URL
	http   *http.Client
}

// Open returns a client with the files of the service account in dir. The address of the API
// server is that of the environment. It makes no call.
func Open(dir string) (*Client, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, ErrNotInCluster
	}
	ca, err := os.ReadFile(filepath.Join(dir, caFile))
	if err != nil {
		return nil, fmt.Errorf("kube: the certificate authority of the cluster: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("kube: %s holds no certificate", filepath.Join(dir, caFile))
	}
	c := &Client{dir: dir, server: url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}}
	if _, err := c.read(tokenFile); err != nil {
		return nil, err
	}
	c.http = &http.Client{
		Timeout:   callTimeout,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, MaxIdleConns: 1},
	}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// read returns the content of a file of the service account, which Kubernetes replaces in time.
func (c *Client) read(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		return "", fmt.Errorf("kube: %w", err)
	}
	value := strings.TrimSpace(string(text))
	if value == "" {
		return "", fmt.Errorf("kube: %s is empty", filepath.Join(c.dir, name))
	}
	return value, nil
}

const (
	jsonBody   = "application/json"
	mergePatch = "application/merge-patch+json"
)

// call: in and out may be nil. Its error has the server's message.
func (c *Client) call(ctx context.Context, method, path, bodyType string, in, out any) error {
	token, err := c.read(tokenFile)
	if err != nil {
		return err
	}
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("kube: %w", err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server.JoinPath(path).String(), body)
	if err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", jsonBody)
	if in != nil {
		req.Header.Set("Content-Type", bodyType)
	}
	resp, err := c.http.Do(req)
	if failed := (*url.Error)(nil); errors.As(err, &failed) {
		return fmt.Errorf("kube: the API server at %s: %w", c.server.Host, failed.Err)
	} else if err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("kube: %s %s: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 {
		var status struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(text, &status) // A proxy may answer with something else.
		err := fmt.Errorf("kube: %s %s: %s: %s", method, path, resp.Status, status.Message)
		if resp.StatusCode == http.StatusNotFound {
			err = fmt.Errorf("%w (%w)", err, ErrNotFound)
		}
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("kube: %s %s: %w", method, path, err)
	}
	return nil
}

type object struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   metadata          `json:"metadata,omitzero"`
	Data       map[string][]byte `json:"data,omitempty"` // of a Secret
}

type metadata struct {
	Name        string            `json:"name,omitempty"`
	Namespace   string            `json:"namespace,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type SecretName struct{ Namespace, Name string }

// ParseSecretName reads NAMESPACE/NAME.
func ParseSecretName(text string) (SecretName, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return SecretName{}, fmt.Errorf("%q is not NAMESPACE/NAME of a Secret", text)
	}
	return SecretName{namespace, name}, nil
}

// String returns NAMESPACE/NAME.
func (s SecretName) String() string { return s.Namespace + "/" + s.Name }

func (s SecretName) collection() string {
	return "/api/v1/namespaces/" + url.PathEscape(s.Namespace) + "/secrets"
}

func (s SecretName) path() string { return s.collection() + "/" + url.PathEscape(s.Name) }

// Secret returns the content of a Secret. The error wraps ErrNotFound if there is none.
func (c *Client) Secret(ctx context.Context, name SecretName) (map[string][]byte, error) {
	var o object
	if err := c.call(ctx, http.MethodGet, name.path(), "", nil, &o); err != nil {
		return nil, err
	}
	return o.Data, nil
}

// CreateSecret makes a Secret. It fails if there is one already.
func (c *Client) CreateSecret(ctx context.Context, name SecretName, data map[string][]byte) error {
	return c.call(ctx, http.MethodPost, name.collection(), jsonBody, object{
		APIVersion: "v1", Kind: "Secret", Data: data,
		Metadata: metadata{Name: name.Name, Namespace: name.Namespace, Labels: map[string]string{"app.kubernetes.io/name": "ferry"}},
	}, nil)
}

// UpdateSecret sets keys of a Secret. Others stay.
func (c *Client) UpdateSecret(ctx context.Context, name SecretName, data map[string][]byte) error {
	return c.call(ctx, http.MethodPatch, name.path(), mergePatch, object{Data: data}, nil)
}
