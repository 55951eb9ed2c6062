package link

var ErrReserved = errReserved

// DirectCounts is what a link with direct paths has counted, and how many paths it uses now.
type DirectCounts struct {
	directCounts
	Paths int
}

// CountDirect returns the counts of a link of OpenDirect.
func CountDirect(l Link) DirectCounts {
	return DirectCounts{l.(*directLink).counts, l.Stats().DirectPaths}
}

// NewSmallNetwork returns a network at whose nodes few datagrams may wait, and few in all for Step.
func NewSmallNetwork(linked bool, waiting, inFlight int) *Network {
	return &Network{Linked: linked, maxWaiting: waiting, maxInFlight: inFlight}
}
