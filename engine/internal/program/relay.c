//go:build ignore

// The RELAY of worker.relay in package engine as a program in the kernel: doc.go has the
// rules. Records and lines are those of package table, with the same names; a word that
// another processor writes is read and written once, through READ and WRITE. On amd64
// loads and stores are seen in their order, so no barrier is needed.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define READ(x) (*(const volatile typeof(x) *)&(x))
#define WRITE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#define HIDE(x) asm volatile("" : "+r"(x)) // keeps clang from making a branch of a mask

enum { SLAB_RECORDS = 1024, LINE_CELLS = 8, PROBES = 4, USAGE_ROWS = 1024, LISTENER_LOCALS = 2048 };

// Package table.

struct identity {
	__u32 state; // sequence number, next hop << 16, UNSEEN
	__u32 path;
	__u64 meta; // generation, role << 32
	__u64 id[2];
	__u64 endpoint[3]; // hi, lo, tail
	__u64 link;
};

struct activity {
	__u32 heard, relayed;
	__u64 quota_gate;
	__u32 counter_index, received, notified, unvalidated;
	__u64 sent; // datagrams << SENT_BYTES_BITS | bytes
	__u64 not_connected[3];
};

struct slab {
	struct identity identities[SLAB_RECORDS];
	struct activity activities[SLAB_RECORDS];
};

struct line {
	__u64 cells[LINE_CELLS]; // slot + 1, tag << 32
};

enum {
	TICK_MILLIS = 250,
	VALIDATED = 1u << 31,
	UNSEEN = 1u << 31, // of a state
	QUOTA_UNITS_PER_MILLI = 8000,
	QUOTA_BURST = 1000 * QUOTA_UNITS_PER_MILLI,
	QUOTA_SKEW = 100 * QUOTA_UNITS_PER_MILLI,
	BYTE_COST_BITS = 24,
	MAX_COST = 1 << 30,
	SENT_BYTES_BITS = 36,
};

enum { KIND_UDP4 = 1, KIND_UDP6 = 2 }; // package endpoint

// The kernel's filters are in front of the sockets, and not of the program: for so long it relays
// for an endpoint of which no socket hears. In the last second it leaves the first datagram of each
// tick to the socket, so that the others need not wait for the worker.
enum { HEARD_TICKS = 5000 / TICK_MILLIS, ASK_TICKS = HEARD_TICKS - 4 };

// Package fastpath: types localAddr, egress, settings, counters and tally.

struct local_addr {
	__u64 hi, lo; // address
	__u32 interface; // 0: any
	__u16 port;
	__u8 kind; // 0: none
	__u8 unused;
	__u64 hwaddr; // hardware address of the interface
};

struct egress {
	__u32 interface; // 0: none
	__u16 mtu;
	__u8 mac[ETH_ALEN];
	__u32 native; // 1: relay_xdp serves it
};

struct quota {
	__u64 byte_cost;
	__u32 datagram_cost;
	__u32 unused;
};

struct settings {
	__u32 on;
	__u32 heard_since; // as in an activity: what a socket heard before this does not count
	__u64 test_millis; // the time, if test_clock
	struct quota quotas[4]; // by role
};

enum reason { UNKNOWN, UNLINKED, PEER, NO_NEXT_HOP, UNSEEN_PEER, PROBE, SIZE, STALE, PATH, QUOTA, FRAME, MERGED, BUSY, REASONS };

struct counters {
	__u64 datagrams, bytes; // relayed
	__u64 passed[REASONS];
	__u64 ip_id;
};

struct tally {
	__u64 datagrams, bytes;
};

#define ARRAY(name, value_type)                                                \
	struct {                                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY);                              \
		__uint(map_flags, BPF_F_MMAPABLE);                             \
		__uint(max_entries, 1); /* the loader sets it */               \
		__type(key, __u32);                                            \
		__type(value, value_type);                                     \
	} name SEC(".maps")

ARRAY(slabs, struct slab);
ARRAY(lines, struct line);
ARRAY(local_addrs, struct local_addr);
ARRAY(next_hops, __u64); // by next hop: hardware address as in a frame, egress << 48, NEXT_HOP_PROBE
ARRAY(egresses, struct egress);
ARRAY(settings, struct settings);
ARRAY(counters, struct counters); // by processor
ARRAY(tallies, struct tally);     // by processor, and counter index

