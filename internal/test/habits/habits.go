// Package habits owns how the clients of games behave towards a relay: the relay layer
// of Unity Transport by version, as a state machine without clock and socket, and a table
// of what games do with it. Tests use it, in simulated time and over sockets.
package habits

import "time"

// Kind is a version of Unity Transport.
type Kind struct {
	Name string
	// RaisesNonce: with each BIND while it is not bound, and it binds at once with the
	// next nonce on ERROR 3. 1.x only logs ERROR 3, and cannot change its address.
	RaisesNonce bool
	// MaxBinds is after how many unanswered BINDs it fails; 0: never.
	MaxBinds int
	// TakesClosing: REJECTED and DISCONNECT close its connection. 1.x ignores them.
	TakesClosing bool
}

// UTP1 returns version 1.x since 1.3.4.
func UTP1() Kind { return Kind{Name: "UTP 1.x"} }

// UTP20 returns versions 2.0 to 2.6.
func UTP20() Kind {
	return Kind{Name: "UTP 2.0 to 2.6", RaisesNonce: true, MaxBinds: 60, TakesClosing: true}
}

// UTP27 returns version 2.7.
func UTP27() Kind {
	k := UTP20()
	k.Name = "UTP 2.7"
	return k
}

// NGOPing is the PING period of Netcode for GameObjects.
const NGOPing = 500 * time.Millisecond

// Frame is how long a frame of a game lasts, about.
const Frame = 16 * time.Millisecond

// Habit is what a player's game does. All times are from the API call on, unless they
// say otherwise; zero means at once or never.
type Habit struct {
	Name string
	Kind Kind
	Ping time.Duration // 0: 3 s
	// Lobby is the time before the first datagram.
	Lobby time.Duration
	// Quiet is the time from the connection to the first message of the game, which is
	// Unity's own request in most games.
	Quiet time.Duration
	// The game is in the background from Hidden on, for HiddenFor: no timer runs, and
	// what arrives is read.
	Hidden, HiddenFor time.Duration
	// The process or page ends at Crash, silently, and a new one joins again after Back.
	// Returns: it does.
	Crash, Back time.Duration
	Returns     bool
	// Shutdown is when the game ends the connections: with Unity's transport disconnect,
	// and a DISCONNECT two frames later unless its driver is Disposed at once. It never
	// sends CLOSE.
	Shutdown time.Duration
	Disposed bool
	// Leaves: a host calls leave before it shuts down. Lingers is for how long its driver
	// stays after the last DISCONNECT.
	Leaves  bool
	Lingers time.Duration
}

// DisconnectTimeout is after how long without a message of its host a player of Unity's
// transport disconnects by itself.
const DisconnectTimeout = 30 * time.Second

// Departures returns the habits of hosts that leave a match.
func Departures() []Habit {
	const at = 5 * time.Second
	ngo := func(name string, kind Kind) Habit { return Habit{Name: name, Kind: kind, Ping: NGOPing, Shutdown: at} }
	disposed, plain := ngo("a driver that is disposed at once", UTP27()), Habit{Name: "a plain end", Kind: UTP27(), Shutdown: at}
	disposed.Disposed = true
	plain.Lingers = time.Second
	recipe, fast := ngo("leave, then NGO's Shutdown", UTP27()), disposed
	recipe.Leaves = true
	fast.Name, fast.Leaves = "leave, and a driver that is disposed at once", true
	return []Habit{
		ngo("NGO's Shutdown", UTP27()), ngo("NGO's Shutdown, UTP 1.x", UTP1()), disposed, plain, recipe, fast,
		{Name: "a crash", Kind: UTP27(), Crash: at}, {Name: "a crash, UTP 1.x", Kind: UTP1(), Crash: at},
	}
}

// Table returns the habits of players and hosts.
func Table() []Habit {
	const lobby = 12 * time.Second
	return []Habit{
		{Name: "UTP 1.x", Kind: UTP1()},
		{Name: "UTP 1.x with NGO", Kind: UTP1(), Ping: NGOPing},
		{Name: "UTP 2.0 to 2.6", Kind: UTP20()},
		{Name: "UTP 2.7 with NGO", Kind: UTP27(), Ping: NGOPing},
		{Name: "a lobby that binds in time", Kind: UTP27(), Lobby: 8 * time.Second},
		{Name: "a lobby before the first datagram", Kind: UTP27(), Lobby: lobby},
		{Name: "a lobby before the first message", Kind: UTP27(), Quiet: lobby},
		{Name: "a lobby before the first message, UTP 1.x", Kind: UTP1(), Quiet: lobby},
		{Name: "a tab in the background", Kind: UTP27(), Hidden: 5 * time.Second, HiddenFor: 25 * time.Second},
		{Name: "a page that is reloaded", Kind: UTP27(), Crash: 5 * time.Second, Back: time.Second, Returns: true},
		{Name: "a player that crashes and is back at once", Kind: UTP27(), Crash: 5 * time.Second, Returns: true},
		{Name: "a player that crashes and is back at once, UTP 1.x", Kind: UTP1(), Crash: 5 * time.Second, Returns: true},
		{Name: "NGO's Shutdown", Kind: UTP27(), Ping: NGOPing, Shutdown: 5 * time.Second},
		{Name: "a driver that is disposed at once", Kind: UTP27(), Ping: NGOPing, Shutdown: 5 * time.Second, Disposed: true},
	}
}
