package main

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestQUIC: players request pages of a host through a relay, and do not talk to a host that is not the
// one of the invitation.
func TestQUIC(t *testing.T) {
	url, stop := relaytest.StartService(httpapi.Token{
		Secret: "quic-0123456789abc", Project: "quic", Environment: "test", Server: true,
	})
	t.Cleanup(stop)
	relay := &api.Client{BaseURL: url, Token: "quic-0123456789abc"}
	limit, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // bounds a test that hangs
	t.Cleanup(cancel)
	ctx, leave := context.WithCancel(limit)
	var running sync.WaitGroup
	var screen testkit.LogBuffer
	running.Go(func() {
		if err := host(ctx, relay, &screen); err != nil {
			t.Errorf("host: %v", err)
		}
	})
	t.Cleanup(func() {
		leave()
		running.Wait()
	})
	var invitation string
	testkit.Eventually(t, "the invitation is printed", func() bool {
		if m := regexp.MustCompile(`invitation: (\S+)\n`).FindStringSubmatch(screen.String()); m != nil {
			invitation = m[1]
		}
		return invitation != ""
	})

	for path, want := range map[string]string{
		"/score": "> GET /score\n< 200 OK\nred 3, blue 5\n",
		"/lives": "> GET /lives\n< 404 Not Found\n404 page not found\n",
	} {
		var out strings.Builder
		if err := get(ctx, relay, invitation, path, &out); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", path, out.String(), err)
		}
	}
	if n := strings.Count(screen.String(), "GET /score from "); n != 1 {
		t.Errorf("the host served %d requests:\n%s", n, screen.String())
	}

	code, _, _ := strings.Cut(invitation, ".")
	err := get(ctx, relay, code+".AAAA", "/score", new(strings.Builder))
	if err == nil || !strings.Contains(err.Error(), "not that of the invitation") {
		t.Errorf("wrong fingerprint: %v", err)
	}
}
