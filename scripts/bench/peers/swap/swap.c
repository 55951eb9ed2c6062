/*
 * swap is the bare loop that a relay is measured against: recvmmsg, swap by
 * source address, sendmmsg. It looks nothing up, checks nothing and allocates
 * nothing, so what it costs is the kernel.
 *
 *   pairs  the answer goes to the source address with its lowest bit flipped
 *   star   a player's goes to the host, whose last byte is 0; the host's goes
 *          to the player whose last byte is the first byte of the datagram
 *
 * The port stays the same. With --merge what goes to one address leaves as one
 * message, which the kernel cuts (UDP_SEGMENT). The first line on standard
 * output is its address.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

/* SEGMENTS is the most that Linux cuts one message into. */
enum { MAX_BATCH = 1024, SIZE = 2048, BUFFER = 4 << 20, SEGMENTS = 64, LARGEST = 60000 };

static struct mmsghdr msgs[MAX_BATCH];
static struct iovec iovs[MAX_BATCH];
static struct sockaddr_in addrs[MAX_BATCH];
static unsigned char data[MAX_BATCH][SIZE];

/* What is merged: messages, the pieces of each, and how long a piece is. */
static struct mmsghdr merged[MAX_BATCH];
static struct iovec pieces[MAX_BATCH];
static union {
	char space[CMSG_SPACE(sizeof(unsigned short))];
	struct cmsghdr head;
} control[MAX_BATCH];

static void die(const char *what)
{
	fprintf(stderr, "swap: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int number(const char *text, long low, long high)
{
	char *end;
	long n = strtol(text, &end, 10);
	if (*text == 0 || *end != 0 || n < low || n > high) {
		fprintf(stderr, "swap: %s is not in %ld to %ld\n", text, low, high);
		exit(2);
	}
	return (int)n;
}

static int open_socket(const char *addr, int port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	socklen_t len = sizeof at;
	int size = BUFFER;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0)
		die("socket");
	if (inet_pton(AF_INET, addr, &at.sin_addr) != 1)
		die(addr);
	if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0)
		die("bind");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) < 0 &&
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) < 0)
		die("SO_RCVBUF");
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size) < 0 &&
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) < 0)
		die("SO_SNDBUF");
	if (getsockname(fd, (struct sockaddr *)&at, &len) < 0)
		die("getsockname");
	printf("%s:%d\n", addr, ntohs(at.sin_port));
	fflush(stdout);
	return fd;
}

static void prepare(int batch)
{
	for (int i = 0; i < batch; i++) {
		iovs[i] = (struct iovec){.iov_base = data[i], .iov_len = SIZE};
		msgs[i].msg_hdr = (struct msghdr){
			.msg_name = &addrs[i], .msg_namelen = sizeof addrs[i],
			.msg_iov = &iovs[i], .msg_iovlen = 1,
		};
	}
}

/* turn rewrites the first n addresses and sizes from where they came to where
 * they go. */
static void turn(int n, int star)
{
	const in_addr_t lowest = htonl(1), last = htonl(0xff);
	for (int i = 0; i < n; i++) {
		in_addr_t *a = &addrs[i].sin_addr.s_addr;
		if (!star)
			*a ^= lowest;
		else if (*a & last)
			*a &= ~last;
		else
			*a |= htonl(data[i][0]);
		iovs[i].iov_len = msgs[i].msg_len;
	}
}

/* send_all sends the first n; a message that is refused costs only itself. */
static void send_all(int fd, struct mmsghdr *all, int n)
{
	for (int done = 0; done < n;) {
		int sent = sendmmsg(fd, all + done, n - done, 0);
		if (sent > 0)
			done += sent;
		else if (errno != EINTR)
			done++;
	}
}

static int same(int i, int j)
{
	return addrs[i].sin_addr.s_addr == addrs[j].sin_addr.s_addr &&
	       addrs[i].sin_port == addrs[j].sin_port && iovs[i].iov_len == iovs[j].iov_len;
}

/* merge makes messages of the first n, one for those of one size to one address,
 * in order, and returns how many. */
static int merge(int n)
{
	static char taken[MAX_BATCH];
	int m = 0, used = 0;
	memset(taken, 0, n);
	for (int i = 0; i < n; i++) {
		if (taken[i])
			continue;
		int first = used, room = LARGEST / (iovs[i].iov_len + 1);
		for (int j = i; j < n && used - first < SEGMENTS && used - first < room; j++)
			if (!taken[j] && same(i, j)) {
				pieces[used++] = iovs[j];
				taken[j] = 1;
			}
		struct msghdr *h = &merged[m].msg_hdr;
		*h = (struct msghdr){
			.msg_name = &addrs[i], .msg_namelen = sizeof addrs[i],
			.msg_iov = &pieces[first], .msg_iovlen = used - first,
		};
		if (used - first > 1) {
			h->msg_control = &control[m];
			h->msg_controllen = sizeof control[m].space;
			control[m].head = (struct cmsghdr){
				.cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(unsigned short)),
			};
			*(unsigned short *)CMSG_DATA(&control[m].head) = iovs[i].iov_len;
		}
		m++;
	}
	return m;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"addr", required_argument, 0, 'a'},
		{"port", required_argument, 0, 'p'},
		{"batch", required_argument, 0, 'b'},
		{"mode", required_argument, 0, 'm'},
		{"merge", no_argument, 0, 'g'},
		{0},
	};
	const char *addr = "127.0.0.1";
	int port = 0, batch = 64, star = 0, merging = 0, c;
	while ((c = getopt_long(argc, argv, "", options, 0)) != -1) {
		if (c == 'a')
			addr = optarg;
		else if (c == 'p')
			port = number(optarg, 0, 65535);
		else if (c == 'b')
			batch = number(optarg, 1, MAX_BATCH);
		else if (c == 'g')
			merging = 1;
		else if (c == 'm' && (!strcmp(optarg, "pairs") || !strcmp(optarg, "star")))
			star = !strcmp(optarg, "star");
		else
			return fprintf(stderr, "usage: swap [--addr A] [--port N] [--batch N] [--mode pairs|star] [--merge]\n"), 2;
	}
	int fd = open_socket(addr, port);
	prepare(batch);
	for (;;) {
		int n = recvmmsg(fd, msgs, batch, MSG_WAITFORONE, 0);
		if (n < 0) {
			if (errno == EINTR || errno == ECONNREFUSED)
				continue;
			die("recvmmsg");
		}
		turn(n, star);
		if (merging)
			send_all(fd, merged, merge(n));
		else
			send_all(fd, msgs, n);
		for (int i = 0; i < n; i++) {
			msgs[i].msg_hdr.msg_namelen = sizeof addrs[i];
			iovs[i].iov_len = SIZE;
		}
	}
}
