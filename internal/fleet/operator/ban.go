package operator

import (
	"net/netip"
	"time"
)

// Ban is a ban of a player or of a network.
type Ban struct {
	ID string `json:"id"`
	// Player of Project and Environment; empty: the ban is of Prefix.
	Player      string `json:"player,omitempty"`
	Project     string `json:"project,omitempty"`
	Environment string `json:"environment,omitempty"`
	// Prefix is the network from which no player may play.
	Prefix netip.Prefix `json:"prefix,omitzero"`
	Since  time.Time    `json:"since"`
	Until  time.Time    `json:"until"`
	// Reason is shown to the player.
	Reason string `json:"reason,omitempty"`
}

// Subject is what is banned, for a person.
func (b *Ban) Subject() string {
	if b.Player != "" {
		return "player " + b.Player + " of " + b.Project + "/" + b.Environment
	}
	return b.Prefix.String()
}

// ParsePrefix parses an address, with or without the length of a prefix.
func ParsePrefix(text string) (netip.Prefix, bool) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix.Masked(), true
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), true
}

// Bans is the response of /bans.
type Bans struct {
	Bans []Ban `json:"bans"`
	// StoreAway is since when the store of the fleet has not answered; absent if it does. The bans
	// are then those that were read before. NotKnown: none were read since the process started.
	StoreAway time.Time `json:"store_away_since,omitzero"`
	NotKnown  bool      `json:"not_known,omitempty"`
}

// RemovedBans is the response of DELETE /bans.
type RemovedBans struct {
	ID   string `json:"id,omitempty"` // of /bans/ID
	Done string `json:"done"`         // "removed"
	// Bans are those that were removed. Remaining are bans of networks around the removed one, from
	// which no player may play still.
	Bans      []Ban `json:"bans"`
	Remaining []Ban `json:"remaining,omitempty"`
}

// Affected is the response of /bans/affected: what a ban would end now.
type Affected struct {
	// Hosts and Joiners are the allocations of the player, or those that are bound from the network
	// over UDP or DTLS. The end of a host ends its match, in which Others play that are not banned.
	Hosts      int `json:"hosts"`
	Joiners    int `json:"joiners"`
	Others     int `json:"others,omitempty"`
	WebSockets int `json:"websockets"`
	// Shared are allocations with the name of the player that may be of many: they are not ended.
	Shared        int `json:"shared,omitempty"`
	MissingRelays int `json:"missing_relays,omitempty"`
	// Text says all of it, and what the ban shuts out. Refused is why there can be no such ban.
	Text    string `json:"text,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// Add adds the counts of a relay.
func (a *Affected) Add(relay Affected) {
	a.Hosts, a.Joiners, a.Others = a.Hosts+relay.Hosts, a.Joiners+relay.Joiners, a.Others+relay.Others
	a.WebSockets, a.Shared = a.WebSockets+relay.WebSockets, a.Shared+relay.Shared
}
