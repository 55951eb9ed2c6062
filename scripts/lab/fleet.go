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
	"github.com/ferryrelay/ferry/internal/sock"
	"github.com/ferryrelay/ferry/proto"
)

// ErrFleet is wrapped by errors about a FleetConfig.
var ErrFleet = errors.New("lab: invalid fleet")

const (
	// maxFleet bounds the matches: each player has an address of its own in
	// the first 4,096 of its side.
	maxFleet = 4000
	// cycle is how long the fleet rests between looking at its sockets. It is
	// the precision of its latencies.
	pollInterval = time.Millisecond
	// maxDelays bounds the delays that are kept between two calls of Delays.
	maxDelays = 1 << 20
)

// Place opens the sockets of one side, hosts or joiners.
type SideConfig struct {
	// Do calls a function where sockets are to be made; nil calls it here.
	Do func(func() error) error
	// First is the address of player 0; player n has the n-th one after it. All
	// of them must be local addresses of the place.
	First netip.Addr
	// Via is where the players send to, such as a Proxy; zero: the relay.
	Via netip.AddrPort
}

// FleetConfig describes players.
type FleetConfig struct {
	Hosts, Joiners SideConfig
	Relay          netip.AddrPort // where they send to; required
	Matches        int            // most matches, 1 to 4,000
	UTP1           bool           // behave as Unity Transport 1.x does, not as 2.x
	PingEvery      time.Duration  // a player that sends nothing else sends a PING so often; 0: 3 s
	Rate           int            // datagrams per second and direction; 0: PINGs only
	Payload        int            // bytes, at least 16; 0: 64
	Ports          int            // sockets per side, between which players roam; 0: 1
	RoamEvery      time.Duration  // each player changes its port so often; 0: never
	RebindEvery    time.Duration  // each player binds with a higher nonce so often; 0: when it must
	// Life is how long a match lasts on average, between half of it and one and
	// a half. Then both players leave, in a way that chance decides, and their
	// place is free for others; one host in eight has no joiner. 0: they stay.
	MatchDuration time.Duration
	Seed          uint64 // of the phases at which players send
}

// Fleet is many matches of a host and a joiner, who behave as Unity Transport
// does, on few sockets. Its methods may be called while Run runs.
type Fleet struct {
	cfg      FleetConfig
	interval int64 // ns between a player's datagrams
	sides    [2]side
	transmit func(p *player, pkt []byte) // sends a copy

	mu      sync.Mutex // guards the following fields; Run holds it in each cycle
	players []*player  // host and joiner of match n are 2n and 2n+1
	free    []int      // matches that both players have left
	paused  bool
	mark    int64
	counts  Counts
	rebinds []int64 // ns
	roams   []int64 // ns
	delays  []int64 // ns, at most maxDelays
	signer  proto.Signer
	payload []byte
	scratch []byte
	rng     *rand.Rand
}

// NewFleet opens the sockets. On error none stays open.
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

// Add lets a match begin: the host that was allocated and who joined it.
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
	h.other, j.other = j, h
	h.number, j.number = n, n
	now := sock.Now()
	f.schedule(h, j, now)
	f.scheduleEnd(h, j, now)
	return nil
}

// place puts two players into the place of a match that is over, at the port
// that its players have not used for longest, or into a new one.
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

