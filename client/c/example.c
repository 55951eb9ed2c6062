//go:build ignore

/* A chat through a relay: example ADDRESS PORT. The first four lines of standard input are the base64
 * fields allocationIdBytes, key, connectionData and hostConnectionData (empty: this player is the host)
 * of an allocation. Each later line is sent to the peer that connected or spoke last; /roam opens a new
 * socket; /nat, too, but does not tell the session, as a NAT does that forgets; /connect asks for the host
 * again; and the end of the input ends the session. */
#define _POSIX_C_SOURCE 200112L
#include "ferry_relay.h"

#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {"none",  "bound",   "silent",          "connected", "message", "left",         "lost",
                                    "rejected", "refused", "connect-timeout", "error",     "ended",   "bind-timeout", "no-nonce",
                                    "in-use"};

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static size_t read_base64(uint8_t *to, size_t cap) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char line[512];
    const char *p, *d;
    size_t n = 0;
    unsigned bits = 0, count = 0;
    if (fgets(line, sizeof line, stdin) == NULL) return 0;
    for (p = line; *p != 0 && (d = strchr(digits, *p)) != NULL; p++) {
        bits = bits << 6 | (unsigned)(d - digits);
        count += 6;
        if (count < 8) continue;
        count -= 8;
        if (n == cap) return 0;
        to[n++] = (uint8_t)(bits >> count);
    }
    return n;
}

static int open_socket(const char *address, const char *port) {
    struct addrinfo hints, *found;
    int fd;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_DGRAM;
    if (getaddrinfo(address, port, &hints, &found) != 0) return -1;
    fd = socket(found->ai_family, found->ai_socktype, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

static uint8_t peer[FERRY_ID_LEN];

static void handle(const ferry_event *e) {
    if (e->type == FERRY_EVENT_NONE) return;
    if (e->type == FERRY_EVENT_CONNECTED || e->type == FERRY_EVENT_MESSAGE) memcpy(peer, e->peer, sizeof peer);
    printf("%s %d %.*s\n", names[e->type], e->code, (int)e->data_len, e->data == NULL ? "" : (const char *)e->data);
}

int main(int argc, char **argv) {
    static ferry_session s;
    ferry_ticket t;
    uint8_t buf[65536];
    char line[512];
    int fd;
    setvbuf(stdin, NULL, _IONBF, 0); /* so that poll sees each line */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 3 || read_base64(t.id, sizeof t.id) != sizeof t.id || read_base64(t.key, sizeof t.key) != sizeof t.key)
        return 2;
    t.data_len = read_base64(t.data, sizeof t.data);
    t.host_data_len = read_base64(t.host_data, sizeof t.host_data);
    fd = open_socket(argv[1], argv[2]);
    if (fd < 0 || !ferry_init(&s, &t, 0, now_ms())) return 2;
    ferry_connect(&s, now_ms());
    while (!ferry_is_over(&s)) {
        struct pollfd fds[2];
        ferry_event e;
        size_t n;
        while ((e = ferry_check(&s, now_ms())).type != FERRY_EVENT_NONE) {
            handle(&e);
            if (e.type == FERRY_EVENT_SILENT) { /* the machine's address may be another one */
                close(fd);
                if ((fd = open_socket(argv[1], argv[2])) < 0) return 1;
                ferry_roam(&s, now_ms());
            }
        }
        while ((n = ferry_next(&s, now_ms(), buf)) > 0) (void)!send(fd, buf, n, 0); /* what is lost is repeated */
        fds[0].fd = fd;
        fds[1].fd = s.state == 0 ? 0 : -1;
        fds[0].events = fds[1].events = POLLIN;
        fds[0].revents = fds[1].revents = 0;
        if (poll(fds, 2, ferry_wait(&s, now_ms())) <= 0) continue;
        if (fds[0].revents != 0) {
            ssize_t got = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
            if (got >= 0) e = ferry_receive(&s, now_ms(), buf, (size_t)got), handle(&e);
        }
        if (fds[1].revents == 0) continue;
        if (fgets(line, sizeof line, stdin) == NULL) {
            ferry_close(&s, now_ms());
        } else if (strcmp(line, "/roam\n") == 0 || strcmp(line, "/nat\n") == 0) {
            close(fd);
            if ((fd = open_socket(argv[1], argv[2])) < 0) return 1;
            if (line[1] == 'r') ferry_roam(&s, now_ms());
        } else if (strcmp(line, "/connect\n") == 0) {
            ferry_connect(&s, now_ms());
        } else if ((n = ferry_relay(&s, peer, line, strcspn(line, "\n"), buf)) > 0) {
            (void)!send(fd, buf, n, 0);
        } else {
            puts("no link");
        }
    }
    close(fd);
    return 0;
}
