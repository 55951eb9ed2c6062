package memory

import "runtime/metrics"

// The classes of memory of Go's runtime from which the use is made up.
var classes = [...]string{
	"/memory/classes/total:bytes",
	"/memory/classes/heap/released:bytes",
	"/memory/classes/heap/free:bytes",
	"/memory/classes/heap/objects:bytes",
	"/gc/heap/live:bytes",
}

// used returns the bytes that the process cannot do without: of the heap, what
// the last collection found alive, since the next one frees the rest, and all
// that is not heap.
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
