// Command pionserver is a TURN server of pion/turn as its users embed it: one
// UDP listener, long-term credentials, relayed ports at its own address. It is a
// peer that Ferry is measured against, and nothing to run elsewhere.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/pion/turn/v5"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "UDP `address`")
	realm := flag.String("realm", "bench", "realm of the credentials")
	user := flag.String("user", "u", "user name")
	password := flag.String("password", "p", "password")
	flag.Parse()
	if err := run(*listen, *realm, *user, *password); err != nil {
		fmt.Fprintln(os.Stderr, "pionserver:", err)
		os.Exit(1)
	}
}

// run serves until it is interrupted. It prints its address first.
func run(listen, realm, user, password string) error {
	conn, err := net.ListenPacket("udp4", listen)
	if err != nil {
		return err
	}
	at := conn.LocalAddr().(*net.UDPAddr)
	key := turn.GenerateAuthKey(user, realm, password)
	// As large a buffer as the others have, where the kernel permits it.
	if err := conn.(*net.UDPConn).SetReadBuffer(4 << 20); err != nil {
		return err
	}
	server, err := turn.NewServer(turn.ServerConfig{
		Realm: realm,
		AuthHandler: func(a *turn.RequestAttributes) (string, []byte, bool) {
			return a.Username, key, a.Username == user
		},
		PacketConnConfigs: []turn.PacketConnConfig{{
			PacketConn: conn,
			RelayAddressGenerator: &turn.RelayAddressGeneratorStatic{
				RelayAddress: at.IP, Address: at.IP.String(),
			},
		}},
	})
	if err != nil {
		return err
	}
	fmt.Println(conn.LocalAddr())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	return server.Close()
}
