package enginetest

import (
	"encoding/binary"
	"slices"
	"time"
)

// Connect asks for the host, again and again until it is accepted.
func (u *UTP) Connect() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.wanted, u.lastConn = true, time.Time{}
}

// Send sends content to a peer.
func (u *UTP) Send(to [16]byte, content string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	pkt := message(10, u.Cred.ID[:], to[:])
	pkt = binary.BigEndian.AppendUint16(pkt, uint16(len(content)))
	u.send(time.Now(), append(pkt, content...))
}

// Leave closes the connection to a peer as the real client does: the
// transport's own disconnect inside a RELAY, and then DISCONNECT.
func (u *UTP) Leave(peer [16]byte) {
	u.Send(peer, goodbye)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.wanted = false
	u.forget(peer)
	u.send(time.Now(), message(9, u.Cred.ID[:], peer[:]))
}

// Pause stops the client, or lets it go on: an app in the background neither
// sends nor reads.
func (u *UTP) Pause(paused bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.paused = paused
}

// Quiet keeps the client from sending of its own accord, or lets it go on. Unlike
// one that is paused it reads, and answers what it reads.
func (u *UTP) Quiet(quiet bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.quiet = quiet
}

// State returns the client's status and its peers.
func (u *UTP) State() (Status, [][16]byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.status, slices.Clone(u.peers)
}

// Inbox returns what arrived so far.
func (u *UTP) Inbox() []Message {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.inbox)
}

// Log returns what the game's log would show.
func (u *UTP) Log() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.logged)
}

// Binds returns how many BINDs the client has sent, and its next nonce.
func (u *UTP) Binds() (sent int, nonce uint16) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.binds, u.nonce
}

// Echoes returns how many of the client's PINGs the relay has answered.
func (u *UTP) Echoes() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.echoes
}

// Violation describes a datagram that no relay may send, or is empty.
func (u *UTP) Violation() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.violation
}
