package link

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

const (
	// A path attempt: offers over the relay, and challenges to the addresses of the other
	// side, until its window ends.
	attemptWindow  = 5 * time.Second
	offerPeriod    = 500 * time.Millisecond
	offersPerTry   = 3
	probePeriod    = 200 * time.Millisecond
	probesPerAddr  = 5
	maxCandidates  = maxOffered + 2 // offered, and sources of challenges
	firstBackoff   = 10 * time.Second
	maxBackoff     = time.Minute
	replyPeriod    = 200 * time.Millisecond
	responsesPerS  = 64
	stableAfter    = time.Minute // a path that lived as long begins with the first backoff again
	challengeEvery = 400 * time.Millisecond
	relayEvery     = 5 * time.Second

	// After this many challenges without a response, datagrams take the relay: 1.6 to 2 s. The
	// path is given up after deadAfter.
	staleAfter = 4
	deadAfter  = 7
)

// candidate is an address of the other side with the challenges that were sent to it.
type candidate struct {
	addr   address.Addr
	sent   int
	nonces [6]uint64 // of the newest challenges, a ring
}

// answers reports whether a nonce is that of a recent challenge.
func (c *candidate) answers(nonce uint64) bool {
	return slices.Contains(c.nonces[:min(c.sent, len(c.nonces))], nonce)
}

// directPeer is a peer of the relay and the state of the direct path to it.
type directPeer struct {
	d         *directLink
	at        address.Addr
	keys      probeKeys
	attempt   attempt
	path      path
	replied   time.Time // when an offer was last answered with one
	responses perSecond
}

// probeKeys are the offers of both sides, and the HMACs of the probes that they allow.
type probeKeys struct {
	own     offer     // id and key that the peer's probes must have
	verify  hash.Hash // with the key of own
	remote  offer
	sign    hash.Hash // with the key of remote; nil before its first offer
	in, out []byte    // the ends of probes that are received, and of those that are sent
}

// attempt is the search for a direct path.
type attempt struct {
	open       bool // it is in its window
	filled     bool // the offered addresses are among the candidates
	began      time.Time
	earliest   time.Time // of the next one, if the other side causes it
	next       time.Time // of the next one
	backoff    time.Duration
	candidates [maxCandidates]candidate
	count      int
	nextProbe  time.Time
	nextOffer  time.Time
	offersLeft int
}

// path is a validated address of the other side.
type path struct {
	candidate          // its address is nowhere without a path
	accepted      bool // the other side accepts datagrams from this one's address
	suspect       bool // the other side may have moved
	unanswered    int  // challenges in a row
	validated     time.Time
	nextChallenge time.Time
	nextRelay     time.Time
}

// perSecond counts what is done in a second.
type perSecond struct {
	begin time.Time
	count int
}

// take reports whether one more is below a limit.
func (s *perSecond) take(now time.Time, limit int) bool {
	if now.Sub(s.begin) >= time.Second {
		*s = perSecond{begin: now}
	}
	s.count++
	return s.count <= limit
}

func newDirectPeer(d *directLink, at address.Addr) *directPeer {
	local := d.relay.Local()
	p := &directPeer{d: d, at: at, attempt: attempt{backoff: firstBackoff}}
	k := &p.keys
	k.in, k.out = probeEnds(at, local), probeEnds(local, at)
	k.own.id = random64()
	_, _ = rand.Read(k.own.key[:]) // It returns no error.
	k.verify = hmac.New(sha256.New, k.own.key[:])
	return p
}

func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

func (p *path) exists() bool { return p.addr.IsValid() }

// usable reports whether datagrams may take the direct path now.
func (p *path) usable() bool {
	return p.exists() && p.accepted && !p.suspect && p.unanswered < staleAfter
}

// begin begins an attempt.
func (a *attempt) begin(now time.Time) {
	a.open, a.filled, a.count = true, false, 0
	a.began, a.earliest, a.next = now, now.Add(a.backoff/2), now.Add(a.backoff)
	a.backoff = min(2*a.backoff, maxBackoff)
	a.offersLeft, a.nextOffer, a.nextProbe = offersPerTry, now, now
}

