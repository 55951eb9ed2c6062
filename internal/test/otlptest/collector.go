// Package otlptest has a collector of spans for tests.
package otlptest

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span that a collector has.
type Span struct {
	Name, Service, Instance string
	Trace, ID, Parent       string // in hexadecimal digits
	Kind                    tracepb.Span_SpanKind
	Failed                  bool
	Attributes              map[string]string
	Start, End              time.Time
	Events, Links           int
}

// Collector is an OTLP/HTTP receiver. Its methods may be called concurrently.
type Collector struct {
	// URL is its address without a path.
	URL string

	mu       sync.Mutex // guards the following fields
	spans    []Span
	messages int
	texts    []string // the decoded messages
	answer   func(w http.ResponseWriter) bool
}

// New starts a collector, which ends with the test.
func New(t testing.TB) *Collector {
	c := new(Collector)
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// Answer sets a function that may answer a request in place of the collector, and then
// returns true. Nil: none.
func (c *Collector) Answer(f func(w http.ResponseWriter) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = f
}

// ServeHTTP takes a message.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.messages++
	answer := c.answer
	c.mu.Unlock()
	var data tracepb.TracesData
	if err := decode(r, &data); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if answer != nil && answer(w) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.texts = append(c.texts, data.String())
	for _, of := range data.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, spanOf(s, of))
			}
		}
	}
}

func decode(r *http.Request, data *tracepb.TracesData) error {
	if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		return fmt.Errorf("%s %s %q", r.Method, r.URL.Path, r.Header)
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return err
	}
	return proto.Unmarshal(text, data)
}

func spanOf(s *tracepb.Span, of *tracepb.ResourceSpans) Span {
	span := Span{
		Name: s.Name, Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId),
		Parent: hex.EncodeToString(s.ParentSpanId), Kind: s.Kind,
		Failed:     s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR,
		Attributes: make(map[string]string),
		Start:      time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)),
		Events: len(s.Events), Links: len(s.Links),
	}
	for _, a := range s.Attributes {
		if v := a.Value.GetStringValue(); v != "" {
			span.Attributes[a.Key] = v
		} else {
			span.Attributes[a.Key] = fmt.Sprint(a.Value.GetIntValue())
		}
	}
	for _, a := range of.Resource.Attributes {
		switch a.Key {
		case "service.name":
			span.Service = a.Value.GetStringValue()
		case "service.instance.id":
			span.Instance = a.Value.GetStringValue()
		}
	}
	return span
}

// Spans returns the spans in the order of their start.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.spans)
	slices.SortStableFunc(all, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return all
}

// Messages returns how many messages have arrived, including refused ones.
func (c *Collector) Messages() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.messages
}

// Text returns all that the collector has accepted, as text.
func (c *Collector) Text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.texts, "\n")
}

// Roots returns the spans with that name that have no parent, or whose parent the
// collector does not have.
func Roots(all []Span, name string) (roots []Span) {
	for _, s := range all {
		if s.Name == name && !slices.ContainsFunc(all, func(p Span) bool { return p.ID == s.Parent }) {
			roots = append(roots, s)
		}
	}
	return roots
}

// Tree returns the names of a span and all below it, one a line, each indented by one
// space more than its parent, in the order of their start.
func Tree(all []Span, root Span) string {
	var b strings.Builder
	var add func(s Span, indent string)
	add = func(s Span, indent string) {
		fmt.Fprintf(&b, "%s%s\n", indent, s.Name)
		for _, child := range all {
			if child.Parent == s.ID && child.Trace == s.Trace {
				add(child, indent+" ")
			}
		}
	}
	add(root, "")
	return b.String()
}
