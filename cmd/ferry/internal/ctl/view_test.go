package ctl

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// update gives a message to a view and returns the view after it.
func update(v tea.Model, msg tea.Msg) tea.Model {
	v, _ = v.Update(msg)
	return v
}

// projects returns the names of the projects that a view shows, in its order.
func projects(v tea.Model) (names []string) {
	for line := range strings.Lines(v.View().Content) {
		if name, _, ok := strings.Cut(line, "/e "); ok {
			names = append(names, name)
		}
	}
	return names
}

// TestTopKeys: left and right choose the column that sorts the projects, and
// stop at the last one; q quits.
func TestTopKeys(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	usage := func(name string, hosts, players int, datagrams, bytes uint64) operator.ProjectUsage {
		return operator.ProjectUsage{Project: name, Environment: "e", Tenant: "t" + name, Hosts: hosts, Players: players,
			Datagrams: datagrams, Bytes: bytes}
	}
	var v tea.Model = topView{topPage: topPage{order: byBytes, drops: topDrops, projects: topProjects}}
	v = update(v, looked{look: look{
		took: start.Add(time.Second), stats: operator.Stats{Now: start.Add(time.Second), Since: start},
		usage: operator.Usage{Projects: []operator.ProjectUsage{
			usage("a", 1, 2, 3, 4), usage("b", 2, 3, 4, 1), usage("c", 3, 4, 1, 2), usage("d", 4, 1, 2, 3),
		}},
	}})
	left, right := tea.KeyPressMsg{Code: tea.KeyLeft}, tea.KeyPressMsg{Code: tea.KeyRight}
	for i, step := range []struct {
		key  tea.KeyPressMsg
		want string
	}{
		{right, "a d c b"}, {left, "b a d c"}, {left, "c b a d"}, {left, "d c b a"}, {left, "a b c d"},
		{left, "a b c d"}, {right, "d c b a"},
	} {
		v = update(v, step.key)
		if got := strings.Join(projects(v), " "); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: tea.KeyEscape}, {Code: 'c', Mod: tea.ModCtrl}} {
		_, cmd := v.Update(key)
		if cmd == nil {
			t.Errorf("%s does not quit", key)
		} else if _, quits := cmd().(tea.QuitMsg); !quits {
			t.Errorf("%s does not quit", key)
		}
	}
}

// TestTopSize: the view fits into every terminal and keeps the line of keys, and
// a higher terminal shows more projects.
func TestTopSize(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := look{took: start.Add(time.Second), stats: operator.Stats{Now: start.Add(time.Second), Since: start, Drops: map[string]uint64{}}}
	for i := range 50 {
		l.stats.Drops[fmt.Sprint("reason", i)] = 1
		l.usage.Projects = append(l.usage.Projects, operator.ProjectUsage{Project: fmt.Sprint(i), Environment: "e", Tenant: fmt.Sprint(i)})
	}
	v := update(topView{}, looked{look: l})
	for height, want := range map[int]int{3: 0, 10: 0, 24: 6, 30: 9, 60: 35} {
		v = update(v, tea.WindowSizeMsg{Width: 80, Height: height})
		text := v.View().Content
		if lines := strings.Count(text, "\n") + 1; lines > height || !strings.Contains(text, "q quit") {
			t.Errorf("%d lines for a terminal of %d:\n%s", lines, height, text)
		}
		if got := len(projects(v)); got != want {
			t.Errorf("%d projects on %d lines, want %d", got, height, want)
		}
	}
}

// TestTopFailure: a look that fails is shown whole, without control characters,
// and the page comes back with the next one.
func TestTopFailure(t *testing.T) {
	v := update(topView{}, tea.WindowSizeMsg{Width: 10, Height: 24})
	v = update(v, looked{err: errors.New("no answer \x1b[2J\nat all")})
	if text := v.View().Content; !strings.HasPrefix(text, "no answer\n?[2J\nat all\n\nq quit") {
		t.Errorf("%q", text)
	}
	v = update(v, looked{})
	if text := v.View().Content; !strings.Contains(text, "allocations") {
		t.Errorf("%q", text)
	}
}
