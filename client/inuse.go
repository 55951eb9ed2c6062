package client

import "time"

// The limits of refusals.
const (
	// refusalWindow is the time in which they must come.
	refusalWindow = 30 * time.Second
	// maxRefusals is as many as three losses of the endpoint bring, if only PINGs find them out.
	maxRefusals = 3 * sendsPerNonce
)

// refusals shows that another session uses the allocation, for which the relay has no message.
//
// A session whose NAT has moved it looks the same to the relay: both lose the endpoint by ERROR 3 and bind again. But
// the nonce of that BIND is higher than each that this session has used, so the relay takes it from whatever port, at
// once, unless another session has bound with that nonce or a higher one. Then all BINDs with it stay without an answer.
// A lost datagram looks the same again, so they must be many, with no series between them whose first nonce was
// answered: at a loss of 20 % in each direction they come together once in 200,000 times (0.36^12), whatever the NAT
// does. A silence of the relay, its restart, and a socket that the session has opened count nothing: they use up
// nonces without an answer.
type refusals struct {
	firstNonce bool  // ERROR 3 began this series of BINDs, and no other nonce was used in it
	binds      int   // that had no answer
	since      int64 // time of the first
}

// note counts the BINDs of a series that goes on with another nonce, and reports whether they are too many.
func (r *refusals) note(now int64, binds int) bool {
	if !r.firstNonce {
		return false
	}
	r.firstNonce = false
	if r.binds == 0 || now-r.since > int64(refusalWindow) {
		r.binds, r.since = 0, now
	}
	r.binds += binds
	return r.binds >= maxRefusals
}

// noteAnswer is called at the answer to a series.
func (r *refusals) noteAnswer() {
	if r.firstNonce {
		*r = refusals{}
	}
}
