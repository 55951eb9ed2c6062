package lab

// pairwise returns rows of choices, one for each of the dimensions, whose sizes are
// given, so that every pair of choices of two dimensions that a permitted row can have
// is in a row. permitted gets rows whose later choices may be open (-1), and permits
// those that can become a permitted row. The result depends on the arguments alone: it
// is greedy, and not the smallest one.
func pairwise(sizes []int, permitted func(row []int) bool) (rows [][]int) {
	p := pairing{sizes: sizes, permitted: permitted, covered: make(map[pair]bool)}
	for a := range sizes {
		for b := a + 1; b < len(sizes); b++ {
			for i := range sizes[a] {
				for j := range sizes[b] {
					if p.covered[pair{a, i, b, j}] {
						continue
					}
					row := make([]int, len(sizes))
					for k := range row {
						row[k] = -1
					}
					row[a], row[b] = i, j
					if p.complete(row, 0) {
						p.cover(row)
						rows = append(rows, row)
					}
				}
			}
		}
	}
	return rows
}

// pair is a choice of each of two dimensions.
type pair struct{ a, i, b, j int }

// pairing is the state of pairwise.
type pairing struct {
	sizes     []int
	permitted func(row []int) bool
	covered   map[pair]bool
}

// complete makes the open choices from a dimension on, those first that cover most new
// pairs, and reports whether the row is permitted.
func (p *pairing) complete(row []int, from int) bool {
	if !p.permitted(row) {
		return false
	}
	for from < len(row) && row[from] >= 0 {
		from++
	}
	if from == len(row) {
		return true
	}
	tried := make([]bool, p.sizes[from])
	for range tried {
		best, most := -1, -1
		for k := range tried {
			if row[from] = k; !tried[k] && p.gain(row, from) > most {
				best, most = k, p.gain(row, from)
			}
		}
		tried[best], row[from] = true, best
		if p.complete(row, from+1) {
			return true
		}
	}
	row[from] = -1
	return false
}

// gain returns how many new pairs the choice of a dimension makes.
func (p *pairing) gain(row []int, at int) (n int) {
	for other, choice := range row {
		if other != at && choice >= 0 && !p.covered[pairOf(row, at, other)] {
			n++
		}
	}
	return n
}

func (p *pairing) cover(row []int) {
	for a := range row {
		for b := a + 1; b < len(row); b++ {
			p.covered[pairOf(row, a, b)] = true
		}
	}
}

func pairOf(row []int, a, b int) pair {
	if a > b {
		a, b = b, a
	}
	return pair{a, row[a], b, row[b]}
}
