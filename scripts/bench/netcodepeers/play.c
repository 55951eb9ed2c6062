#include "play.h"

#include <enet/enet.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t cpu(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t heap(void)
{
	struct mallinfo2 m = mallinfo2();
	return (int64_t)(m.uordblks + m.hblkhd);
}

/* serve takes all that has arrived at a host and counts it. */
static int64_t serve(ENetHost *h, int *connected)
{
	ENetEvent ev;
	int64_t got = 0;
	int more = enet_host_service(h, &ev, 0);
	while (more > 0) {
		if (ev.type == ENET_EVENT_TYPE_CONNECT)
			++*connected;
		if (ev.type == ENET_EVENT_TYPE_RECEIVE) {
			got++;
			enet_packet_destroy(ev.packet);
		}
		more = enet_host_check_events(h, &ev);
		if (more == 0)
			more = enet_host_service(h, &ev, 0);
	}
	return got;
}

static void say(ENetPeer *peer, const void *b, int n)
{
	ENetPacket *p = enet_packet_create(b, n, 0);
	if (enet_peer_send(peer, 0, p) < 0)
		enet_packet_destroy(p);
}

int play(int players, int ticks, int command, int snapshot, struct played *out)
{
	memset(out, 0, sizeof *out);
	if (enet_initialize() != 0)
		return 1;
	ENetHost **hosts = calloc(players, sizeof *hosts);
	ENetPeer **peers = calloc(players, sizeof *peers);
	char *body = calloc(1, command > snapshot ? command : snapshot);
	for (int i = 0; i < players; i++)
		if ((hosts[i] = enet_host_create(NULL, 1, 1, 0, 0)) == NULL)
			return 2;
	int64_t before = heap();
	ENetAddress at = {.host = htonl(INADDR_LOOPBACK), .port = 0};
	ENetHost *server = enet_host_create(&at, players, 1, 0, 0);
	if (server == NULL || enet_socket_get_address(server->socket, &at) < 0)
		return 3;
	for (int i = 0; i < players; i++)
		if ((peers[i] = enet_host_connect(hosts[i], &at, 1, 0)) == NULL)
			return 4;
	int up = 0, down = 0;
	for (int i = 0; (up < players || down < players) && i < 100000; i++) {
		serve(server, &up);
		for (int j = 0; j < players; j++)
			serve(hosts[j], &down);
	}
	if (up < players || down < players)
		return 5;
	for (int tick = 0; tick < ticks; tick++) {
		int64_t begin = cpu();
		out->commands += serve(server, &up);
		for (int i = 0; i < players; i++)
			say(&server->peers[i], body, snapshot);
		enet_host_flush(server);
		out->server += cpu() - begin;
		for (int i = 0; i < players; i++) {
			out->snapshots += serve(hosts[i], &down);
			say(peers[i], body, command);
			enet_host_flush(hosts[i]);
		}
		out->all += cpu() - begin;
	}
	out->heap = heap() - before;
	for (int i = 0; i < players; i++)
		enet_host_destroy(hosts[i]);
	enet_host_destroy(server);
	free(hosts);
	free(peers);
	free(body);
	enet_deinitialize();
	return 0;
}
