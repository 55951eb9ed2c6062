package ctl

import (
	"context"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ferryrelay/ferry/internal/base/printable"
)

// topView is top on a terminal, with keys.
type topView struct {
	topPage
	every time.Duration
	look  func() (look, error)

	err           error // of the last look; shown in place of the page
	width, height int   // of the terminal; 0: not known yet
}

// looked is the result of one look.
type looked struct {
	look look
	err  error
}

// topOnTerminal shows top until ctx ends or a key quits. A first look that fails
// is an error; later ones are shown, since the relay may come back.
func (c *Client) topOnTerminal(ctx context.Context, o Output, node string) error {
	v := topView{topPage: c.newPage(), every: o.Every, look: func() (look, error) { return c.look(ctx, node) }}
	first, err := v.look()
	if err != nil {
		return err
	}
	v.advance(first)
	// Signals end ctx, as for every command.
	_, err = tea.NewProgram(v, tea.WithContext(ctx), tea.WithInput(o.Stdin), tea.WithOutput(o.Stdout), tea.WithoutSignalHandler()).Run()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Init implements [tea.Model].
func (v topView) Init() tea.Cmd { return v.next() }

// next looks again after the time between two looks.
func (v topView) next() tea.Cmd {
	return tea.Tick(v.every, func(time.Time) tea.Msg {
		l, err := v.look()
		return looked{l, err}
	})
}

// Update implements [tea.Model].
func (v topView) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		v.width, v.height = msg.Width, msg.Height
	case looked:
		if v.err = msg.err; v.err == nil {
			v.advance(msg.look)
		}
		return v, v.next()
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return v, tea.Quit
		case "right":
			v.order = min(v.order+1, byBytes)
		case "left":
			v.order = max(v.order-1, byProject)
		}
	}
	return v, nil
}

// View implements [tea.Model]. The last line names the keys.
func (v topView) View() tea.View {
	var b strings.Builder
	if v.err != nil {
		for line := range strings.SplitSeq(v.err.Error(), "\n") {
			b.WriteString(Wrap(printable.Line(line), v.width, 0, 0))
		}
	} else {
		v.fit()
		_ = v.draw(&b) // A strings.Builder takes everything.
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if room := max(v.height-2, 0); v.height > 0 && len(lines) > room {
		lines = lines[:room]
	}
	lines = append(lines, "", "q quit   left, right: sort projects by "+projectHeads[v.order])
	view := tea.NewView(strings.Join(lines, "\n"))
	view.AltScreen = true
	return view
}

// fit divides the terminal between drops and projects: each table has half of
// the lines, and projects have those that drops leave.
func (v *topView) fit() {
	if v.height == 0 {
		return
	}
	const others = 7 + 2 + 2 + 2 // the head, each table's blank line and head, the keys
	room := max(v.height-others, 2)
	v.drops = min(len(rank(v.now.stats.Drops)), topDrops, room/2)
	v.projects = room - v.drops
}
