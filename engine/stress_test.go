package engine_test

import (
	"context"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

var stressRounds = flag.Int("stress.rounds", 40, "changes of owner of each of six sockets in TestStress")

// TestStress runs several real workers and control against each other. No client gets a RELAY that
// is not addressed to the allocation last confirmed there or comes from another match.
func TestStress(t *testing.T) {
	t.Parallel()
	r := enginetest.Start(t, engine.Config{Sockets: engine.Sockets{Workers: 3}, Unlimited: true, MaxConnections: 5000})
	const clients = 6
	rounds := *stressRounds
	var hosts [2]owner // of two tenants; their players use the same sockets in turn
	var all sync.WaitGroup
	stop := make(chan struct{})
	for i := range hosts {
		tenant := alloc.Tenant{Project: "stress", Environment: string(rune('a' + i))}
		res, err := r.ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: tenant}, MaxConnections: 5000})
		if err != nil {
			t.Fatal(err)
		}
		hosts[i] = owner{tenant, res}
		all.Go(func() { feedAll(t, r, res, stop) })
	}
	var players sync.WaitGroup
	for i := range clients {
		players.Go(func() { exchange(t, r, hosts, rand.New(rand.NewPCG(1, uint64(i))), rounds) })
	}
	players.Wait()
	close(stop)
	all.Wait()
	if !testkit.Poll(testkit.WaitLimit, func() bool { return outcomesAddUp(r.Stats()) }) {
		t.Errorf("outcomes do not add up: %+v", r.Stats())
	}
	st := r.Stats()
	t.Logf("%d relayed, %d bound, no RELAY came to a former owner of the endpoint", st.Outcomes["relayed"],
		st.Outcomes["bound"])
	if st.Outcomes["relayed"] < uint64(10*rounds) || st.Outcomes["bound"] < uint64(clients*rounds/2) {
		t.Errorf("hardly anything happened: %v", st.Outcomes)
	}
}

// owner is a host and its tenant.
type owner struct {
	tenant alloc.Tenant
	alloc.Reservation
}

func outcomesAddUp(st engine.Stats) bool {
	var sum uint64
	for _, counts := range []map[string]uint64{st.Outcomes, st.Drops} {
		for _, n := range counts {
			sum += n
		}
	}
	return sum == st.Received
}

// feedAll is a host that relays to the players that relay to it, and to those that did
// lately, whether they are still there or not.
func feedAll(t *testing.T, r *enginetest.Relay, host alloc.Reservation, stop chan struct{}) {
	conn := dial(t, r)
	defer conn.Close()
	var lately [32]proto.AllocationID
	cred := r.Credentials(host)
	conn.Write(enginetest.SignedBind(cred, 1))
	buf := make([]byte, 2048)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		n, err := conn.Read(buf)
		if err != nil {
			continue
		}
		m, err := proto.ParseRelay(buf[:n])
		if err != nil {
			continue
		}
		lately[i%len(lately)] = m.From
		for _, id := range [...]proto.AllocationID{m.From, lately[(i+7)%len(lately)], lately[(i+1)%len(lately)]} {
			conn.Write(proto.Relay{From: host.ID, To: id, Payload: id[:]}.Append(nil))
		}
	}
}

// exchange is a socket that is bound to one new allocation after another. After each
// BIND_RECEIVED only datagrams for the new one may come.
func exchange(t *testing.T, r *enginetest.Relay, hosts [2]owner, rnd *rand.Rand, rounds int) {
	conn := dial(t, r)
	defer func() { conn.Close() }()
	// An answer that is late would pass for that to the next question, and then
	// what comes before the real one looks foreign. A new socket receives none.
	anew := func() {
		conn.Close()
		conn = dial(t, r)
	}
	for range rounds {
		host := hosts[rnd.IntN(len(hosts))]
		res, err := r.ReserveJoiner(context.Background(), alloc.JoinerRequest{Caller: alloc.Caller{Tenant: host.tenant}, Host: host.ID})
		if err != nil {
			t.Error(err)
			return
		}
		cred := r.Credentials(res)
		conn.Write(enginetest.SignedBind(cred, uint16(rnd.IntN(100))))
		if !await(conn, 1, nil) {
			anew() // Lost, or late, or the host is too quick for this socket's buffer.
			continue
		}
		conn.Write(proto.ConnectRequest{ID: res.ID, ConnectionData: res.HostConnectionData[:]}.Append(nil))
		foreign := func(pkt []byte) {
			if m, err := proto.ParseRelay(pkt); err == nil && (m.To != res.ID || m.From != host.ID) {
				t.Errorf("a RELAY from %v for %v came after BIND_RECEIVED of %v, a player of %v", m.From, m.To, res.ID, host.ID)
			}
		}
		if !await(conn, 6, foreign) {
			anew()
			continue
		}
		for range 5 {
			conn.Write(proto.Relay{From: res.ID, To: host.ID, Payload: binary.BigEndian.AppendUint64(nil, rnd.Uint64())}.Append(nil))
		}
		await(conn, 10, foreign)
		switch rnd.IntN(3) {
		case 0:
			conn.Write(proto.Disconnect{From: res.ID, To: host.ID}.Append(nil))
			await(conn, 9, foreign)
		case 1:
			conn.Write(proto.Close{ID: res.ID}.Append(nil))
		}
	}
}

func dial(t *testing.T, r *enginetest.Relay) *net.UDPConn {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(r.Addr()))
	if err != nil {
		t.Error(err)
	}
	return conn
}

const timeout = 15 * time.Second

// await reads until a message of type want comes, for a quarter of a second: it
// may have been lost.
func await(conn *net.UDPConn, want byte, each func([]byte)) bool {
	return awaitFor(250*time.Millisecond, conn, want, each)
}

func awaitFor(d time.Duration, conn *net.UDPConn, want byte, each func([]byte)) bool {
	buf := make([]byte, 2048)
	conn.SetReadDeadline(time.Now().Add(d))
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return false
		}
		if n >= 4 && buf[3] == want {
			return true
		}
		if each != nil {
			each(buf[:n])
		}
	}
}