// mayBegin reports whether the other side may cause an attempt now.
func (a *attempt) mayBegin(now time.Time) bool { return !a.open && !now.Before(a.earliest) }

// add adds a candidate.
func (a *attempt) add(addr address.Addr) {
	known := slices.ContainsFunc(a.candidates[:a.count], func(c candidate) bool { return c.addr == addr })
	if !known && a.count < len(a.candidates) {
		a.candidates[a.count] = candidate{addr: addr}
		a.count++
	}
}

// tick runs the timers of a peer.
func (p *directPeer) tick() {
	if p.path.exists() {
		p.keepPath()
	}
	switch {
	case p.d.socketEnded:
	case p.attempt.open && p.d.now.Sub(p.attempt.began) >= attemptWindow:
		p.attempt.open = false
	case p.attempt.open:
		p.continueAttempt()
	case !p.path.exists() && !p.d.now.Before(p.attempt.next):
		p.attempt.begin(p.d.now)
		p.continueAttempt()
	}
}

// continueAttempt sends the offers and challenges that are due.
func (p *directPeer) continueAttempt() {
	a, now := &p.attempt, p.d.now
	if a.offersLeft > 0 && !now.Before(a.nextOffer) {
		a.offersLeft--
		a.nextOffer = now.Add(offerPeriod)
		p.sendOffer(offerReply)
	}
	if p.keys.sign == nil || now.Before(a.nextProbe) {
		return
	}
	a.nextProbe = now.Add(probePeriod)
	for i := range a.count {
		c := &a.candidates[i]
		if c.sent >= probesPerAddr || !p.d.probes.take(now, probesPerSecond) {
			continue
		}
		p.d.counts.Probes++
		if !p.challenge(c) {
			c.sent = probesPerAddr // There is no way to this address.
		}
	}
}

// keepPath challenges the path, and gives it up when it no longer answers.
func (p *directPeer) keepPath() {
	path, now := &p.path, p.d.now
	if !now.Before(path.nextRelay) {
		// The relay must not take the peers for silent.
		path.nextRelay = now.Add(relayEvery)
		p.sendOffer(0)
	}
	if now.Sub(path.validated) >= stableAfter {
		p.attempt.backoff = firstBackoff
	}
	if now.Before(path.nextChallenge) {
		return
	}
	if path.unanswered >= deadAfter || !p.challenge(&path.candidate) {
		p.losePath()
		return
	}
	path.unanswered++
	path.nextChallenge = now.Add(challengeEvery)
	if !path.accepted {
		path.nextChallenge = now.Add(probePeriod)
	}
}

// challenge sends a challenge. It is false when the socket cannot send it.
func (p *directPeer) challenge(c *candidate) bool {
	nonce := random64()
	c.nonces[c.sent%len(c.nonces)] = nonce
	c.sent++
	return p.sendProbe(c.addr, probe{kind: signalChallenge, id: p.keys.remote.id, nonce: nonce})
}

func (p *directPeer) sendProbe(to address.Addr, pr probe) bool {
	return p.d.socket.Send(to, pr.appendTo(p.d.signal[:0], p.keys.sign, p.keys.out, p.d.sum[:])) == nil
}

func (p *directPeer) sendOffer(flags byte) {
	own := &p.keys.own
	own.flags, own.addrs, own.count = flags, p.d.addrs.offered, p.d.addrs.count
	_ = p.d.relay.Send(p.at, own.appendTo(p.d.signal[:0])) // It is repeated.
}

