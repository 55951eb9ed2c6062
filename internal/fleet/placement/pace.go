package placement

import "time"

// pace decides how many hosts an [Announcer] sends to the store. All are sent at an even pace over
// refreshEvery; hosts that the store may not have, and late ones, over catchUp. It belongs to one goroutine.
type pace struct {
	lastRenewal  time.Time // when hosts were last sent
	pacedAt      time.Time // until when credit has been given
	credit       float64   // hosts that may be sent by now
	resendBefore uint32    // the store may have lost hosts sent before this stamp
	catchingUp   bool      // there are such hosts, or late ones
}

// due returns how many of count hosts may be sent at the stamp now, and the stamp before which they were
// last sent. The oldest of them was last sent at that stamp.
func (p *pace) due(now uint32, count int, oldest uint32) (n int, before uint32) {
	began := time.Now()
	passed := began.Sub(p.pacedAt)
	p.pacedAt = began
	if count == 0 {
		p.credit, p.catchingUp = 0, false
		return 0, 0
	}
	urgent := max(p.resendBefore, ago(now, refreshEvery+lateAfter), 1)
	p.catchingUp = oldest < urgent
	if p.catchingUp {
		p.addCredit(passed, max(count, renewBatch), catchUp)
		return min(int(p.credit), renewBatch), urgent
	}
	p.addCredit(passed, count, refreshEvery)
	if p.credit < renewBatch && began.Sub(p.lastRenewal) < minRenewInterval {
		return 0, 0
	}
	return min(int(p.credit), renewBatch), now
}

// addCredit adds credit for the time that has passed, at a rate of hosts per over. The
// credit is capped, so that slow calls and idle times cause no large burst.
func (p *pace) addCredit(passed time.Duration, hosts int, over time.Duration) {
	perSecond := float64(hosts) / over.Seconds()
	p.credit = min(p.credit+perSecond*passed.Seconds(), renewBatch+perSecond*(2*announceTick).Seconds())
}

func (p *pace) spend(hosts int) { p.credit = max(p.credit-float64(hosts), 0) }

func ago(now uint32, d time.Duration) uint32 {
	return now - min(now, uint32(d/announceTick))
}
