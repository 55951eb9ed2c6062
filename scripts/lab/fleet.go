package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/habits"
	"github.com/ferryrelay/ferry/proto"
)

// ErrFleet is wrapped by errors about a FleetConfig.
var ErrFleet = errors.New("lab: invalid fleet")

const (
	// maxFleet bounds the matches: each player has an address of its own in the
	// first 4,096 of its side.
	maxFleet = 4000
	// pollInterval is the time between two polls of the sockets, and the resolution
	// of the latencies.
	pollInterval = time.Millisecond
	// maxDelays bounds the delays that are stored between two calls of Delays.
	maxDelays = 1 << 20
)

// SideConfig describes the sockets of one side of a Fleet: the hosts or the
// joiners.
type SideConfig struct {
	// Do calls a function in the namespace of the sockets; nil calls it directly.
	Do func(func() error) error
	// First is the address of player 0; player n has the n-th address after it.
	// All of them must be local addresses in the namespace.
	First netip.Addr
	// Via is the address that players send to, such as that of a proxy; zero:
	// FleetConfig.Relay.
	Via netip.AddrPort
}

// FleetConfig configures a Fleet.
type FleetConfig struct {
	Hosts, Joiners SideConfig
	Relay          netip.AddrPort // required
	Matches        int            // maximum number of matches, 1 to 4,000
	PingEvery      time.Duration  // a player that has sent nothing for so long sends a PING; 0: 3 s
	Rate           int            // datagrams per second and direction; 0: PINGs only
	Payload        int            // bytes, at least 16; 0: 64
	Ports          int            // sockets per side, between which players roam; 0: 1
	RoamEvery      time.Duration  // interval of each player's port changes; 0: never
	RebindEvery    time.Duration  // interval of BINDs with a higher nonce; 0: only when necessary
	// MatchDuration is the mean duration of a match; durations are uniform
	// between half of it and one and a half. Then both players leave by a
	// random method, and Add can reuse the match's slot. One host in eight has
	// no joiner. 0: matches do not end.
	MatchDuration time.Duration
	Seed          uint64 // of the phases at which players send
}

// Fleet runs many matches of a host and a joiner over plain UDP on few sockets.
// The players behave like Unity Transport. Its methods may be called while Run
// runs.
type Fleet struct {
	cfg      FleetConfig
	interval int64 // ns between a player's datagrams
	sides    [2]side
	transmit func(p *player, pkt []byte) // sends a copy

	mu      sync.Mutex // guards the following fields; Run holds it in each cycle
	players []*player  // host and joiner of match n are 2n and 2n+1
	free    []int      // slots of matches that both players have left
	paused  bool
	mark    int64
	counts  Counts
	rebinds []int64 // ns
	roams   []int64 // ns
	delays  []int64 // ns, at most maxDelays
	payload []byte
	rng     *rand.Rand
}

