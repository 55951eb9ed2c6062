package netcode

// NetworkID names a connected client for as long as it stays: 1, 2, 3 and so
// on, and the one that was freed longest ago first. 0 is none. It is no
// identity: a player that returns may have another one.
type NetworkID int32

// networkIDs hands them out.
type networkIDs struct {
	last  NetworkID
	freed []NetworkID // a queue: next at head
	head  int
}

func (q *networkIDs) take() NetworkID {
	if q.head == len(q.freed) {
		q.last++
		return q.last
	}
	id := q.freed[q.head]
	q.head++
	if q.head*2 > len(q.freed) {
		q.freed = q.freed[:copy(q.freed, q.freed[q.head:])]
		q.head = 0
	}
	return id
}

func (q *networkIDs) free(id NetworkID) { q.freed = append(q.freed, id) }
