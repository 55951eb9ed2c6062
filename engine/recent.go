package engine

import "sync/atomic"

// The size of a [recent]: 2^recentBits sets of recentWays each. At a thousand
// keys a second, remembered for 200 ms each, a fifth one in a set is a matter of
// one in a hundred million; at the budget of the whole process, of two in a
// thousand.
const (
	recentBits = 13
	recentWays = 4
)

// recentTagBits are the bits of a key's hash that tell it from others of its set.
const recentTagBits = 24

// recent remembers for a while which keys were seen, in a fixed space: sets of
// four, in which each word has the end of a while in milliseconds and a part of
// its key's hash. All words are atomics; anybody may call.
type recent [1 << recentBits][recentWays]atomic.Uint64

// first reports whether a key, by its hash, is seen for the first time in
// millis, and remembers it then. It also reports false when the set is full of
// others: better silent than twice.
func (r *recent) first(hash uint64, now, millis int64) bool {
	set := &r[hash>>(64-recentBits)]
	tag := hash & (1<<recentTagBits - 1)
	for {
		var free *atomic.Uint64
		var was uint64
		for i := range set {
			word := set[i].Load()
			over := int64(word>>recentTagBits) <= now
			if !over && word&(1<<recentTagBits-1) == tag {
				return false
			}
			if over && free == nil {
				free, was = &set[i], word
			}
		}
		if free == nil {
			return false
		}
		if free.CompareAndSwap(was, uint64(now+millis)<<recentTagBits|tag) {
			return true
		}
	}
}