// NewFleet opens the sockets. On error it leaves none open. Errors about cfg
// wrap ErrFleet.
func NewFleet(cfg FleetConfig) (*Fleet, error) {
	if cfg.Matches < 1 || cfg.Matches > maxFleet || !cfg.Relay.IsValid() || cfg.Rate < 0 {
		return nil, fmt.Errorf("%w: %d matches, relay %v, rate %d", ErrFleet, cfg.Matches, cfg.Relay, cfg.Rate)
	}
	cfg.Ports, cfg.Payload = max(cfg.Ports, 1), max(cfg.Payload, minPayload)
	if cfg.PingEvery == 0 {
		cfg.PingEvery = pingPeriod
	}
	f := &Fleet{cfg: cfg, payload: make([]byte, cfg.Payload), rng: rand.New(rand.NewPCG(cfg.Seed, 1))}
	if cfg.Rate > 0 {
		f.interval = int64(time.Second) / int64(cfg.Rate)
	}
	f.transmit = f.queue
	var err error
	for i, place := range []SideConfig{cfg.Hosts, cfg.Joiners} {
		f.sides[i], err = openSide(place, cfg.Relay, cfg.Ports, cfg.Matches)
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

func (f *Fleet) close() error {
	return errors.Join(f.sides[0].close(), f.sides[1].close())
}

// Add starts a match of an allocated host and its joiner.
func (f *Fleet) Add(host, joiner api.Allocation) error {
	h, j := newPlayer(host), newPlayer(joiner)
	if !h.host() || j.host() {
		return fmt.Errorf("%w: an allocation of a host and one of a joiner are needed", ErrFleet)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.assignSlot(h, j)
	if err != nil {
		return err
	}
	h.join(f)
	j.join(f)
	h.other, j.other = j, h
	h.number, j.number = n, n
	now := sock.Now()
	f.schedule(h, j, now)
	f.scheduleEnd(h, j, now)
	return nil
}

// assignSlot stores two players in a free slot or in a new one. A reused slot
// continues with the port that follows the former players' port, so that late
// datagrams do not reach the new players.
func (f *Fleet) assignSlot(h, j *player) (n int, err error) {
	if last := len(f.free) - 1; last >= 0 {
		n, f.free = f.free[last], f.free[:last]
		h.port, j.port = f.players[2*n].port, f.players[2*n+1].port
		f.players[2*n], f.players[2*n+1] = h, j
		return n, nil
	}
	n = len(f.players) / 2
	if n == f.cfg.Matches {
		return 0, fmt.Errorf("%w: more than %d matches", ErrFleet, n)
	}
	f.players = append(f.players, h, j)
	return n, nil
}

// schedule sets when the players of a match act. They roam half a period apart,
// so that one roam completes before the other begins.
func (f *Fleet) schedule(h, j *player, now int64) {
	roam, rebind := int64(f.cfg.RoamEvery), int64(f.cfg.RebindEvery)
	first := now + roam + f.randomBelow(roam)
	for _, p := range []*player{h, j} {
		p.Heard(time.Duration(now))
		p.nextSend = now + f.randomBelow(f.interval)
		if roam > 0 {
			p.nextRoam = first
			first += roam / 2
		}
		if rebind > 0 {
			p.nextRebind = now + rebind + f.randomBelow(rebind)
		}
	}
}

// randomBelow returns a random number in [0, n), or 0 if n is not positive.
func (f *Fleet) randomBelow(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return f.rng.Int64N(n)
}

// Run plays until ctx is done and closes the sockets. The players then send
// nothing more, as if their processes had ended. It can be called once.
func (f *Fleet) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		f.mu.Lock()
		for s := range f.sides {
			f.sides[s].receive(f, s)
		}
		now := sock.Now()
		for _, p := range f.players {
			f.step(p, now)
		}
		f.endMatches(now)
		for s := range f.sides {
			f.counts.Unsent += f.sides[s].flush()
		}
		f.mu.Unlock()
		time.Sleep(pollInterval)
	}
	return f.close()
}

// step runs one player.
func (f *Fleet) step(p *player, now int64) {
	if p.Status == habits.Bound && !p.departed {
		f.roam(p, now)
		f.rebind(p, now)
	}
	interval := f.interval
	if f.paused {
		interval = 0
	}
	p.tick(f, now, interval)
}

// roam changes a player's port when it is due.
func (f *Fleet) roam(p *player, now int64) {
	if p.nextRoam == 0 || now < p.nextRoam || f.paused || !p.maySend() {
		return
	}
	if p.roamedAt != noRoam {
		f.counts.RoamsLate++
	}
	p.port = (p.port + 1) % f.cfg.Ports
	p.roamedAt, p.upConfirmed, p.downConfirmed = now, false, false
	p.nextRoam += int64(f.cfg.RoamEvery)
	f.counts.Roams++
}

// finishRoam records the roam of a player as complete once datagrams have
// arrived in both directions.
func (f *Fleet) finishRoam(p *player, now int64) {
	if p.upConfirmed && p.downConfirmed {
		f.roams = append(f.roams, now-p.roamedAt)
		p.roamedAt = noRoam
	}
}

// rebind sends a BIND with a higher nonce when it is due.
func (f *Fleet) rebind(p *player, now int64) {
	if p.nextRebind == 0 || now < p.nextRebind || f.paused {
		return
	}
	if p.rebindSentAt != 0 {
		f.counts.RebindsLate++
	}
	p.nextRebind += int64(f.cfg.RebindEvery)
	p.rebindSentAt = now
	f.counts.Rebinds++
	p.Rebind(time.Duration(now))
}

// countFailure counts a player whose game has ended since it had another status.
func (f *Fleet) countFailure(p *player, was habits.Status) {
	if p.Status == habits.Failed && was != habits.Failed {
		f.counts.Failed++
	}
}

// queue queues a copy of a player's datagram for sending.
func (f *Fleet) queue(p *player, pkt []byte) {
	side := 0
	if !p.host() {
		side = 1
	}
	f.counts.Unsent += f.sides[side].send(p, pkt)
}

// leaveMethod is how a player leaves a match.
type leaveMethod uint8

const (
	bySilence    leaveMethod = iota // sends nothing more
	byClose                         // CLOSE
	byDisconnect                    // DISCONNECT to the other player
	byBoth                          // DISCONNECT, then CLOSE
	leaveMethods
)

// hostsPerAbsentJoiner is the inverse of the share of hosts without a joiner.
const hostsPerAbsentJoiner = 8

// scheduleEnd sets when a match ends and whether its joiner takes part.
func (f *Fleet) scheduleEnd(h, j *player, now int64) {
	life := int64(f.cfg.MatchDuration)
	if life == 0 {
		return
	}
	h.leaveAt = now + life/2 + f.randomBelow(life)
	j.leaveAt = h.leaveAt
	if f.rng.IntN(hostsPerAbsentJoiner) == 0 {
		j.departed = true
	}
}

// endMatches removes the players of matches whose time is over and frees their
// slots.
func (f *Fleet) endMatches(now int64) {
	for i := 0; i+1 < len(f.players); i += 2 {
		h, j := f.players[i], f.players[i+1]
		if h.leaveAt == 0 || now < h.leaveAt {
			continue
		}
		for _, p := range []*player{j, h} {
			f.leave(p, now, leaveMethod(f.rng.IntN(int(leaveMethods))))
		}
		h.leaveAt = 0
		f.free = append(f.free, i/2)
		f.counts.Ended++
	}
}

// leave removes a player and moves its slot to the next port, so that late
// datagrams of the relay do not reach the slot's next player.
func (f *Fleet) leave(p *player, now int64, how leaveMethod) {
	plays := p.Status == habits.Bound && !p.departed
	if plays && p.maySend() && (how == byDisconnect || how == byBoth) {
		p.Send(time.Duration(now), proto.Disconnect{From: p.id, To: p.other.id}.Append(nil))
	}
	if plays && (how == byClose || how == byBoth) {
		p.Send(time.Duration(now), proto.Close{ID: p.id}.Append(nil))
	}
	f.counts.Sent += p.sent
	f.counts.Received += p.in.unique
	f.counts.Duplicates += p.in.duplicates
	p.departed, p.sent, p.in, p.bindPkt, p.resumed = true, 0, flow{}, nil, 0
	p.port = (p.port + 1) % f.cfg.Ports
}

// Matches returns the number of matches, including hosts without a joiner.
func (f *Fleet) Matches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.players)/2 - len(f.free)
}

