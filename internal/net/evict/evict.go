// Package evict finds what a full table ends first, fairly by owner, such as a source
// prefix: of the owner that holds most, the oldest of the lower class. Each operation
// costs at most O(log owners).
package evict

import (
	"container/heap"
	"container/list"
)

// The classes. Of one owner, all of the lower class are evicted before any other.
const (
	Low = iota
	High
	classes
)

// Set holds what may be evicted. The zero value is empty. The caller locks it.
type Set[K comparable, V any] struct {
	owners map[K]*owner[K, V]
	byRank ranking[*owner[K, V]] // those with most items first, and of equal ones that with the oldest item to evict
	added  uint64
	len    int
}

type Item[K comparable, V any] struct {
	Value V

	owner  *owner[K, V]
	class  int
	number uint64        // of the call of Add
	at     *list.Element // of the owner's items of the class
}

// owner holds the items of one key, by class, the oldest first.
type owner[K comparable, V any] struct {
	key   K
	count int
	rank  int // index in byRank
	items [classes]list.List
}

func (o *owner[K, V]) first() *Item[K, V] {
	oldest := o.items[Low].Front()
	if oldest == nil {
		oldest = o.items[High].Front()
	}
	return oldest.Value.(*Item[K, V])
}

func (s *Set[K, V]) Add(key K, class int, value V) *Item[K, V] {
	o := s.owners[key]
	if o == nil {
		if s.owners == nil {
			s.owners = make(map[K]*owner[K, V])
		}
		o = &owner[K, V]{key: key, rank: len(s.byRank)}
		s.owners[key] = o
	}
	s.added++
	s.len++
	it := &Item[K, V]{Value: value, owner: o, class: class, number: s.added}
	it.at = o.items[class].PushBack(it)
	if o.count++; o.count == 1 {
		heap.Push(&s.byRank, o)
	} else {
		heap.Fix(&s.byRank, o.rank)
	}
	return it
}

// Remove removes an item, which must be in the set.
func (s *Set[K, V]) Remove(it *Item[K, V]) {
	s.len--
	o := it.owner
	o.items[it.class].Remove(it.at)
	if o.count--; o.count == 0 {
		heap.Remove(&s.byRank, o.rank)
		delete(s.owners, o.key)
	} else {
		heap.Fix(&s.byRank, o.rank)
	}
}

func (s *Set[K, V]) Len() int { return s.len }

func (s *Set[K, V]) Count(key K) int {
	if o := s.owners[key]; o != nil {
		return o.count
	}
	return 0
}

// FirstOf returns the item of an owner that is evicted first, or nil.
func (s *Set[K, V]) FirstOf(key K) *Item[K, V] {
	if o := s.owners[key]; o != nil {
		return o.first()
	}
	return nil
}

// First returns the item of all that is evicted first, or nil.
func (s *Set[K, V]) First() *Item[K, V] {
	if len(s.byRank) == 0 {
		return nil
	}
	return s.byRank[0].first()
}

func (o *owner[K, V]) precedes(other *owner[K, V]) bool {
	if o.count != other.count {
		return o.count > other.count
	}
	return o.first().number < other.first().number
}

func (o *owner[K, V]) setRank(rank int) { o.rank = rank }

type ranked[E any] interface {
	precedes(other E) bool
	setRank(rank int)
}

type ranking[E ranked[E]] []E

func (r ranking[E]) Len() int           { return len(r) }
func (r ranking[E]) Less(i, j int) bool { return r[i].precedes(r[j]) }

func (r ranking[E]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].setRank(i)
	r[j].setRank(j)
}

func (r *ranking[E]) Push(x any) {
	e := x.(E)
	e.setRank(len(*r))
	*r = append(*r, e)
}

func (r *ranking[E]) Pop() any {
	last := len(*r) - 1
	e := (*r)[last]
	clear((*r)[last:])
	*r = (*r)[:last]
	return e
}