#define NEXT_HOP_PROBE (1ull << 63) // leave the next datagram to a worker

// Constants, set before the program is loaded.
const volatile __u32 line_mask;
const volatile __u64 secret0, secret1;
const volatile __u32 max_message;   // bytes of a RELAY
const volatile __s64 clock_offset;  // ns from CLOCK_MONOTONIC to the engine's clock
const volatile __u32 test_clock;    // 1: the time is settings.test_millis

static __always_inline void *at(void *map, __u32 index) { return bpf_map_lookup_elem(map, &index); }

static __always_inline __u64 mix(__u64 x)
{
	x *= 0x9E3779B97F4A7C15;
	return (x ^ x >> 29) * 0xBF58476D1CE4E5B9;
}

// match returns slot + 1 of the cell with a tag, or 0. It has no branch that waits for the
// line: the second look-up begins before the line of the first has come.
static __always_inline __u32 match(const struct line *line, __u32 tag)
{
	__u64 found = 0;
#pragma unroll
	for (int i = 0; i < LINE_CELLS; i++) {
		__u64 cell = READ(line->cells[i]);
		__u64 hit = ((cell >> 32 ^ tag) - 1) >> 63;
		HIDE(hit);
		found |= -hit & cell;
	}
	return found;
}

// further looks at the lines after the first one. It is global, so that the verifier
// checks it once.
__noinline __u32 further(__u64 hash)
{
	__u32 tag = hash >> 32 | 1;
	for (int n = 1; n < PROBES; n++) {
		struct line *line = at(&lines, (hash + n) & line_mask);
		if (!line)
			return 0;
		__u32 slot = match(line, tag);
		if (slot)
			return slot;
	}
	return 0;
}

struct place {
	__u64 hash;
	__u32 slot; // + 1; 0: none
};

static __always_inline void place_of(struct place *p, const __u64 id[2])
{
	__u64 h = mix(id[0] ^ secret0);
	h = mix(h ^ h >> 32 ^ id[1] ^ secret1);
	p->hash = h ^ h >> 32;
	struct line *line = at(&lines, p->hash & line_mask);
	p->slot = line ? match(line, p->hash >> 32 | 1) : 0;
}

static __always_inline struct slab *slab_of(struct place *p)
{
	if (!p->slot)
		p->slot = further(p->hash);
	return p->slot ? at(&slabs, (p->slot - 1) / SLAB_RECORDS) : 0;
}

// snapshot copies the identity, and reports false while control writes it.
static __always_inline _Bool snapshot(const struct identity *r, struct identity *e)
{
	e->state = READ(r->state);
	e->meta = READ(r->meta);
	e->id[0] = READ(r->id[0]);
	e->id[1] = READ(r->id[1]);
	e->endpoint[0] = READ(r->endpoint[0]);
	e->endpoint[1] = READ(r->endpoint[1]);
	e->endpoint[2] = READ(r->endpoint[2]);
	e->link = READ(r->link);
	return !(e->state & 1) && READ(r->state) == e->state;
}

static __always_inline __u64 handle(const struct place *p, const struct identity *e)
{
	return (__u64)(p->slot - 1) << 32 | (__u32)e->meta;
}

static __always_inline struct local_addr *local_addr_of(__u64 tail)
{
	__u32 listener = tail >> 40 & 0xff, local = tail >> 16 & 0xffff;
	return local < LISTENER_LOCALS ? at(&local_addrs, listener * LISTENER_LOCALS + local) : 0;
}

// take_cost is takeCost of package table.
static __always_inline _Bool take_cost(__u32 gate, __u32 now, __u32 cost, __u32 *next)
{
	__u32 ahead = gate - now;
	if (ahead > QUOTA_BURST + QUOTA_SKEW)
		ahead = 0;
	*next = now + ahead + cost;
	return ahead + cost <= QUOTA_BURST;
}

// advance moves a timestamp to tick. If another processor changes it meanwhile, that is as
// good.
static __always_inline void advance(__u32 *timestamp, __u32 tick)
{
	__u32 old = READ(*timestamp);
	if (old < tick)
		__sync_val_compare_and_swap(timestamp, old, tick);
}

