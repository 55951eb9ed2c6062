package machine

// Queues counts the packets of all programs that the queues of interfaces (qdiscs) in the network
// namespace sent and dropped. Unlike UDP.SendDrops that is also what a queue drops after it had
// accepted it, as fq_codel does, and what the fast path sends, which has no socket. A queue that is
// replaced begins anew, and so does one after 1<<32 packets.
type Queues struct{ Sent, Dropped uint64 }

// Since returns the counters since an earlier reading.
func (q Queues) Since(old Queues) Queues {
	since := func(now, old uint64) uint64 {
		if now < old {
			return now
		}
		return now - old
	}
	return Queues{since(q.Sent, old.Sent), since(q.Dropped, old.Dropped)}
}

// Losses returns what was lost and what to do, if that is more than one in a thousand.
func (q Queues) Losses() []Line {
	return []Line{lossLine(
		"send queues", "the queues of the interfaces dropped %d of %d packets, of any program", q.Dropped, q.Sent+q.Dropped,
		"find the queue with tc -s qdisc, and raise its rate or limit (tbf, htb), or txqueuelen",
	)}
}
