package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/habits"
)

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

func inTouch(host, p *player, since int64) bool {
	had := func(at *player, peer mID) bool {
		s := at.peers[peer]
		return at.Status == habits.Bound && s != nil && s.messages > 0 && s.lastReceived >= since
	}
	return had(host, p.reservation.id) && had(p, host.reservation.id)
}

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

type departureCase struct {
	asks time.Duration // after they have lost it, or after its crash
	// plays: a player is the new host within so long of the first call. All play with it a
	// second later, since the fifth player and the next ones ask again after one.
	plays time.Duration
}

// TestHabitsMigration has the hosts of six players leave in each way, over a network that loses
// nothing and one that loses 5 %. All players play on with one of them as their host.
func TestHabitsMigration(t *testing.T) {
	t.Parallel()
	for _, h := range habits.Departures() {
		for _, loss := range []int{0, 5} {
			cases := []departureCase{{0, defaultSilence + time.Second}}
			switch {
			case h.Crash > 0:
				cases = []departureCase{
					// until 8 s after the last message {8 * time.Second, time.Second}, {habits.DisconnectTimeout, time.Second},
					{time.Second, defaultSilence},
				}
			case h.Leaves:
				cases = []departureCase{{0, time.Second}}
			}
			for _, c := range cases {
				t.Run(fmt.Sprintf("%s, asked about after %v, loss %d", h.Name, c.asks, loss), func(t *testing.T) {
					t.Parallel()
					for seed := range uint64(3) {
						c.play(t, h, loss, seed)
					}
				})
			}
		}
	}
}

type migrating struct {
	*player
	asked, retryAt int64   // ms; first and next call
	candidate      *player // its client with a reservation for the host's place
	next           *player // its client in the match that goes on
}

func (c departureCase) play(t *testing.T, h habits.Habit, loss int, seed uint64) {
	n := newNetsim(t, seed)
	n.cfg.HostMigration.Window = time.Minute
	n.restart(false)
	n.shared.rules.recoverUntil = 0
	n.weather = networkConditions{delay: 20, jitter: 10}
	leavesAt := max(h.Shutdown, h.Crash)
	usual := habits.Habit{Name: "usual", Kind: h.Kind, Ping: habits.NGOPing}
	quiet := h
	quiet.Shutdown, quiet.Crash = 0, 0
	enter := func(name string, h habits.Habit, host *player) *player {
		p, err := n.enter(name, h, host, 6)
		if err != nil {
			n.fail("%s: %v", name, err)
		}
		return p
	}
	host := enter("host", quiet, nil)
	n.pass(time.Second)
	var players []*migrating
	for i := range 6 {
		players = append(players, &migrating{player: enter(fmt.Sprint("player ", i), usual, host)})
		n.pass(100 * time.Millisecond)
	}
	n.pass(leavesAt)
	for _, p := range players {
		if !inTouch(host, p.player, n.now-1000) {
			n.fail("%s does not play", p.name)
		}
	}
	n.weather.loss = loss
	left := n.now
	c.depart(n, h, host)
	newHost, boundAt := (*player)(nil), int64(0)
	for done := 0; done < len(players); {
		n.pass(50 * time.Millisecond)
		done = 0
		for _, p := range players {
			lost := len(p.Peers) == 0
			if since := n.now - left; h.Crash > 0 {
				lost = since >= c.asks.Milliseconds()
				if since >= habits.DisconnectTimeout.Milliseconds() && len(p.Peers) > 0 {
					p.Send(p.clock(), message(9, p.reservation.id, host.reservation.id))
					p.Forget(host.reservation.id)
					p.Left = true
				}
			} else if since > 1500 { // The transport's disconnect was lost: the game knows by its own means.
				lost = true
			}
			switch x := p.candidate; {
			case x == nil || p.next != nil:
			case x.Status == habits.Bound:
				p.next, newHost, p.hasQuit = x, x, true
				boundAt = n.now
			case x.Status == habits.Failed:
				p.candidate = nil
			}
			if lost && p.next == nil && p.candidate == nil && n.now >= p.retryAt {
				newHost = p.migrate(n, host, newHost)
			}
			if p.next != nil && p.next.Status == habits.Bound && (p.next == newHost || len(p.next.Peers) > 0 && inTouch(newHost, p.next, left)) {
				done++
			}
		}
		if n.now-left > 60_000 {
			n.fail("%s: %d of %d play on", h.Name, done, len(players))
		}
	}
	first := players[0].asked
	for _, p := range players {
		first = min(first, p.asked)
		for code := range p.errors {
			if code != 5 { // It relays to a host that has ended.
				n.fail("%s got ERRORs %v", p.name, p.errors)
			}
		}
	}
	limit := c.plays.Milliseconds()
	if loss > 0 {
		limit += 2500 // Clients repeat what is lost each second.
	}
	if bound, all := boundAt-first, n.now-first; bound > limit || all > limit+1000 {
		n.fail("%s: one is the host after %d ms, and all play on after %d ms, want %d", h.Name, bound, all, limit)
	}
}

func (c departureCase) depart(n *netsim, h habits.Habit, host *player) {
	n.leavers[host.reservation.id] = true
	if h.Crash > 0 {
		host.hasQuit = true
		return
	}
	if h.Leaves {
		if err := n.leave(host.reservation); err != nil {
			n.fail("leave: %v", err)
		}
	}
	peers := slices.Clone(host.Peers)
	for _, peer := range peers {
		host.Leave(host.clock(), peer, true)
	}
	host.paused = true
	if !h.Disposed { // Two frames later: the players have often DISCONNECTed before.
		n.pass(2 * habits.Frame)
		for _, peer := range peers {
			host.Send(host.clock(), message(9, host.reservation.id, peer))
		}
		for end := n.now + h.Lingers.Milliseconds(); n.now < end; n.pass(50 * time.Millisecond) {
			host.Update(host.clock())
		}
	}
	host.hasQuit = true
}

func (p *migrating) migrate(n *netsim, host, newHost *player) *player {
	if p.asked == 0 {
		p.asked = n.now
	}
	code := host
	if newHost != nil && newHost.Status == habits.Bound {
		code = newHost
	}
	card, err := n.rig.migrate(p.reservation, code.reservation)
	usual := habits.Habit{Name: "usual", Kind: p.Kind, Ping: habits.NGOPing}
	refused, _ := errors.AsType[alloc.RefusedError](err)
	if errors.Is(err, alloc.ErrMigration) {
		p.retryAt = n.now + refused.RetryAfter.Milliseconds()
		return newHost
	}
	if errors.Is(err, alloc.ErrHostPresent) {
		for _, x := range n.players {
			if mID(refused.Host) == x.reservation.id {
				if p.next, err = n.enter(p.name+" again", usual, x, 0); err != nil {
					n.fail("%s joins again: %v", p.name, err)
				}
				p.hasQuit = true
				return x
			}
		}
	}
	if err != nil {
		n.fail("%s: %v", p.name, err)
	}
	p.candidate = newPlayer(n, p.name+" as host", usual, nil, card)
	p.candidate.late = true // Another one may be bound first.
	n.at[p.candidate.ep] = p.candidate
	n.players = append(n.players, p.candidate)
	return newHost
}