// onOffer processes a signal that came over the relay.
func (p *directPeer) onOffer(b []byte) {
	o := &p.d.parsed
	if !o.parse(b) {
		p.d.counts.Malformed++
		return
	}
	if p.keys.sign == nil || o.key != p.keys.remote.key {
		p.keys.sign = hmac.New(sha256.New, o.key[:])
	}
	p.keys.remote = *o
	if !p.path.exists() && p.attempt.mayBegin(p.d.now) {
		p.attempt.begin(p.d.now)
	}
	if p.attempt.open && !p.attempt.filled {
		p.attempt.filled, p.attempt.offersLeft = true, 0
		for _, ap := range o.addrs[:o.count] {
			if p.d.addrs.permits(ap) {
				p.attempt.add(address.FromUDP(ap))
			} else {
				p.d.counts.Refused++
			}
		}
	}
	if o.flags&offerReply != 0 && p.d.now.Sub(p.replied) >= replyPeriod {
		p.replied = p.d.now
		p.sendOffer(0)
	}
}

// onProbe processes a signal that came over the socket.
func (d *directLink) onProbe(from address.Addr, b []byte) {
	var pr probe
	if !pr.parse(b) {
		d.counts.Malformed++
		return
	}
	p := d.peers.byID[pr.id]
	if p == nil || p.keys.sign == nil || !p.authentic(b) {
		d.counts.Dropped++
		return
	}
	if pr.kind == signalResponse {
		p.onResponse(from, pr)
		return
	}
	if !p.responses.take(d.now, responsesPerS) {
		d.counts.Dropped++
		return
	}
	answer := probe{kind: signalResponse, id: p.keys.remote.id, nonce: pr.nonce}
	if p.path.addr == from {
		answer.flags = responseAccepted
	}
	p.sendProbe(from, answer)
	if p.path.addr != from {
		p.learn(from)
	}
}

// authentic reports whether the other side has marked a probe.
func (p *directPeer) authentic(b []byte) bool {
	body, mac := b[:probeSize-macSize], b[probeSize-macSize:]
	return hmac.Equal(tag(p.keys.verify, body, p.keys.in, p.d.sum[:]), mac)
}

// learn takes the source of a challenge as a candidate. If there is a path, the other side may
// have moved: the relay is used until the path answers again or another one is validated.
func (p *directPeer) learn(from address.Addr) {
	if p.path.exists() {
		if !p.path.suspect {
			p.path.suspect = true
			p.path.nextChallenge = p.d.now
		}
		if p.path.unanswered < 2 {
			return
		}
	}
	if ap, ok := from.UDP(); !ok || !p.d.addrs.permits(ap) {
		return
	}
	if p.attempt.mayBegin(p.d.now) {
		p.attempt.begin(p.d.now)
	}
	if p.attempt.open {
		p.attempt.add(from)
	}
}

// onResponse validates the address that was challenged, and no other.
func (p *directPeer) onResponse(from address.Addr, pr probe) {
	accepted := pr.flags&responseAccepted != 0
	if p.path.addr == from && p.path.answers(pr.nonce) {
		p.path.unanswered, p.path.suspect, p.path.accepted = 0, false, accepted
		return
	}
	for i := range p.attempt.count {
		c := &p.attempt.candidates[i]
		if c.addr != from || !c.answers(pr.nonce) {
			continue
		}
		if !p.path.exists() || p.path.suspect {
			p.takePath(c, accepted)
		}
		return
	}
	p.d.counts.Dropped++
}

// takePath makes a validated candidate the path.
func (p *directPeer) takePath(c *candidate, accepted bool) {
	delete(p.d.peers.byPath, p.path.addr)
	if other := p.d.peers.byPath[c.addr]; other != nil {
		other.losePath()
	}
	p.d.peers.byPath[c.addr] = p
	p.d.counts.Validated++
	now := p.d.now
	p.path = path{candidate: *c, accepted: accepted, validated: now, nextChallenge: now, nextRelay: now.Add(relayEvery)}
	p.attempt.open = false
}

// losePath returns to the relay.
func (p *directPeer) losePath() {
	delete(p.d.peers.byPath, p.path.addr)
	p.d.counts.Lost++
	p.path = path{}
	p.attempt.next = p.d.now.Add(p.attempt.backoff)
}