// frame is what the headers of a frame say. Numbers are in the processor's order.
struct frame {
	__u64 from[2], to[2]; // addresses as in an endpoint
	__u16 from_port, to_port;
	__u8 kind;
	_Bool native; // in relay_xdp
	__u32 interface;
	__u32 size; // bytes of the message
	__u64 hwaddr; // to which it was sent
};

// verdict is how the message leaves.
struct verdict {
	__u64 endpoint[3]; // of the peer
	struct local_addr *local_addr; // by which it leaves
	struct egress *egress;
	__u64 mac;
	struct counters *counters;
};

// relay decides about a RELAY as worker.relay does, or returns a reason to leave it to a
// worker. It writes nothing before the last check, but that the sender was seen, and asked after. message has 38 bytes or more.
static __always_inline int relay(const struct frame *f, const void *message, const struct settings *s,
				 struct counters *count, __u32 cpu, __u32 ip_header, struct verdict *v)
{
	__u64 from_id[2] = {*(const __u64 *)(message + 4), *(const __u64 *)(message + 12)};
	__u64 to_id[2] = {*(const __u64 *)(message + 20), *(const __u64 *)(message + 28)};
	struct place own, other;
	place_of(&own, from_id);
	place_of(&other, to_id);
	struct slab *own_slab = slab_of(&own), *other_slab = slab_of(&other);
	if (!own_slab)
		return UNKNOWN;
	if (!other_slab)
		return UNLINKED;
	struct identity *own_record = &own_slab->identities[(own.slot - 1) % SLAB_RECORDS];
	struct identity *other_record = &other_slab->identities[(other.slot - 1) % SLAB_RECORDS];
	struct activity *activity = &own_slab->activities[(own.slot - 1) % SLAB_RECORDS];
	struct identity sender, peer;
	if (!snapshot(own_record, &sender) || !snapshot(other_record, &peer))
		return BUSY;

	// The sender: its id, at its endpoint. A role says that the record is in use.
	__u64 tail = sender.endpoint[2];
	__u8 role = sender.meta >> 32;
	if (sender.id[0] != from_id[0] || sender.id[1] != from_id[1] || !role ||
	    sender.endpoint[0] != f->from[0] || sender.endpoint[1] != f->from[1] || (__u16)tail != f->from_port ||
	    (__u8)(tail >> 32) != f->kind)
		return UNKNOWN;
	struct local_addr *local_addr = local_addr_of(tail);
	if (!local_addr || local_addr->kind != f->kind || (local_addr->interface && local_addr->interface != f->interface) ||
	    (f->native && (!local_addr->interface || local_addr->hwaddr != f->hwaddr)) || local_addr->port != f->to_port ||
	    local_addr->hi != f->to[0] || local_addr->lo != f->to[1])
		return UNKNOWN;
	// It came here as it comes to the socket: nothing translates its addresses in between, so
	// what is sent to it needs no translation either.
	if (sender.state & UNSEEN)
		__sync_val_compare_and_swap(&own_record->state, sender.state, sender.state & ~UNSEEN);

	// Its peer, and the link between them: a joiner has it.
	if (peer.id[0] != to_id[0] || peer.id[1] != to_id[1] || !(__u8)(peer.meta >> 32))
		return UNLINKED;
	if (role == 2 ? sender.link != handle(&other, &peer) : peer.link != handle(&own, &sender))
		return UNLINKED;
	tail = peer.endpoint[2];
	if ((__u8)(tail >> 32) != f->kind)
		return PEER;
	__u32 next_hop = peer.state >> 16;
	if (!next_hop || !(sender.state >> 16))
		return NO_NEXT_HOP;
	if (peer.state & UNSEEN)
		return UNSEEN_PEER;
	v->local_addr = local_addr_of(tail);
	__u64 *hop = at(&next_hops, next_hop);
	if (!v->local_addr || v->local_addr->kind != f->kind || !hop)
		return NO_NEXT_HOP;
	v->mac = READ(*hop);
	if (v->mac & NEXT_HOP_PROBE) {
		__sync_val_compare_and_swap(hop, v->mac, v->mac & ~NEXT_HOP_PROBE);
		return PROBE;
	}
	v->egress = at(&egresses, v->mac >> 48);
	if (!v->egress || !v->egress->interface || (f->native && v->egress->interface != f->interface && !v->egress->native))
		return NO_NEXT_HOP;
	if (f->size > max_message || f->size + ip_header + sizeof(struct udphdr) > v->egress->mtu)
		return SIZE;