// phase decides when the players of a match act. They roam half a period apart,
// so that each roam is over before the other's begins.
func (f *Fleet) schedule(h, j *player, now int64) {
	roam, rebind := int64(f.cfg.RoamEvery), int64(f.cfg.RebindEvery)
	first := now + roam + f.randomBelow(roam)
	for _, p := range []*player{h, j} {
		p.lastReceived = now
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

func (f *Fleet) randomBelow(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return f.rng.Int64N(n)
}

// Run plays until ctx ends and closes the sockets. Like games that quit, the
// players then send nothing to the relay. It can be called once.
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

// step lets one player act.
func (f *Fleet) step(p *player, now int64) {
	if p.status == bound {
		f.roam(p, now)
		f.rebind(p, now)
	}
	interval := f.interval
	if f.paused {
		interval = 0
	}
	p.tick(f, now, interval)
}

// roam moves a player to its next port when it is time.
func (f *Fleet) roam(p *player, now int64) {
	if p.nextRoam == 0 || now < p.nextRoam || f.paused || !p.maySend {
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

// back records that a player has sent and received since it roamed.
func (f *Fleet) finishRoam(p *player, now int64) {
	if p.upConfirmed && p.downConfirmed {
		f.roams = append(f.roams, now-p.roamedAt)
		p.roamedAt = noRoam
	}
}

// rebind lets a player bind with a higher nonce when it is time.
func (f *Fleet) rebind(p *player, now int64) {
	if p.nextRebind == 0 || now < p.nextRebind || f.paused {
		return
	}
	if p.rebindSentAt != 0 {
		f.counts.RebindsLate++
	}
	p.nextRebind += int64(f.cfg.RebindEvery)
	p.nonce++
	p.rebindSentAt = now
	f.counts.Rebinds++
	p.bind(f, now)
}

func (f *Fleet) fail(p *player) {
	if p.status != failed {
		p.status = failed
		f.counts.Failed++
	}
}

// emit queues a copy of a datagram of a player.
func (f *Fleet) queue(p *player, pkt []byte) {
	side := 0
	if !p.host() {
		side = 1
	}
	f.counts.Unsent += f.sides[side].send(p, pkt)
}

// leaving is how a player leaves a match.
type leaveMethod uint8

const (
	bySilence    leaveMethod = iota // as a process that was killed
	byClose                         // CLOSE
	byDisconnect                    // DISCONNECT to the other player, then silence
	byBoth                          // DISCONNECT, then CLOSE, as a client does that quits
	leaveMethods
)

// absentShare is the share of hosts without a joiner: one in so many.
const hostsPerAbsentJoiner = 8

// live decides when a match ends and whether it has a joiner at all.
func (f *Fleet) scheduleEnd(h, j *player, now int64) {
	life := int64(f.cfg.MatchDuration)
	if life == 0 {
		return
	}
	h.leaveAt = now + life/2 + f.randomBelow(life)
	j.leaveAt = h.leaveAt
	if f.rng.IntN(hostsPerAbsentJoiner) == 0 {
		j.status = departed
	}
}

// depart lets the players of matches that are over leave. A place is free when
// both have.
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

// leave ends a player. Late datagrams of the relay must not reach the next player, which
// therefore has another port.
func (f *Fleet) leave(p *player, now int64, how leaveMethod) {
	if p.status == bound && p.maySend && (how == byDisconnect || how == byBoth) {
		p.send(f, now, proto.Disconnect{From: p.id, To: p.other.id})
	}
	if p.status == bound && (how == byClose || how == byBoth) {
		p.send(f, now, proto.Close{ID: p.id})
	}
	f.counts.Sent += p.sent
	f.counts.Received += p.in.unique
	f.counts.Duplicates += p.in.duplicates
	p.status, p.sent, p.in, p.bindPkt, p.resumed = departed, 0, flow{}, nil, 0
	p.port = (p.port + 1) % f.cfg.Ports
}

// Matches returns how many matches there are now, with those to whose host
// nobody has come.
func (f *Fleet) Matches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.players)/2 - len(f.free)
}

// enrolling is how many matches are set up at a time.
const parallelSetups = 4

// Enrol sets up n matches over the API and adds them to the fleet. It returns
// their join codes and does not wait for anything on UDP.
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

// Backend is what a game's backend calls to bring players together; a client of
// the API is one.
type Backend interface {
	Allocate(ctx context.Context, r api.AllocateRequest) (api.Allocation, error)
	JoinCode(ctx context.Context, allocationID string) (string, error)
	Join(ctx context.Context, joinCode string) (api.Allocation, error)
}

// Meet allocates a host and lets one player join it.
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
