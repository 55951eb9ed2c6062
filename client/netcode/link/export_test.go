package link

var PresetNames = presetNames

func ParseConditions(text string) (c Conditions, err error) {
	err = c.UnmarshalText([]byte(text))
	return c, err
}

// NewSmallNetwork returns a network at whose nodes few datagrams may wait, and few in all for Step.
func NewSmallNetwork(linked bool, waiting, inFlight int) *Network {
	return &Network{Linked: linked, maxWaiting: waiting, maxInFlight: inFlight}
}