	__u64 millis = test_clock ? s->test_millis : (bpf_ktime_get_coarse_ns() + clock_offset) / 1000000;
	__u32 tick = millis / TICK_MILLIS, heard = READ(activity->heard);
	if (heard < READ(s->heard_since) || (heard >> 1) + HEARD_TICKS <= tick)
		return STALE;
	if (!(READ(own_record->path) & VALIDATED))
		return PATH;
	__u32 path = READ(other_record->path);
	if (!(path & VALIDATED))
		return PATH;
	const struct quota *q = &s->quotas[role & 3];
	__u64 byte_cost = READ(q->byte_cost), gate = 0;
	__u32 datagram_cost = READ(q->datagram_cost), datagrams, bytes;
	_Bool metered = byte_cost || datagram_cost;
	if (metered) {
		__u32 now = millis * QUOTA_UNITS_PER_MILLI;
		__u64 volume = byte_cost * f->size >> BYTE_COST_BITS;
		gate = READ(activity->quota_gate);
		_Bool ok = take_cost(gate >> 32, now, datagram_cost, &datagrams);
		if (!take_cost(gate, now, volume < MAX_COST ? volume : MAX_COST, &bytes) || !ok)
			return QUOTA;
		gate = (__u64)datagrams << 32 | bytes;
	}

	if ((heard >> 1) + ASK_TICKS <= tick && READ(activity->received) < tick) {
		advance(&activity->received, tick);
		return STALE;
	}

	// The last check: from here on it is relayed.
	__u32 relayed = VALIDATED | tick;
	if (path < relayed && __sync_val_compare_and_swap(&other_record->path, path, relayed) != path &&
	    !(READ(other_record->path) & VALIDATED))
		return BUSY;
	if (metered)
		WRITE(activity->quota_gate, gate);
	advance(&activity->received, tick);
	advance(&activity->relayed, tick);
	WRITE(activity->sent, READ(activity->sent) + (1ull << SENT_BYTES_BITS) + f->size);
	count->datagrams++;
	count->bytes += f->size;
	struct tally *t = at(&tallies, cpu * USAGE_ROWS + activity->counter_index % USAGE_ROWS);
	if (t) {
		t->datagrams++;
		t->bytes += f->size;
	}
	v->endpoint[0] = peer.endpoint[0];
	v->endpoint[1] = peer.endpoint[1];
	v->endpoint[2] = tail;
	v->counters = count;
	return REASONS;
}

static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

static __always_inline __u16 fold16(__u64 sum)
{
	__u32 s = fold(sum);
	s = (s & 0xffff) + (s >> 16);
	return (s & 0xffff) + (s >> 16);
}

static __always_inline _Bool begins_relay(const __u8 *m) { return *(const __u32 *)m == bpf_htonl(0xDA72000A); }

// is_relay reports whether a message is a RELAY of the size that it says.
static __always_inline _Bool is_relay(const __u8 *m, __u32 size)
{
	return begins_relay(m) && bpf_ntohs(*(const __u16 *)(m + 36)) + 38u == size;
}

enum { HEADER4 = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr),
       HEADER6 = sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct udphdr), RELAY = 38 };

// change is by how much the sums of a datagram change: of its addresses, which hardware
// adds when it computes the checksum of a local sender, and of its ports.
struct change {
	__u64 addresses, ports;
};

static __always_inline __u64 dest_hwaddr(const struct ethhdr *eth)
{
	return *(const __u32 *)eth->h_dest | (__u64)*(const __u16 *)(eth->h_dest + 4) << 32;
}

static __always_inline void set_frame(struct ethhdr *eth, const struct verdict *v)
{
	*(__u32 *)eth->h_dest = v->mac;
	*(__u16 *)(eth->h_dest + 4) = v->mac >> 32;
	__builtin_memcpy(eth->h_source, v->egress->mac, ETH_ALEN);
}

static __always_inline void set_ports(struct udphdr *udp, const struct verdict *v, struct change *c)
{
	c->ports += (__u16)~udp->source + (__u16)~udp->dest;
	udp->source = bpf_htons(v->local_addr->port);
	udp->dest = bpf_htons((__u16)v->endpoint[2]);
	c->ports += udp->source + udp->dest;
}

