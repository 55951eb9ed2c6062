package memory

import "runtime/metrics"

var classes = [...]string{
	"/memory/classes/total:bytes",
	"/memory/classes/heap/released:bytes",
	"/memory/classes/heap/free:bytes",
	"/memory/classes/heap/objects:bytes",
	"/gc/heap/live:bytes",
}

// used returns the bytes of what the last collection found alive, since the next one frees
// the rest, and of all that is not heap.
func used() int64 {
	var samples [len(classes)]metrics.Sample
	for i, name := range classes {
		samples[i].Name = name
	}
	metrics.Read(samples[:])
	value := func(i int) int64 {
		if samples[i].Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return int64(samples[i].Value.Uint64())
	}
	return value(0) - value(1) - value(2) - value(3) + value(4)
}
