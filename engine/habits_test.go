package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/habits"
)

// habitCase is what a game with a habit gets.
type habitCase struct {
	habit   string // in habits.Table
	host    bool   // the host has it, else the player
	restart bool   // the relay starts again 5 s after the call, with its state file
	// plays: host and player get messages of each other, last within so long of the call,
	// of the player's return or of the restart. Zero: the game ends.
	plays time.Duration
	// gets is an ERROR that the client of the habit gets; 0: it gets none but 3.
	gets byte
}

// habitCases have every habit.
var habitCases = []habitCase{
	{habit: "UTP 1.x", plays: time.Second},
	{habit: "UTP 1.x", restart: true, plays: 12 * time.Second},
	{habit: "UTP 1.x with NGO", plays: time.Second},
	{habit: "UTP 1.x with NGO", restart: true, plays: 3 * time.Second},
	{habit: "UTP 1.x with NGO", host: true, restart: true, plays: 3 * time.Second},
	{habit: "UTP 2.0 to 2.6", plays: time.Second},
	{habit: "UTP 2.0 to 2.6", restart: true, plays: 2 * time.Second},
	{habit: "UTP 2.7 with NGO", plays: time.Second},
	{habit: "UTP 2.7 with NGO", restart: true, plays: 2 * time.Second},
	{habit: "UTP 2.7 with NGO", host: true, restart: true, plays: 2 * time.Second},
	{habit: "a lobby that binds in time", plays: 9 * time.Second},
	{habit: "a lobby that binds in time", host: true, plays: 10 * time.Second},
	{habit: "a lobby before the first datagram", gets: 4},
	{habit: "a lobby before the first datagram", host: true, gets: 4},
	{habit: "a lobby before the first message", plays: 13 * time.Second},
	{habit: "a lobby before the first message", restart: true, plays: 15 * time.Second},
	{habit: "a lobby before the first message, UTP 1.x", plays: 13 * time.Second},
	{habit: "a tab in the background", plays: time.Second},
	{habit: "a page that is reloaded", plays: 5 * time.Second},
	{habit: "a player that crashes and is back at once", plays: 5 * time.Second},
	{habit: "a player that crashes and is back at once, UTP 1.x", plays: 5 * time.Second},
	{habit: "NGO's Shutdown"},
	{habit: "NGO's Shutdown", host: true},
	{habit: "a driver that is disposed at once"},
	{habit: "a driver that is disposed at once", host: true},
}

// habitTime is how long a game lasts: longer than any habit, and than the idle limit
// after it.
const habitTime = 45 * time.Second

// TestHabits plays a game with each habit of clients in simulated time. The match has one
// seat.
func TestHabits(t *testing.T) {
	t.Parallel()
	byName := map[string]habits.Habit{}
	for _, h := range habits.Table() {
		byName[h.Name] = h
	}
	covered := map[string]bool{}
	for _, c := range habitCases {
		covered[c.habit] = true
		h, ok := byName[c.habit]
		if !ok {
			t.Errorf("no habit is called %q", c.habit)
			continue
		}
		role := map[bool]string{false: "player", true: "host"}[c.host]
		t.Run(fmt.Sprintf("%s as %s, restart %v", c.habit, role, c.restart), func(t *testing.T) {
			if why := c.play(t, h); why != "" {
				t.Error(why)
			}
		})
	}
	for name := range byName {
		if !covered[name] {
			t.Errorf("no case has the habit %q", name)
		}
	}
}

// play plays the game, and returns what was wrong.
func (c *habitCase) play(t *testing.T, h habits.Habit) string {
	n := newNetsim(t, 1)
	n.weather = networkConditions{delay: 20}
	n.restart(true) // The first run of a rig has no state file.
	n.shared.rules.recoverUntil = 0
	usual := habits.Habit{Name: "usual", Kind: h.Kind, Ping: habits.NGOPing}
	hostHabit, playerHabit := usual, h
	if c.host {
		hostHabit, playerHabit = h, usual
	}
	enter := func(name string, h habits.Habit, host *player) *player {
		p, err := n.enter(name, h, host, 1)
		if err != nil {
			n.fail("%s: %v", name, err)
		}
		p.late = h.Lobby >= 10*time.Second
		return p
	}
	host := enter("host", hostHabit, nil)
	n.pass(100 * time.Millisecond)
	if c.host && h.Lobby > 0 {
		n.pass(h.Lobby)
	}
	subject, began := host, n.now // began: from when on it has to play
	p := host
	if !c.host || c.plays > 0 {
		p = enter("player", playerHabit, host)
	}
	if !c.host {
		subject = p
	}
	var played int64 // when both got a message first since began
	run := func(d time.Duration) {
		for end := n.now + d.Milliseconds(); n.now < end; {
			n.pass(50 * time.Millisecond)
			if played == 0 && p != host && inTouch(host, p, began) {
				played = n.now
			}
		}
	}
	switch {
	case h.Returns:
		run(h.Crash)
		p.hasQuit, n.leavers[p.reservation.id] = true, true
		n.pass(h.Back)
		began, played = n.now, 0
		h.Returns = false
		p = enter("player", h, host)
	case c.restart:
		run(5 * time.Second)
		n.crash(true, time.Second)
		began, played = n.downUntil, 0
		if h.Quiet > 0 {
			began = p.began
		}
	}
	run(habitTime)
	for code, count := range subject.errors {
		if code != 3 && code != c.gets {
			return fmt.Sprintf("it got ERROR %d %d times", code, count)
		}
	}
	took := time.Duration(played-began) * time.Millisecond
	switch {
	case c.gets != 0 && (subject.errors[c.gets] != 1 || subject.Status != habits.Failed):
		return fmt.Sprintf("it got ERROR %d %d times, and its status is %d", c.gets, subject.errors[c.gets], subject.Status)
	case h.Shutdown > 0:
		return c.requireEnd(n, host, p)
	case c.plays == 0 && played != 0:
		return "it plays"
	case c.plays > 0 && played == 0:
		return fmt.Sprintf("it does not play: %v; %v", host, p)
	case c.plays > 0 && took > c.plays:
		return fmt.Sprintf("it plays after %v, want %v", took, c.plays)
	case c.plays > 0 && !inTouch(host, p, n.now-2000):
		return fmt.Sprintf("it played after %v and does not any more: %v; %v", took, host, p)
	}
	return ""
}

// inTouch reports whether both had a message of the other one since a time.
func inTouch(host, p *player, since int64) bool {
	had := func(at *player, peer mID) bool {
		s := at.peers[peer]
		return at.Status == habits.Bound && s != nil && s.messages > 0 && s.lastReceived >= since
	}
	return had(host, p.reservation.id) && had(p, host.reservation.id)
}

// requireEnd checks that a match is over for both without an ERROR.
func (c *habitCase) requireEnd(n *netsim, host, p *player) string {
	switch {
	case len(host.Peers) != 0 || len(p.Peers) != 0:
		return fmt.Sprintf("the game goes on: %v; %v", host, p)
	case len(host.errors)+len(p.errors) != 0:
		return fmt.Sprintf("the host got ERRORs %v, the player %v", host.errors, p.errors)
	case n.entry(p.reservation).Link != 0:
		return "the link is open"
	}
	return ""
}
