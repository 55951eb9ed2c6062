package engine

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/base/unset"
	"github.com/ferryrelay/ferry/proto"
)

// maxHostMigrationWindow is longer than any player waits for a host.
const maxHostMigrationWindow = 5 * time.Minute

// maxReceiveDelay is more delay than any game accepts.
const maxReceiveDelay = 10 * time.Millisecond

// maxMaxConnections keeps counts of links in 16 bits.
const maxMaxConnections = 1<<16 - 1

func (c *Config) validate() error {
	if n := len(c.Sockets.WorkerCPUs); n > 0 && c.Sockets.Workers != 0 && c.Sockets.Workers != n {
		return fmt.Errorf("engine: Config.Sockets.Workers is %d, and Config.Sockets.WorkerCPUs has %d CPUs", c.Sockets.Workers, n)
	}
	for _, f := range []struct {
		name       string
		value, max int
	}{
		{"Sockets.Workers", c.Sockets.Workers, 256},
		{"Sockets.WorkerCPUs", len(c.Sockets.WorkerCPUs), 256},
		{"MaxAllocations", c.MaxAllocations, 1 << 26},
		{"MaxSeats", c.MaxSeats, maxMaxSeats},
		{"MaxConnections", c.MaxConnections, maxMaxConnections},
		{"MaxContent", c.MaxContent, proto.MaxContent},
		{"Listen", len(c.Listen), 255},
	} {
		if f.value < 0 || f.value > f.max {
			return fmt.Errorf("engine: Config.%s is %d, want 0 to %d", f.name, f.value, f.max)
		}
	}
	for _, cpu := range c.Sockets.WorkerCPUs {
		if cpu < 0 {
			return fmt.Errorf("engine: Config.Sockets.WorkerCPUs has %d, want 0 or more", cpu)
		}
	}
	if err := c.validateAddresses(); err != nil {
		return err
	}
	if c.Sockets.ReceiveDelay < 0 || c.Sockets.ReceiveDelay > maxReceiveDelay {
		return fmt.Errorf("engine: Config.Sockets.ReceiveDelay is %v, want 0 to %v", c.Sockets.ReceiveDelay, maxReceiveDelay)
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"Timeouts.Idle", c.Timeouts.Idle},
		{"Timeouts.HostAlone", c.Timeouts.HostAlone},
		{"Timeouts.Bind", c.Timeouts.Bind},
		{"Timeouts.Receive", c.Timeouts.Receive},
		{"HostMigration.Silence", c.HostMigration.Silence},
	} {
		if f.value < 0 || f.value > 24*time.Hour {
			return fmt.Errorf("engine: Config.%s is %v, want 0 to 24h", f.name, f.value)
		}
	}
	if c.HostMigration.Window < 0 || c.HostMigration.Window > maxHostMigrationWindow {
		return fmt.Errorf("engine: Config.HostMigration.Window is %v, want 0 to %v", c.HostMigration.Window, maxHostMigrationWindow)
	}
	if err := c.validateTransports(); err != nil {
		return err
	}
	if c.Records != nil && c.records() == nil {
		return fmt.Errorf("engine: Config.Records is a %T, want one of package dtls", c.Records)
	}
	if c.FastPath != nil && c.fastPath() == nil {
		return fmt.Errorf("engine: Config.FastPath is a %T, want one of package fastpath", c.FastPath)
	}
	if err := c.PlayerLimits.validate(); err != nil {
		return err
	}
	return c.Limits.validate()
}

func (c *Config) validateAddresses() error {
	for _, a := range c.Listen {
		switch {
		case !a.IsValid():
			return errors.New("engine: Config.Listen has an address that is not valid")
		case a.Addr().IsLinkLocalUnicast():
			return fmt.Errorf("engine: Config.Listen: %s is link-local, and the relay refuses link-local sources", a)
		}
	}
	for _, a := range c.Siblings {
		if !a.IsValid() || a.Addr().IsUnspecified() || a.Port() == 0 {
			return fmt.Errorf("engine: Config.Siblings has %v, want the address and port of a relay", a)
		}
	}
	if len(c.Advertise) == 0 && len(c.Listen) > 0 && c.Listen[0].Addr().IsUnspecified() {
		return fmt.Errorf("engine: Config.Advertise is empty, and players cannot reach the wildcard address %v", c.Listen[0])
	}
	for i := range c.Advertise {
		if what := faultOf(&c.Advertise[i]); what != "" {
			return fmt.Errorf("engine: Config.Advertise[%d] %+v: %s", i, c.Advertise[i], what)
		}
	}
	return nil
}

