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
	at     address.Addr
	own    offer     // id and key that its probes must have
	verify hash.Hash // with the key of own
	remote offer
	sign   hash.Hash // with the key of remote; nil before its first offer
	in     []byte    // the ends of probes that are received
	out    []byte    // and of those that are sent

	open       bool // an attempt is in its window
	filled     bool // the offered addresses are among the candidates
	earliest   time.Time
	next       time.Time // of the next attempt
	began      time.Time
	backoff    time.Duration
	candidates [maxCandidates]candidate
	count      int
	nextProbe  time.Time
	nextOffer  time.Time
	offersLeft int
	replied    time.Time

	path          candidate // its address is nowhere without a path
	accepted      bool      // the other side accepts datagrams from this one's address
	suspect       bool      // the other side may have moved
	unanswered    int       // challenges in a row
	validated     time.Time
	nextChallenge time.Time
	nextRelay     time.Time

	responses perSecond
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

func newDirectPeer(local, at address.Addr) *directPeer {
	p := &directPeer{at: at, backoff: firstBackoff, in: probeEnds(at, local), out: probeEnds(local, at)}
	p.own.id = random64()
	_, _ = rand.Read(p.own.key[:]) // It returns no error.
	p.verify = hmac.New(sha256.New, p.own.key[:])
	return p
}

func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

func (p *directPeer) hasPath() bool { return p.path.addr.IsValid() }

// usable reports whether datagrams may take the direct path now.
func (p *directPeer) usable() bool {
	return p.hasPath() && p.accepted && !p.suspect && p.unanswered < staleAfter
}

// begin begins an attempt.
func (p *directPeer) begin(now time.Time) {
	p.open, p.filled, p.count = true, false, 0
	p.began, p.earliest, p.next = now, now.Add(p.backoff/2), now.Add(p.backoff)
	p.backoff = min(2*p.backoff, maxBackoff)
	p.offersLeft, p.nextOffer, p.nextProbe = offersPerTry, now, now
}

// mayBegin reports whether the other side may cause an attempt now.
func (p *directPeer) mayBegin(now time.Time) bool { return !now.Before(p.earliest) }

// add adds a candidate to the current attempt.
func (p *directPeer) add(addr address.Addr) {
	known := slices.ContainsFunc(p.candidates[:p.count], func(c candidate) bool { return c.addr == addr })
	if !known && p.count < len(p.candidates) {
		p.candidates[p.count] = candidate{addr: addr}
		p.count++
	}
}

// tick runs the timers of a peer.
func (d *directLink) tick(p *directPeer) {
	if p.hasPath() {
		d.keepPath(p)
	}
	switch {
	case d.socketEnded:
	case p.open && d.now.Sub(p.began) >= attemptWindow:
		p.open = false
	case p.open:
		d.continueAttempt(p)
	case !p.hasPath() && !d.now.Before(p.next):
		p.begin(d.now)
		d.continueAttempt(p)
	}
}

// continueAttempt sends the offers and challenges that are due.
func (d *directLink) continueAttempt(p *directPeer) {
	if p.offersLeft > 0 && !d.now.Before(p.nextOffer) {
		p.offersLeft--
		p.nextOffer = d.now.Add(offerPeriod)
		d.sendOffer(p, offerReply)
	}
	if p.sign == nil || d.now.Before(p.nextProbe) {
		return
	}
	p.nextProbe = d.now.Add(probePeriod)
	for i := range p.count {
		c := &p.candidates[i]
		if c.sent >= probesPerAddr || !d.probes.take(d.now, probesPerSecond) {
			continue
		}
		d.counts.Probes++
		if !d.challenge(p, c) {
			c.sent = probesPerAddr // There is no way to this address.
		}
	}
}

// keepPath challenges the path, and gives it up when it no longer answers.
func (d *directLink) keepPath(p *directPeer) {
	if !d.now.Before(p.nextRelay) {
		// The relay must not take the peers for silent.
		p.nextRelay = d.now.Add(relayEvery)
		d.sendOffer(p, 0)
	}
	if d.now.Sub(p.validated) >= stableAfter {
		p.backoff = firstBackoff
	}
	if d.now.Before(p.nextChallenge) {
		return
	}
	if p.unanswered >= deadAfter || !d.challenge(p, &p.path) {
		d.losePath(p)
		return
	}
	p.unanswered++
	p.nextChallenge = d.now.Add(challengeEvery)
	if !p.accepted {
		p.nextChallenge = d.now.Add(probePeriod)
	}
}

// challenge sends a challenge. It is false when the socket cannot send it.
func (d *directLink) challenge(p *directPeer, c *candidate) bool {
	nonce := random64()
	c.nonces[c.sent%len(c.nonces)] = nonce
	c.sent++
	return d.sendProbe(p, c.addr, probe{kind: signalChallenge, id: p.remote.id, nonce: nonce})
}