// relay4 handles a frame of IPv4 that has the headers and a RELAY's. It returns REASONS
// if the frame is changed to leave, all but the checksum of UDP.
static __always_inline int relay4(struct ethhdr *eth, __u32 length, __u32 interface, _Bool native, struct verdict *v, struct change *c)
{
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct settings *s = at(&settings, 0);
	__u32 cpu = bpf_get_smp_processor_id();
	struct counters *count = at(&counters, cpu);
	if (!s || !count || !READ(s->on))
		return -1;
	struct frame f = {
		.from = {0, bpf_ntohl(ip->saddr)}, .to = {0, bpf_ntohl(ip->daddr)},
		.from_port = bpf_ntohs(udp->source), .to_port = bpf_ntohs(udp->dest),
		.kind = KIND_UDP4, .native = native, .interface = interface, .hwaddr = dest_hwaddr(eth), .size = bpf_ntohs(udp->len) - sizeof(*udp),
	};
	if (!is_relay((void *)(udp + 1), f.size))
		return -1;
	int verdict = FRAME;
	__u64 sum = 0;
#pragma unroll
	for (int i = 0; i < 5; i++)
		sum += ((__u32 *)ip)[i];
	if (*(__u8 *)ip == 0x45 && !(ip->frag_off & bpf_htons(0x3fff)) && fold16(sum) == 0xffff &&
	    bpf_ntohs(ip->tot_len) == length - sizeof(*eth) && bpf_ntohs(udp->len) == length - sizeof(*eth) - sizeof(*ip) &&
	    udp->check)
		verdict = relay(&f, udp + 1, s, count, cpu, sizeof(*ip), v);
	if (verdict != REASONS) {
		count->passed[verdict]++;
		return verdict;
	}
	set_frame(eth, v);
	__u16 id = count->ip_id++ + cpu * 4099;
	c->addresses = (__u64)(__u32)~ip->saddr + (__u32)~ip->daddr;
	ip->tos = 0;
	ip->id = bpf_htons(id);
	ip->frag_off = 0;
	ip->ttl = 64;
	ip->check = 0;
	ip->saddr = bpf_htonl(v->local_addr->lo);
	ip->daddr = bpf_htonl(v->endpoint[1]);
	c->addresses += (__u64)ip->saddr + ip->daddr;
	sum = 0;
#pragma unroll
	for (int i = 0; i < 5; i++)
		sum += ((__u32 *)ip)[i];
	ip->check = ~fold16(sum);
	set_ports(udp, v, c);
	return REASONS;
}

// relay6 is relay4 for IPv6.
static __always_inline int relay6(struct ethhdr *eth, __u32 length, __u32 interface, _Bool native, struct verdict *v, struct change *c)
{
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct settings *s = at(&settings, 0);
	__u32 cpu = bpf_get_smp_processor_id();
	struct counters *count = at(&counters, cpu);
	if (!s || !count || !READ(s->on))
		return -1;
	__u64 *from = (void *)&ip->saddr, *to = (void *)&ip->daddr;
	struct frame f = {
		.from = {bpf_be64_to_cpu(from[0]), bpf_be64_to_cpu(from[1])}, .to = {bpf_be64_to_cpu(to[0]), bpf_be64_to_cpu(to[1])},
		.from_port = bpf_ntohs(udp->source), .to_port = bpf_ntohs(udp->dest),
		.kind = KIND_UDP6, .native = native, .interface = interface, .hwaddr = dest_hwaddr(eth), .size = bpf_ntohs(udp->len) - sizeof(*udp),
	};
	if (!is_relay((void *)(udp + 1), f.size))
		return -1;
	int verdict = FRAME;
	if (*(__u8 *)ip >> 4 == 6 && bpf_ntohs(ip->payload_len) == length - sizeof(*eth) - sizeof(*ip) &&
	    udp->len == ip->payload_len && udp->check)
		verdict = relay(&f, udp + 1, s, count, cpu, sizeof(*ip), v);
	if (verdict != REASONS) {
		count->passed[verdict]++;
		return verdict;
	}
	set_frame(eth, v);
	*(__u32 *)ip = bpf_htonl(6u << 28);
	ip->hop_limit = 64;
	__u32 *words = (void *)&ip->saddr;
	c->addresses = 0;
#pragma unroll
	for (int i = 0; i < 8; i++)
		c->addresses += (__u32)~words[i];
	from[0] = bpf_cpu_to_be64(v->local_addr->hi);
	from[1] = bpf_cpu_to_be64(v->local_addr->lo);
	to[0] = bpf_cpu_to_be64(v->endpoint[0]);
	to[1] = bpf_cpu_to_be64(v->endpoint[1]);
#pragma unroll
	for (int i = 0; i < 8; i++)
		c->addresses += words[i];
	set_ports(udp, v, c);
	return REASONS;
}

