package httpapi

import (
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/ferryrelay/ferry/alloc"
)

// failureBurst is for how many seconds the permitted failures may be saved up.
// It softens the limit for honest players and changes nothing for a guesser,
// whose work is measured in weeks.
const failureBurst = 60

// failures counts the joins of a tenant that named no live code. The length of
// join codes rests on their rate (alloc.ServiceConfig.FailuresPerSecond). The
// map does not change after newFailures; each bucket has its own lock.
type failures map[alloc.Tenant]*rate.Limiter

func newFailures(tokens tokenTable, anonymous bool, perSecond float64) failures {
	burst := max(1, int(math.Ceil(perSecond*failureBurst)))
	f := make(failures)
	for _, p := range tokens {
		f[p.tenant] = rate.NewLimiter(rate.Limit(perSecond), burst)
	}
	if anonymous {
		f[devTenant()] = rate.NewLimiter(rate.Limit(perSecond), burst)
	}
	return f
}

// wait returns 0, or how long the tenant's joins have to pause.
func (f failures) wait(t alloc.Tenant, now time.Time) time.Duration {
	if b := f[t]; b != nil {
		return untilOne(b, now)
	}
	return 0
}

// add counts one failed join. Joins that were under way together may go below
// nothing, which lengthens the pause.
func (f failures) add(t alloc.Tenant, now time.Time) {
	if b := f[t]; b != nil {
		b.ReserveN(now, 1)
	}
}