// parallelSetups is the number of matches that AddMatches sets up concurrently.
const parallelSetups = 4

// AddMatches sets up n matches over the API, adds them to the fleet and returns
// their join codes. It does not wait for traffic over UDP.
func AddMatches(ctx context.Context, c *api.Client, f *Fleet, n int) ([]string, error) {
	codes := make([]string, n)
	errs := make([]error, parallelSetups)
	var tasks sync.WaitGroup
	for w := range parallelSetups {
		tasks.Go(func() {
			for i := w; i < n && errs[w] == nil; i += parallelSetups {
				codes[i], errs[w] = addMatch(ctx, c, f)
			}
		})
	}
	tasks.Wait()
	return codes, errors.Join(errs...)
}

func addMatch(ctx context.Context, c *api.Client, f *Fleet) (code string, err error) {
	host, joiner, code, err := AllocateMatch(ctx, c, api.AllocateRequest{MaxConnections: 2})
	if err != nil {
		return "", err
	}
	return code, f.Add(host, joiner)
}

// Backend is the part of the API that a game's backend uses to set up a match.
// api.Client implements it.
type Backend interface {
	Allocate(ctx context.Context, r api.AllocateRequest) (api.Allocation, error)
	JoinCode(ctx context.Context, allocationID string) (string, error)
	Join(ctx context.Context, joinCode string) (api.Allocation, error)
}

// AllocateMatch allocates a host, creates its join code and joins one player.
func AllocateMatch(ctx context.Context, c Backend, r api.AllocateRequest) (host, joiner api.Allocation, code string, err error) {
	if host, err = c.Allocate(ctx, r); err != nil {
		return host, joiner, "", fmt.Errorf("lab: %w", err)
	}
	if code, err = c.JoinCode(ctx, host.AllocationID); err != nil {
		return host, joiner, "", fmt.Errorf("lab: %w", err)
	}
	if joiner, err = c.Join(ctx, code); err != nil {
		return host, joiner, "", fmt.Errorf("lab: %w", err)
	}
	return host, joiner, code, nil
}
