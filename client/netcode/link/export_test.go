package link

// NewSmallNetwork returns a network at whose nodes few datagrams may wait, and few in all for Step.
func NewSmallNetwork(linked bool, waiting, inFlight int) *Network {
	return &Network{Linked: linked, maxWaiting: waiting, maxInFlight: inFlight}
}
