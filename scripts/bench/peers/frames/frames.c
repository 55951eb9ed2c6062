/*
 * Programs for `peers frames`: send makes the frames of many players, in the kernel's live
 * frames mode of BPF_PROG_RUN; receive counts what the relay sends to them, and drops it;
 * bounce is the least that a relay can do, at the relay's end.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum { ID = 16, BUCKETS = 16384 };

/* A RELAY begins with four bytes, the sender's id and the receiver's; after its length are the
 * time of sending, and its complement, so that every frame of a player has one checksum. */
struct frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	__u8 first, header[3];
	__u8 from[ID], to[ID];
	__u8 length[2];
	__u64 sent, complement;
} __attribute__((packed));

struct player {
	__be32 source;
	__u16 ip_check, udp_check;
	__u8 from[ID], to[ID];
	__u32 first; /* the first byte: the C loop's star finds the receiver by it */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, __u32);
	__type(value, struct player);
} players SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BUCKETS); /* of a microsecond */
	__type(key, __u32);
	__type(value, __u64);
} latencies SEC(".maps");

/* Set by the loader, and read back. */
struct frame template;
__u32 count, sequential, next, burst;
__u16 relay_port, udp_length;  /* in network byte order */
__u64 due, end, interval;      /* ns: of the next burst, of the last, between two */
__u64 sent, received;

static __u32 left; /* of this burst */

/* The kernel calls send again and again, in one call of BPF_PROG_RUN: it drops the frame until
 * one is due. The next frame is in a page that came back from the relay. */
SEC("xdp")
int send(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	if ((void *)(f + 1) > (void *)(long)ctx->data_end || count == 0)
		return XDP_ABORTED;
	if (left == 0) {
		__u64 now = bpf_ktime_get_ns();
		if (now < due || now >= end)
			return XDP_DROP;
		due += interval;
		left = burst;
	}
	left--;
	__u32 i = (sequential ? next++ : bpf_get_prandom_u32()) % count;
	struct player *p = bpf_map_lookup_elem(&players, &i);
	if (!p)
		return XDP_ABORTED;
	*f = template;
	f->ip.saddr = p->source;
	f->ip.check = p->ip_check;
	f->udp.check = p->udp_check;
	f->first = p->first;
	__builtin_memcpy(f->from, p->from, ID);
	__builtin_memcpy(f->to, p->to, ID);
	f->sent = bpf_ktime_get_ns();
	f->complement = ~f->sent;
	sent++;
	return XDP_TX;
}

static int ours(struct frame *f, void *end)
{
	return (void *)(f + 1) <= end && f->eth.h_proto == bpf_htons(ETH_P_IP) && f->ip.ihl == 5 &&
	       f->ip.protocol == 17 && f->udp.len == udp_length;
}

SEC("xdp")
int receive(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	if (!ours(f, (void *)(long)ctx->data_end) || f->udp.source != relay_port)
		return XDP_PASS;
	__u64 took = (bpf_ktime_get_ns() - f->sent) / 1000;
	__u32 i = took < BUCKETS ? took : BUCKETS - 1;
	__u64 *n = bpf_map_lookup_elem(&latencies, &i);
	if (n)
		(*n)++;
	received++;
	return XDP_DROP;
}

SEC("xdp")
int bounce(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	if (!ours(f, (void *)(long)ctx->data_end) || f->udp.dest != relay_port)
		return XDP_PASS;
	__u8 mac[ETH_ALEN];
	__builtin_memcpy(mac, f->eth.h_dest, ETH_ALEN);
	__builtin_memcpy(f->eth.h_dest, f->eth.h_source, ETH_ALEN);
	__builtin_memcpy(f->eth.h_source, mac, ETH_ALEN);
	__be32 addr = f->ip.saddr;
	f->ip.saddr = f->ip.daddr;
	f->ip.daddr = addr;
	__be16 port = f->udp.source;
	f->udp.source = f->udp.dest;
	f->udp.dest = port;
	return XDP_TX;
}

char _license[] SEC("license") = "Apache-2.0";