func (d *directLink) sendProbe(p *directPeer, to address.Addr, pr probe) bool {
	return d.socket.Send(to, pr.appendTo(d.signal[:0], p.sign, p.out, d.sum[:])) == nil
}

func (d *directLink) sendOffer(p *directPeer, flags byte) {
	p.own.flags = flags
	p.own.addrs, p.own.count = d.offered, d.offeredCount
	_ = d.relay.Send(p.at, p.own.appendTo(d.signal[:0])) // It is repeated.
}

// onOffer processes a signal that came over the relay.
func (d *directLink) onOffer(p *directPeer, b []byte) {
	o := &d.parsed
	if !o.parse(b) {
		d.counts.Malformed++
		return
	}
	if p.sign == nil || o.key != p.remote.key {
		p.sign = hmac.New(sha256.New, o.key[:])
	}
	p.remote = *o
	if !p.open && !p.hasPath() && p.mayBegin(d.now) {
		p.begin(d.now)
	}
	if p.open && !p.filled {
		p.filled, p.offersLeft = true, 0
		for _, ap := range o.addrs[:o.count] {
			if d.permits(ap) {
				p.add(address.FromUDP(ap))
			} else {
				d.counts.Refused++
			}
		}
	}
	if o.flags&offerReply != 0 && d.now.Sub(p.replied) >= replyPeriod {
		p.replied = d.now
		d.sendOffer(p, 0)
	}
}

// onProbe processes a signal that came over the socket.
func (d *directLink) onProbe(from address.Addr, b []byte) {
	var pr probe
	if !pr.parse(b) {
		d.counts.Malformed++
		return
	}
	p := d.byID[pr.id]
	if p == nil || p.sign == nil || !d.authentic(p, b) {
		d.counts.Dropped++
		return
	}
	if pr.kind == signalResponse {
		d.onResponse(p, from, pr)
		return
	}
	if !p.responses.take(d.now, responsesPerS) {
		d.counts.Dropped++
		return
	}
	answer := probe{kind: signalResponse, id: p.remote.id, nonce: pr.nonce}
	if p.path.addr == from {
		answer.flags = responseAccepted
	}
	d.sendProbe(p, from, answer)
	if p.path.addr != from {
		d.learn(p, from)
	}
}

// authentic reports whether the other side has marked a probe.
func (d *directLink) authentic(p *directPeer, b []byte) bool {
	body, mac := b[:probeSize-macSize], b[probeSize-macSize:]
	return hmac.Equal(tag(p.verify, body, p.in, d.sum[:]), mac)
}

// learn takes the source of a challenge as a candidate. If there is a path, the other side may
// have moved: the relay is used until the path answers again or another one is validated.
func (d *directLink) learn(p *directPeer, from address.Addr) {
	if p.hasPath() {
		if !p.suspect {
			p.suspect = true
			p.nextChallenge = d.now
		}
		if p.unanswered < 2 {
			return
		}
	}
	if ap, ok := from.UDP(); !ok || !d.permits(ap) {
		return
	}
	if !p.open && p.mayBegin(d.now) {
		p.begin(d.now)
	}
	if p.open {
		p.add(from)
	}
}

// onResponse validates the address that was challenged, and no other.
func (d *directLink) onResponse(p *directPeer, from address.Addr, pr probe) {
	accepted := pr.flags&responseAccepted != 0
	if p.path.addr == from && p.path.answers(pr.nonce) {
		p.unanswered, p.suspect, p.accepted = 0, false, accepted
		return
	}
	for i := range p.count {
		c := &p.candidates[i]
		if c.addr != from || !c.answers(pr.nonce) {
			continue
		}
		if !p.hasPath() || p.suspect {
			d.takePath(p, c, accepted)
		}
		return
	}
	d.counts.Dropped++
}

// takePath makes a validated candidate the path.
func (d *directLink) takePath(p *directPeer, c *candidate, accepted bool) {
	delete(d.byPath, p.path.addr)
	if other := d.byPath[c.addr]; other != nil {
		d.losePath(other)
	}
	d.byPath[c.addr] = p
	d.counts.Validated++
	p.path, p.accepted, p.suspect, p.unanswered = *c, accepted, false, 0
	p.validated, p.nextChallenge, p.nextRelay = d.now, d.now, d.now.Add(relayEvery)
	p.open = false
}

// losePath returns to the relay.
func (d *directLink) losePath(p *directPeer) {
	delete(d.byPath, p.path.addr)
	d.counts.Lost++
	p.path, p.accepted, p.suspect = candidate{}, false, false
	p.next = d.now.Add(p.backoff)
}
