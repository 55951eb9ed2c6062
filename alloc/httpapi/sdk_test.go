package httpapi

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// The helpers of this file read answers as the SDK does: a member that the published
// API requires must be there and have its type.

type object struct {
	t    *testing.T
	path string
	m    map[string]any
}

func sdkObject(t *testing.T, body []byte) object {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("answer %.200q: %v", body, err)
	}
	return object{t, "$", m}
}

func member[T any](o object, name string) T {
	o.t.Helper()
	v, ok := o.m[name]
	if !ok {
		o.t.Fatalf("%s.%s is missing", o.path, name)
	}
	got, ok := v.(T)
	if !ok {
		o.t.Fatalf("%s.%s is a %T", o.path, name, v)
	}
	return got
}

func (o object) object(name string) object {
	o.t.Helper()
	return object{o.t, o.path + "." + name, member[map[string]any](o, name)}
}

func (o object) list(name string) []object {
	o.t.Helper()
	var list []object
	for i, v := range member[[]any](o, name) {
		m, ok := v.(map[string]any)
		if !ok {
			o.t.Fatalf("%s.%s[%d] is a %T", o.path, name, i, v)
		}
		list = append(list, object{o.t, fmt.Sprintf("%s.%s[%d]", o.path, name, i), m})
	}
	return list
}

func (o object) text(name string) string {
	o.t.Helper()
	s := member[string](o, name)
	if s == "" {
		o.t.Fatalf("%s.%s is empty", o.path, name)
	}
	return s
}

func (o object) int(name string) int {
	o.t.Helper()
	n := member[float64](o, name)
	if n != float64(int(n)) {
		o.t.Fatalf("%s.%s = %v, which is no integer", o.path, name, n)
	}
	return int(n)
}

func (o object) uuid(name string) string {
	o.t.Helper()
	s := o.text(name)
	if _, err := uuid.Parse(s); err != nil || len(s) != 36 || s != strings.ToLower(s) {
		o.t.Fatalf("%s.%s = %q: %v", o.path, name, s, err)
	}
	return s
}

func (o object) bytes(name string, size int) []byte {
	o.t.Helper()
	b, err := base64.StdEncoding.DecodeString(o.text(name))
	if err != nil || len(b) != size {
		o.t.Fatalf("%s.%s has %d bytes, want %d: %v", o.path, name, len(b), size, err)
	}
	return b
}

func sdkMeta(o object, rec *httptest.ResponseRecorder) {
	o.t.Helper()
	meta := o.object("meta")
	if got := meta.int("status"); got != rec.Code {
		o.t.Fatalf("meta.status = %d, HTTP status %d", got, rec.Code)
	}
	if got := meta.uuid("requestId"); got != rec.Header().Get("X-Request-Id") {
		o.t.Fatalf("meta.requestId = %q, header %q", got, rec.Header().Get("X-Request-Id"))
	}
}

// sdkAllocation reads the answer to allocate or, with host data, to join, and
// returns the id of the allocation.
func sdkAllocation(t *testing.T, rec *httptest.ResponseRecorder, host bool) string {
	t.Helper()
	o := sdkObject(t, rec.Body.Bytes())
	sdkMeta(o, rec)
	a := o.object("data").object("allocation")
	id := a.uuid("allocationId")
	wire := uuid.UUID(a.bytes("allocationIdBytes", 16))
	if wire.String() != id {
		t.Fatalf("allocationIdBytes = %v, allocationId = %v", wire, id)
	}
	a.bytes("key", 64)
	a.bytes("connectionData", 255)
	a.text("region")
	server := a.object("relayServer")
	server.text("ipV4")
	server.int("port")
	endpoints := a.list("serverEndpoints")
	if len(endpoints) == 0 {
		t.Fatal("no serverEndpoints")
	}
	for _, e := range endpoints {
		e.text("connectionType")
		if n := e.text("network"); n != "udp" && n != "tcp" {
			t.Fatalf("network = %q", n)
		}
		member[bool](e, "reliable")
		member[bool](e, "secure")
		e.text("host")
		e.int("port")
	}
	if host {
		a.bytes("hostConnectionData", 255)
	} else if _, ok := a.m["hostConnectionData"]; ok {
		t.Fatal("hostConnectionData in the answer to allocate")
	}
	return id
}

func sdkJoinCode(t *testing.T, rec *httptest.ResponseRecorder) string {
	t.Helper()
	o := sdkObject(t, rec.Body.Bytes())
	sdkMeta(o, rec)
	o.object("links")
	return o.object("data").text("joinCode")
}

func sdkProblem(t *testing.T, rec *httptest.ResponseRecorder) int {
	t.Helper()
	if got := rec.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("Content-Type = %q", got)
	}
	if rec.Header().Get("X-Request-Id") == "" {
		t.Fatal("no X-Request-Id")
	}
	o := sdkObject(t, rec.Body.Bytes())
	o.text("type")
	o.text("title")
	o.text("detail")
	if got := o.int("status"); got != rec.Code {
		t.Fatalf("status = %d, HTTP status %d", got, rec.Code)
	}
	if _, ok := o.m["details"]; ok {
		for _, d := range o.list("details") {
			d.text("key")
			d.text("value")
		}
	}
	return o.int("code")
}
