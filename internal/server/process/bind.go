package process

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/host/foreign"
)

func bindError(setting, network string, addr netip.AddrPort, err error) error {
	text, do := bindFault(network, addr, err)
	if do == "" {
		return fmt.Errorf("%s: %w", setting, err)
	}
	return fmt.Errorf("%s: %v: %s: %s (%w)", setting, addr, text, do, err)
}

// bindFault says why an address cannot be opened, and what to do, which is empty if that is not known.
// The network is "udp" or "tcp".
func bindFault(network string, addr netip.AddrPort, err error) (text, do string) {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return holderOf(network, addr) + " uses the port", "end it, or set another port; ss -lnup and ss -lntp show it as root"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "this machine does not have the address", "listen at an address of ip address, or at 0.0.0.0 and [::]"
	case errors.Is(err, syscall.EACCES):
		return "the port needs a privilege", "use one above 1023, or give the unit CAP_NET_BIND_SERVICE"
	}
	return err.Error(), ""
}

func holderOf(network string, addr netip.AddrPort) string {
	h, ok := foreign.FindHolder(network, addr)
	switch {
	case !ok:
		return "another program"
	case h.Program == programName:
		return fmt.Sprintf("another ferry (process %d)", h.Process)
	}
	return fmt.Sprintf("%s (process %d)", h.Program, h.Process)
}

const programName = "ferry"

func udpError(addrs []netip.AddrPort, err error) error {
	if !errors.Is(err, privateapi.ErrListen) {
		return err
	}
	for _, addr := range addrs {
		if _, held := foreign.FindHolder("udp", addr); held || len(addrs) == 1 {
			return bindError("udp", "udp", addr, err)
		}
	}
	return fmt.Errorf("udp: %w", err)
}
