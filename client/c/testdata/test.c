/* What c_test.go runs: test vectors | rules | fuzz SEED COUNT. */
#include "ferry_relay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                              \
    do {                                                         \
        if (!(cond)) {                                           \
            printf("line %d: %s\n", __LINE__, #cond);            \
            exit(1);                                             \
        }                                                        \
    } while (0)

/* Each datagram lies in memory of its exact size, so that ASan sees a byte read behind it. */
static uint8_t *exact(const uint8_t *p, size_t n) {
    uint8_t *q = malloc(n == 0 ? 1 : n);
    CHECK(q != NULL);
    if (n > 0) memcpy(q, p, n);
    return q;
}

static void print_hex(const uint8_t *p, size_t n) {
    size_t i;
    putchar(' ');
    if (n == 0) putchar('-');
    for (i = 0; i < n; i++) printf("%02x", p[i]);
}

/* Reads lines of a datagram and a key in hex; prints the fields, and the bytes encoded again. */
static int vectors(void) {
    static char line[8192];
    while (fgets(line, sizeof line, stdin) != NULL) {
        uint8_t pkt[2048], key[FERRY_KEY_LEN] = {0}, again[2048], *p;
        size_t n = 0, k = 0, cut;
        ferry_message m;
        ferry_qos q;
        const char *c = line;
        unsigned v;
        while (*c != ' ' && sscanf(c, "%2x", &v) == 1) pkt[n++] = (uint8_t)v, c += 2;
        for (c++; k < sizeof key && sscanf(c, "%2x", &v) == 1; c += 2) key[k++] = (uint8_t)v;
        p = exact(pkt, n);
        if (ferry_qos_decode(&q, p, n)) {
            printf("qos %d %d %" PRIu64 "\n", q.sequence, q.id, q.time);
        } else if (pkt[0] == 0x59) {
            ferry_qos ask = {3, 0xbeef, 1700000000000u};
            printf("qos");
            print_hex(again, ferry_qos_encode(again, sizeof again, "QoS request", &ask));
            printf("\n");
        } else {
            CHECK(ferry_decode(&m, p, n) == FERRY_OK);
            printf("%d", m.type);
            print_hex(m.id, sizeof m.id);
            print_hex(m.to, sizeof m.to);
            printf(" %d %d %d", m.number, m.mode, m.code);
            print_hex(m.data, m.data_len);
            print_hex(again, ferry_encode(again, sizeof again, &m, key));
            printf("\n");
            for (cut = 0; cut < n; cut++) {
                uint8_t *part = exact(p, cut);
                CHECK(ferry_decode(&m, part, cut) != FERRY_OK || (pkt[3] == FERRY_REJECTED && cut == 4));
                free(part);
            }
            pkt[n] = 0;
            CHECK(ferry_decode(&m, pkt, n + 1) == FERRY_ERR_LENGTH);
        }
        free(p);
    }
    return 0;
}

/* A session against a scripted relay and clock. */

static ferry_session s;
static uint8_t out[FERRY_MAX_DATAGRAM];
static const uint8_t own[FERRY_ID_LEN] = {1}, host[FERRY_ID_LEN] = {2};

static void begin(int joiner) {
    ferry_ticket t;
    memset(&t, 0, sizeof t);
    memcpy(t.id, own, sizeof own);
    t.data_len = 255;
    t.host_data_len = joiner ? 255 : 0;
    CHECK(ferry_init(&s, &t, 0, 0));
}

static ferry_event give(uint64_t now, ferry_type type, const uint8_t *id, const uint8_t *to, int n) {
    uint8_t buf[FERRY_MAX_DATAGRAM], *p;
    ferry_message m;
    ferry_event e;
    size_t len;
    memset(&m, 0, sizeof m);
    m.type = type;
    memcpy(m.id, id, sizeof m.id);
    memcpy(m.to, to, sizeof m.to);
    m.number = (uint16_t)n;
    m.code = (uint8_t)n;
    len = ferry_encode(buf, sizeof buf, &m, NULL);
    CHECK(len > 0);
    p = exact(buf, len);
    e = ferry_receive(&s, now, p, len);
    free(p);
    return e;
}

/* The type of the next datagram that is due, or -1. */
static int due(uint64_t now, ferry_message *m) {
    size_t n = ferry_next(&s, now, out);
    if (n == 0) return -1;
    CHECK(ferry_decode(m, out, n) == FERRY_OK);
    return (int)m->type;
}

static void bound(void) {
    ferry_message m;
    CHECK(due(0, &m) == FERRY_BIND && due(0, &m) == -1);
    CHECK(give(0, FERRY_BIND_RECEIVED, own, own, 0).type == FERRY_EVENT_BOUND);
}

static void connected(void) {
    ferry_message m;
    begin(1);
    CHECK(ferry_connect(&s, 0) && !ferry_connect(&s, 0));
    bound();
    CHECK(due(0, &m) == FERRY_CONNECT_REQUEST);
    CHECK(give(0, FERRY_ACCEPTED, host, own, 0).type == FERRY_EVENT_CONNECTED);
    CHECK(ferry_is_linked(&s, host) && !ferry_connect(&s, 0));
    memcpy(out + FERRY_RELAY_HEADER, "in place", 8);
    CHECK(ferry_relay(&s, host, out + FERRY_RELAY_HEADER, 8, out) == 46 && ferry_decode(&m, out, 46) == FERRY_OK);
    CHECK(m.data_len == 8 && memcmp(m.data, "in place", 8) == 0);
    CHECK(ferry_relay(&s, host, out, FERRY_MAX_CONTENT + 1, out) == 0 && ferry_relay(&s, own, "x", 1, out) == 0);
    CHECK(due(0, &m) == FERRY_PING && due(0, &m) == -1);
}

/* An allocation without a relay: repetitions, nonces and the time-out. */
static void rule_bind(void) {
    static const uint64_t at[] = {0, 250, 750, 1750, 2750, 3750};
    ferry_message m;
    uint64_t now, end = 0;
    unsigned sent = 0, silences = 0;
    begin(0);
    for (now = 0; end == 0 && now < 20000; now += 10) {
        ferry_event e = ferry_check(&s, now);
        if (e.type == FERRY_EVENT_SILENT) silences++;
        if (e.type == FERRY_EVENT_BIND_TIMEOUT) end = now;
        while (due(now, &m) == FERRY_BIND) {
            if (sent < 6) CHECK(at[sent] == now);
            CHECK(m.number == sent / 4);
            sent++;
        }
    }
    CHECK(end == 10000 && sent == 12 && silences == 2 && ferry_is_over(&s));
}

/* The session learns at a time that it has lost its endpoint. Its BINDs are answered, each in 40 ms, but for those with
 * its next nonces, of which there are so many, and so many besides. Returns whether it has ended, or else was bound. */
static int lose_endpoint(uint64_t now, unsigned refused_nonces, unsigned lost) {
    ferry_message m;
    ferry_event e;
    unsigned first = s.nonce + 1u;
    CHECK(give(now, FERRY_PING, own, own, s.ping_number).type == FERRY_EVENT_NONE);
    CHECK(give(now, FERRY_ERROR, own, own, 3).type == FERRY_EVENT_NONE);
    for (;; now += 10) {
        while ((e = ferry_check(&s, now)).type == FERRY_EVENT_SILENT) CHECK(refused_nonces > 0);
        if (e.type == FERRY_EVENT_IN_USE) return 1;
        CHECK(e.type == FERRY_EVENT_NONE);
        if (due(now, &m) != FERRY_BIND || m.number < first + refused_nonces) continue;
        if (lost > 0) {
            lost--;
            continue;
        }
        CHECK(give(now + 40, FERRY_BIND_RECEIVED, own, own, 0).type == FERRY_EVENT_BOUND);
        while (due(now + 40, &m) == FERRY_PING) {}
        return 0;
    }
}

/* Only another session makes the relay refuse the nonce after a session's last one. */
static void rule_in_use(void) {
    uint64_t now;
    begin(0);
    bound();
    for (now = 10000; now < 24000; now += 7000) CHECK(!lose_endpoint(now, 1, 0));
    CHECK(lose_endpoint(now, 1, 0) && ferry_is_over(&s));
    begin(0);
    bound(); /* behind a NAT that moves it each 5 s, where datagrams are lost */
    for (now = 10000; now < 130000; now += 5000) CHECK(!lose_endpoint(now, 0, (unsigned)(now / 5000 % 4)));
    for (; now < 330000; now += 20000) CHECK(!lose_endpoint(now, 1, 0)); /* seldom: two games of one player, or a fault */
    CHECK(!lose_endpoint(now, 1, 0) && !lose_endpoint(now + 7000, 1, 0) && !lose_endpoint(now + 14000, 0, 0));
    CHECK(!lose_endpoint(now + 21000, 1, 0)); /* one was answered between */
}

/* ERROR 3, a silence and a roam bind again with a higher nonce each. */
static void rule_rebind(void) {
    ferry_message m;
    connected();
    CHECK(give(50, FERRY_ERROR, own, own, 3).type == FERRY_EVENT_NONE);
    CHECK(due(50, &m) == -1); /* not at once: the BIND was just sent */
    CHECK(ferry_wait(&s, 50) == 50);
    CHECK(due(100, &m) == FERRY_BIND && m.number == 1 && due(100, &m) == -1);
    CHECK(give(110, FERRY_BIND_RECEIVED, own, own, 0).type == FERRY_EVENT_BOUND);
    CHECK(give(500, FERRY_PING, own, own, 9).type == FERRY_EVENT_NONE);
    CHECK(ferry_check(&s, 3499).type == FERRY_EVENT_NONE);
    CHECK(ferry_check(&s, 3500).type == FERRY_EVENT_SILENT && ferry_check(&s, 3500).type == FERRY_EVENT_NONE);
    CHECK(due(3500, &m) == FERRY_BIND && m.number == 2);
    ferry_roam(&s, 3510);
    CHECK(give(3510, FERRY_BIND_RECEIVED, own, own, 0).type == FERRY_EVENT_NONE); /* it confirms the old socket */
    CHECK(due(3510, &m) == FERRY_BIND && m.number == 3);
    CHECK(give(3520, FERRY_BIND_RECEIVED, own, own, 0).type == FERRY_EVENT_BOUND);
    CHECK(ferry_is_linked(&s, host)); /* a link outlives all of it */
    CHECK(due(3520, &m) == FERRY_PING);
    s.nonce = UINT16_MAX;
    ferry_roam(&s, 3600);
    CHECK(due(3600, &m) == -1 && ferry_check(&s, 3600).type == FERRY_EVENT_NONCE_EXHAUSTED);
}

/* ERROR 0 to 6, each for this player, and for another one, which changes nothing. */
static void rule_errors(void) {
    static const ferry_event_type idle[] = {FERRY_EVENT_ERROR, FERRY_EVENT_ENDED, FERRY_EVENT_NONE, FERRY_EVENT_NONE,
                                            FERRY_EVENT_ENDED, FERRY_EVENT_ERROR, FERRY_EVENT_NONE, FERRY_EVENT_NONE};
    static const ferry_event_type asking[] = {FERRY_EVENT_ERROR, FERRY_EVENT_ENDED, FERRY_EVENT_REFUSED, FERRY_EVENT_NONE,
                                              FERRY_EVENT_REFUSED, FERRY_EVENT_NONE, FERRY_EVENT_REFUSED, FERRY_EVENT_NONE};
    ferry_message m;
    ferry_event e;
    int code;
    for (code = 0; code < 8; code++) {
        connected();
        CHECK(give(10, FERRY_ERROR, host, own, code).type == (code == 0 ? FERRY_EVENT_ERROR : FERRY_EVENT_NONE));
        e = give(10, FERRY_ERROR, own, own, code);
        CHECK(e.type == idle[code] && (e.type == FERRY_EVENT_NONE || e.code == code));
        CHECK(ferry_is_over(&s) == (e.type == FERRY_EVENT_ENDED));
        begin(1);
        ferry_connect(&s, 0);
        bound();
        CHECK(due(1, &m) == FERRY_CONNECT_REQUEST);
        e = give(10, FERRY_ERROR, own, own, code);
        CHECK(e.type == asking[code] && (e.type == FERRY_EVENT_NONE || e.code == code));
        CHECK(ferry_connect(&s, 10) == (e.type == FERRY_EVENT_REFUSED));
        begin(0); /* ERROR 4 that answers a BIND */
        CHECK(due(0, &m) == FERRY_BIND);
        CHECK(give(10, FERRY_ERROR, own, own, 4).type == FERRY_EVENT_ENDED);
    }
    begin(1);
    ferry_connect(&s, 0);
    bound();
    CHECK(due(1, &m) == FERRY_CONNECT_REQUEST);
    CHECK(give(2, FERRY_REJECTED, host, own, 0).type == FERRY_EVENT_REJECTED);
}

/* ERROR 5 makes the link again; a refusal or a silence says that it is lost. */
static void rule_relink(void) {
    ferry_message m;
    ferry_event e;
    uint64_t now;
    connected();
    CHECK(give(11000, FERRY_ERROR, own, own, 5).type == FERRY_EVENT_ERROR);
    CHECK(give(11000, FERRY_ERROR, own, own, 5).type == FERRY_EVENT_NONE);
    CHECK(due(11000, &m) == FERRY_CONNECT_REQUEST && ferry_relay(&s, host, "x", 1, out) == 39);
    CHECK(give(11010, FERRY_ACCEPTED, host, own, 0).type == FERRY_EVENT_NONE && ferry_is_linked(&s, host));
    CHECK(give(11020, FERRY_ERROR, own, own, 5).type == FERRY_EVENT_ERROR);
    CHECK(due(11020, &m) == FERRY_PING && due(11999, &m) == -1); /* at most once a second */
    CHECK(due(12000, &m) == FERRY_CONNECT_REQUEST);
    e = give(12010, FERRY_ERROR, own, own, 4);
    CHECK(e.type == FERRY_EVENT_LINK_LOST && e.code == 4 && memcmp(e.peer, host, sizeof host) == 0);
    CHECK(!ferry_is_linked(&s, host) && ferry_relay(&s, host, "x", 1, out) == 0 && ferry_connect(&s, 12020));
    connected();
    CHECK(give(11000, FERRY_ERROR, own, own, 5).type == FERRY_EVENT_ERROR);
    for (now = 11000; now < 16000; now += 100) {
        while (due(now, &m) >= 0) {}
        give(now, FERRY_PING, own, own, 0);
        CHECK(ferry_check(&s, now).type == FERRY_EVENT_NONE);
    }
    CHECK(ferry_check(&s, 16000).type == FERRY_EVENT_LINK_LOST);
}

/* A host learns its peers, up to its bound; leaving and the last datagrams. */
static void rule_peers(void) {
    ferry_message m;
    ferry_event e;
    uint8_t id[FERRY_ID_LEN] = {9};
    size_t i;
    begin(0);
    CHECK(!ferry_connect(&s, 0));
    bound();
    CHECK(give(0, FERRY_RELAY, host, id, 0).type == FERRY_EVENT_NONE); /* not for this player */
    for (i = 0; i <= FERRY_MAX_PEERS; i++) {
        id[1] = (uint8_t)i;
        e = give(i, FERRY_RELAY, id, own, 0);
        CHECK(e.type == (i < FERRY_MAX_PEERS ? FERRY_EVENT_MESSAGE : FERRY_EVENT_NONE));
        if (i < FERRY_MAX_PEERS) CHECK(e.first && !give(i, FERRY_RELAY, id, own, 0).first);
    }
    CHECK(give(60000, FERRY_RELAY, id, own, 0).first); /* the first peer was silent for a minute */
    e = ferry_check(&s, 60000);
    CHECK(e.type == FERRY_EVENT_PEER_LEFT && e.peer[0] == 9 && e.peer[1] == 0);
    CHECK(ferry_disconnect(&s, id, 60000) && !ferry_disconnect(&s, id, 60000));
    CHECK(due(60000, &m) == FERRY_DISCONNECT && memcmp(m.to, id, sizeof id) == 0);
    CHECK(give(60001, FERRY_RELAY, id, own, 0).type == FERRY_EVENT_NONE); /* late */
    CHECK(give(60010, FERRY_DISCONNECT, own, id, 0).type == FERRY_EVENT_NONE); /* the echo */
    CHECK(give(60020, FERRY_RELAY, id, own, 0).first);
    CHECK(give(60030, FERRY_DISCONNECT, own, id, 0).type == FERRY_EVENT_NONE && ferry_is_linked(&s, id)); /* it came twice */
    CHECK(give(60040, FERRY_DISCONNECT, id, own, 0).type == FERRY_EVENT_PEER_LEFT && !ferry_is_linked(&s, id));
    ferry_close(&s, 60050);
    for (i = 0; i + 1 < FERRY_MAX_PEERS; i++) CHECK(due(60050, &m) == FERRY_DISCONNECT);
    CHECK(due(60050, &m) == FERRY_CLOSE && due(60050, &m) == -1 && !ferry_is_over(&s));
    CHECK(due(60070, &m) == FERRY_CLOSE && due(60090, &m) == FERRY_CLOSE && ferry_is_over(&s));
}

static uint64_t seed;

static unsigned dice(unsigned n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned)(seed >> 20) % n;
}

