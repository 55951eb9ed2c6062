package netcode

// roundTrip measures round trips by times that the peer returns. Times are in
// ms of the driver's clock and begin at 1, so that 0 is none.
type roundTrip struct {
	remote uint32 // newest time of the peer
	at     uint32 // when it came

	measured  bool
	rtt       float64 // smoothed, in ms
	variation float64
}

// returned is what the peer gets back.
func (r *roundTrip) returned(now uint32) uint32 {
	if r.remote == 0 {
		return 0
	}
	return r.remote + (now - r.at)
}

// maxRTT is the largest round trip in ms that is taken for one; a peer can
// return anything.
const maxRTT = 60_000

func (r *roundTrip) heard(now, time, ret uint32) {
	if time != 0 && (r.remote == 0 || int32(time-r.remote) > 0) {
		r.remote, r.at = time, now
	}
	if ret == 0 || now-ret > maxRTT {
		return
	}
	sample := float64(now - ret)
	if !r.measured {
		r.measured, r.rtt, r.variation = true, sample, sample/2
		return
	}
	off := sample - r.rtt
	r.rtt += off / 8
	r.variation += (max(off, -off) - r.variation) / 4
}
