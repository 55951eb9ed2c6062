package main

// Measured on an AMD EPYC guest with two processors, Linux 6.18.44-fc-v595, over loopback,
// commit 4a5a463: the relay with one worker on one processor, the generator on the other, by
//
//	taskset -c 1 ferry dev --workers 1
//	taskset -c 0 ferry bench --shape pairs --matches 200 --rate RATE --server-pid PID --json FILE
//
// and --closed 4 in place of the rate for the saturated run: medians of four to six runs. The
// processor time is server.perDatagramNs of the file, the batch ferry_receive_batch_size of
// the relay's metrics. Loopback charges the receiver's half of an outgoing datagram to the
// relay, and the sender's half of an incoming one to the generator; with a card it is the
// other way round.
var (
	fitted  = []Point{{2_000, 33.9e-6, 1.1}, {50_000, 10.8e-6, 1.7}, {100_000, 8.0e-6, 1.9}, {0, 6.2e-6, 36}}
	checked = []Point{{5_000, 32.3e-6, 1.2}, {20_000, 19.0e-6, 1.2}, {150_000, 6.5e-6, 19}}
)

const (
	maxBatch = 64
	// buffer: 4 MiB of receive buffer, of which a small datagram takes 768 bytes.
	buffer = 4 << 20 / 768
)

// control: a BIND 3.3 µs and a live allocation that comes up 0.35 µs (docs/research/experiments.md,
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
//
// with the mean payload, on the same machine: medians of two runs, which differ by up to a fifth.
var games = []Game{
	{"cards, turn-based", 4, 1, 1, 60, 120, 4.6e-6},
	{"party game", 8, 20, 20, 60, 300, 4.8e-6},
	{"co-op shooter", 4, 30, 30, 80, 400, 4.9e-6},
	{"arena, 5 against 5", 10, 30, 30, 60, 600, 4.5e-6},
	{"large host", 60, 20, 20, 60, 900, 4.9e-6},
	{"VR, physics", 6, 90, 90, 200, 500, 4.8e-6},
}
