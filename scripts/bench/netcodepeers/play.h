#ifndef PLAY_H
#define PLAY_H

#include <stdint.h>

struct played {
	int64_t server;    /* ns of the thread's processor time, in the server's half of all ticks */
	int64_t all;       /* the same, of both sides */
	int64_t heap;      /* bytes that the server and the connections took */
	int64_t commands;  /* that arrived */
	int64_t snapshots;
};

/* play returns 0, or a number that says which step failed. */
int play(int players, int ticks, int command, int snapshot, struct played *out);

#endif