// count_merged counts datagrams that GRO, or the sender on this machine, made one of: they are
// left to a worker.
static __always_inline void count_merged(const __u8 *message, __u32 datagrams)
{
	struct settings *s = at(&settings, 0);
	struct counters *count = at(&counters, bpf_get_smp_processor_id());
	if (s && count && READ(s->on) && begins_relay(message))
		count->passed[MERGED] += datagrams;
}

SEC("tc")
int relay_tc(struct __sk_buff *skb)
{
	_Bool v4 = skb->protocol == bpf_htons(ETH_P_IP);
	if (!v4 && skb->protocol != bpf_htons(ETH_P_IPV6))
		return TC_ACT_UNSPEC;
	if (skb->vlan_present || skb->pkt_type != 0)
		return TC_ACT_UNSPEC;
	__u32 headers = v4 ? HEADER4 : HEADER6;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	// A card may leave the message outside of the linear part. Only that of UDP is pulled.
	if (data + HEADER4 > end || skb->len < headers + RELAY)
		return TC_ACT_UNSPEC;
	struct ethhdr *eth = data;
	if ((v4 ? ((struct iphdr *)(eth + 1))->protocol : ((struct ipv6hdr *)(eth + 1))->nexthdr) != IPPROTO_UDP)
		return TC_ACT_UNSPEC;
	if (data + headers + RELAY > end) {
		if (bpf_skb_pull_data(skb, headers + RELAY))
			return TC_ACT_UNSPEC;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		eth = data;
	}
	if (skb->gso_size) {
		if (data + headers + RELAY <= end)
			count_merged(data + headers, skb->gso_segs);
		return TC_ACT_UNSPEC;
	}
	struct verdict v;
	struct change c = {};
	__u32 check;
	if (v4) {
		if (data + HEADER4 + RELAY > end || relay4(eth, skb->len, skb->ifindex, 0, &v, &c) != REASONS)
			return TC_ACT_UNSPEC;
		check = HEADER4 - sizeof(struct udphdr) + offsetof(struct udphdr, check);
	} else {
		if (data + HEADER6 + RELAY > end || relay6(eth, skb->len, skb->ifindex, 0, &v, &c) != REASONS)
			return TC_ACT_UNSPEC;
		check = HEADER6 - sizeof(struct udphdr) + offsetof(struct udphdr, check);
	}
	// The kernel knows whether the checksum is one of the pseudo header only.
	bpf_l4_csum_replace(skb, check, 0, fold(c.ports), BPF_F_MARK_MANGLED_0);
	bpf_l4_csum_replace(skb, check, 0, fold(c.addresses), BPF_F_MARK_MANGLED_0 | BPF_F_PSEUDO_HDR);
	return bpf_redirect(v.egress->interface, 0);
}

SEC("xdp")
int relay_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct verdict v;
	struct change c = {};
	struct udphdr *udp;
	if (data + HEADER4 + RELAY > end)
		return XDP_PASS;
	__u32 length = end - data;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);
		udp = (void *)(ip + 1);
		if (ip->protocol != IPPROTO_UDP || relay4(eth, length, ctx->ingress_ifindex, 1, &v, &c) != REASONS)
			return XDP_PASS;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		udp = (void *)(ip + 1);
		if (data + HEADER6 + RELAY > end || ip->nexthdr != IPPROTO_UDP ||
		    relay6(eth, length, ctx->ingress_ifindex, 1, &v, &c) != REASONS)
			return XDP_PASS;
	} else {
		return XDP_PASS;
	}
	__u16 check = ~fold16((__u16)~udp->check + (__u64)fold(c.ports) + fold(c.addresses));
	udp->check = check ? check : 0xffff;
	return v.egress->interface == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(v.egress->interface, 0);
}

char _license[] SEC("license") = "Apache-2.0";
