package machine

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// UDP are the counters of all UDP sockets of the network namespace, of both families, since
// it began.
type UDP struct {
	Known          bool
	Received       uint64 // datagrams
	Sent           uint64 // messages: several datagrams that GSO merges are one
	QueueFull      uint64 // datagrams for which a socket's receive queue had no room
	ChecksumErrors uint64 // datagrams with a wrong checksum
	// SendDrops counts messages that a queue of the machine dropped before they left, as tbf
	// does above its rate. The system call succeeds. A queue that drops what it had accepted
	// before, as fq_codel does, is not in it, nor what the fast path sends: see Queues.
	SendDrops uint64
}

// ReadUDP reads the counters.
func ReadUDP(root fs.FS) (c UDP) {
	fields := map[string]*uint64{
		"InDatagrams": &c.Received, "OutDatagrams": &c.Sent, "RcvbufErrors": &c.QueueFull,
		"InCsumErrors": &c.ChecksumErrors, "SndbufErrors": &c.SendDrops,
	}
	add := func(name, value string) {
		if sum := fields[name]; sum != nil {
			n, _ := strconv.ParseUint(value, 10, 64)
			*sum, c.Known = *sum+n, true
		}
	}
	var names []string // of the line before: snmp has one with names and one with values
	for line := range strings.Lines(Text(root, "proc/self/net/snmp")) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "Udp:" {
			continue
		}
		for i := 1; i < min(len(names), len(words)); i++ {
			add(names[i], words[i])
		}
		names = words
	}
	for line := range strings.Lines(Text(root, "proc/self/net/snmp6")) {
		if words := strings.Fields(line); len(words) == 2 {
			if name, ok := strings.CutPrefix(words[0], "Udp6"); ok {
				add(name, words[1])
			}
		}
	}
	return c
}

// Since returns the counters since an earlier reading.
func (c UDP) Since(old UDP) UDP {
	return UDP{
		Known: c.Known, Received: c.Received - old.Received, Sent: c.Sent - old.Sent, QueueFull: c.QueueFull - old.QueueFull,
		ChecksumErrors: c.ChecksumErrors - old.ChecksumErrors, SendDrops: c.SendDrops - old.SendDrops,
	}
}

// SendQueue is the subject of the line about messages that a queue dropped before they left.
const SendQueue = "UDP send queue"

// maxLoss is the share of losses that is tolerable, one in so many.
const maxLoss = 1000

// Losses returns a line for each kind of loss, with what to do above one in a thousand.
func (c UDP) Losses() (lines []Line) {
	if !c.Known {
		return nil
	}
	for _, loss := range []struct {
		subject, text string
		lost, of      uint64
		change        string
	}{
		{
			"UDP receive queues", "%d of %d datagrams did not fit into the queue of a socket", c.QueueFull, c.Received + c.QueueFull,
			"see scripts/deploy/sysctl/90-ferry.conf, add a processor, or reduce the matches",
		},
		{
			"UDP checksums", "%d of %d datagrams had a wrong checksum", c.ChecksumErrors, c.Received + c.ChecksumErrors,
			"larger queues do not help: check the network card, its offloads (ethtool -k), tunnels, and programs that rewrite datagrams",
		},
		{
			SendQueue, "a queue of this machine dropped %d of %d messages before they left, without an error to the relay", c.SendDrops, c.Sent + c.SendDrops,
			"find the queue with tc -s qdisc, and raise its rate or limit (tbf, htb), or txqueuelen",
		},
	} {
		lines = append(lines, lossLine(loss.subject, loss.text, loss.lost, loss.of, loss.change))
	}
	return lines
}

func lossLine(subject, text string, lost, of uint64, change string) Line {
	l := Line{Subject: subject, Finding: fmt.Sprintf(text, lost, of), Because: "players notice more than one in a thousand"}
	if lost > of/maxLoss {
		l.Change = change
	}
	return l
}
