package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/fastpath"
	"github.com/ferryrelay/ferry/proto"
)

// starPlayers are the joiners of a host in a star.
const starPlayers = 10

// embed runs Ferry's engine as a process, with so many allocations, and writes what their
// players have to send: peers embed ADDRESS off|tc|native ALLOCATIONS pairs|star FILE. An
// HTTP API would take minutes for a million. It prints its address, and for SIGUSR1 what
// the fast path has relayed.
func embed(ctx context.Context, args []string) error {
	if len(args) != 5 {
		return errors.New("embed: 5 arguments")
	}
	addr, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	joiners := joinersOf(args[3])
	runtime.GOMAXPROCS(2) // as ferry does on one processor
	srv, err := newServer(addr, args[1], n)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	defer func() { stop(); <-ended }()
	select {
	case <-srv.Ready():
	case err := <-ended:
		ended <- err
		return err
	}
	if err := reserveAll(ctx, srv, n/(1+joiners), joiners, args[4]); err != nil {
		return err
	}
	fmt.Println(srv.Addr())
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	for {
		select {
		case <-asked:
			fmt.Println("relayed", srv.Stats().Private.FastPath.Datagrams)
		case <-ctx.Done():
			return nil
		}
	}
}

// joinersOf returns how many joiners each host of a shape has.
func joinersOf(shape string) int {
	if shape == "star" {
		return starPlayers
	}
	return 1
}

// newServer returns a relay whose allocations stay: a million of them send more seldom than
// the default time limits allow.
func newServer(addr netip.AddrPort, mode string, allocations int) (*engine.Server, error) {
	const stay = time.Hour
	cfg := engine.Config{
		Listen: []netip.AddrPort{addr}, Sockets: engine.Sockets{Workers: 1}, MaxAllocations: max(1024, allocations), AllowPrivateSources: true,
		Timeouts: engine.Timeouts{Idle: stay, HostAlone: stay, Bind: stay, Receive: stay},
	}
	switch mode {
	case "off":
	case "tc", "native":
		cfg.FastPath = fastpath.New(fastpath.Config{Interfaces: []string{"generator"}, Native: mode == "native"})
	default:
		return nil, fmt.Errorf("embed: mode %q", mode)
	}
	id, err := engine.NewIdentity()
	if err != nil {
		return nil, err
	}
	return engine.New(cfg, id)
}

// reserveAll reserves hosts and their joiners, and writes a record of each: its id, and its
// BIND and its CONNECT_REQUEST with their lengths.
func reserveAll(ctx context.Context, srv *engine.Server, hosts, joiners int, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	var signer proto.Signer
	tenant := alloc.Tenant{Project: "frames", Environment: "frames"}
	for range hosts {
		host, err := srv.ReserveHost(ctx, alloc.HostRequest{Caller: alloc.Caller{Tenant: tenant}, MaxConnections: joiners})
		if err != nil {
			return err
		}
		writePlayer(w, &signer, host, nil)
		for range joiners {
			j, err := srv.ReserveJoiner(ctx, alloc.JoinerRequest{Caller: alloc.Caller{Tenant: tenant}, Host: host.ID})
			if err != nil {
				return err
			}
			writePlayer(w, &signer, j, proto.ConnectRequest{ID: j.ID, ConnectionData: j.HostConnectionData[:]}.Append(nil))
		}
	}
	return errors.Join(w.Flush(), f.Close())
}

func writePlayer(w io.Writer, s *proto.Signer, r alloc.Reservation, connect []byte) {
	b := append([]byte(nil), r.ID[:]...)
	bind := s.Append(nil, proto.Bind{Nonce: 1, ConnectionData: r.ConnectionData[:]}, &r.Key)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(bind))), bind...)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(connect))), connect...)
	_, _ = w.Write(b) // Flush returns the error
}
