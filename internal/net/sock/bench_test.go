package sock

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

// BenchmarkEcho sends a batch from one socket to another and back, in one
// goroutine: two receives and two sends per datagram.
func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			addr := Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}
			client, server := listen(b, addr, 1).Conns()[0], listen(b, addr, 1)
			conn := server.Conns()[0]
			rx, tx := client.NewRecvBatch(), client.NewSendBatch(size)
			serverRx, serverTx := conn.NewRecvBatch(), conn.NewSendBatch(size)
			to := endpoint.UDP(server.Addr(), 0, 0)
			pkt := make([]byte, 200)
			b.ReportAllocs()
			for b.Loop() {
				for range size {
					tx.Add(to, pkt)
				}
				client.Send(tx)
				drain(b, conn, serverRx, serverTx, size)
				drain(b, client, rx, nil, size)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/datagram")
		})
	}
}

func drain(b *testing.B, c *Conn, rx *RecvBatch, tx *SendBatch, want int) {
	for want > 0 {
		n, err := c.Recv(rx)
		if n == 0 || err != nil {
			b.Fatalf("Recv = %d, %v: a datagram was lost", n, err)
		}
		want -= n
		if tx == nil {
			continue
		}
		for i := range n {
			from, pkt, _ := rx.At(i)
			tx.Add(from, pkt)
		}
		c.Send(tx)
	}
}
