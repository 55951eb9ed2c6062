package store

// The shape of an index: 1,024 pages, so that growing one of them, which moves
// a thousandth of all entries, holds nobody up.
const (
	pageBits = 10
	pageMin  = 8 // cells of the smallest page, a power of two
)

// index finds entries of a slab by a hash: open addressing with linear probing
// in pages that grow one by one. A cell is the number of an entry plus one, or
// 0; hashes are not kept, whoever calls knows those of its entries. The zero
// value is empty.
type index struct {
	pages [1 << pageBits]page
}

// page is a part of an index. The number of its cells is a power of two, of
// which at most three quarters are in use.
type page struct {
	cells []uint32
	used  int
}

// pageOf returns the page of a hash; its lower bits say where to look in it.
func (x *index) pageOf(hash uint64) *page { return &x.pages[hash>>(64-pageBits)] }

// find returns the number of the entry with that hash that is the one, or -1.
func (x *index) find(hash uint64, is func(n int) bool) int {
	p := x.pageOf(hash)
	if p.used == 0 {
		return -1
	}
	mask := uint64(len(p.cells) - 1)
	for i := hash & mask; p.cells[i] != 0; i = (i + 1) & mask {
		if n := int(p.cells[i]) - 1; is(n) {
			return n
		}
	}
	return -1
}

// add places entry n, which is not there. hashOf is asked about others.
func (x *index) add(hash uint64, n int, hashOf func(n int) uint64) {
	p := x.pageOf(hash)
	if (p.used+1)*4 > len(p.cells)*3 {
		p.grow(hashOf)
	}
	p.place(hash, uint32(n+1))
	p.used++
}

func (p *page) place(hash uint64, cell uint32) {
	mask := uint64(len(p.cells) - 1)
	i := hash & mask
	for p.cells[i] != 0 {
		i = (i + 1) & mask
	}
	p.cells[i] = cell
}

func (p *page) grow(hashOf func(n int) uint64) {
	old := p.cells
	p.cells = make([]uint32, max(pageMin, 2*len(old)))
	for _, cell := range old {
		if cell != 0 {
			p.place(hashOf(int(cell)-1), cell)
		}
	}
}

// remove takes out entry n, which is there, and moves those behind it that a
// reader would no longer reach. An empty page keeps no cells.
func (x *index) remove(hash uint64, n int, hashOf func(n int) uint64) {
	p := x.pageOf(hash)
	if p.used--; p.used == 0 {
		p.cells = nil
		return
	}
	mask := uint64(len(p.cells) - 1)
	hole := hash & mask
	for p.cells[hole] != uint32(n+1) {
		hole = (hole + 1) & mask
	}
	for i := (hole + 1) & mask; p.cells[i] != 0; i = (i + 1) & mask {
		home := hashOf(int(p.cells[i])-1) & mask
		if (i-home)&mask >= (i-hole)&mask {
			p.cells[hole] = p.cells[i]
			hole = i
		}
	}
	p.cells[hole] = 0
}
