package main

// Measured on an AMD EPYC guest with two processors, Linux 6.18.44, over loopback: the relay
// with one worker on one processor, the generator on the other, by
//
//	taskset -c 1 ferry dev --workers 1
//	taskset -c 0 ferry bench --shape pairs --matches 200 --rate RATE --server-pid PID --json FILE
//
// and --closed 4 in place of the rate for the saturated run. The processor time is
// server.perDatagramNs of the file, the batch ferry_receive_batch_size of the relay's metrics.
// Loopback charges the receiver's half of an outgoing datagram to the relay, and the
// sender's half of an incoming one to the generator; with a card it is the other way round.
var (
	low       = Point{2_000, 25e-6, 1.0}
	middle    = Point{50_000, 7e-6, 3}
	saturated = Point{0, 1.6e-6, 60}

	checked = []Point{{5_000, 20e-6, 1}, {20_000, 10e-6, 1.6}, {100_000, 4e-6, 6}}
)

const (
	maxBatch = 64
	// buffer: 4 MiB of receive buffer, of which a small datagram takes 768 bytes.
	buffer = 4 << 20 / 768
)

// control: a BIND 3.3 µs and a live allocation that comes up 0.35 µs (docs/performance.md,
// "Expiry with a million live allocations"); reservation, link and end together are taken
// as three times a BIND.
var control = Control{Bind: 3.3e-6, Refile: 0.35e-6, Match: 10e-6}

// large is a machine with 64 cores and four cards of 25 Gbit/s: two cores are for control,
// API and the system. A card is taken to carry 10 million datagrams per second each
// way; the driver, which loopback has not, to make each datagram dearer by a quarter.
var large = Machine{Workers: 62, NICs: 4, NICGbps: 25, NICMpps: 10, Dilation: 1.25, MemoryGiB: 64}

// games are typical loads. PerDatagram is of runs near saturation:
//
//	ferry bench --shape star --matches M --players PLAYERS --closed 2 --payload BYTES --server-pid PID
var games = []Game{
	{"cards, turn-based", 4, 1, 1, 60, 120, 0},
	{"party game", 8, 20, 20, 60, 300, 0},
	{"co-op shooter", 4, 30, 30, 80, 400, 0},
	{"arena, 5 against 5", 10, 30, 30, 60, 600, 0},
	{"large host", 60, 20, 20, 60, 900, 0},
	{"VR, physics", 6, 90, 90, 200, 500, 0},
}