// faultOf returns an empty string for a valid endpoint.
func faultOf(e *alloc.ServerEndpoint) string {
	ip, err := netip.ParseAddr(e.Host)
	overUDP := e.ConnectionType == "udp" || e.ConnectionType == "dtls"
	switch {
	case e.ConnectionType == "":
		return "ConnectionType is empty"
	case e.Network != "udp" && e.Network != "tcp", overUDP && e.Network != "udp":
		return fmt.Sprintf("Network is %q, want udp, or tcp for other types than udp and dtls", e.Network)
	case overUDP && err != nil:
		return "Host is not an IP address"
	case err == nil && (ip.IsUnspecified() || ip.IsMulticast()):
		return "no player can reach Host"
	case err != nil && (e.Host == "" || strings.ContainsAny(e.Host, ":/[] ")):
		return "Host is neither a name nor an IP address"
	case e.Port == 0 && !overUDP:
		return "Port is 0"
	}
	return ""
}

func validTransportName(name string) bool {
	switch name {
	case "", "udp", "udp4", "udp6", "dtls":
		return false
	}
	return len(name) <= 16 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// An interface may hold a nil pointer.
func (c *Config) validateTransports() error {
	const reply = proto.HeaderLen + 2*len(proto.AllocationID{}) // ACCEPTED, the largest
	for i, t := range c.Transports {
		switch {
		case unset.IsNil(t):
			return fmt.Errorf("engine: Config.Transports[%d] is nil", i)
		case i >= maxTransports:
			return fmt.Errorf("engine: Config.Transports has %d transports, want at most %d", len(c.Transports), maxTransports)
		case !validTransportName(t.Name()):
			return fmt.Errorf("engine: Config.Transports[%d] (%T): the name %q is taken, or is not 1 to 16 lower-case letters, digits and hyphens",
				i, t, t.Name())
		case slices.ContainsFunc(c.Transports[:i], func(other Transport) bool { return other.Name() == t.Name() }):
			return fmt.Errorf("engine: Config.Transports has two with the name %q", t.Name())
		case t.MaxMessage() < reply:
			return fmt.Errorf("engine: Config.Transports[%d] (%T): MaxMessage is %d, want %d or more", i, t, t.MaxMessage(), reply)
		}
	}
	if c.Records != nil && unset.IsNil(c.Records) {
		return fmt.Errorf("engine: Config.Records is a nil %T", c.Records)
	}
	if c.FastPath != nil && unset.IsNil(c.FastPath) {
		return fmt.Errorf("engine: Config.FastPath is a nil %T", c.FastPath)
	}
	return nil
}

// maxRatio is far above what any game sends to a player for a byte from it.
const maxRatio = 1000

func (l Limits) validate() error {
	for _, f := range []struct {
		name       string
		value, max int
	}{
		{"JoinerDatagrams", l.JoinerDatagrams, table.MaxQuotaDatagrams},
		{"JoinerBytes", l.JoinerBytes, math.MaxInt32},
		{"HostDatagrams", l.HostDatagrams, table.MaxQuotaDatagrams},
		{"HostBytes", l.HostBytes, math.MaxInt32},
		{"UnvalidatedBytes", l.UnvalidatedBytes, math.MaxInt32},
		{"UnvalidatedRatio", l.UnvalidatedRatio, maxRatio},
	} {
		if f.value > f.max {
			return fmt.Errorf("engine: Limits.%s is %d, want at most %d", f.name, f.value, f.max)
		}
	}
	return nil
}
