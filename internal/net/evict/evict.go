// Package evict finds what a full table ends first, fairly by owner, such as a source
// prefix: of the owner that holds most, the oldest of the lower class. Each operation
// costs at most O(log owners).
package evict

import "container/heap"

// The classes. Of one owner, all of the lower class are evicted before any other.
const (
	Low = iota
	High
	classes
)

// Set holds what may be evicted. The zero value is empty. The caller locks it.
type Set[K comparable, V any] struct {
	owners map[K]*owner[K, V]
	byRank ranking[K, V]
	added  uint64
	len    int
}

// Item is an element of a [Set].
type Item[K comparable, V any] struct {
	Value V

	owner        *owner[K, V]
	class        int
	number       uint64 // of the call of Add
	older, newer *Item[K, V]
}

// owner holds the items of one key, in lists by class and age.
type owner[K comparable, V any] struct {
	key            K
	count          int
	rank           int // index in byRank
	oldest, newest [classes]*Item[K, V]
}

// first returns the item that is evicted first.
func (o *owner[K, V]) first() *Item[K, V] {
	if o.oldest[Low] != nil {
		return o.oldest[Low]
	}
	return o.oldest[High]
}

// Add adds a value of an owner.
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
	it := &Item[K, V]{Value: value, owner: o, class: class, number: s.added, older: o.newest[class]}
	if it.older != nil {
		it.older.newer = it
	} else {
		o.oldest[class] = it
	}
	o.newest[class] = it
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
	if it.older != nil {
		it.older.newer = it.newer
	} else {
		o.oldest[it.class] = it.newer
	}
	if it.newer != nil {
		it.newer.older = it.older
	} else {
		o.newest[it.class] = it.older
	}
	if o.count--; o.count == 0 {
		heap.Remove(&s.byRank, o.rank)
		delete(s.owners, o.key)
	} else {
		heap.Fix(&s.byRank, o.rank)
	}
}

// Len returns the number of items.
func (s *Set[K, V]) Len() int { return s.len }

// Count returns the number of items of an owner.
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

// ranking is a heap of owners: those with most items first, and of equal ones that
// with the oldest item to evict.
type ranking[K comparable, V any] []*owner[K, V]

func (r ranking[K, V]) Len() int { return len(r) }

func (r ranking[K, V]) Less(i, j int) bool {
	if r[i].count != r[j].count {
		return r[i].count > r[j].count
	}
	return r[i].first().number < r[j].first().number
}

func (r ranking[K, V]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].rank, r[j].rank = i, j
}

// Push implements [heap.Interface].
func (r *ranking[K, V]) Push(x any) {
	o := x.(*owner[K, V])
	o.rank = len(*r)
	*r = append(*r, o)
}

// Pop implements [heap.Interface].
func (r *ranking[K, V]) Pop() any {
	last := len(*r) - 1
	o := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return o
}
