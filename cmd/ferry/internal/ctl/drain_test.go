package ctl

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// TestDrainNode: a node that is named is part of the path, and of the answer.
func TestDrainNode(t *testing.T) {
	asked := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.RequestURI
		node := ""
		if strings.HasPrefix(r.URL.Path, "/nodes/") {
			node = `"node":"3f2a0000-1111",`
		}
		io.WriteString(w, `{`+node+`"draining":`+map[string]string{"POST": "true", "DELETE": "false"}[r.Method]+`,"threshold":2,"allocations":7}`)
	}))
	defer s.Close()
	c := client(t, Config{URL: s.URL})
	query := url.Values{"threshold": {"2"}}
	for _, tt := range []struct {
		request     Request
		asks, shows string
	}{
		{Drain("", query), "POST /drain?threshold=2",
			"draining, allocations left: 7;"},
		{Drain("3f2a", query), "POST /nodes/3f2a/drain?threshold=2",
			"3f2a0000-1111: draining, allocations left: 7;"},
		{Drain("a/../b", nil), "POST /nodes/a%2F..%2Fb/drain",
			"3f2a0000-1111: draining"},
		{Undrain("3f2a"), "DELETE /nodes/3f2a/drain",
			"3f2a0000-1111: not draining, allocations: 7"},
		{Undrain(""), "DELETE /drain", "not draining, allocations: 7"},
	} {
		var out strings.Builder
		err := c.Show(t.Context(), Output{Stdout: &out}, tt.request)
		if err != nil || asked != tt.asks || !strings.HasPrefix(out.String(), tt.shows) {
			t.Errorf("%v: asked %q, want %q; shows %q, want %q", err, asked, tt.asks, out.String(), tt.shows)
		}
	}
}