/* Random datagrams, most of them nearly right, and calls in random order. */
static void fuzz(unsigned count) {
    static const uint8_t types[] = {0, 1, 2, 3, 6, 8, 9, 10, 11, 12, 4};
    static const size_t sizes[] = {295, 4, 22, 276, 36, 36, 36, 60, 20, 21, 36};
    uint8_t ids[6][FERRY_ID_LEN], pkt[FERRY_MAX_DATAGRAM + 40];
    uint64_t now = 0;
    unsigned i, k, sessions = 0, events[FERRY_EVENT_IN_USE + 1] = {0};
    memset(ids, 0, sizeof ids);
    for (i = 0; i < 6; i++) ids[i][0] = (uint8_t)(i + 1); /* ids[0] is own */
    s.state = 2;
    for (i = 0; i < count; i++) {
        uint8_t *p;
        size_t len;
        ferry_event e;
        if (ferry_is_over(&s) || dice(2000) == 0) {
            begin((int)dice(2));
            if (dice(2)) s.nonce = 65530;
            s.heard = s.bind.since = s.bind.next = now;
            sessions++;
        }
        k = dice(sizeof types);
        len = dice(4) ? sizes[k] : dice(sizeof pkt);
        memset(pkt, (int)dice(256), len);
        if (len >= 4) pkt[0] = 0xda, pkt[1] = 0x72, pkt[2] = 0, pkt[3] = types[k];
        if (len >= 20) memcpy(pkt + 4, ids[dice(6)], FERRY_ID_LEN);
        if (len >= 36) memcpy(pkt + 20, ids[dice(3)], FERRY_ID_LEN);
        if (len >= 38 && types[k] == 10) pkt[36] = (uint8_t)((len - 38) >> 8), pkt[37] = (uint8_t)(len - 38);
        if (len == 21 && types[k] == 12) pkt[20] = (uint8_t)(dice(20) ? (dice(2) ? 3 : 5) : dice(8));
        if (len > 0 && dice(3) == 0) pkt[dice((unsigned)len)] ^= (uint8_t)(1u << dice(8));
        p = exact(pkt, len);
        e = ferry_receive(&s, now, p, len);
        events[e.type]++;
        if (e.type == FERRY_EVENT_MESSAGE) CHECK(e.data >= p && e.data + e.data_len == p + len);
        free(p);
        if (dice(3) == 0) now += dice(400);
        if (dice(5000) == 0) now += 60000;
        for (k = 0; ferry_next(&s, now, out) > 0; k++) CHECK(k < 4 + 2 * FERRY_MAX_PEERS);
        for (k = 0; (e = ferry_check(&s, now)).type != FERRY_EVENT_NONE; k++) {
            events[e.type]++;
            CHECK(k < 8);
        }
        k = (unsigned)ferry_wait(&s, now);
        CHECK(k <= 1000);
        switch (dice(40)) {
        case 0: ferry_roam(&s, now); break;
        case 1: case 2: case 3: ferry_connect(&s, now); break;
        case 4: ferry_disconnect(&s, ids[dice(6)], now); break;
        case 5: if (dice(50) == 0) ferry_close(&s, now); break;
        default: CHECK(ferry_relay(&s, ids[dice(6)], pkt, dice(FERRY_MAX_CONTENT + 2), out) <= FERRY_MAX_DATAGRAM);
        }
    }
    printf("sessions %u, events", sessions);
    for (i = 0; i < sizeof events / sizeof events[0]; i++) printf(" %u", events[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "vectors") == 0) return vectors();
    if (argc == 2 && strcmp(argv[1], "rules") == 0) {
        rule_bind();
        rule_rebind();
        rule_in_use();
        rule_errors();
        rule_relink();
        rule_peers();
        printf("ok\n");
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "fuzz") == 0) {
        seed = strtoull(argv[2], NULL, 10) | 1;
        fuzz((unsigned)atoi(argv[3]));
        return 0;
    }
    return 2;
}
