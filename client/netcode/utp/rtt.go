package utp

// rtt estimates the round trip of a reliable pipeline. Smoothing is 1/8, and
// 1/4 for the variation.
type rtt struct {
	smooth  int64 // µs
	vary    int64 // µs
	timeout int64 // ms after which a packet is sent again
}

func newRTT() rtt { return rtt{smooth: 50_000, vary: 5_000, timeout: startResendMS} }

// sample takes a round trip in ms, of which less than one counts as one. The
// new timeout is within minResendMS and limit, in ms.
func (r *rtt) sample(ms, limit int64) {
	delta := max(ms, 1)*1000 - r.smooth
	r.smooth += delta / 8
	r.vary += (max(delta, -delta) - r.vary) / 4
	r.timeout = min(max((r.smooth+4*r.vary)/1000, minResendMS), limit)
}
