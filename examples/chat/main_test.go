package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type person struct {
	lines  chan string
	screen testkit.LogBuffer
	leave  context.CancelFunc
	err    error // once ended is done
	ended  sync.WaitGroup
}

func start(t *testing.T, relay *api.Client, code string) *person {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &person{lines: make(chan string, 10), leave: cancel}
	p.ended.Go(func() { p.err = chat(ctx, relay, code, p.lines, &p.screen) })
	t.Cleanup(func() {
		p.leave()
		p.ended.Wait()
	})
	return p
}

func (p *person) said() (all []string) {
	for line := range strings.Lines(p.screen.String()) {
		if !strings.HasPrefix(line, "join code") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// TestChat: all players see all lines in the order of the host, and the chat ends with the host.
func TestChat(t *testing.T) {
	url, stop := relaytest.StartService(httpapi.Token{
		Secret: "chat-0123456789abc", Project: "chat", Environment: "test", Server: true,
	})
	t.Cleanup(stop)
	relay := &api.Client{BaseURL: url, Token: "chat-0123456789abc"}
	host := start(t, relay, "")
	var code string
	testkit.Eventually(t, "the join code is printed", func() bool {
		if m := regexp.MustCompile(`join code: (\w+)\n`).FindStringSubmatch(host.screen.String()); m != nil {
			code = m[1]
		}
		return code != ""
	})
	all := []*person{host, start(t, relay, code), start(t, relay, code)}

	for _, p := range all[1:] { // A line that is said before a player has connected does not come to it.
		p.lines <- "hello"
		testkit.Eventually(t, "the player hears itself", func() bool { return len(p.said()) > 0 })
	}
	for range 5 {
		for _, p := range all {
			p.lines <- "\x1b[31mline " + strings.Repeat("x", 2000)
		}
	}
	for i, p := range all {
		p.lines <- "last of " + string(rune('A'+i))
	}
	lasts := func(p *person) (n int) {
		for _, line := range p.said() {
			if strings.Contains(line, "last of ") {
				n++
			}
		}
		return n
	}
	for _, p := range all {
		testkit.Eventually(t, "all lines have arrived", func() bool { return lasts(p) == len(all) })
	}
	want := host.said()
	if len(want) != 2+6*len(all) {
		t.Errorf("the host sees %d lines", len(want))
	}
	for i, p := range all {
		if got := p.said(); len(got) > len(want) || !slices.Equal(got, want[len(want)-len(got):]) {
			t.Errorf("person %d sees other lines than the host", i)
		}
		if strings.Contains(p.screen.String(), "\x1b") {
			t.Errorf("person %d sees a control character", i)
		}
	}

	host.leave()
	for i, p := range all {
		p.ended.Wait()
		if (p.err == nil) != (i == 0) {
			t.Errorf("person %d: %v", i, p.err)
		}
	}
}
