package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

// bounds are the upper ends of the buckets of request times in seconds: an
// allocation takes well under a millisecond, and after 10 s clients give up.
var bounds = [...]float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// answerKey is what requests are counted by.
type answerKey struct {
	call   string
	status int
}

// times is the histogram of one call.
type times struct {
	buckets [len(bounds) + 1]uint64 // the last one: beyond all bounds
	sum     time.Duration
}

// requests counts the requests of the API. The calls are those of httpapi, so
// that the maps stay small.
type requests struct {
	mu      *sync.Mutex // guards what follows
	answers map[answerKey]uint64
	times   map[string]*times
}

func newRequests() requests {
	return requests{new(sync.Mutex), make(map[answerKey]uint64), make(map[string]*times)}
}

func (r requests) add(call string, status int, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[answerKey{call, status}]++
	t := r.times[call]
	if t == nil {
		t = new(times)
		r.times[call] = t
	}
	i, _ := slices.BinarySearch(bounds[:], d.Seconds())
	t.buckets[i]++
	t.sum += d
}

// write writes counts and times, in the same order each time.
func (r requests) write(p *page) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeAnswers(p)
	r.writeTimes(p)
}

func (r requests) writeAnswers(p *page) {
	const name = "ferry_http_requests_total"
	p.family(name, counter, "Requests of the API that were answered, by call and status.")
	keys := slices.SortedFunc(maps.Keys(r.answers), func(a, b answerKey) int {
		return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.status, b.status))
	})
	for _, k := range keys {
		p.sample(name, r.answers[k], "call", k.call, "status", strconv.Itoa(k.status))
	}
}

func (r requests) writeTimes(p *page) {
	const name = "ferry_http_request_duration_seconds"
	p.family(name, histogram, "Time that requests of the API took, by call.")
	for _, call := range slices.Sorted(maps.Keys(r.times)) {
		t := r.times[call]
		var total uint64
		for i, n := range t.buckets {
			total += n
			le := "+Inf"
			if i < len(bounds) {
				le = strconv.FormatFloat(bounds[i], 'g', -1, 64)
			}
			p.sample(name+"_bucket", total, "call", call, "le", le)
		}
		p.seconds(name+"_sum", t.sum.Seconds(), "call", call)
		p.sample(name+"_count", total, "call", call)
	}
}
